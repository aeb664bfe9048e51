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

from trainer_core.cluster import connect, watch
from trainer_core.cluster.answers import ForbiddenError
from trainer_core.cluster.kinds import TRAINJOBS
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError

JOBSET = "jobset.sigs.k8s.io/jobset-name"
PATIENCE = 60.0
PACE = watch.Pace(linger=0.2, patience=0.5, quiet=30.0, forbidden=0.3)


def phase_of(raw):
    return (raw.get("status") or {}).get("phase", "")


def pod_of(raw):
    return raw["metadata"]["name"], phase_of(raw)


WATCHED = watch.Watched(
    TRAINJOBS, JOBSET, lambda raw: (raw.get("metadata", {}).get("annotations") or {}).get("state", "new"), pod_of
)


@pytest.fixture
def connection(cluster):
    return connect.connect(KubernetesBackendConfig(client_configuration=cluster.configuration()))


@pytest.fixture
def subscribe(connection):
    taken = []

    def take(name, uid="", pace=PACE):
        taken.append(watch.subscribe(connection, WATCHED, name, uid, pace))
        return taken[-1]

    yield take
    for each in taken:
        each.close()
    poll(lambda: not watchers())


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "trainjob-watch"]


def poll(met: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.01)


def until(subscription, met):
    """Wait as a user would, until what is known is as expected."""
    end = time.monotonic() + PATIENCE
    snapshot = subscription.snapshot()
    while snapshot is None or not met(snapshot):
        assert time.monotonic() < end, f"waited for too long; last seen: {snapshot}"
        subscription.wait(end - time.monotonic())
        snapshot = subscription.snapshot()
    return snapshot


@contextmanager
def silence(cluster):
    """The server answers nobody."""
    over = threading.Event()
    cluster._loop.call_soon_threadsafe(over.wait, PATIENCE)
    yield
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


