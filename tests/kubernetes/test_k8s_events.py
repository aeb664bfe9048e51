"""Events of both APIs: which belong to a job, and what is shown of them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from k8s_objects import CREATED, ENDED, JOB, UID, event

from trainer_core.cluster import events
from trainer_core.cluster.raw import time_of

BORN = time_of(CREATED)


def _kept(*raws, roles=(), **more):
    found = events.of_job(map(events.read, raws), UID, BORN, events.jobset_forms(JOB, roles), **more)
    return [one.name for one in found]


def _by_trainer(**fields):
    """An event as Trainer's controller writes it, read through events.k8s.io/v1."""
    return {
        "metadata": {"name": "x", "namespace": "ml", "creationTimestamp": CREATED},
        "regarding": {"kind": "TrainJob", "name": JOB, "uid": UID},
        "reason": "TrainJobResourcesCreationFailed",
        "note": "TrainJob resources reconciliation failed: it is refused",
        "type": "Warning",
        "eventTime": "2026-11-20T10:00:01.123456Z",
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        **fields,
    }


def test_an_event_of_the_new_api_has_its_own_words_for_the_same():
    shown = events.shown(events.read(_by_trainer()))

    assert (shown.involved_object_kind, shown.involved_object_name) == ("TrainJob", "digits")
    assert (shown.reason, shown.type) == ("TrainJobResourcesCreationFailed", "Warning")
    assert shown.message.endswith("it is refused")
    assert shown.event_time == datetime(2026, 11, 20, 10, 0, 1, 123456, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"eventTime": "2026-11-20T10:01:00.000001Z", "lastTimestamp": None, "firstTimestamp": None}, 1),
        ({"lastTimestamp": "2026-11-20T10:02:00Z"}, 2),
        ({"lastTimestamp": None, "firstTimestamp": "2026-11-20T10:03:00Z"}, 3),
        ({"lastTimestamp": None, "firstTimestamp": None}, 0),
        ({"series": {"count": 9, "lastObservedTime": "2026-11-20T10:04:00Z"}, "eventTime": CREATED}, 4),
    ],
)
def test_the_time_is_the_last_one_told(times, expected):
    assert events.read(event("BackOff", "again", **times)).time.minute == expected


def test_an_event_that_happened_often_says_how_often():
    assert events.shown(events.read(event("BackOff", "again", count=7))).message == "again (x7)"
    assert events.shown(events.read(_by_trainer(series={"count": 3, "lastObservedTime": ENDED}))).message.endswith(
        "(x3)"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("JobSet", "digits"),
        ("Job", "digits-node-0"),
        ("Job", "digits-dataset-initializer-0"),
        ("Pod", "digits-node-0-0-x7x7x"),
        ("Pod", "digits-launcher-0-0-x7x7x"),
    ],
)
def test_events_of_everything_made_for_a_job_are_its_events(kind, name):
    assert _kept(event("Any", "thing", kind=kind, name=name)) == [name]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("JobSet", "digits-node"),
        ("Job", "digits-node-node-0"),
        ("Pod", "digits-node-node-0-0-x7x7x"),
        ("Pod", "digits2-node-0-0-x7x7x"),
        ("TrainJob", "digits"),
        ("Node", "digits"),
    ],
)
def test_events_of_jobs_with_similar_names_are_not(kind, name):
    assert _kept(event("Any", "thing", kind=kind, name=name, uid="of another")) == []


def test_an_event_of_the_very_job_is_known_by_its_identity():
    assert _kept(event("Any", "thing", kind="TrainJob", name="digits", uid=UID)) == ["digits"]


def test_events_of_an_earlier_job_of_that_name_are_left_out():
    assert _kept(event("Any", "thing", kind="JobSet", name="digits", lastTimestamp="2026-11-20T09:00:00Z")) == []


def test_replicated_jobs_of_a_runtime_of_ones_own_count_too():
    raw = event("Any", "thing", name="digits-metrics-0-0-x7x7x")

    assert (_kept(raw), _kept(raw, roles=["metrics"])) == ([], ["digits-metrics-0-0-x7x7x"])


def test_the_job_of_a_request_that_only_initializes_has_plain_names():
    raws = [event("Any", "thing", kind="Job", name="digits"), event("Any", "thing", name="digits-x7x7x")]

    assert _kept(*raws) == ["digits", "digits-x7x7x"]


def test_events_come_in_the_order_in_which_they_happened():
    raws = [
        event("Any", "thing", lastTimestamp=f"2026-11-20T10:0{minute}:00Z", name=f"digits-node-0-{minute}-x7x7x")
        for minute in (3, 1, 2)
    ]

    assert [name[14] for name in _kept(*raws)] == ["1", "2", "3"]
