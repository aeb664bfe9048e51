"""A cluster on which every fifth request goes wrong: every job is made once, and every end is heard of."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from k8s_crds import needs_crds
from k8s_scene import a_client, a_request, a_stage, finished
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from trainer_core import KubernetesBackendConfig
from trainer_core.cluster import connect, kinds, pods, watch
from trainer_core.errors import BackendUnavailableError
from trainer_core.outcome import Category
from trainer_core.request import Owner

pytestmark = needs_crds
JOBS = 200
#: What jobs live, and how they end.
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
#: Mostly they complete.
MIX = [*["complete"] * 5, "preempted", "crash-loop", "oom", "invalid-image-name", "rejected-children"]
KINDS_OF_FAULTS = {"429", "500", "503", "500-after", "reset", "reset-after", "hang", "truncate", "gone"}

#: As an orchestrator does it: what cannot be reached is tried again, from the beginning.
persistently = retry(retry=retry_if_exception_type(BackendUnavailableError), stop=stop_after_attempt(10), reraise=True)


def category(outcome) -> Category | None:
    return outcome.diagnosis.category if outcome.diagnosis else None


@pytest.mark.slow
@pytest.mark.timeout(300)  # 25 seconds on two idle cores; many times that where others work on them
def test_of_two_hundred_jobs_each_is_made_once_and_ends_as_it_should():
    with a_stage(delay=0.05, backoff_limit=100_000) as (cluster, first):
        names = {f"job-{number}": life for number, life in zip(range(JOBS), itertools.cycle(MIX), strict=False)}
        for name, life in names.items():
            cluster.lives.set(name, *LIVES[life])
        clients = [first, a_client(cluster), a_client(cluster)]
        cluster.faults.at_random(0.2, seed=7)
        for in_a_watch in ({"truncate": True}, {"gone": True}):
            cluster.faults.next(watch=True, times=3, **in_a_watch)

        def submit(name: str):
            client = clients[len(name) % len(clients)]
            return persistently(client.submit)(a_request(name, owner=Owner(key=name).model_dump()))

        def wait(ref):
            return finished(first, ref, timeout=280)

        with ThreadPoolExecutor(40) as pool:
            # Every fourth twice, from two threads: as a retry does that does not know of the first try.
            refs = list(pool.map(submit, [*names, *list(names)[::4]]))
            outcomes = dict(zip(names, pool.map(wait, refs[:JOBS]), strict=True))
        cluster.faults.clear()
        there = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.objects("TrainJob")}
        faults = cluster.faults.counts

    assert {name: category(outcome) for name, outcome in outcomes.items()} == {
        name: ENDS[life] for name, life in names.items()
    }
    assert there == {ref.name: ref.uid for ref in refs}
    assert len(there) == JOBS
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
def test_a_job_gets_through_although_the_first_request_of_each_kind_fails(fault):
    with a_stage("complete") as (cluster, client):
        for method, path in itertools.product(("GET", "POST"), ("trainjobs", "runtimes", "pods", "openapi")):
            cluster.faults.next(method=method, path=path, watch=False, **EACH[fault])
        assert finished(client, client.submit(a_request())).succeeded
        assert len(cluster.objects("TrainJob")) == 1


@pytest.mark.parametrize(
    "fault", [{"truncate": True}, {"gone": True}, {"reset": True}, {"status": 503}, {"status": 410}]
)
def test_waiting_goes_on_whatever_happens_to_the_watch(fault):
    with a_stage("complete", delay=0.1) as (cluster, client):
        cluster.faults.next(watch=True, times=3, **fault)
        assert finished(client, client.submit(a_request())).succeeded


def test_waiting_goes_on_when_every_watch_is_cut_and_all_versions_are_forgotten():
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
def test_ending_a_job_survives_the_same(fault):
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        cluster.faults.next(method="PATCH", **EACH[fault])
        client.cancel(ref)
        cluster.faults.next(method="DELETE", **EACH[fault])
        client.backend.delete(ref)
        assert cluster.objects("TrainJob") == []


def test_a_newcomer_that_could_not_be_told_for_a_while_breaks_the_watch_of_nobody():
    watched = watch.Watched(kinds.TRAINJOBS, pods.JOBSET_LABEL, lambda raw: raw["metadata"]["name"], pods.read)
    pace = watch.Pace(linger=0.1, patience=0.1)
    with a_stage("runs") as (cluster, client):
        for name in ("first", "second", "third"):
            client.submit(a_request(name))
        connection = connect.connect(KubernetesBackendConfig(client_configuration=cluster.configuration()))
        with ExitStack() as stack:
            joined = [
                stack.enter_context(watch.subscribe(connection, watched, name, pace=pace))
                for name in ("first", "second")
            ]
            for each in joined:
                assert each.wait(60)
            cluster.until(lambda: cluster.watches == 2)
            cluster.faults.next(status=503, path="fieldSelector=metadata.name%3Dthird", times=1000)
            third = stack.enter_context(watch.subscribe(connection, watched, "third", pace=pace))
            cluster.until(lambda: (third.snapshot() or joined[0].snapshot()).error)
            cluster.faults.clear()
            cluster.until(lambda: (found := third.snapshot()) and found.job and not found.error)
            assert joined[0].snapshot().error is None


def test_a_server_that_is_overloaded_is_left_alone_for_as_long_as_it_says():
    with a_stage("complete") as (cluster, client):
        client.submit(a_request())
        cluster.forget_requests()
        cluster.faults.next(method="GET", path="trainjobs/job", status=429, retry_after=1)
        client.get_job("job")
        first, second, *_ = cluster.requests
    assert second.time - first.time >= 1
