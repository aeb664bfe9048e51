"""Operators for existing jobs and runtimes, and arguments of all operators as plain data."""

from __future__ import annotations

import datetime
import itertools
import json
from functools import partial

import pytest
from airflow.sdk import DAG, task, task_group
from airflow_fakes import double, fail
from fake_cluster import Cluster
from kubernetes.client import V1EnvVar

from airflow_provider.exceptions import TrainJobError, TrainJobRejectedError
from airflow_provider.operators.manage import (
    DeleteTrainJobOperator,
    ResumeTrainJobOperator,
    SuspendTrainJobOperator,
)
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.runtimes import CreateRuntimeOperator, DeleteRuntimeOperator
from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.compat import DagSerialization
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, DistributedConfig, Labels, Objective, QueueName, TrainJobRef, TrialConfig
from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters

_ids = itertools.count()


def a_dag(**arguments):
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    return DAG(f"more_{next(_ids)}", schedule=None, start_date=start, **arguments)


def run(operator_class, job, **arguments):
    ti = StandInTaskInstance("manage")
    return operator_class(task_id="manage", job=job, **arguments).execute({"ti": ti}), ti


def given_as(ref):
    """Forms of a job argument."""
    return [ref, ref.to_dict(), ref.to_json(), str(ref.to_dict()), ref.name]


@pytest.mark.parametrize("way", range(5))
def test_a_job_is_deleted_by_ref_template_or_name(running, client, way):
    run(DeleteTrainJobOperator, given_as(running)[way])
    assert client.list_jobs() == []


@pytest.mark.parametrize("way", range(5))
def test_deleting_a_missing_job_succeeds(running, client, way):
    client.delete_job(running.name)
    assert run(DeleteTrainJobOperator, given_as(running)[way])[0] is None


def test_deleting_by_ref_keeps_a_newer_job_of_the_same_name(running, client):
    stranger = TrainJobRef(running.backend, running.namespace, running.name, "another-uid")
    run(DeleteTrainJobOperator, stranger)
    assert client.observe(running).outcome is None


def test_suspending_and_resuming_are_idempotent(running, client):
    for operator_class, status in ((SuspendTrainJobOperator, "Suspended"), (ResumeTrainJobOperator, "Running")):
        for _ in range(2):
            returned, ti = run(operator_class, running.name)
            assert returned == ti.xcoms["ref"] == running.to_dict()
        client.wait_for_job_status(running.name, {status}, timeout=300, polling_interval=1)


def test_suspending_a_missing_job_fails(home):
    with pytest.raises(TrainJobRejectedError, match="absent"):
        run(SuspendTrainJobOperator, "absent")


@pytest.mark.parametrize("job", ["", None, {}])
def test_an_empty_job_is_refused_when_the_dag_is_parsed(job):
    with pytest.raises(ValueError, match="job is empty; pass the name of a TrainJob, or its ref"):
        DeleteTrainJobOperator(task_id="delete", job=job)


def test_setup_and_teardown_create_and_delete_a_job(run_dag, xcom, client):
    with a_dag() as dag:
        train = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(double, {"number": 3}),
            options=["Suspend"],
            wait_for_completion=False,
        )
        resume = ResumeTrainJobOperator(task_id="resume", job=train.output)
        wait = TrainJobSensor(task_id="wait", job=resume.output, poke_interval=0.05)
        delete = DeleteTrainJobOperator(task_id="delete", job="{{ ti.xcom_pull(task_ids='train', key='ref') }}")
        wait >> delete.as_teardown(setups=train.as_setup())
    dag_run = run_dag(dag)
    assert xcom(dag_run, "wait")["doubled"] == 6
    assert xcom(dag_run, "train", "status") in ("Created", "Suspended")
    assert client.list_jobs() == []


def a_training(func, **arguments):
    return TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(func, arguments))


def return_none() -> None:
    return None


@pytest.mark.parametrize(
    ("func", "arguments", "state"),
    [(double, {"number": 3}, "success"), (return_none, {}, "success"), (fail, {"message": "no data"}, "failed")],
    ids=["dict", "None", "failed"],
)
def test_a_teardown_deletes_the_job_of_its_setup_whatever_that_returned(run_dag, client, func, arguments, state):
    with a_dag() as dag:
        train = a_training(func, **arguments)
        DeleteTrainJobOperator(task_id="delete", job=train.output).as_teardown(setups=train)
    dag_run = run_dag(dag)
    assert client.list_jobs() == []
    assert {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()} == {"train": state, "delete": "success"}


