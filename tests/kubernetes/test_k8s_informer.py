from __future__ import annotations

import asyncio
import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import pytest
from fake_cluster import Fault

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import informer, watched_jobs
from trainer_core.k8s.cache import Stream
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.resources import TRAINJOBS
from trainer_core.k8s.watched_jobs import Subscription, WatchedJobs
from trainer_core.model.config import KubernetesBackendConfig

JOBSET = "jobset.sigs.k8s.io/jobset-name"
TIMEOUT = 300.0
TIMINGS = informer.WatchTimings(idle_timeout=0.2, error_grace=0.5, silence_timeout=30.0, forbidden_retry=0.3)


def get_phase(raw):
    return (raw.get("status") or {}).get("phase", "")


def transform_pod(raw):
    return raw["metadata"]["name"], get_phase(raw)


TARGET = informer.WatchTarget(
    TRAINJOBS, JOBSET, lambda raw: (raw.get("metadata", {}).get("annotations") or {}).get("state", "new"), transform_pod
)


@pytest.fixture
def connection(cluster):
    return Connection(KubernetesBackendConfig(client_configuration=cluster.configuration()))


@pytest.fixture
def subscribe(connection):
    opened = []

    def subscribe_to(name, uid="", timings=TIMINGS):
        opened.append(informer.subscribe(connection, TARGET, name, uid, timings))
        return opened[-1]

    yield subscribe_to
    for each in opened:
        each.close()
    poll(lambda: not informer_threads())


def informer_threads():
    return [thread for thread in threading.enumerate() if thread.name == "trainjob-watch"]


def poll(met: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not met():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def until(subscription, met):
    """Wait until the snapshot meets a condition, as a user would."""
    end = time.monotonic() + TIMEOUT
    snapshot = subscription.snapshot()
    while snapshot is None or not met(snapshot):
        assert time.monotonic() < end, f"timed out; last snapshot: {snapshot}"
        subscription.wait(end - time.monotonic())
        snapshot = subscription.snapshot()
    return snapshot


@contextmanager
def blocked_server(cluster):
    """Let the server answer no request."""
    over = threading.Event()
    cluster._loop.call_soon_threadsafe(over.wait, TIMEOUT)
    try:
        yield
    finally:
        over.set()


def bookmark_every(cluster, seconds):
    cluster._server.watches.bookmark_interval = seconds


def add_job(cluster, name="a", **metadata):
    raw = {
        "apiVersion": TRAINJOBS.api_version,
        "kind": "TrainJob",
        "metadata": {"name": name, **metadata},
        "spec": {"runtimeRef": {"name": "torch-distributed"}},
    }
    return cluster.add(raw)["metadata"]["uid"]


def set_state(cluster, state, name="a"):
    def edit(raw):
        raw["metadata"].setdefault("annotations", {})["state"] = state

    cluster.update("trainjobs", name, edit)


def add_pod(cluster, name, job="a"):
    cluster.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {JOBSET: job}},
            "spec": {"containers": [{"name": "node", "image": "python"}]},
            "status": {"phase": "Pending"},
        }
    )