def test_the_first_news_are_the_job_and_its_pods_as_they_are(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")

    assert until(subscribe("a", uid), bool) == watch.Snapshot("new", (("a-node-0", "Pending"),), None)


def test_nothing_is_known_before_the_server_has_answered(cluster, subscribe):
    cluster.faults.next(hang=0.3, path="trainjobs")

    assert subscribe("a").snapshot() is None


def test_a_changed_job_wakes_who_waits(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    set_state(cluster, "done")

    assert subscription.wait(PATIENCE)
    assert subscription.snapshot().job == "done"


def test_a_changed_pod_wakes_who_waits(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.update_status("pods", "a-node-0", {"phase": "Running"})

    assert until(subscription, lambda now: now.pods == (("a-node-0", "Running"),))


def test_a_change_that_is_not_kept_wakes_nobody(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.update("trainjobs", "a", lambda raw: raw["metadata"].setdefault("labels", {}).update(x="y"))

    assert not subscription.wait(0.3)


def test_a_job_that_is_deleted_is_gone(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.delete("trainjobs", "a")

    assert until(subscription, lambda now: now.job is None).error is None


def test_a_job_is_gone_when_its_name_has_passed_to_another(cluster, subscribe):
    uid = add_job(cluster)
    subscription = subscribe("a", uid)
    until(subscription, bool)

    cluster.delete("trainjobs", "a")
    add_job(cluster)

    assert until(subscription, lambda now: now.job is None).error is None


def test_a_newer_job_of_the_name_is_seen_by_who_asks_for_it(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)
    cluster.delete("trainjobs", "a")

    newer = subscribe("a", add_job(cluster))

    assert until(newer, bool).job == "new"


def test_a_pod_that_is_deleted_is_no_longer_shown(cluster, subscribe):
    uid = add_job(cluster)
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", uid)
    until(subscription, lambda now: now.pods)

    cluster.delete("pods", "a-node-0")

    assert until(subscription, lambda now: now.pods == ())


def test_who_joins_a_running_watch_sees_at_least_what_was_then(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)
    add_job(cluster, "b")
    set_state(cluster, "done", "b")

    joined = subscribe("b")

    assert joined.wait(PATIENCE)
    assert joined.snapshot().job == "done"


def test_who_joins_while_a_long_list_arrives_sees_the_pods_that_it_showed_before(cluster, subscribe):
    for name in ("a", "b", "c"):
        add_job(cluster, name)
    for number in range(21):
        add_pod(cluster, f"c-node-{number}", "c")
    add_pod(cluster, "b-node-0", "b")
    # The second page of the pods of all jobs takes a second or two.
    cluster.faults.next(drip=0.002, path="pods.*continue")
    for name in ("a", "c"):
        subscribe(name)
    cluster.until(lambda: cluster.faults.counts["drip"])

    joined = subscribe("b")

    assert until(joined, bool).pods == (("b-node-0", "Pending"),)


def test_a_single_job_is_watched_alone(cluster, subscribe):
    until(subscribe("a", add_job(cluster)), bool)

    poll(lambda: cluster.watches == 2)

    assert {request.query.get("fieldSelector") for request in cluster.requests if "trainjobs" in request.path} == {
        "metadata.name=a"
    }


def test_many_jobs_cost_one_watch_of_jobs_and_one_of_pods(cluster, subscribe):
    names = [f"job-{number}" for number in range(30)]
    uids = {name: add_job(cluster, name) for name in names}

    with silence(cluster):
        subscriptions = [subscribe(name, uid) for name, uid in uids.items()]
    for subscription in subscriptions:
        until(subscription, bool)

    poll(lambda: cluster.watches == 2)
    assert cluster.counts["list trainjobs"] + cluster.counts["list pods"] <= 8


def test_the_watch_ends_a_little_after_the_last_who_waited(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)
    assert watchers()

    subscription.close()

    poll(lambda: not watchers() and cluster.watches == 0)


def test_a_broken_connection_is_taken_up_where_it_broke(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)
    cluster.forget_requests()

    cluster.break_watches()
    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")
    assert cluster.counts["list trainjobs"] == 0


def test_a_torn_line_loses_no_event(cluster, subscribe):
    cluster.faults.next(truncate=True, watch=True, path="trainjobs")
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)

    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")


def test_events_that_the_server_forgot_are_found_by_listing(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    poll(lambda: cluster.watches == 2)
    until(subscription, bool)

    cluster.faults.next(hang=0.2, watch=True, times=2)
    cluster.break_watches()
    cluster.delete("trainjobs", "a")
    cluster.compact()

    assert until(subscription, lambda now: now.job is None).error is None


def test_an_expired_version_within_a_watch_lists_anew(cluster, subscribe):
    cluster.faults.next(gone=True, watch=True, path="trainjobs")
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)

    poll(lambda: cluster.counts["list trainjobs"] >= 2)
    set_state(cluster, "done")

    assert until(subscription, lambda now: now.job == "done")


def test_a_silent_watch_is_opened_anew(cluster, subscribe):
    bookmark_every(cluster, 60.0)
    subscription = subscribe("a", add_job(cluster), pace=watch.Pace(linger=0.2, quiet=1.2))
    until(subscription, bool)

    poll(lambda: cluster.counts["watch trainjobs"] >= 2)

    assert subscription.snapshot().error is None


def test_a_bookmark_says_where_to_go_on(cluster, subscribe):
    bookmark_every(cluster, 0.001)
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)

    newest = add_job(cluster, "b") and cluster.get("trainjobs", "b")["metadata"]["resourceVersion"]

    def goes_on_from_there():
        cluster.break_watches()
        return [r for r in cluster.requests if r.query.get("watch") and r.query.get("resourceVersion") == newest]

    poll(goes_on_from_there)


def test_who_waits_hears_of_a_watch_that_stays_broken(cluster, subscribe):
    cluster.faults.next(status=503, times=1000)

    snapshot = until(subscribe("a", add_job(cluster)), lambda now: now.error)

    assert isinstance(snapshot.error, BackendUnavailableError)


def test_an_error_is_withdrawn_when_the_watch_works_again(cluster, subscribe):
    cluster.faults.next(status=503, times=1000)
    subscription = subscribe("a", add_job(cluster))
    until(subscription, lambda now: now.error)

    cluster.faults.clear()

    assert until(subscription, lambda now: not now.error).job == "new"


def test_who_may_not_list_jobs_hears_it_at_once(cluster, subscribe):
    cluster.forbid("list", "trainjobs")

    snapshot = until(subscribe("a", pace=watch.Pace(linger=0.2, patience=1000)), lambda now: now.error)

    assert isinstance(snapshot.error, ForbiddenError)


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_who_may_not_see_pods_sees_jobs_alone(cluster, subscribe, verb):
    cluster.forbid(verb, "pods")

    assert until(subscribe("a", add_job(cluster)), lambda now: now.pods is None) == watch.Snapshot("new", None, None)


def test_pods_are_shown_from_when_they_may_be_seen(cluster, subscribe):
    cluster.forbid("list", "pods")
    add_pod(cluster, "a-node-0")
    subscription = subscribe("a", add_job(cluster))
    until(subscription, lambda now: now.pods is None)

    cluster.allow("list", "pods")

    assert until(subscription, lambda now: now.pods)


def test_a_newcomer_hears_of_its_job_where_pods_may_not_be_seen(cluster, subscribe):
    cluster.forbid("list", "pods")
    until(subscribe("a", add_job(cluster)), bool)

    assert until(subscribe("b", add_job(cluster, "b")), bool).pods is None


def test_a_group_is_all_jobs_with_its_labels(cluster, connection):
    add_job(cluster, "a", labels={"team": "x", "other": "y"})
    add_job(cluster, "b", labels={"team": "z"})
    add_pod(cluster, "a-node-0")

    with watch.subscribe_all(connection, WATCHED, {"team": "x"}, PACE) as group:
        assert group.wait(PATIENCE)
        assert group.snapshots() == {"a": watch.Snapshot("new", (("a-node-0", "Pending"),), None)}


def test_a_group_follows_jobs_that_come_and_go(cluster, connection):
    with watch.subscribe_all(connection, WATCHED, {"team": "x"}, PACE) as group:
        assert group.wait(PATIENCE)
        assert group.snapshots() == {}
        add_job(cluster, "a", labels={"team": "x"})
        add_pod(cluster, "a-node-0")
        poll(lambda: [now.pods for now in group.snapshots().values()] == [(("a-node-0", "Pending"),)])
        cluster.delete("trainjobs", "a")
        poll(lambda: group.snapshots() == {})


async def test_many_can_wait_in_one_event_loop(cluster, subscribe):
    uids = {f"job-{number}": add_job(cluster, f"job-{number}") for number in range(20)}

    async def done(name, uid):
        subscription = subscribe(name, uid)
        while True:
            snapshot = subscription.snapshot()
            if snapshot is not None and snapshot.job == "done":
                return name
            assert await subscription.wait_async(PATIENCE)

    waiting = [asyncio.ensure_future(done(name, uid)) for name, uid in uids.items()]
    for name in uids:
        await asyncio.to_thread(set_state, cluster, "done", name)

    assert await asyncio.gather(*waiting) == list(uids)


async def test_waiting_without_news_ends_in_time(subscribe):
    subscription = subscribe("a")
    await subscription.wait_async(PATIENCE)
    subscription.snapshot()

    assert not await subscription.wait_async(0.05)


async def test_waiting_can_be_cancelled(subscribe):
    subscription = subscribe("a")
    await subscription.wait_async(PATIENCE)
    subscription.snapshot()
    waiting = asyncio.ensure_future(subscription.wait_async())
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_what_breaks_the_watch_itself_is_told(cluster, connection):
    def broken(raw):
        raise ZeroDivisionError

    add_job(cluster)
    with watch.subscribe(connection, watch.Watched(TRAINJOBS, JOBSET, broken, pod_of), "a") as subscription:
        assert "ZeroDivisionError" in str(until(subscription, lambda now: now.error).error)


def test_changes_at_random_all_arrive_over_a_bad_network(cluster, subscribe):
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
    with watch.subscribe(connect.connect(config), WATCHED, "a", uid, PACE) as subscription:
        results.put(until(subscription, bool).job)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_watches_by_itself(cluster, subscribe):
    uid = add_job(cluster)
    cluster.tokens = set()
    until(subscribe("a", uid), bool)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_wait_in_child, args=(cluster.url, uid, results))
    child.start()
    seen = results.get(timeout=PATIENCE)
    child.join(PATIENCE)

    assert (seen, child.exitcode) == ("new", 0)


def _inherited_error(subscription, results):
    results.put(str(subscription.snapshot().error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_subscription_from_before_a_fork_says_so_in_the_child(cluster, subscribe):
    subscription = subscribe("a", add_job(cluster))
    until(subscription, bool)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_inherited_error, args=(subscription, results))
    child.start()
    error = results.get(timeout=PATIENCE)
    child.join(PATIENCE)

    assert "subscribe again" in error


def test_a_program_ends_although_it_watches(cluster):
    cluster.tokens = set()
    program = f"""
from kubernetes.client import Configuration
from trainer_core.cluster import connect, kinds, watch
from trainer_core.configs import KubernetesBackendConfig
config = KubernetesBackendConfig(client_configuration=Configuration(host={cluster.url!r}))
watched = watch.Watched(kinds.TRAINJOBS, "l", lambda raw: 1, lambda raw: 1)
print(watch.subscribe(connect.connect(config), watched, "a").wait(20))
"""

    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)


def test_nothing_is_left_of_who_has_left(cluster, connection):
    with watch.subscribe(connection, WATCHED, "a", add_job(cluster), PACE) as subscription:
        until(subscription, bool)
    poll(lambda: not watchers())
    del subscription
    gc.collect()

    # By type alone: `isinstance` asks objects of others, and some of them warn.
    assert not [each for each in gc.get_objects() if type(each) is watch.JobSubscription]
