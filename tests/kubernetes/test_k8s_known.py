from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer_core.cluster.kinds import TRAINJOBS
from trainer_core.cluster.known import JOBS, PODS, Entry, Known, Watched, number

LABEL = "job"


def known(*names):
    found = Known(
        Watched(TRAINJOBS, LABEL, lambda raw: raw["state"], lambda raw: (raw["metadata"]["name"], raw["state"]))
    )
    for name in names:
        found.entries[name] = Entry()
    return found


def job(version, state="x", uid="u", name="a", **labels):
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": str(version), "labels": labels},
        "state": state,
    }


def pod(version, state="x", name="p"):
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": {LABEL: "a"}}, "state": state}


def test_only_jobs_that_are_kept_are_news():
    assert known("a").take(JOBS, "ADDED", job(1, name="b")) is None


def test_a_selected_job_is_kept_without_being_asked_for():
    found = known()
    found.selectors.append({"team": "x"})

    assert found.take(JOBS, "ADDED", job(1, team="x", other="y")) == "a"
    assert found.take(JOBS, "ADDED", job(2, name="b", team="z")) is None


def test_an_older_version_of_a_job_is_no_news():
    found = known("a")
    found.take(JOBS, "MODIFIED", job(5, "new"))

    assert found.take(JOBS, "MODIFIED", job(4, "old")) is None
    assert found.entries["a"].job == "new"


def test_the_same_state_again_is_no_news():
    found = known("a")
    found.take(JOBS, "MODIFIED", job(5))

    assert found.take(JOBS, "MODIFIED", job(6)) is None


def test_that_a_job_is_not_there_is_news_once():
    found = known("a")

    assert found.end_list(JOBS, {}, 5, dict(found.entries)) == ["a"]
    assert found.end_list(JOBS, {}, 6, dict(found.entries)) == []


def test_a_job_that_is_newer_than_a_list_is_not_gone_for_being_missing_there():
    found = known("a")
    found.take(JOBS, "ADDED", job(7))

    assert found.end_list(JOBS, {}, 6, dict(found.entries)) == []


def test_a_list_that_began_before_a_job_was_kept_says_nothing_of_its_pods():
    found = known("b")
    begun = dict(found.entries)
    found.take(PODS, "ADDED", pod(3))
    found.entries["a"] = Entry()

    assert found.end_list(PODS, {"a": {"p"}}, 5, begun) == []
    assert found.take(PODS, "ADDED", pod(3)) == "a"


def test_a_list_that_began_before_a_job_was_forgotten_and_kept_again_says_nothing_of_its_pods():
    found = known("a")
    begun = dict(found.entries)
    found.take(PODS, "ADDED", pod(3))
    found.forget("a")
    found.entries["a"] = Entry()

    assert found.end_list(PODS, {"a": {"p"}}, 5, begun) == []
    assert found.take(PODS, "ADDED", pod(3)) == "a"


def test_a_deleted_job_does_not_come_back_from_an_older_list():
    found = known("a")
    found.take(JOBS, "DELETED", job(7))

    assert found.take(JOBS, "ADDED", job(5)) is None
    assert found.entries["a"].job is None


def test_a_new_job_of_the_name_of_a_deleted_one_is_news():
    found = known("a")
    found.take(JOBS, "DELETED", job(7))

    assert found.take(JOBS, "ADDED", job(8, uid="other")) == "a"


def test_a_version_that_is_no_number_is_taken_as_it_comes():
    found = known("a")
    found.take(PODS, "ADDED", pod("abc"))

    assert found.entries["a"].facts() == (("p", "x"),)
    assert number("abc") == 0


def test_what_nobody_waits_for_is_forgotten():
    found = known("a")
    found.forget("a")

    assert found.entries == {}


class World:
    """Pods and their history; a watch that lags behind, and lists that are slow to arrive."""

    def __init__(self):
        self.known = known("a")
        self.version = 0
        self.pods = {}
        self.events = []
        self.listing = None

    def change(self, name, state):
        self.version += 1
        self.pods[name] = pod(self.version, state, name)
        self.events.append(("MODIFIED", self.pods[name]))

    def delete(self, name):
        if self.pods.pop(name, None):
            self.version += 1
            self.events.append(("DELETED", pod(self.version, name=name)))

    def watch(self):
        if self.events:
            self.known.take(PODS, *self.events.pop(0))

    def list(self):
        self.listing = self.listing or (self.version, list(self.pods.values()))

    def arrive(self):
        version, pods = self.listing or (0, [])
        for raw in pods:
            self.known.take(PODS, "ADDED", raw)
        if self.listing:
            seen = {"a": {raw["metadata"]["name"] for raw in pods}}
            self.known.end_list(PODS, seen, version, self.known.entries)
        self.listing = None

    def truth(self):
        return tuple((name, self.pods[name]["state"]) for name in sorted(self.pods))


NAMES = st.sampled_from("pq")
STEPS = st.one_of(
    st.tuples(st.just("change"), NAMES, st.sampled_from("xy")),
    st.tuples(st.just("delete"), NAMES),
    st.just(("watch",)),
    st.just(("watch",)),
    st.just(("list",)),
    st.just(("arrive",)),
)


@example([("change", "p", "x"), ("list",), ("delete", "p"), ("watch",), ("watch",), ("arrive",)])
@example([("change", "p", "x"), ("delete", "p"), ("list",), ("arrive",), ("watch",), ("watch",)])
@example([("change", "p", "x"), ("list",), ("change", "p", "y"), ("watch",), ("watch",), ("arrive",)])
@given(st.lists(STEPS, min_size=6, max_size=16))
@settings(max_examples=1000)
def test_lists_and_events_give_the_truth_in_whatever_order_they_come(steps):
    world = World()
    for verb, *arguments in steps:
        getattr(world, verb)(*arguments)

    world.arrive()
    while world.events:
        world.watch()

    assert world.known.entries["a"].facts() == world.truth()
