"""Parsing and filtering of Kubernetes events."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from k8s_objects import CREATED, ENDED, JOB, UID, event

from trainer_core.k8s import events
from trainer_core.k8s.parsing import parse_time

BORN = parse_time(CREATED)


def _kept(*raws, roles=(), **more):
    found = events.filter_job_events(
        map(events.parse_event, raws), UID, JOB, BORN, events.build_jobset_name_patterns(JOB, roles), **more
    )
    return [one.object_name for one in found]


def _by_trainer(**fields):
    """An event of the Trainer controller, as events.k8s.io/v1 returns it."""
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


def test_events_of_both_apis_are_parsed_alike():
    shown = events.to_public_event(events.parse_event(_by_trainer()))

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
def test_the_timestamp_is_the_last_occurrence(times, expected):
    assert events.parse_event(event("BackOff", "again", **times)).timestamp.minute == expected


def test_the_message_of_a_repeated_event_ends_with_its_count():
    assert events.to_public_event(events.parse_event(event("BackOff", "again", count=7))).message == "again (x7)"
    assert events.to_public_event(
        events.parse_event(_by_trainer(series={"count": 3, "lastObservedTime": ENDED}))
    ).message.endswith("(x3)")


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
def test_events_of_child_objects_belong_to_the_job(kind, name):
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
def test_events_of_jobs_with_similar_names_do_not_belong_to_the_job(kind, name):
    assert _kept(event("Any", "thing", kind=kind, name=name, uid="of another")) == []


def test_an_event_of_the_job_itself_is_matched_by_uid():
    assert _kept(event("Any", "thing", kind="TrainJob", name="digits", uid=UID)) == ["digits"]


def test_events_of_an_earlier_job_of_the_same_name_are_excluded():
    assert _kept(event("Any", "thing", kind="JobSet", name="digits", lastTimestamp="2026-11-20T09:00:00Z")) == []


def test_events_of_custom_replicated_jobs_belong_to_the_job():
    raw = event("Any", "thing", name="digits-metrics-0-0-x7x7x")

    assert (_kept(raw), _kept(raw, roles=["metrics"])) == ([], ["digits-metrics-0-0-x7x7x"])


def test_events_of_the_job_of_an_initialize_only_request_are_matched():
    raws = [event("Any", "thing", kind="Job", name="digits"), event("Any", "thing", name="digits-x7x7x")]

    assert _kept(*raws) == ["digits", "digits-x7x7x"]


def test_events_are_sorted_by_time():
    raws = [
        event("Any", "thing", lastTimestamp=f"2026-11-20T10:0{minute}:00Z", name=f"digits-node-0-{minute}-x7x7x")
        for minute in (3, 1, 2)
    ]

    assert [name[14] for name in _kept(*raws)] == ["1", "2", "3"]