def test_a_teardown_of_a_setup_that_has_not_run_succeeds(run_dag, task_log):
    def refuse():
        raise ValueError("no data")

    with a_dag() as dag:
        train = task(refuse)() >> a_training(double, number=3)
        DeleteTrainJobOperator(task_id="delete", job=train.output).as_teardown(setups=train)
    dag_run = run_dag(dag)
    states = {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}
    assert states == {"refuse": "failed", "train": "upstream_failed", "delete": "success"}
    assert "has submitted no TrainJob" in task_log()


def test_the_output_of_a_decorated_training_is_its_job_and_that_of_a_mapped_group_the_job_of_its_member(
    run_dag, xcom, client
):
    @task.trainjob(runtime="python")
    def name(number: int) -> str:
        return "a-job"

    @task_group
    def each(number):
        wait = TrainJobSensor(task_id="wait", job=name(number), poke_interval=0.05)
        suspend = SuspendTrainJobOperator(task_id="suspend", job=wait.output)
        wait >> suspend >> DeleteTrainJobOperator(task_id="delete", job=suspend.output)

    with a_dag() as dag:
        each.expand(number=[1, 2])
    dag_run = run_dag(dag)
    refs = [[xcom(dag_run, f"each.{one}", "ref", index) for one in ("name", "wait", "suspend")] for index in (0, 1)]
    assert [ref == [ref[0]] * 3 for ref in refs] == [True, True]
    assert refs[0] != refs[1]
    assert {str(ti.state) for ti in dag_run.get_task_instances()} == {"success"}
    assert client.list_jobs() == []


def test_deleting_the_output_of_a_search_deletes_all_its_jobs(run_dag, client):
    with a_dag() as dag:
        tune = SearchOperator(
            task_id="tune",
            runtime="python",
            trainer=CustomTrainer(double),
            search_space={"number": [1, 2]},
            objectives=[Objective("number")],
            trial_config=TrialConfig(num_trials=2, parallel_trials=2),
        )
        DeleteTrainJobOperator(task_id="delete", job=tune.output).as_teardown(setups=tune)
    assert str(run_dag(dag).state) == "success"
    assert client.list_jobs() == []


def test_the_output_of_a_mapped_training_is_refused_when_the_dag_is_parsed():
    with a_dag():
        train = TrainJobOperator.partial(task_id="train").expand(func_args=[{"number": 1}])
        with pytest.raises(ValueError, match="task 'train' is mapped and has several TrainJobs"):
            DeleteTrainJobOperator(task_id="delete", job=train.output)
        with pytest.raises(ValueError, match=r"'delete' cannot be mapped over job=train\.output, which is the results"):
            DeleteTrainJobOperator.partial(task_id="delete").expand(job=train.output)


@pytest.mark.parametrize("job", [None, "None"])
def test_a_job_that_was_never_submitted_needs_no_deletion_and_cannot_be_suspended(run_trainjob_task, job):
    template = "{{ params.job }}"
    deleted = run_trainjob_task(DeleteTrainJobOperator(task_id="delete", job=template), params={"job": job})
    assert deleted.state == "success"
    suspended = run_trainjob_task(SuspendTrainJobOperator(task_id="suspend", job=template), params={"job": job})
    assert "has submitted no TrainJob" in str(suspended.error)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["team"], controllers=False) as made:
        yield made


@pytest.fixture
def config(cluster, tmp_path):
    """Backend settings of the cluster."""
    return {"config_file": str(cluster.kubeconfig(tmp_path / "config", "team"))}


def a_runtime(name, **settings):
    return runtime_builder.build_torch_runtime(RuntimeParameters(name, **settings))


def test_setup_and_teardown_create_and_delete_a_runtime(run_dag, xcom, cluster, config):
    runtime = a_runtime("template", namespace="team")
    runtime["metadata"]["name"] = "of-run-{{ dag.dag_id[-1] }}"
    with a_dag() as dag:
        create = CreateRuntimeOperator(task_id="create", runtime=runtime, backend_config=config)
        delete = DeleteRuntimeOperator(task_id="delete", runtime=create.output, backend_config=config)
        delete.as_teardown(setups=create.as_setup())
    name = f"of-run-{dag.dag_id[-1]}"
    dag_run = run_dag(dag)
    made = {"name": name, "kind": "TrainingRuntime", "namespace": "team", "action": "created"}
    assert xcom(dag_run, "create") == made
    assert str(dag_run.get_task_instance("delete").state) == "success"
    assert cluster.get("TrainingRuntime", name, "team") is None


def create(runtime, config, **arguments):
    return CreateRuntimeOperator(task_id="create", runtime=runtime, backend_config=config, **arguments).execute({})


