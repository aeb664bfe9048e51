from __future__ import annotations

from hypothesis import example, given, settings, strategies as st

from trainer_core.k8s.cache import CachedJob, JobCache, Stream, WatchTarget, parse_resource_version
from trainer_core.k8s.resources import TRAINJOBS

LABEL = "job"


def build_cache(*names):
    target = WatchTarget(
        TRAINJOBS, LABEL, lambda raw: raw["state"], lambda raw: (raw["metadata"]["name"], raw["state"])
    )
    cache = JobCache(target)
    for name in names:
        cache.jobs[name] = CachedJob()
    return cache


def job(version, state="x", uid="u", name="a"):
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, "state": state}


def pod(version, state="x", name="p"):
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": {LABEL: "a"}}, "state": state}


def test_an_event_of_a_job_that_is_not_cached_is_ignored():
    assert build_cache("a").apply_event(Stream.JOBS, "ADDED", job(1, name="b")) is None


def test_an_event_with_an_older_version_is_ignored():
    cache = build_cache("a")
    cache.apply_event(Stream.JOBS, "MODIFIED", job(5, "new"))

    assert cache.apply_event(Stream.JOBS, "MODIFIED", job(4, "old")) is None
    assert cache.jobs["a"].job == "new"


def test_an_event_that_changes_no_kept_field_is_no_change():
    cache = build_cache("a")
    cache.apply_event(Stream.JOBS, "MODIFIED", job(5))

    assert cache.apply_event(Stream.JOBS, "MODIFIED", job(6)) is None


def test_a_job_that_is_missing_from_two_lists_is_one_change():
    cache = build_cache("a")

    assert cache.finish_list(Stream.JOBS, {}, 5, dict(cache.jobs)) == ["a"]
    assert cache.finish_list(Stream.JOBS, {}, 6, dict(cache.jobs)) == []


def test_a_job_newer_than_a_list_is_kept_although_the_list_does_not_contain_it():
    cache = build_cache("a")
    cache.apply_event(Stream.JOBS, "ADDED", job(7))

    assert cache.finish_list(Stream.JOBS, {}, 6, dict(cache.jobs)) == []


def test_a_list_that_began_before_a_job_was_added_does_not_change_its_pods():
    cache = build_cache("b")
    scope = dict(cache.jobs)
    cache.apply_event(Stream.PODS, "ADDED", pod(3))
    cache.jobs["a"] = CachedJob()

    assert cache.finish_list(Stream.PODS, {"a": {"p"}}, 5, scope) == []
    assert cache.apply_event(Stream.PODS, "ADDED", pod(3)) == "a"


def test_a_list_that_began_before_a_job_was_removed_and_added_again_does_not_change_its_pods():
    cache = build_cache("a")
    scope = dict(cache.jobs)
    cache.apply_event(Stream.PODS, "ADDED", pod(3))
    cache.jobs["a"] = CachedJob()

    assert cache.finish_list(Stream.PODS, {"a": {"p"}}, 5, scope) == []
    assert cache.apply_event(Stream.PODS, "ADDED", pod(3)) == "a"


def test_a_deleted_job_does_not_reappear_from_an_older_list():
    cache = build_cache("a")
    cache.apply_event(Stream.JOBS, "DELETED", job(7))

    assert cache.apply_event(Stream.JOBS, "ADDED", job(5)) is None
    assert cache.jobs["a"].job is None


def test_a_new_job_with_the_name_of_a_deleted_one_is_a_change():
    cache = build_cache("a")
    cache.apply_event(Stream.JOBS, "DELETED", job(7))

    assert cache.apply_event(Stream.JOBS, "ADDED", job(8, uid="other")) == "a"


def test_an_object_whose_version_is_not_a_number_is_accepted():
    cache = build_cache("a")
    cache.apply_event(Stream.PODS, "ADDED", pod("abc"))

    assert cache.jobs["a"].list_pods() == (("p", "x"),)
    assert parse_resource_version("abc") == 0


class World:
    """Pods with their history, a watch that lags behind, and two overlapping lists that arrive late."""

    def __init__(self):
        self.cache = build_cache("a")
        self.version = 0
        self.pods = {}
        self.events = []
        self.pending_lists = {}

    def change(self, name, state):
        self.version += 1
        self.pods[name] = pod(self.version, state, name)
        self.events.append(("MODIFIED", self.pods[name]))

    def delete(self, name):
        if self.pods.pop(name, None):
            self.version += 1
            self.events.append(("DELETED", pod(self.version, name=name)))

    def deliver_event(self):
        if self.events:
            self.cache.apply_event(Stream.PODS, *self.events.pop(0))

    def begin_list(self, number):
        self.pending_lists.setdefault(number, (self.version, list(self.pods.values())))

    def deliver_list(self, number):
        version, pods = self.pending_lists.pop(number, (None, []))
        for raw in pods:
            self.cache.apply_event(Stream.PODS, "ADDED", raw)
        if version is not None:
            listed = {"a": {raw["metadata"]["name"] for raw in pods}}
            self.cache.finish_list(Stream.PODS, listed, version, self.cache.jobs)

    def expected_pods(self):
        return tuple((name, self.pods[name]["state"]) for name in sorted(self.pods))


NAMES = st.sampled_from("pq")
EVENT = ("deliver_event",)
STEPS = st.one_of(
    st.tuples(st.just("change"), NAMES, st.sampled_from("xy")),
    st.tuples(st.just("delete"), NAMES),
    st.just(EVENT),
    st.just(EVENT),
    st.tuples(st.sampled_from(["begin_list", "deliver_list"]), st.sampled_from([1, 2])),
)
BEGIN, DELIVER = ("begin_list", 1), ("deliver_list", 1)
BEGIN_SECOND, DELIVER_SECOND = ("begin_list", 2), ("deliver_list", 2)


@example([("change", "p", "x"), BEGIN, ("delete", "p"), EVENT, EVENT, DELIVER])
@example([("change", "p", "x"), ("delete", "p"), BEGIN, DELIVER, EVENT, EVENT])
@example([("change", "p", "x"), BEGIN, ("change", "p", "y"), EVENT, EVENT, DELIVER])
@example([BEGIN, ("change", "p", "x"), BEGIN_SECOND, ("delete", "p"), EVENT, EVENT, DELIVER, DELIVER_SECOND])
@given(st.lists(STEPS, min_size=6, max_size=16))
@settings(max_examples=300)
def test_lists_and_events_in_any_order_lead_to_the_state_of_the_server(steps):
    world = World()
    for verb, *arguments in steps:
        getattr(world, verb)(*arguments)

    world.deliver_list(1)
    world.deliver_list(2)
    while world.events:
        world.deliver_event()

    assert world.cache.jobs["a"].list_pods() == world.expected_pods()
