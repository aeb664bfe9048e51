"""A wait that shows progress watches as other waits do, and reads the log only of a container that has started."""

from __future__ import annotations

from contextlib import suppress

import pytest
from k8s_scene import a_request, a_stage, asked, seen

from trainer_core.backends import watch_follower
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import job_reader, resources


def next_until(follower, condition):
    """Return the first observation that fulfils a condition."""
    while not condition(observation := follower.next_observation(60)):
        pass
    return observation


def node_pod(cluster):
    (pod,) = cluster.objects(resources.PODS, "default")
    return pod["metadata"]["name"]


def test_a_wait_with_progress_sends_no_request_but_for_one_stream_of_the_log():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        with client.follow(ref, progress=True) as follower:
            next_until(follower, lambda each: each.status == "Running")
            cluster.write_log(
                node_pod(cluster), '[trainjob:progress] {"step": 2, "total": 4, "metrics": {"loss": 0.5}}'
            )
            next_until(follower, lambda each: each.progress is not None)
            # The pods are listed before they are watched, and may run by then.
            cluster.until(lambda: cluster.watches == 2)
            cluster.forget_requests()
            observations = [follower.next_observation(0) for _ in range(20)]
            sent = asked(cluster)
    assert [each.progress.percentage for each in observations] == [50] * 20
    assert sent == []


def test_a_new_progress_line_is_observed_and_the_end_of_the_job_needs_no_polling():
    with a_stage("complete") as (cluster, client):
        ref = client.submit(a_request())
        statuses = []
        outcome = client.wait(ref, on_observation=lambda each: statuses.append(each.status))
        requests = asked(cluster)
    assert outcome.succeeded
    assert statuses[-1] == "Complete"
    assert "watch trainjobs" in requests
    after_watch = requests[requests.index("watch trainjobs") :]
    assert after_watch.count("get trainjobs/job") == 0


def test_the_log_of_a_container_that_never_started_is_not_read():
    with a_stage("image-pull-error") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda each: each.pending_failure is not None)
        with client.follow(ref, progress=True) as follower:
            next_until(follower, lambda each: each.pending_failure is not None)
        assert [request for request in asked(cluster) if request.endswith("/log")] == []


def fails(*_):
    raise RuntimeError("a defect")


def test_a_follower_subscribes_again_after_its_watch_thread_has_died():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        with client.follow(ref) as follower:
            next_until(follower, lambda each: each.status == "Running")
            dead = follower._subscription._jobs
            dead._cache.apply_event = fails
            cluster.update("trainjobs", "job", lambda raw: raw["metadata"].setdefault("annotations", {}).update(a="b"))
            with pytest.raises(BackendUnavailableError, match=r"the watch of trainjobs .* has ended \(RuntimeError"):
                next_until(follower, lambda each: each.status == "Suspended")
            cluster.until(lambda: observes_again(follower))
            client.suspend(ref)
            next_until(follower, lambda each: each.status == "Suspended")
            assert follower._subscription._jobs is not dead


def observes_again(follower):
    """Return whether an observation succeeds."""
    with suppress(BackendUnavailableError):
        return follower.next_observation(0.1)
    return None


def test_the_events_of_a_job_whose_container_is_created_are_not_listed_for_each_observation(monkeypatch):
    monkeypatch.setattr(job_reader, "_EVENTS_TIME_SHARE", float("inf"))
    monkeypatch.setattr(watch_follower, "_NO_PODS_SECONDS", 600.0)
    with a_stage("complete", delay=None) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: cluster.objects(resources.PODS, "default"))
        with client.follow(ref, progress=True) as follower:
            next_until(follower, lambda each: each.status == "Created")
            cluster.until(lambda: cluster.watches == 2)
            follower.next_observation(0)
            cluster.forget_requests()
            for _ in range(20):
                follower.next_observation(0)
            assert asked(cluster) == []