def delete(runtime, config, **arguments):
    DeleteRuntimeOperator(task_id="delete", runtime=runtime, backend_config=config, **arguments).execute({})


def test_a_retried_setup_succeeds_if_its_runtime_exists(cluster, config):
    runtime = a_runtime("retried")
    assert [create(runtime, config)["action"] for _ in range(2)] == ["created", "unchanged"]
    delete("retried", config)


def test_a_retried_teardown_succeeds_if_its_runtime_is_gone(cluster, config):
    create(a_runtime("gone"), config)
    delete("gone", config)
    delete("gone", config)
    assert cluster.get("ClusterTrainingRuntime", "gone", None) is None


def test_a_runtime_in_use_is_not_deleted_and_the_task_is_retried(cluster, config):
    made = create(a_runtime("used"), config)
    cluster.add(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "user", "namespace": "team"},
            "spec": {"runtimeRef": {"name": "used", "kind": "ClusterTrainingRuntime"}},
        }
    )
    with pytest.raises(TrainJobError, match="'used' is used by team/user") as refused:
        delete(made, config)
    assert not isinstance(refused.value, TrainJobRejectedError)
    delete(made, config, force=True)


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ("a: [", "runtime is not valid YAML"),
        ({"kind": "TrainJob", "metadata": {"name": "a"}}, "must be the manifest of a TrainingRuntime or Cluster"),
        ({"kind": "TrainingRuntime"}, "with metadata.name"),
        ({**a_runtime("mine"), "spec": {}}, "runtime 'mine': error"),
    ],
)
def test_an_invalid_manifest_is_refused_when_the_dag_is_parsed(runtime, message):
    with pytest.raises(ValueError, match=message) as refused:
        CreateRuntimeOperator(task_id="create", runtime=runtime)
    assert "\n" not in str(refused.value)


def train_operator(**arguments):
    return TrainJobOperator(**{"task_id": "train", "backend": "kubernetes", "trainer": {"image": "a"}, **arguments})


@pytest.mark.parametrize(
    "options",
    [
        [{"QueueName": "nightly"}, {"Labels": {"team": "vision"}}],
        [QueueName("nightly"), {"Labels": {"team": "vision"}}],
        "- QueueName: nightly\n- Labels: {team: vision}",
    ],
)
def test_options_as_objects_plain_data_or_yaml_give_the_same_request(options):
    expected = train_operator(options=[QueueName("nightly"), Labels({"team": "vision"})])
    assert train_operator(options=options).spec == expected.spec


@pytest.mark.parametrize(
    "options",
    [
        [{"DistributedConfig": {"env": [{"name": "A", "value": "{{ ds }}"}], "nodeSelector": {"gpu": "h100"}}}],
        "- DistributedConfig: {env: [{name: A, value: '{{ ds }}'}], node_selector: {gpu: h100}}",
    ],
)
def test_a_distributed_config_as_plain_data_or_yaml_equals_that_of_objects(options):
    config = DistributedConfig(env=[V1EnvVar(name="A", value="{{ ds }}")], node_selector={"gpu": "h100"})
    assert train_operator(options=options).spec == train_operator(options=[config]).spec


