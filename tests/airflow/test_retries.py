"""Jobs of task instances: run types, groups, mapping, DAG versions, retries and clearing."""

from __future__ import annotations

import datetime
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.sdk import DAG, task_group
from airflow_fakes import die, double, kill_supervisor_once, wait_for_file
from fake_cluster import Cluster

from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, CustomTrainerContainer, MoreMemory, RestartPolicy, TrainJobRef

pytestmark = pytest.mark.slow
_ids = itertools.count()
_START = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
RUNS = [
    "manual__2024-01-01T00:00:00+00:00",
    "scheduled__2024-01-01T00:00:00+00:00",
    "backfill__2024-01-01T00:00:00+00:00",
    "asset_triggered__2024-01-01T00:00:00+00:00_x7Gh",
    "a run / named by % a person",
]


def operator(func, args, **arguments):
    return TrainJobOperator(
        **{"task_id": "train", "runtime": "python", "trainer": CustomTrainer(func=func, func_args=args), **arguments}
    )


@pytest.fixture
def submit(tmp_path):
    """Submit the job of a task instance without waiting; return its name."""

    def run(ti, func=wait_for_file, **arguments):
        args = {"path": str(tmp_path / "gate")}
        made = operator(func, args, wait_for_completion=False, task_id=ti.task_id, **arguments)
        return TrainJobRef.from_dict(made.execute({"ti": ti})).name

    return run


def later(path: str) -> str:
    """The same training in the next version of a DAG bundle."""
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.02)
    return "of the new version"


@pytest.mark.parametrize("run_id", RUNS)
def test_a_retry_finds_its_job_in_every_kind_of_run(home, submit, client, run_id):
    ti = StandInTaskInstance(run_id=run_id)
    assert submit(ti) == submit(ti.next_try())
    assert len(client.list_jobs()) == 1


def test_different_kinds_of_runs_have_different_jobs(home, submit):
    assert len({submit(StandInTaskInstance(run_id=run_id)) for run_id in RUNS}) == len(RUNS)


@pytest.mark.parametrize("task_id", ["train", "group.train", "a.b.c.Train_It", "x" * 200])
def test_a_retry_finds_its_job_for_grouped_and_long_task_ids(home, submit, client, task_id):
    ti = StandInTaskInstance(task_id)
    assert submit(ti) == submit(ti.next_try())
    assert len(client.list_jobs()) == 1


def test_each_mapped_instance_has_its_own_job_and_finds_it_on_retry(home, submit, client):
    mapped = [StandInTaskInstance(run_id="run", map_index=index) for index in range(3)]
    jobs = [submit(ti) for ti in mapped]
    assert jobs == [submit(ti.next_try()) for ti in mapped]
    assert len(set(jobs)) == len(client.list_jobs()) == 3


def test_clearing_one_mapped_instance_does_not_affect_the_others(home, submit, client):
    one, other = (StandInTaskInstance(run_id="run", map_index=index) for index in range(2))
    cleared, left = submit(one), submit(other)
    assert submit(one.next_try(cleared=True)) != cleared
    assert client.observe(cleared).outcome.diagnosis.reason == "it was cancelled"
    assert client.observe(left).outcome is None


def test_a_retry_with_a_new_dag_version_attaches_to_the_job_of_the_old_one(home, submit, client, caplog):
    ti = StandInTaskInstance()
    assert submit(ti) == submit(ti.next_try(), later)
    assert len(client.list_jobs()) == 1
    assert "continues as it was first submitted" in caplog.text


def test_clearing_with_a_new_dag_version_trains_with_the_new_one(home, submit, client, tmp_path):
    ti = StandInTaskInstance()
    old = submit(ti)
    new = submit(ti.next_try(cleared=True), later)
    (tmp_path / "gate").touch()
    assert new != old
    assert client.wait(new).result == "of the new version"


def test_a_backfill_that_reruns_a_day_trains_again(home, submit, client):
    """A backfill that reruns a day clears the task; the run keeps its id."""
    ti = StandInTaskInstance(run_id="backfill__2024-01-01T00:00:00+00:00")
    assert submit(ti) != submit(ti.next_try(cleared=True))
    assert len([job for job in client.list_jobs() if job.status != "Failed"]) == 1


def a_dag(**arguments):
    return DAG(f"retries_{next(_ids)}", start_date=_START, **{"schedule": None, **arguments})


def states(run):
    return {f"{ti.task_id}[{ti.map_index}]": str(ti.state) for ti in run.get_task_instances()}


def test_a_task_in_a_mapped_group_returns_its_own_result(run_dag, xcom, client):
    with a_dag() as dag:

        @task_group
        def sweep(number):
            operator(double, {"number": number})

        sweep.expand(number=[1, 2])
    run = run_dag(dag)
    assert [xcom(run, "sweep.train", map_index=index)["doubled"] for index in (0, 1)] == [2, 4]
    assert len(client.list_jobs()) == 2


