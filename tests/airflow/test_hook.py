"""TrainJobHook: from a connection to the backend."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection
from airflow.secrets import BaseSecretsBackend
from fake_cluster import Cluster

from airflow_provider.compat import AirflowFailException
from airflow_provider.exceptions import TrainJobConnectionUnreadableError, TrainJobRejectedError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core import DebugBackendConfig, LocalProcessBackendConfig
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.request import TrainJobRequest


@pytest.fixture
def connection(airflow_db, monkeypatch):
    """Define a connection in the environment."""

    def define(conn_id="trainjob_default", **extra):
        described = json.dumps({"conn_type": "trainjob", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", described)

    return define


class UnavailableVault(BaseSecretsBackend):
    """A secrets backend that fails, as a vault that is restarted."""

    def get_connection(self, conn_id, team_name=None):
        raise ConnectionError("vault is sealed")


@pytest.fixture
def not_configured(monkeypatch):
    """Airflow's configuration names no backend, as by default."""
    monkeypatch.delenv("AIRFLOW__TRAINJOB__BACKEND")


@pytest.fixture
def execution_api(airflow_db, monkeypatch):
    """Answers a task's question for a connection as the supervisor does."""
    replies = []
    comms = SimpleNamespace(send=lambda message: replies[0] if isinstance(message, GetConnection) else None)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
    return lambda error: replies.append(ErrorResponse(error=error, detail={"status_code": 503}))


def test_without_a_connection_the_configuration_of_airflow_names_the_backend(airflow_db, home):
    assert TrainJobHook().config == LocalProcessBackendConfig()


def test_without_a_connection_the_dag_can_name_the_backend(airflow_db, home, not_configured):
    assert TrainJobHook(backend="local").config == LocalProcessBackendConfig()


def test_without_a_connection_nothing_runs_here_unless_dag_or_configuration_say_so(airflow_db, not_configured):
    with pytest.raises(TrainJobRejectedError, match=r"`airflow connections add trainjob_default --conn-type trainjob"):
        _ = TrainJobHook().config


def test_no_connection_and_no_backend_is_refused(airflow_db, not_configured):
    with pytest.raises(ValueError, match="nothing names a backend; set backend"):
        _ = TrainJobHook(None).config


def test_a_named_connection_must_exist(airflow_db):
    with pytest.raises(TrainJobRejectedError, match="connection 'elsewhere' does not exist; create it: `airflow"):
        _ = TrainJobHook("elsewhere", backend="local").config


def test_a_connection_of_another_type_is_refused_by_name(airflow_db, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_DEFAULT", "http://example.com")
    with pytest.raises(ValueError, match="connection 'trainjob_default' is of type 'http', not 'trainjob'"):
        _ = TrainJobHook().config


def test_a_failing_secrets_backend_is_not_taken_for_a_missing_connection(airflow_db, monkeypatch):
    with suppress(ImportError):  # Airflow 3.1 has no such cache.
        monkeypatch.setattr("airflow.sdk.configuration._secrets_backend_cache", {}, raising=False)
    monkeypatch.setenv("AIRFLOW__WORKERS__SECRETS_BACKEND", "test_hook.UnavailableVault")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "test_hook.UnavailableVault")
    with pytest.raises(
        TrainJobConnectionUnreadableError, match=r"'trainjob_default' cannot be read .*sealed"
    ) as raised:
        _ = TrainJobHook(backend="local").config
    assert not isinstance(raised.value, AirflowFailException)


def test_a_failing_execution_api_is_not_taken_for_a_missing_connection(execution_api):
    execution_api(ErrorType.API_SERVER_ERROR)
    with pytest.raises(TrainJobConnectionUnreadableError, match="503"):
        _ = TrainJobHook().config


def test_a_connection_that_the_execution_api_does_not_know_is_missing(execution_api, home):
    execution_api(ErrorType.CONNECTION_NOT_FOUND)
    assert TrainJobHook().config == LocalProcessBackendConfig()


def test_a_connection_provides_backend_and_settings(connection, tmp_path):
    connection("cluster", backend="kubernetes", namespace="ml", context="", in_cluster=False)
    assert TrainJobHook("cluster").config == KubernetesBackendConfig(namespace="ml")
    connection("here", backend="kubernetes", namespace="ml", in_cluster=True)
    assert TrainJobHook("here").config == KubernetesBackendConfig(namespace="ml", in_cluster=True)


def test_settings_of_the_dag_override_those_of_the_connection(connection):
    connection("cluster", backend="kubernetes", namespace="ml", context="prod")
    hook = TrainJobHook("cluster", backend_config={"namespace": "mine"})
    assert hook.config == KubernetesBackendConfig(namespace="mine", context="prod")


def test_an_unknown_connection_field_is_refused(connection):
    connection("cluster", backend="kubernetes", client_configuration={"host": "https://evil"})
    with pytest.raises(
        ValueError, match="connection 'cluster': unknown field client_configuration; the fields are backend, home"
    ):
        _ = TrainJobHook("cluster").config


def test_a_connection_for_another_backend_is_refused(connection):
    connection("cluster", backend="kubernetes")
    with pytest.raises(ValueError, match="connection 'cluster' is for backend 'kubernetes', not 'local'"):
        _ = TrainJobHook("cluster", backend="local").config


