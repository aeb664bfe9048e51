"""What the first try resolved holds: no later try, clear, sensor, trigger or operator goes to another place."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from airflow_fakes import double
from fake_cluster import Cluster

from airflow_provider import cancellation, client_cache
from airflow_provider.compat import TaskDeferred
from airflow_provider.exceptions import TrainJobConnectionMissingError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.operators.manage import DeleteTrainJobOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.task_memory import TaskMemory
from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient
from trainer_core.model.jobs import ATTACHED_LABEL, TrainJobRef

CONNECTION = "AIRFLOW_CONN_TRAINJOB_DEFAULT"


class TaskStore(dict):
    """Storage that all tries of a task share, as Airflow 3.3 has it."""

    set = dict.__setitem__
    delete = dict.__delitem__


@pytest.fixture(scope="module")
def first():
    with Cluster(namespaces=["team"]) as cluster:
        cluster.load_stock_runtimes()
        cluster.lives.set("*", "runs")
        yield cluster


@pytest.fixture(scope="module")
def second():
    with Cluster() as cluster:
        cluster.load_stock_runtimes()
        yield cluster


@pytest.fixture
def connect(airflow_db, monkeypatch, tmp_path):
    """Let the default connection lead to a namespace of a cluster."""

    def define(cluster, namespace="default"):
        path = cluster.kubeconfig(tmp_path / f"{id(cluster)}.yaml")
        extra = {"backend": "kubernetes", "config_file": str(path), "namespace": namespace}
        monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "trainjob", "extra": extra}))

    return define


@pytest.fixture
def submitted(first, connect):
    """Task instance and storage of a task whose first try has submitted a job to the first cluster."""
    connect(first)
    ti, store = StandInTaskInstance(max_tries=3), TaskStore()
    create_task().execute({"ti": ti, "task_state_store": store})
    return ti, store


def create_task(**arguments):
    trainer = CustomTrainer(double, {"number": 1})
    return TrainJobOperator(
        task_id="train", runtime="python", trainer=trainer, wait_for_completion=False, mlflow_conn_id=None, **arguments
    )


def run_again(submitted, *, cleared=False, **arguments):
    ti, store = submitted
    return create_task(**arguments).execute({"ti": ti.next_try(cleared=cleared), "task_state_store": store})


@pytest.mark.parametrize("cleared", [False, True], ids=["a retry", "a clear"])
def test_another_try_does_not_move_to_the_worker(submitted, cleared, monkeypatch, home):
    monkeypatch.delenv(CONNECTION)
    with pytest.raises(TrainJobUnreachableError, match=r"submitted to backend 'kubernetes' .*resolves backend 'local'"):
        run_again(submitted, cleared=cleared)
    assert TrainerClient(LocalProcessBackendConfig()).list_jobs() == []


@pytest.mark.parametrize("cleared", [False, True], ids=["a retry", "a clear"])
def test_another_try_does_not_move_to_another_cluster(submitted, cleared, second, connect):
    connect(second)
    with pytest.raises(TrainJobUnreachableError, match="no second TrainJob was started"):
        run_again(submitted, cleared=cleared)
    assert second.objects("TrainJob") == []


def test_another_try_does_not_move_to_another_namespace(submitted, first, connect):
    connect(first, "team")
    with pytest.raises(TrainJobUnreachableError, match=r"namespace 'default'.*namespace 'team'"):
        run_again(submitted)


def test_one_cluster_can_have_two_addresses(submitted, first, monkeypatch, tmp_path):
    text = first.kubeconfig(tmp_path / "config").read_text().replace("127.0.0.1", "localhost")
    extra = {"backend": "kubernetes", "kube_config": text, "namespace": "default"}
    monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "trainjob", "extra": extra}))
    assert run_again(submitted)["uid"] == submitted[0].xcoms["ref"]["uid"]


def test_a_try_that_created_nothing_does_not_bind_the_next_one(first, second, connect):
    connect(first, "missing")
    ti, store = StandInTaskInstance(max_tries=3), TaskStore()
    with pytest.raises(Exception, match="missing"):
        create_task().execute({"ti": ti, "task_state_store": store})
    assert "trainjob_place" not in store


def test_a_try_without_connection_or_backend_fails_with_the_command_and_without_a_retry(airflow_db, monkeypatch):
    monkeypatch.delenv("AIRFLOW__TRAINJOB__BACKEND")
    with pytest.raises(TrainJobConnectionMissingError, match="`airflow connections add trainjob_default"):
        create_task().execute({"ti": StandInTaskInstance(max_tries=3)})


def test_a_sensor_does_not_wait_on_another_cluster(submitted, second, connect):
    connect(second)
    sensor = TrainJobSensor(task_id="wait", job=submitted[0].xcoms["ref"], mlflow_conn_id=None)
    with pytest.raises(TrainJobUnreachableError, match="was submitted to"):
        sensor.execute({"ti": StandInTaskInstance("wait")})


def test_a_deletion_on_another_cluster_is_not_taken_for_done(submitted, second, connect):
    connect(second)
    delete = DeleteTrainJobOperator(task_id="delete", job=submitted[0].xcoms["ref"])
    with pytest.raises(TrainJobUnreachableError, match="was submitted to"):
        delete.execute({"ti": StandInTaskInstance("delete")})


@pytest.fixture
def uncancelled(submitted, first, home):
    """Ref of a job whose task was ended while its cluster refused every change."""
    ref = submitted[0].xcoms["ref"]
    first.forbid("patch", "trainjobs")
    assert not cancellation.cancel_job(TrainJobHook(), ref, create_task().log)
    first.allow("patch", "trainjobs")
    return ref


def is_cancelled(cluster, ref):
    return "trainjob-workflows/cancelled" in cluster.get("TrainJob", ref["name"])["metadata"]["annotations"]


def run_another_task(home):
    other = CustomTrainer(double, {"number": 2})
    task = TrainJobOperator(task_id="other", runtime="python", trainer=other, wait_for_completion=False)
    task.execute({"ti": StandInTaskInstance("other"), "task_state_store": TaskStore()})


def connect_a_trigger(home):
    asyncio.run(client_cache.get_client("trainjob_default", None, None))


def reap(home):
    return subprocess.run(
        [Path(sys.executable).with_name("trainjob"), "--backend", "kubernetes", "reap"],
        env={**os.environ, "KUBECONFIG": json.loads(os.environ[CONNECTION])["extra"]["config_file"]},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("look", [run_another_task, connect_a_trigger, reap], ids=["task", "triggerer", "reap"])
def test_a_job_that_could_not_be_cancelled_is_cancelled_by_what_looks_next(uncancelled, first, home, look):
    assert not is_cancelled(first, uncancelled)

    look(home)

    assert is_cancelled(first, uncancelled)
    assert list((home / "cancellations").iterdir()) == []


def test_reap_names_the_jobs_that_still_cannot_be_cancelled(uncancelled, first, home):
    first.forbid("patch", "trainjobs")

    said = reap(home).stderr

    first.allow("patch", "trainjobs")
    assert f"TrainJob {uncancelled['name']} is still to be cancelled: the cluster refused" in said
    assert not is_cancelled(first, uncancelled)
    assert "is cancelled, as its task has asked" in reap(home).stderr


def test_a_cancellation_for_another_cluster_waits_for_a_client_of_that_cluster(
    uncancelled, first, second, connect, home
):
    connect(second)
    run_another_task(home)
    assert not is_cancelled(first, uncancelled)

    connect(first)
    run_another_task(home)
    assert is_cancelled(first, uncancelled)


def test_a_job_that_a_task_has_attached_to_since_is_not_cancelled(uncancelled, first, home):
    """A person has cleared the task, and its new try runs on another host with another state folder."""
    attached = {ATTACHED_LABEL: str(int(time.time()) + 1)}
    TrainJobHook().client.set_job_owner(TrainJobRef.from_dict(uncancelled), "", None, attached)

    run_another_task(home)

    assert not is_cancelled(first, uncancelled)
    assert list((home / "cancellations").iterdir()) == []


def test_a_cleared_task_that_attaches_to_the_job_of_a_lost_worker_labels_it(submitted, first):
    ti, store = submitted
    TaskMemory(ti, store).record_wait(TrainJobRef.from_dict(ti.xcoms["ref"]), waits=True)

    assert run_again(submitted, cleared=True)["uid"] == ti.xcoms["ref"]["uid"]

    assert ATTACHED_LABEL in first.get("TrainJob", ti.xcoms["ref"]["name"])["metadata"]["labels"]


def test_a_cancellation_on_another_cluster_is_not_taken_for_done(submitted, second, connect, task_log):
    connect(second)
    hook = TrainJobHook()
    assert not cancellation.cancel_job(hook, submitted[0].xcoms["ref"], create_task().log)
    assert "cancellation failed, it may still run" in task_log()


def test_a_triggerer_that_resolves_another_cluster_returns_the_wait_to_the_worker(first, second, connect, tmp_path):
    connect(first)
    ti = StandInTaskInstance(max_tries=3)
    task = create_task(deferrable=True)
    task.wait_for_completion = True
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({"ti": ti})
    kwargs = deferred.value.trigger.serialize()[1]
    # The kubeconfig of the triggerer's host.
    second.kubeconfig(tmp_path / f"{id(first)}.yaml")

    event = asyncio.run(anext(TrainJobTrigger(**kwargs).run())).payload

    assert event["elsewhere"]
    assert "was submitted to" in event["error"]
