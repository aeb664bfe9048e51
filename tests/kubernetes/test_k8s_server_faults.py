"""A cluster where every fifth request fails: each job is created once, and each outcome is reported."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from k8s_scene import a_client, a_request, a_stage, finished
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from trainer_core import KubernetesBackendConfig
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import informer, pod_state, resources
from trainer_core.k8s.connection import Connection
from trainer_core.model.jobs import Category
from trainer_core.model.request import Owner

JOBS = 200
#: Simulated course of a job, by name; and the failure category that it leads to.
LIVES = {
    "complete": ("complete",),
    "preempted": ("preempted", "complete"),
    "crash-loop": ("crash-loop",),
    "oom": ("oom",),
    "invalid-image-name": ("invalid-image-name",),
    "rejected-children": ("rejected-children",),
}
ENDS = {
    "complete": None,
    "preempted": None,
    "crash-loop": Category.USER_CODE,
    "oom": Category.OUT_OF_MEMORY,
    "invalid-image-name": Category.IMAGE,
    "rejected-children": Category.REJECTED,
}
#: Most jobs complete.
MIX = [*["complete"] * 5, "preempted", "crash-loop", "oom", "invalid-image-name", "rejected-children"]
KINDS_OF_FAULTS = {"429", "500", "503", "500-after", "reset", "reset-after", "hang", "truncate", "gone"}

#: Repeats a whole call while the backend is unavailable, as an orchestrator's retry does.
with_retries = retry(retry=retry_if_exception_type(BackendUnavailableError), stop=stop_after_attempt(10), reraise=True)


def category(outcome) -> Category | None:
    return outcome.diagnosis.category if outcome.diagnosis else None


@pytest.mark.deep
def test_two_hundred_jobs_are_created_once_each_and_have_the_expected_outcome():
    with a_stage(delay=0.05, backoff_limit=100_000) as (cluster, first):
        names = {f"job-{number}": life for number, life in zip(range(JOBS), itertools.cycle(MIX), strict=False)}
        for name, life in names.items():
            cluster.lives.set(name, *LIVES[life])
        clients = [first, a_client(cluster), a_client(cluster)]
        cluster.faults.at_random(0.2, seed=7)
        for watch_fault in ({"truncate": True}, {"gone": True}):
            cluster.faults.next(watch=True, times=3, **watch_fault)

        def submit(name: str):
            client = clients[len(name) % len(clients)]
            return with_retries(client.submit)(a_request(name, owner=Owner(key=name).model_dump()))

        def wait(ref):
            return finished(first, ref)

        with ThreadPoolExecutor(40) as pool:
            # Every fourth job twice, from two threads, like a retry that runs beside the first try.
            refs = list(pool.map(submit, [*names, *list(names)[::4]]))
            outcomes = dict(zip(names, pool.map(wait, refs[:JOBS]), strict=True))
        cluster.faults.clear()
        uids = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.objects("TrainJob")}
        faults = cluster.faults.counts

    assert {name: category(outcome) for name, outcome in outcomes.items()} == {
        name: ENDS[life] for name, life in names.items()
    }
    assert uids == {ref.name: ref.uid for ref in refs}
    assert len(uids) == JOBS
    assert set(faults) >= KINDS_OF_FAULTS


EACH = {
    "429 with Retry-After": {"status": 429, "retry_after": 0},
    "500": {"status": 500},
    "503": {"status": 503},
    "500 that took effect": {"status": 500, "after": True},
    "reset": {"reset": True},
    "reset after it took effect": {"reset": True, "after": True},
    "hang": {"hang": 0.2},
}


@pytest.mark.parametrize("fault", EACH)
def test_a_job_succeeds_although_the_first_request_of_each_kind_fails(fault):
    with a_stage("complete") as (cluster, client):
        for method, path in itertools.product(("GET", "POST"), ("trainjobs", "runtimes", "pods", "openapi")):
            cluster.faults.next(method=method, path=path, watch=False, **EACH[fault])
        assert finished(client, client.submit(a_request())).succeeded
        assert len(cluster.objects("TrainJob")) == 1


@pytest.mark.parametrize(
    "fault", [{"truncate": True}, {"gone": True}, {"reset": True}, {"status": 503}, {"status": 410}]
)
def test_waiting_survives_a_faulty_watch(fault):
    with a_stage("complete", delay=0.1) as (cluster, client):
        cluster.faults.next(watch=True, times=3, **fault)
        assert finished(client, client.submit(a_request())).succeeded


def test_waiting_survives_broken_watches_and_a_compaction():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(finished, client, ref)
            cluster.until(lambda: cluster.watches)
            cluster.compact()
            cluster.break_watches()
            client.cancel(ref)
            assert category(waiting.result()) is Category.DELETED


@pytest.mark.parametrize("fault", EACH)
def test_cancelling_and_deleting_survive_a_failed_request(fault):
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        cluster.faults.next(method="PATCH", **EACH[fault])
        client.cancel(ref)
        cluster.faults.next(method="DELETE", **EACH[fault])
        client.delete_job(ref)
        assert cluster.objects("TrainJob") == []


def test_a_failed_list_for_a_new_subscription_does_not_affect_the_others():
    target = informer.WatchTarget(
        resources.TRAINJOBS, pod_state.JOBSET_LABEL, lambda raw: raw["metadata"]["name"], pod_state.parse_pod
    )
    timings = informer.WatchTimings(idle_timeout=0.1, error_grace=0.1)
    with a_stage("runs") as (cluster, client):
        for name in ("first", "second", "third"):
            client.submit(a_request(name))
        connection = Connection(KubernetesBackendConfig(client_configuration=cluster.configuration()))
        with ExitStack() as stack:
            subscriptions = [
                stack.enter_context(informer.subscribe(connection, target, name, timings=timings))
                for name in ("first", "second")
            ]
            for each in subscriptions:
                assert each.wait(600)
            cluster.until(lambda: cluster.watches == 2)
            cluster.faults.next(status=503, path="fieldSelector=metadata.name%3Dthird", times=1000)
            third = stack.enter_context(informer.subscribe(connection, target, "third", timings=timings))
            cluster.until(lambda: (third.snapshot() or subscriptions[0].snapshot()).error)
            cluster.faults.clear()
            cluster.until(lambda: (found := third.snapshot()) and found.job and not found.error)
            assert subscriptions[0].snapshot().error is None


def test_a_retry_waits_for_the_seconds_of_retry_after():
    with a_stage("complete") as (cluster, client):
        client.submit(a_request())
        cluster.forget_requests()
        cluster.faults.next(method="GET", path="trainjobs/job", status=429, retry_after=1)
        client.get_job("job")
        first, second, *_ = cluster.requests
    assert second.time - first.time >= 1