def test_the_default_connection_is_ignored_if_it_is_for_another_backend(connection, home):
    connection(backend="kubernetes", namespace="ml")
    assert TrainJobHook(backend="local").config == LocalProcessBackendConfig()


def test_a_configuration_object_is_used_unchanged(connection, tmp_path):
    connection(backend="kubernetes")
    config = LocalProcessBackendConfig(home=tmp_path)
    assert TrainJobHook(backend_config=config).config is config


def test_a_configuration_object_for_another_backend_is_refused():
    with pytest.raises(ValueError, match="conflicts with backend_config"):
        _ = TrainJobHook(backend="local", backend_config=DebugBackendConfig()).config


def test_trigger_kwargs_recreate_the_same_hook(connection, tmp_path):
    connection("here", backend="local", home=str(tmp_path))
    to_trigger_kwargs = json.loads(json.dumps(TrainJobHook("here").to_trigger_kwargs()))
    assert TrainJobHook(**to_trigger_kwargs).config == LocalProcessBackendConfig(home=tmp_path)


def test_a_configuration_with_a_secret_object_cannot_be_stored():
    class Configuration:
        host = "https://cluster"

    hook = TrainJobHook(backend_config=KubernetesBackendConfig(client_configuration=Configuration()))
    with pytest.raises(ValueError, match="client_configuration is not stored in Airflow's database"):
        hook.to_trigger_kwargs()


def test_testing_a_connection_lists_the_runtimes(airflow_db, home):
    ok, message = TrainJobHook().test_connection()
    assert ok
    assert "python, torch-distributed" in message


def test_testing_a_connection_reports_failed_checks(connection):
    connection("broken", backend="nowhere")
    ok, message = TrainJobHook("broken").test_connection()
    assert not ok
    assert "unknown backend 'nowhere'" in message


def test_testing_a_connection_reports_what_fails_with_the_remedy_and_nothing_else(connection, tmp_path):
    (tmp_path / "file").touch()
    connection("broken", backend="local", home=str(tmp_path / "file" / "home"))
    ok, message = TrainJobHook("broken").test_connection()
    first, *checks = message.splitlines()
    assert (ok, first, len(checks)) == (False, "The local backend cannot run TrainJobs.", 1)
    assert checks[0].startswith(f"home missing: {tmp_path}/file/home cannot be written")
    assert checks[0].endswith("(set TRAINJOB_HOME or --home)")


def test_creating_a_hook_does_not_read_the_connection():
    assert TrainJobHook("does_not_exist").trainjob_conn_id == "does_not_exist"


def test_a_kubeconfig_in_the_connection_is_used_masked_and_read_again_by_the_triggerer(connection, tmp_path):
    with Cluster(namespaces=["team"], controllers=False) as cluster:
        text = cluster.kubeconfig(tmp_path / "config", "team").read_text()
        # A second document is not used.
        connection("inline", backend="kubernetes", kube_config=f"{text}---\nusers: []\n")
        hook = TrainJobHook("inline", backend_config={"namespace": "team"})
        assert hook.client.list_jobs() == []
        kwargs = json.loads(json.dumps(hook.to_trigger_kwargs()))
        assert kwargs == {"trainjob_conn_id": "inline", "backend": None, "backend_config": {"namespace": "team"}}
        assert TrainJobHook(**kwargs).client.list_jobs() == []
    for user in yaml.safe_load(text)["users"]:
        for value in user["user"].values():
            assert value not in repr(hook.config)
            assert value not in str(redact(f"the value is {value}"))


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("users", {"user": {"exec": {"command": "sh"}}}),
        ("users", {"user": {"tokenFile": "/etc/passwd"}}),
        ("clusters", {"cluster": {"server": "https://a", "certificate-authority": "/etc/passwd"}}),
    ],
)
def test_a_kubeconfig_in_a_connection_cannot_run_programs_or_read_files(connection, section, settings):
    content = {"clusters": [], "contexts": [], "users": [], section: [{"name": "one", **settings}]}
    connection("inline", backend="kubernetes", kube_config=json.dumps(content))
    with pytest.raises(ValueError, match="which runs a program or reads a file"):
        _ = TrainJobHook("inline").config


def test_an_invalid_kubeconfig_is_refused_without_its_content(connection):
    connection("inline", backend="kubernetes", kube_config="token: [hush")
    with pytest.raises(ValueError, match=r"kube_config: .*must be a kubeconfig in YAML or JSON") as refused:
        _ = TrainJobHook("inline").config
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("options", ["[{Stalled: {after: 30m}}, {StartWithin: 6h}]", [{"StartWithin": "6h"}]])
def test_a_connection_has_options_of_all_jobs_as_text_of_its_form_or_as_a_list(connection, home, options):
    connection(default_options=options)
    hook = TrainJobHook()
    request = TrainJobRequest.parse({"name": "job", "initializer": {"dataset": {"storage_uri": "hf://a/b"}}})
    assert hook.client.render(request)["start_within"] == 6 * 3600
    assert TrainJobHook(**hook.to_trigger_kwargs()).config == hook.config