def test_an_unsupported_distributed_config_is_refused_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match="DistributedConfig option is not compatible with LocalProcessBackend"):
        train_operator(backend="local", options=[DistributedConfig()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": [{"Queue": "a"}]}, "unknown option Queue; known are .*QueueName"),
        ({"options": "QueueName: a"}, "options must be YAML of a list such as '- QueueName: nightly'"),
        ({"options": {"QueueName": "a"}}, "options must be a list such as"),
        ({"initializer": {"data": "hf://a/b"}}, "unknown field data of Initializer"),
        ({"func_args": {"x": 1}}, "func_args go with a training function, .* not with dict|unknown field func_args"),
        ({"trainer": None, "func_args": {"x": 1}}, "not NoneType"),
        ({"trainer": CustomTrainer(double), "func_args": [1]}, "func_args must be a dict of keyword arguments"),
        (
            {"trainer": CustomTrainer(double), "func_args": {"numbr": 1}},
            "double has no parameter numbr; its parameters are number",
        ),
        ({"trainer": CustomTrainer(double), "func_args": {"number": {1}}}, "is a set, which is not JSON"),
        ({"secrets": {"model": "hf"}}, "names connection 'hf', but the initializer has no model"),
        ({"secrets": "hf"}, "secrets must be a dict such as"),
        ({"secrets": {"weights": "hf"}}, "and env; got 'weights'"),
        (
            {"secrets": {"dataset": "hf"}, "initializer": {"dataset": "pvc://a/b"}},
            "the dataset URI pvc://… takes no secret; supported schemes: hf://, s3://",
        ),
        (
            {
                "secrets": {"dataset": "hf"},
                "initializer": {"dataset": {"storage_uri": "hf://a/b", "access_token": {"name": "a", "key": "b"}}},
            },
            "the dataset also has a SecretRef",
        ),
    ],
)
def test_an_invalid_argument_is_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ValueError, match=message) as refused:
        train_operator(**arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": "Not A Name"}, "job name 'Not A Name' is not a DNS label"),
        ({"job": {"name": "a-job"}}, "is not a TrainJob ref"),
        ({"job": 3}, "is not a TrainJob ref"),
        ({"backend": "kubernets"}, "unknown backend 'kubernets'"),
        ({"trainjob_conn_id": "{{ params.team }}"}, "trainjob_conn_id is not templated"),
        ({"backend_config": {"namespace": "{{ params.team }}"}}, r"backend_config\.namespace is not templated"),
    ],
)
@pytest.mark.parametrize(
    "operator_class",
    [DeleteTrainJobOperator, partial(PromoteModelOperator, model="digits", metric="loss"), TrainJobSensor],
)
def test_a_wrong_literal_of_any_operator_is_refused_when_the_dag_is_parsed(operator_class, arguments, message):
    with pytest.raises(ValueError, match=f"{message}|is not a TrainJob ref") as refused:
        operator_class(**{"task_id": "manage", "job": "{{ params.job }}", **arguments})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "best"}, "mode must be one of max, min; got 'best'"),
        ({"min_delta": -1}, "min_delta must be a number of at least 0, got -1"),
        ({"min_delta": "much"}, "min_delta must be a number"),
        ({"min_delta": float("nan")}, "min_delta must be a number"),
        ({"metric": ""}, "metric is empty"),
    ],
)
def test_a_wrong_literal_of_a_promotion_is_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ValueError, match=message):
        PromoteModelOperator(
            **{"task_id": "promote", "job": "a-job", "model": "my model", "metric": "loss", **arguments}
        )


@pytest.mark.parametrize("place", [{"trainjob_conn_id": "{{ x }}"}, {"backend_config": {"namespace": "{{ x }}"}}])
def test_where_a_training_leads_is_no_template(place):
    with pytest.raises(ValueError, match=r"is not templated, got '\{\{ x \}\}'; pass a constant"):
        TrainJobOperator(task_id="train", **place)


def test_the_uri_of_an_upstream_task_is_an_initializer(run_dag, xcom, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("1\n2\n")

    def read() -> str:
        from trainer_core import dataset_path

        return (dataset_path() / "rows.csv").read_text()

    def locate(folder: str):
        return {"dataset": folder}

    with a_dag() as dag:
        located = task(locate, multiple_outputs=True)((tmp_path / "data").as_uri())
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(read),
            initializer={"dataset": located["dataset"]},
        )
    assert dag.get_task("train").upstream_task_ids == {"locate"}
    assert xcom(run_dag(dag), "train") == "1\n2\n"


def test_an_initializer_can_be_a_uri():
    operator = InitializeOperator(task_id="fetch", initializer={"dataset": "hf://owner/name"})
    assert operator.spec["initializer"]["dataset"]["storage_uri"] == "hf://owner/name"


def test_a_dag_with_all_operators_can_be_serialized(config):
    with a_dag() as dag:
        create_runtime = CreateRuntimeOperator(task_id="create", runtime=a_runtime("mine"), backend_config=config)
        DeleteRuntimeOperator(task_id="drop", runtime=create_runtime.output).as_teardown(setups=create_runtime)
        train = train_operator(func_args={"number": 1}, trainer=CustomTrainer(double), fail_fast=False)
        SuspendTrainJobOperator(task_id="suspend", job=train.output)
        DeleteTrainJobOperator(task_id="delete", job=TrainJobRef("local", "/home", "a-job", "uid"))
    back = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert back.get_task("create").runtime["metadata"]["name"] == "mine"
    assert back.get_task("drop").upstream_task_ids == {"create"}
    assert back.get_task("suspend").upstream_task_ids == {"train"}
    assert back.get_task("delete").job["name"] == "a-job"


@pytest.mark.parametrize("fail_fast", [True, False])
def test_the_trigger_has_the_fail_fast_setting_of_the_task(running, fail_fast):
    from airflow_provider.compat import TaskDeferred

    sensor = TrainJobSensor(task_id="wait", job=running, deferrable=True, fail_fast=fail_fast)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({"ti": StandInTaskInstance()})
    assert deferred.value.trigger.serialize()[1]["fail_fast"] is fail_fast
