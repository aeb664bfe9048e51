"""Connections: form, test, and secrets for initializers and training."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
from contextlib import suppress

import pytest
from airflow.sdk import DAG
from airflow.sdk._shared.secrets_masker import redact
from fake_cluster import Cluster

from airflow_provider import get_provider_info
from airflow_provider.compat import TaskDeferred
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobTimeoutError
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.testing.compat import DagSerialization
from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import CustomTrainerContainer, LocalProcessBackendConfig, SecretRef, TrainerClient, TrainJobRef
from trainer_core.model.config import KubernetesBackendConfig

_ids = itertools.count()
TOKEN = "hf_veryTopSecretToken"
#: A TrainJob that does not exist.
ABSENT = TrainJobRef("kubernetes", "team", "absent", "uid").to_dict()


@pytest.fixture
def connection(airflow_db, monkeypatch):
    """Define a connection in the environment."""

    def define(conn_id, conn_type="trainjob", extra=None, **fields):
        described = json.dumps({"conn_type": conn_type, "extra": extra or {}, **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", described)

    return define


@pytest.fixture(scope="module")
def shared():
    with Cluster(namespaces=["team"], controllers=False) as made:
        yield made


@pytest.fixture
def cluster(shared, connection, tmp_path):
    """A cluster, and a connection to it with the id ``cluster``."""
    path = str(shared.kubeconfig(tmp_path / "config", "team"))
    connection("cluster", extra={"backend": "kubernetes", "config_file": path})
    yield shared
    shared.allow("create", "jobs")
    shared.allow("list", "pods")


# The form


def test_the_connection_form_has_all_fields(airflow_db):
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (form,) = [each for each in HookMetaService.hook_meta_data() if each.connection_type == "trainjob"]
    fields = {"backend", "namespace", "context", "config_file", "in_cluster", "container_host", "project", "home"}
    assert fields <= form.extra_fields.keys()
    assert form.extra_fields["backend"]["schema"]["enum"][0] == "local"
    assert form.standard_fields.host.hidden


def test_empty_form_fields_are_not_settings(connection):
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    connection("saved", extra={name: field["schema"].get("default") for name, field in fields.items()})
    assert TrainJobHook("saved").config == LocalProcessBackendConfig()


def test_a_ticked_form_field_is_a_setting(connection):
    places = {"checkpoints_uri": "pvc://checkpoints", "code_uri": "s3://team/code"}
    fields = {"in_cluster": True, "namespace": "ml", "resource_interval": 0, **places}
    connection("inside", extra={"backend": "kubernetes", "config_file": "", **fields})
    assert TrainJobHook("inside").config == KubernetesBackendConfig(**fields)


def test_airflow_3_1_has_a_widget_for_each_field():
    pytest.importorskip("wtforms", reason="only the web server of Airflow 3.1 reads widgets")
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    assert TrainJobHook.get_connection_form_widgets().keys() == fields.keys()
    assert "host" in TrainJobHook.get_ui_field_behaviour()["hidden_fields"]


# The test


def test_a_connection_test_names_the_runtimes_and_what_is_limited(cluster):
    ok, message = TrainJobHook("cluster").test_connection()
    answer, *limited = message.splitlines()
    assert (ok, answer) == (True, "The kubernetes backend is available. Runtimes: python, torch-distributed")
    # Of several nodes, the stock runtime restarts one alone.
    assert [line.partition(":")[0] for line in limited] == ["runtime torch-distributed limited"]


def test_a_missing_permission_is_reported_with_its_consequence(cluster):
    cluster.forbid("create", "jobs")
    ok, message = TrainJobHook("cluster").test_connection()
    assert ok
    assert [line for line in message.splitlines() if line.startswith("may create") and "jobs limited: no (" in line]


def test_a_missing_namespace_is_reported(cluster):
    ok, message = TrainJobHook("cluster", backend_config={"namespace": "nowhere"}).test_connection()
    assert not ok
    assert message.splitlines()[0] == "The kubernetes backend cannot run TrainJobs."
    assert "namespace missing: nowhere does not exist (no TrainJob can be created; create it)" in message


def test_a_missing_kubeconfig_is_reported(connection, tmp_path):
    connection("lost", extra={"backend": "kubernetes", "config_file": str(tmp_path / "absent")})
    ok, message = TrainJobHook("lost").test_connection()
    assert not ok
    assert "configuration missing: " in message
    assert str(tmp_path / "absent") in message


def test_a_state_folder_that_is_not_writable_is_reported(connection):
    connection("here", extra={"home": "/proc/trainjob"})
    ok, message = TrainJobHook("here").test_connection()
    assert not ok
    assert "home missing: /proc/trainjob cannot be written" in message


@pytest.mark.parametrize(
    ("namespace", "said"), [("team", "Connection success!"), ("nowhere", "namespace missing: nowhere does not exist")]
)
def test_airflow_connections_test_reports_the_result(
    cluster, connection, monkeypatch, capsys, tmp_path, namespace, said
):
    from airflow.cli.cli_parser import get_parser

    path = str(tmp_path / "config")
    connection("tested", extra={"backend": "kubernetes", "config_file": path, "namespace": namespace})
    monkeypatch.setenv("AIRFLOW__CORE__TEST_CONNECTION", "Enabled")
    command = get_parser().parse_args(["connections", "test", "tested"])
    with suppress(SystemExit):
        command.func(command)
    assert said in capsys.readouterr().out


# Secrets


def fetch(**arguments):
    given = {"task_id": "fetch", "trainjob_conn_id": "cluster", "wait_for_completion": False, **arguments}
    return InitializeOperator(**given)


def secret_of(cluster, ref):
    """Return the data of the job's Secrets."""
    found = [raw for raw in cluster.objects("Secret", "team") if raw["metadata"]["name"].startswith(ref["name"])]
    return {key: value for raw in found for key, value in raw["stringData"].items()}