def test_the_first_snapshot_contains_the_job_and_its_pods(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")

    assert until(subscribe("a", uid), bool) == watched_jobs.JobSnapshot("new", (("a-node-0", "Pending"),), None)


def test_there_is_no_snapshot_before_the_first_list(cluster, subscribe):
    with blocked_server(cluster):
        assert subscribe("a").snapshot() is None


def test_a_change_of_the_job_wakes_the_subscriber(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    set_state(cluster, "done")

    assert subscription.wait(TIMEOUT)
    assert subscription.snapshot().job == "done"


def test_a_change_of_a_pod_wakes_the_subscriber(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.update_status("pods", "a-node-0", {"phase": "Running"})

    assert until(subscription, lambda now: now.pods == (("a-node-0", "Running"),))


def test_a_change_of_a_field_that_is_not_kept_wakes_no_subscriber(cluster, subscribe):
    subscription, other = (subscribe(name, add_job(cluster, name)) for name in ("a", "b"))
    for each in (subscription, other):
        until(each, bool)

    cluster.update("trainjobs", "a", lambda raw: raw["metadata"].setdefault("labels", {}).update(x="y"))
    set_state(cluster, "running", "b")
    until(other, lambda now: now.job == "running")

    assert not subscription.wait(0)


def test_the_snapshot_of_a_deleted_job_has_no_job(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.delete("trainjobs", "a")

    assert until(subscription, lambda now: now.job is None).error is None


def test_the_snapshot_has_no_job_when_the_name_belongs_to_another_uid(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.delete("trainjobs", "a")
    add_job(cluster)

    assert until(subscription, lambda now: now.job is None).error is None


def test_a_subscription_to_the_new_uid_of_a_reused_name_returns_the_new_job(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)
    cluster.delete("trainjobs", "a")

    newer = subscribe("a", add_job(cluster))

    assert until(newer, bool).job == "new"


def test_a_deleted_pod_is_removed_from_the_snapshot(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", uid)
    until(subscription, lambda now: now.pods)

    cluster.delete("pods", "a-node-0")

    assert until(subscription, lambda now: now.pods == ())


def test_a_subscription_to_a_running_informer_is_as_new_as_itself(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)
    add_job(cluster, "b")
    set_state(cluster, "done", "b")

    joined = subscribe("b")

    assert joined.wait(TIMEOUT)
    assert joined.snapshot().job == "done"


def test_a_subscription_during_a_long_list_contains_pods_listed_before_it(cluster, subscribe):
    for name in ("a", "b", "c"):
        add_job(cluster, name)
    for number in range(21):
        add_pod(cluster, f"c-node-{number}", "c")
    add_pod(cluster, "b-node-0", "b")
    # The second page of the list of all pods takes one or two seconds.
    cluster.faults.next(drip=0.002, path="pods.*continue")
    for name in ("a", "c"):
        subscribe(name)
    cluster.until(lambda: cluster.faults.counts["drip"])

    joined = subscribe("b")

    assert until(joined, bool).pods == (("b-node-0", "Pending"),)


def test_a_single_subscription_watches_only_its_job(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)

    poll(lambda: cluster.watches == 2)

    assert {request.query.get("fieldSelector") for request in cluster.requests if "trainjobs" in request.path} == {
        "metadata.name=a"
    }


def test_many_subscriptions_share_one_watch_of_jobs_and_one_of_pods(cluster, subscribe):
    names = [f"job-{number}" for number in range(30)]
    uids = {name: add_job(cluster, name) for name in names}

    with blocked_server(cluster):
        subscriptions = [subscribe(name, uid) for name, uid in uids.items()]
    for subscription in subscriptions:
        until(subscription, bool)

    poll(lambda: cluster.watches == 2)
    # Those that were opened during a list need another one, which they share.
    assert cluster.counts["list trainjobs"] + cluster.counts["list pods"] < len(names)


def test_the_watch_ends_after_the_last_subscription_is_closed(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)
    assert informer_threads()

    subscription.close()

    poll(lambda: not informer_threads() and cluster.watches == 0)


def test_stopping_the_informers_of_a_server_ends_their_threads_with_open_subscriptions(cluster, subscribe, monkeypatch):
    monkeypatch.setattr(informer, "_STOP_SECONDS", TIMEOUT)
    until(subscribe("a", add_job(cluster)), bool)
    (thread,) = informer_threads()

    informer.stop_informers("http://127.0.0.1:1")
    assert thread.is_alive()
    informer.stop_informers(cluster.url)
    assert not thread.is_alive()


def test_an_informer_without_subscriptions_sends_no_request(cluster, connection):
    idle = informer.JobInformer(connection, TARGET, TIMINGS)

    idle.start()
    idle._thread.join(TIMEOUT)

    assert not idle._thread.is_alive()
    assert cluster.requests == []


def test_a_broken_watch_continues_from_the_last_version_without_a_list(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)
    cluster.forget_requests()

    cluster.break_watches()
    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")
    assert cluster.counts["list trainjobs"] == 0


def test_a_truncated_event_is_not_lost(cluster, subscribe):
    cluster.faults.next(truncate=True, watch=True, path="trainjobs")
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)

    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")


def test_events_that_the_server_has_compacted_are_found_by_a_list(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)
    until(subscription, bool)

    cluster.faults.next(hang=0.2, watch=True, times=2)
    cluster.break_watches()
    cluster.delete("trainjobs", "a")
    cluster.compact()

    assert until(subscription, lambda now: now.job is None).error is None


def test_an_expired_version_within_a_watch_leads_to_a_list(cluster, subscribe):
    cluster.faults.next(gone=True, watch=True, path="trainjobs")
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)

    poll(lambda: cluster.counts["list trainjobs"] >= 2)
    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")


def test_a_silent_watch_is_opened_again(cluster, subscribe):
    bookmark_every(cluster, 60.0)
    subscription = subscribe(
        "a", add_job(cluster), timings=informer.WatchTimings(idle_timeout=0.2, silence_timeout=1.2)
    )
    until(subscription, bool)

    poll(lambda: cluster.counts["watch trainjobs"] >= 2)

    assert subscription.snapshot().error is None


def test_changes_after_a_restore_of_etcd_arrive_although_their_versions_are_lower(cluster, subscribe):
    """The server counts from the backup: a watch from a later version is silent, and lists have lower versions."""
    quick = informer.WatchTimings(idle_timeout=0.2, silence_timeout=1.5)
    uid = add_job(cluster)
    add_pod(cluster, "one", job="a")
    backup = cluster.backup()
    subscription = subscribe("a", uid, timings=quick)
    set_state(cluster, "lost")
    add_pod(cluster, "two", job="a")
    for number in range(20):
        add_job(cluster, f"b{number}")
    until(subscription, lambda now: now.job == "lost" and len(now.pods) == 2)

    cluster.restore(backup)
    until(subscription, lambda now: now.job == "new" and [pod[0] for pod in now.pods] == ["one"])
    set_state(cluster, "changed")

    assert until(subscription, lambda now: now.job == "changed")


def test_a_server_that_no_longer_answers_is_reported(cluster, subscribe):
    """Each attempt to watch takes longer than a watch has to last."""
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)
    cluster.faults.next(hang=1.2, watch=True, times=1000)
    cluster.break_watches()

    assert isinstance(until(subscription, lambda now: now.error).error, BackendUnavailableError)


def test_a_watch_continues_from_the_version_of_the_last_bookmark(cluster, subscribe):
    bookmark_every(cluster, 0.001)
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)

    newest = add_job(cluster, "b") and cluster.get("trainjobs", "b")["metadata"]["resourceVersion"]

    def continues_from_bookmark():
        cluster.break_watches()
        return [r for r in cluster.requests if r.query.get("watch") and r.query.get("resourceVersion") == newest]

    poll(continues_from_bookmark)


def test_the_error_of_a_failing_watch_is_in_the_snapshot_after_the_grace_time(cluster, subscribe):
    cluster.faults.next(status=503, times=1000)

    snapshot = until(subscribe("a", add_job(cluster)), lambda now: now.error)

    assert isinstance(snapshot.error, BackendUnavailableError)


def test_the_error_is_removed_when_the_watch_works_again(cluster, subscribe):
    cluster.faults.next(status=503, times=1000)
    subscription = subscribe("a", add_job(cluster))
    until(subscription, lambda now: now.error)

    cluster.faults.clear()

    assert until(subscription, lambda now: not now.error).job == "new"


def test_a_forbidden_list_of_jobs_is_reported_at_once(cluster, subscribe):
    cluster.forbid("list", "trainjobs")

    snapshot = until(
        subscribe("a", timings=informer.WatchTimings(idle_timeout=0.2, error_grace=1000)), lambda now: now.error
    )

    assert isinstance(snapshot.error, ForbiddenError)


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_jobs_are_reported_without_pods_where_pods_are_forbidden(cluster, subscribe, verb):
    cluster.forbid(verb, "pods")

    assert until(subscribe("a", add_job(cluster)), lambda now: now.pods is None) == watched_jobs.JobSnapshot(
        "new", None, None
    )


def test_pods_are_reported_once_they_are_permitted(cluster, subscribe):
    cluster.forbid("list", "pods")
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", add_job(cluster))
    until(subscription, lambda now: now.pods is None)

    cluster.allow("list", "pods")

    assert until(subscription, lambda now: now.pods)


def test_a_later_subscription_gets_its_job_where_pods_are_forbidden(cluster, subscribe):
    cluster.forbid("list", "pods")
    until(subscribe("a", add_job(cluster)), bool)

    assert until(subscribe("b", add_job(cluster, "b")), bool).pods is None


async def test_many_subscribers_can_wait_in_one_event_loop(cluster, subscribe):
    uids = {f"job-{number}": add_job(cluster, f"job-{number}") for number in range(20)}

    async def done(name, uid):
        subscription = subscribe(name, uid)
        while True:
            snapshot = subscription.snapshot()
            if snapshot is not None and snapshot.job == "done":
                return name
            assert await subscription.wait_async(TIMEOUT)

    waiting = [asyncio.ensure_future(done(name, uid)) for name, uid in uids.items()]
    for name in uids:
        await asyncio.to_thread(set_state, cluster, "done", name)

    assert await asyncio.gather(*waiting) == list(uids)


async def test_waiting_without_a_change_ends_at_the_timeout(subscribe):
    subscription = subscribe("a")
    await subscription.wait_async(TIMEOUT)
    subscription.snapshot()

    assert not await subscription.wait_async(0.05)


@pytest.fixture
def watched():
    """Jobs without a reflector, and a subscription to one with the uid `first`."""
    jobs = WatchedJobs(TARGET, "a", 0.0, lambda: None)
    subscription = Subscription(jobs, "job", "first")
    jobs.add(subscription, shares_list=False)
    for stream in (Stream.JOBS, Stream.PODS):
        jobs.finish_list(jobs.begin_list(stream, None), {}, 1)
    return jobs, subscription


@pytest.mark.parametrize(("uid", "state"), [("first", "new"), ("second", None)])
def test_a_job_with_another_uid_is_not_the_job_of_a_subscription(watched, uid, state):
    jobs, subscription = watched
    jobs.apply_event(Stream.JOBS, "ADDED", {"metadata": {"name": "job", "uid": uid, "resourceVersion": "2"}})

    assert subscription.snapshot().job == state


def test_the_end_of_an_error_wakes_a_subscription(watched):
    jobs, subscription = watched
    jobs.report_error(Stream.JOBS, BackendUnavailableError("away"))
    assert str(subscription.snapshot().error) == "away"
    jobs.clear_error(Stream.JOBS)

    assert subscription.wait(0)
    assert subscription.snapshot().error is None


async def test_waiting_can_be_cancelled(subscribe):
    subscription = subscribe("a")
    await subscription.wait_async(TIMEOUT)
    subscription.snapshot()
    waiting = asyncio.ensure_future(subscription.wait_async())
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_an_exception_in_a_transform_function_is_reported(cluster, connection):
    def raise_error(raw):
        raise ZeroDivisionError

    add_job(cluster)
    with informer.subscribe(
        connection, informer.WatchTarget(TRAINJOBS, JOBSET, raise_error, transform_pod), "a"
    ) as subscription:
        assert "ZeroDivisionError" in str(until(subscription, lambda now: now.error).error)


def test_all_changes_arrive_over_a_faulty_network(cluster, subscribe):
    names = [f"job-{number}" for number in range(20)]
    cluster.faults.at_random(0.2, seed=7, kinds=[Fault(status=429, retry_after=0.05), Fault(reset=True)])
    subscriptions = {name: subscribe(name, add_job(cluster, name)) for name in names}

    for name in names:
        set_state(cluster, "running", name)
        add_pod(cluster, f"{name}-node-0", name)
        cluster.break_watches()
        set_state(cluster, "done", name)
    cluster.delete("trainjobs", names[0])
    cluster.compact()

    until(subscriptions[names[0]], lambda now: now.job is None and not now.error)
    for name in names[1:]:
        until(subscriptions[name], lambda now: now.job == "done" and now.pods)


def _wait_in_child(url, uid, results):
    from kubernetes.client import Configuration

    config = KubernetesBackendConfig(client_configuration=Configuration(host=url))
    with informer.subscribe(Connection(config), TARGET, "a", uid, TIMINGS) as subscription:
        results.put(until(subscription, bool).job)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_its_own_informer(cluster, subscribe):
    uid = add_job(cluster)
    cluster.tokens = set()
    until(subscribe("a", uid), bool)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_wait_in_child, args=(cluster.url, uid, results))
    child.start()
    seen = results.get(timeout=TIMEOUT)
    child.join(TIMEOUT)

    assert (seen, child.exitcode) == ("new", 0)


def _inherited_error(subscription, results):
    results.put(str(subscription.snapshot().error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_subscription_inherited_by_a_fork_reports_an_error(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_inherited_error, args=(subscription, results))
    child.start()
    error = results.get(timeout=TIMEOUT)
    child.join(TIMEOUT)

    assert "subscribe again" in error


def test_an_open_subscription_does_not_keep_the_program_alive(cluster):
    cluster.tokens = set()
    program = f"""
from kubernetes.client import Configuration
from trainer_core.k8s import informer, resources
from trainer_core.k8s.connection import Connection
from trainer_core.model.config import KubernetesBackendConfig
config = KubernetesBackendConfig(client_configuration=Configuration(host={cluster.url!r}))
informer._STOP_SECONDS = 60.0
target = informer.WatchTarget(resources.TRAINJOBS, "l", lambda raw: 1, lambda raw: 1)
print(informer.subscribe(Connection(config), target, "a").wait(300))
"""

    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)


def test_a_closed_subscription_is_garbage_collected(cluster, connection):
    # A name that no other test has: another test of this process may have left a subscription.
    uid = add_job(cluster, "collected")
    with informer.subscribe(connection, TARGET, "collected", uid, TIMINGS) as subscription:
        until(subscription, bool)
    poll(lambda: not informer_threads())
    del subscription
    gc.collect()

    # Not isinstance(): it reads `__class__` of every object, and some objects warn about that.
    found = [each for each in gc.get_objects() if type(each) is informer.Subscription]
    assert "collected" not in [each.name for each in found]