def test_runs_with_depends_on_past_have_separate_jobs(run_dag, client):
    with a_dag(schedule="@daily", catchup=False) as dag:
        operator(double, {"number": 1}, depends_on_past=True)
    for day in (1, 2):
        run = run_dag(dag, logical_date=_START + datetime.timedelta(days=day))
        assert states(run) == {"train[-1]": "success"}
    assert len(client.list_jobs()) == 2


def test_a_retryable_failure_is_retried_as_another_attempt(run_dag, client):
    with a_dag() as dag:
        operator(die, {}, retries=1, retry_delay=datetime.timedelta(0))
    run = run_dag(dag)
    assert states(run) == {"train[-1]": "failed"}
    first, second = sorted(job.name for job in client.list_jobs())
    assert second == f"{first}-1"


def test_a_retry_after_a_lack_of_memory_asks_for_more_up_to_the_limit(run_dag, tmp_path):
    with Cluster(delay=0.005, backoff=0.005, backoff_limit=100_000) as cluster, a_dag() as dag:
        cluster.lives.set("*", "oom")
        TrainJobOperator(
            task_id="train",
            runtime="torch-distributed",
            trainer=CustomTrainerContainer(image="registry.local/train:1", resources_per_node={"memory": "8Gi"}),
            options=[MoreMemory("16Gi")],
            backend="kubernetes",
            backend_config={"config_file": str(cluster.kubeconfig(tmp_path / "config")), "namespace": "default"},
            retries=5,
            retry_delay=datetime.timedelta(0),
        )
        run = run_dag(dag)
        jobs = cluster.objects("TrainJob", "default")
    assert states(run) == {"train[-1]": "failed"}
    amounts = {job["metadata"]["name"][-2:]: job["spec"]["trainer"]["resourcesPerNode"]["limits"] for job in jobs}
    first = next(iter(amounts.keys() - {"-1", "-2"}))
    assert amounts == {first: {"memory": "8Gi"}, "-1": {"memory": "12Gi"}, "-2": {"memory": "16Gi"}}


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_restart_policy_starts_the_training_again_in_the_same_try(run_dag, xcom, client, tmp_path, deferrable):
    policy = RestartPolicy(delay=0)
    with a_dag() as dag:
        operator(kill_supervisor_once, {"marker": str(tmp_path / "begun")}, options=[policy], deferrable=deferrable)
    run = run_dag(dag)
    (ti,) = run.get_task_instances()
    first, second = sorted(job.name for job in client.list_jobs())
    assert (states(run), ti.try_number, second) == ({"train[-1]": "success"}, 1, f"{first}-1")
    assert (xcom(run, "train"), xcom(run, "train", "ref")["name"]) == ("trained", second)
    assert xcom(run, "train", "diagnosis") is None


def test_retries_of_airflow_start_nothing_beyond_the_budget_of_a_restart_policy(run_dag, client):
    policy = RestartPolicy(max_restarts=1, delay=0)
    with a_dag() as dag:
        operator(die, {}, options=[policy], retries=3, retry_delay=datetime.timedelta(0))
    run = run_dag(dag)
    (job,) = client.list_jobs()
    assert (states(run), client.observe(job.name).restarts.total) == ({"train[-1]": "failed"}, 1)


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_starts_the_training_of_a_task_that_does_not_wait_again(run_dag, xcom, client, tmp_path, deferrable):
    args = {"marker": str(tmp_path / "begun")}
    with a_dag() as dag:
        submitted = operator(kill_supervisor_once, args, options=[RestartPolicy(delay=0)], wait_for_completion=False)
        sensor = {"poke_interval": 0.05, "deferrable": deferrable, "restarts": True}
        TrainJobSensor(task_id="wait", job=submitted.output, **sensor)
    run = run_dag(dag)
    first, second = sorted(job.name for job in client.list_jobs())
    assert states(run) == {"train[-1]": "success", "wait[-1]": "success"}
    assert (xcom(run, "wait"), xcom(run, "wait", "ref")["name"], second) == ("trained", second, f"{first}-1")


def test_a_task_a_sensor_and_a_client_that_wait_for_one_job_start_it_again_once(client, tmp_path):
    fields = {"options": [RestartPolicy(delay=0)], "on_kill": "keep"}
    ti, args = StandInTaskInstance(), {"marker": str(tmp_path / "begun")}
    ref = operator(kill_supervisor_once, args, wait_for_completion=False, **fields).execute({"ti": ti})
    sensor = TrainJobSensor(task_id="wait", job=ref, poke_interval=0.02, restarts=True)
    waiters = [
        lambda: operator(kill_supervisor_once, args, **fields).execute({"ti": ti}),
        lambda: sensor.execute({"ti": StandInTaskInstance("wait")}),
        lambda: client.wait(TrainJobRef.from_dict(ref)).result,
    ]
    with ThreadPoolExecutor(3) as threads:
        results = [each.result() for each in [threads.submit(waiter) for waiter in waiters]]
    assert (results, len(client.list_jobs())) == (["trained"] * 3, 2)