def test_a_token_reaches_the_job_as_a_secret_only(cluster, connection, run_dag, xcom, task_log, capfd):
    connection("hf_team", "generic", password=TOKEN)
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(f"secret_{next(_ids)}", schedule=None, start_date=start) as dag:
        fetch(initializer={"dataset": "hf://owner/name"}, secrets={"dataset": "hf_team"})
    run = run_dag(dag)

    ref = xcom(run, "fetch", "ref")
    assert secret_of(cluster, ref) == {"dataset.ACCESS_TOKEN": TOKEN}
    told = [json.dumps(DagSerialization.to_dict(dag)), task_log(), *capfd.readouterr(), str(_rendered(run)), str(ref)]
    told += [json.dumps(raw) for raw in cluster.objects("Job", "team")]
    assert [text for text in told if TOKEN in text] == []
    assert redact(f"it is {TOKEN}") == "it is ***"


def _rendered(run):
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    with create_session() as session:
        fields = session.query(RenderedTaskInstanceFields).filter_by(run_id=run.run_id, dag_id=run.dag_id).one()
        return fields.rendered_fields


def train(**arguments):
    given = {"task_id": "fetch", "trainjob_conn_id": "cluster", "backend": "kubernetes", "wait_for_completion": False}
    return TrainJobOperator(**{**given, "runtime": "python", "trainer": {"image": "a"}, **arguments})


def variables_of(cluster, ref):
    """Return the trainer's environment by name, without the variables of every job."""
    env = cluster.get("TrainJob", ref["name"], "team")["spec"]["trainer"]["env"]
    return {entry["name"]: entry for entry in env if not entry["name"].startswith("TRAINJOB")}


def test_a_connection_becomes_an_environment_variable_of_the_training_only(
    cluster, connection, run_dag, xcom, task_log, capfd
):
    connection("hf_team", "generic", password=TOKEN)
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(f"secret_{next(_ids)}", schedule=None, start_date=start) as dag:
        train(secrets={"env": {"HF_TOKEN": "hf_team"}})
    run = run_dag(dag)

    ref = xcom(run, "fetch", "ref")
    secret = {"name": f"{ref['name']}-initializer", "key": "trainer.HF_TOKEN"}
    assert secret_of(cluster, ref) == {"trainer.HF_TOKEN": TOKEN}
    assert variables_of(cluster, ref) == {"HF_TOKEN": {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}}
    told = [json.dumps(DagSerialization.to_dict(dag)), task_log(), *capfd.readouterr(), str(_rendered(run)), str(ref)]
    told += [json.dumps(raw) for raw in cluster.objects("TrainJob", "team")]
    assert [text for text in told if TOKEN in text] == []
    assert redact(f"it is {TOKEN}") == "it is ***"


