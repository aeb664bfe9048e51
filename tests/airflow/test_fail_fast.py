"""A TrainJob that cannot get well, on the API double: its task says why and ends it, whoever waits and however."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster

from airflow_provider import exceptions
from airflow_provider.compat import AirflowFailException
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainerContainer, KubernetesBackendConfig, TrainerClient
from trainer_core.cluster import reasons

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster():
    """A cluster that never gives up a job by itself, however late somebody looks at it."""
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
    """Run the task of a job that lives like this; it has three retries."""

    def run(**arguments):
        trainer = CustomTrainerContainer(image="registry.local/no-such:1")
        return run_trainjob_task(
            TrainJobOperator(task_id="train", runtime="python", trainer=trainer, retries=3, **where, **arguments)
        )

    return run


@pytest.fixture
def little_patience(monkeypatch):
    """What may pass by itself gets a second instead of five minutes."""
    monkeypatch.setattr(reasons, "WAIT", 1.0)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
@pytest.mark.parametrize("life", ["image-pull-error", "invalid-image-name", "crash-loop"])
def test_what_no_retry_can_help_fails_the_task_at_once_with_the_diagnosis(cluster, client, train, life, deferrable):
    cluster.lives.set("*", life)
    done = train(deferrable=deferrable)

    job = client.list_jobs()[0]
    diagnosis = client.outcome(job.name).diagnosis
    assert isinstance(done.error, AirflowFailException), done.error
    assert done.state == "failed"
    assert str(done.error) == f"TrainJob {job.name!r} is Failed: {diagnosis} (a retry will not help)"
    assert cluster.get("TrainJob", job.name)["spec"]["suspend"] is True


def test_an_image_that_does_not_exist_is_named(cluster, train):
    cluster.lives.set("*", "image-pull-error")
    done = train(deferrable=True)

    assert isinstance(done.error, exceptions.TrainJobImageError)
    assert "registry.local/no-such:1" in str(done.error)


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_a_job_that_no_machine_takes_is_ended_and_tried_again(cluster, client, train, little_patience, deferrable):
    cluster.lives.set("*", "pending-unschedulable")
    done = train(deferrable=deferrable)
    again = done.retry()

    assert isinstance(done.error, exceptions.TrainJobUnschedulableError)
    assert "no machine has enough nvidia.com/gpu" in str(done.error)
    assert (done.state, again.state) == ("up_for_retry", "up_for_retry")
    assert [job.status for job in client.list_jobs()] == ["Failed", "Failed"]


@pytest.fixture
def wait(where, train, run_trainjob_task):
    """Run a sensor for a job that another task has submitted."""

    def run(**arguments):
        job = train(wait_for_completion=False).returned
        return run_trainjob_task(
            TrainJobSensor(task_id="wait", job=job, poke_interval=0.1, retries=3, **where, **arguments)
        )

    return run


@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_a_sensor_fails_at_once_and_ends_the_job_too(cluster, client, wait, deferrable):
    cluster.lives.set("*", "invalid-image-name")
    done = wait(deferrable=deferrable)

    assert done.state == "failed"
    assert isinstance(done.error, exceptions.TrainJobImageError)
    assert [job.status for job in client.list_jobs()] == ["Failed"]


class Store:
    """What Airflow keeps for a task over its looks."""

    def __init__(self):
        self.kept = {}

    def get(self, key, default=None):
        return self.kept.get(key, default)

    def set(self, key, value):
        self.kept[key] = value


def test_a_sensor_that_comes_anew_for_each_look_loses_patience_too(cluster, client, where, train, little_patience):
    cluster.lives.set("*", "pending-unschedulable")
    job, store = train(wait_for_completion=False).returned, Store()

    def look():
        """As in a process of its own."""
        sensor = TrainJobSensor(task_id="wait", job=job, mode="reschedule", **where)
        sensor._store = store
        return sensor.poke({"ti": StandInTaskInstance("wait")}).is_done

    with pytest.raises(exceptions.TrainJobUnschedulableError):
        cluster.until(look)
    assert [job.status for job in client.list_jobs()] == ["Failed"]


def test_what_is_not_to_fail_fast_is_left_to_its_backend(cluster, client, where, train):
    cluster.lives.set("*", "invalid-image-name")
    job = train(wait_for_completion=False, fail_fast=False).returned
    cluster.until(lambda: client.observe(job["name"]).trouble)
    sensor = TrainJobSensor(task_id="wait", job=job, fail_fast=False, **where)

    assert not sensor.poke({"ti": StandInTaskInstance("wait")}).is_done
    assert cluster.get("TrainJob", job["name"])["spec"].get("suspend") is not True
