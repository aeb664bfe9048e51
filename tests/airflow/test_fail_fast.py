"""Fail-fast on the fake API server: the task reports why a job cannot start, and cancels it, however it waits."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster

from airflow_provider import exceptions
from airflow_provider.compat import AirflowFailException
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import Category, CustomTrainerContainer, KubernetesBackendConfig, TrainerClient
from trainer_core.base.errors import InvalidRequestError
from trainer_core.lifecycle import wait_state


@pytest.fixture
def cluster():
    """A cluster that never marks a job as failed by itself."""
    with Cluster(backoff_limit=100_000) as cluster:
        yield cluster


@pytest.fixture
def where(cluster, tmp_path):
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "config")), "namespace": "default"}
    return {"backend": "kubernetes", "backend_config": config}


@pytest.fixture
def client(cluster):
    return TrainerClient(KubernetesBackendConfig(client_configuration=cluster.configuration()))


@pytest.fixture
def train(where, run_trainjob_task):
    """Run a task with three retries whose job has these states."""

    def run(**arguments):
        trainer = CustomTrainerContainer(image="registry.local/no-such:1")
        return run_trainjob_task(
            TrainJobOperator(task_id="train", runtime="python", trainer=trainer, retries=3, **where, **arguments)
        )

    return run


@pytest.fixture
def little_patience(where):
    """Reduce the time that a pod may wait for a node from half an hour to a second."""
    where["backend_config"]["scheduling_grace"] = "1s"


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
@pytest.mark.parametrize("life", ["image-pull-error", "invalid-image-name", "crash-loop"])
def test_a_failure_that_no_retry_can_fix_fails_the_task_without_retries(cluster, client, train, life, deferrable):
    cluster.lives.set("*", life)
    done = train(deferrable=deferrable)

    job = client.list_jobs()[0]
    diagnosis = client.get_job_outcome(job.name).diagnosis
    assert isinstance(done.error, AirflowFailException), done.error
    assert done.state == "failed"
    command = f"; debug it with `trainjob --backend kubernetes --namespace default debug {job.name}`"
    expected = f"TrainJob {job.name!r} is Failed: {diagnosis} (a retry will not help)"
    assert str(done.error) == expected + command * (diagnosis.category is Category.USER_CODE)
    assert cluster.get("TrainJob", job.name)["spec"]["suspend"] is True


def test_a_missing_image_is_named(cluster, train):
    cluster.lives.set("*", "image-pull-error")
    done = train(deferrable=True)

    assert isinstance(done.error, exceptions.TrainJobImageError)
    assert "registry.local/no-such:1" in str(done.error)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_an_unschedulable_job_is_cancelled_and_retried(cluster, client, little_patience, train, deferrable):
    cluster.lives.set("*", "pending-unschedulable")
    done = train(deferrable=deferrable)
    again = done.retry()

    assert isinstance(done.error, exceptions.TrainJobUnschedulableError)
    assert "no Kubernetes node has enough nvidia.com/gpu" in str(done.error)
    assert (done.state, again.state) == ("up_for_retry", "up_for_retry")
    assert [job.status for job in client.list_jobs()] == ["Failed", "Failed"]


@pytest.fixture
def wait(where, train, run_trainjob_task):
    """Run a sensor for a job of another task."""

    def run(**arguments):
        job = train(wait_for_completion=False).returned
        return run_trainjob_task(
            TrainJobSensor(task_id="wait", job=job, poke_interval=0.1, retries=3, **where, **arguments)
        )

    return run


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_a_sensor_fails_fast_and_cancels_the_job(cluster, client, wait, deferrable):
    cluster.lives.set("*", "invalid-image-name")
    done = wait(deferrable=deferrable)

    assert done.state == "failed"
    assert isinstance(done.error, exceptions.TrainJobImageError)
    assert [job.status for job in client.list_jobs()] == ["Failed"]


class Store:
    """Airflow's storage that all pokes of a task share."""

    def __init__(self):
        self.kept = {}

    def get(self, key, default=None):
        return self.kept.get(key, default)

    def set(self, key, value):
        self.kept[key] = value


def test_a_sensor_in_reschedule_mode_fails_fast_across_pokes(cluster, client, little_patience, where, train):
    cluster.lives.set("*", "pending-unschedulable")
    job, store = train(wait_for_completion=False).returned, Store()

    def poke():
        """Poke as in a separate process."""
        sensor = TrainJobSensor(task_id="wait", job=job, mode="reschedule", **where)
        return sensor.poke({"ti": StandInTaskInstance("wait"), "task_state_store": store}).is_done

    with pytest.raises(exceptions.TrainJobUnschedulableError):
        cluster.until(poke)
    assert [job.status for job in client.list_jobs()] == ["Failed"]


class Damaged(TrainerClient):
    """A client that cannot read a job."""

    def observe(self, job):
        raise InvalidRequestError("the job is damaged")


def test_a_sensor_in_reschedule_mode_counts_errors_across_pokes(cluster, client, where, train):
    cluster.lives.set("*", "runs")
    job, store = train(wait_for_completion=False).returned, Store()
    ti = StandInTaskInstance("wait")

    def build_sensor(kind):
        sensor = TrainJobSensor(task_id="wait", job=job, mode="reschedule", **where)
        sensor.hook.client = kind(client.config)
        return sensor

    context = {"ti": ti, "task_state_store": store}
    for _ in range(wait_state.MAX_CONSECUTIVE_ERRORS - 1):
        assert not build_sensor(Damaged).poke(context).is_done
    assert not build_sensor(TrainerClient).poke(context).is_done
    for _ in range(wait_state.MAX_CONSECUTIVE_ERRORS - 1):
        assert not build_sensor(Damaged).poke(context).is_done
    with pytest.raises(exceptions.TrainJobUnreachableError, match="the job is damaged"):
        build_sensor(Damaged).poke(context)


def test_without_fail_fast_the_job_keeps_waiting(cluster, client, where, train):
    cluster.lives.set("*", "invalid-image-name")
    job = train(wait_for_completion=False, fail_fast=False).returned
    cluster.until(lambda: client.observe(job["name"]).pending_failure)
    sensor = TrainJobSensor(task_id="wait", job=job, fail_fast=False, **where)

    assert not sensor.poke({"ti": StandInTaskInstance("wait")}).is_done
    assert cluster.get("TrainJob", job["name"])["spec"].get("suspend") is not True