def test_an_environment_variable_can_be_the_login_of_a_connection(cluster, connection):
    connection("aws_team", "aws", login="AKIAEXAMPLE", password="verySecretKey")
    ti = StandInTaskInstance("fetch")
    named = {"AWS_ACCESS_KEY_ID": "aws_team:login", "AWS_SECRET_ACCESS_KEY": "aws_team:password"}
    train(secrets={"env": named}).execute({"ti": ti})
    expected = {"trainer.AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "trainer.AWS_SECRET_ACCESS_KEY": "verySecretKey"}
    assert secret_of(cluster, ti.xcoms["ref"]) == expected
    assert redact("AKIAEXAMPLE verySecretKey") == "*** ***"


def test_a_secret_reference_in_the_environment_stays_a_reference(cluster):
    ti = StandInTaskInstance("fetch")
    train(trainer=CustomTrainerContainer("a", env={"HF_TOKEN": SecretRef("hub", "token")})).execute({"ti": ti})
    expected = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert variables_of(cluster, ti.xcoms["ref"]) == {"HF_TOKEN": expected}
    assert secret_of(cluster, ti.xcoms["ref"]) == {}


def test_a_connection_without_a_password_is_refused(cluster, connection):
    connection("given", "generic", login="a")
    with pytest.raises(TrainJobRejectedError, match=r"connection 'given' has no password for trainer\.HF_TOKEN"):
        train(secrets={"env": {"HF_TOKEN": "given"}}).execute({"ti": StandInTaskInstance("fetch")})


def test_a_secret_environment_variable_reaches_a_local_training(connection, tmp_path):
    connection("hf_team", "generic", password=TOKEN)
    operator = train(
        backend="local",
        backend_config=LocalProcessBackendConfig(home=tmp_path),
        trainjob_conn_id=None,
        runtime="python",
        trainer={"func": "os:getenv", "func_args": {"key": "HF_TOKEN"}},
        secrets={"env": {"HF_TOKEN": "hf_team"}},
    )
    ref = operator.execute({"ti": StandInTaskInstance("fetch")})
    assert TrainerClient(operator.backend_config).wait(TrainJobRef.from_dict(ref)).result == TOKEN


def test_the_triggerer_masks_the_secret(cluster, connection):
    connection("hf_team", "generic", password="theTriggererMustHideThis")
    trigger = TrainJobTrigger(ABSENT, trainjob_conn_id="cluster", masked=[["hf_team", "password"], ["gone", "login"]])

    async def fired():
        return [event.payload async for event in trigger.run()]

    assert "outcome" in asyncio.run(fired())[0]
    assert redact("theTriggererMustHideThis") == "***"


def test_a_trigger_stores_connection_ids_to_mask_but_no_values(cluster, connection):
    connection("hf_team", "generic", password=TOKEN)
    with pytest.raises(TaskDeferred) as deferred:
        train(secrets={"env": {"HF_TOKEN": "hf_team"}}, deferrable=True, wait_for_completion=True).execute(
            {"ti": StandInTaskInstance("fetch")}
        )
    _, stored = deferred.value.trigger.serialize()
    assert stored["masked"] == [["hf_team", "password"]]
    assert TOKEN not in json.dumps(stored)


def test_the_process_that_resumes_a_task_masks_the_secret(cluster, connection):
    connection("hf_team", "generic", password="anotherProcessMustHideThis")
    operator = train(secrets={"env": {"HF_TOKEN": "hf_team"}}, deferrable=True)
    with pytest.raises(TrainJobTimeoutError):
        operator.execute_complete({"ti": StandInTaskInstance("fetch")}, {"ref": ABSENT, "timeout": "over"})
    assert redact("anotherProcessMustHideThis") == "***"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"secrets": {"env": "hf_team"}}, "env must map variables to connection ids"),
        ({"secrets": {"env": {"HF_TOKEN": ""}}}, "env must map variables to connection ids"),
        ({"secrets": {"env": {"a b": "hf_team"}}}, "secrets: env name 'a b' is not a variable name"),
        (
            {"secrets": {"env": {"A": "hf_team"}}, "trainer": {"image": "a", "env": {"A": "b"}}},
            "A is also in the trainer's env",
        ),
        (
            {"secrets": {"env": {"A": "hf_team"}}, "trainer": None, "initializer": {"model": "hf://a/b"}},
            "env needs a trainer",
        ),
    ],
)
def test_invalid_secret_variables_are_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)


def test_login_and_password_are_the_s3_keys(cluster, connection):
    connection("aws_team", "aws", login="AKIAEXAMPLE", password="verySecretKey")
    ti = StandInTaskInstance("fetch")
    fetch(initializer={"model": "s3://bucket/model"}, secrets={"model": "aws_team"}).execute({"ti": ti})
    expected = {"model.ACCESS_KEY_ID": "AKIAEXAMPLE", "model.SECRET_ACCESS_KEY": "verySecretKey"}
    assert secret_of(cluster, ti.xcoms["ref"]) == expected
    assert redact("AKIAEXAMPLE verySecretKey") == "*** ***"


@pytest.mark.parametrize(
    ("uri", "fields", "message"),
    [
        ("hf://a/b", {}, "connection 'given' has no password for dataset.ACCESS_TOKEN"),
        ("s3://a/b", {"password": TOKEN}, "connection 'given' has no login for dataset.ACCESS_KEY_ID"),
        (
            "s3://a/b",
            {"login": "key", "password": TOKEN, "extra": {"aws_session_token": TOKEN}},
            "connection 'given' has an aws_session_token, which initializers do not support; set role_arn instead",
        ),
    ],
)
def test_a_connection_without_a_needed_field_is_refused_without_showing_secrets(
    cluster, connection, uri, fields, message
):
    connection("given", "generic", **fields)
    operator = fetch(initializer={"dataset": uri}, secrets={"dataset": "given"})
    with pytest.raises(TrainJobRejectedError, match=message) as refused:
        operator.execute({"ti": StandInTaskInstance("fetch")})
    assert TOKEN not in str(refused.value)


def test_a_changed_token_attaches_to_the_same_job(cluster, connection):
    ti = StandInTaskInstance("fetch", max_tries=1)
    again = ti.next_try()
    for each, token in ((ti, TOKEN), (again, "hf_rotatedToken")):
        connection("hf_team", "generic", password=token)
        fetch(initializer={"dataset": "hf://a/b"}, secrets={"dataset": "hf_team"}).execute({"ti": each})
    assert ti.xcoms["ref"] == again.xcoms["ref"]
