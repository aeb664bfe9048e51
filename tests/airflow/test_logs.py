"""The log of a job in the log of a task: every line once, whenever one looks, in whichever process."""

from __future__ import annotations

import json

import pytest

from airflow_provider import logs
from airflow_provider.logs import LogTail, Shown
from trainer_core import JobNotFoundError, TrainJobRef
from trainer_core.observation import Tail

REF = TrainJobRef("local", "/home", "a-job", "uid")


def said(step, total=None, **metrics):
    return "[trainjob:progress] " + json.dumps({"step": step, "total": total, "metrics": metrics})


class Log:
    """A backend whose job has a log; it gives `most` lines at a look."""

    def __init__(self):
        self.lines = []
        self.looks = 0
        self.backend = self
        self.shown = []
        self.error = None
        self.tail_of_task = LogTail(self, REF, self.shown.append)

    def tail(self, ref, place, whole=False, most=3):
        self.looks += 1
        if self.error:
            raise self.error
        start = place.get("line", 0)
        new = self.lines[start : start + most]
        return Tail(new, {"line": start + len(new)}, start + len(new) == len(self.lines))

    def look(self, *lines, step="node-0", ended=False):
        self.lines += [(step, line) for line in lines]
        self.tail_of_task._next = 0.0
        self.shown.clear()
        self.tail_of_task.look(ended=ended)
        return list(self.shown)


@pytest.fixture
def log():
    return Log()


def test_lines_are_shown_as_they_come_with_the_step_they_are_from(log):
    assert log.look("one", "two") == ["[node-0] one", "[node-0] two"]
    assert log.look("three", step="node-1") == ["[node-1] three"]
    assert log.look() == []


def test_all_that_is_left_is_shown_when_the_job_has_ended(log):
    assert log.look(*"abcdefgh", ended=True) == [f"[node-0] {line}" for line in "abcdefgh"]
    assert log.tail_of_task.shown.complete


def test_the_log_is_not_read_all_the_time(log):
    log.look("one")
    log.tail_of_task.look()
    assert log.looks == 1


def test_a_log_that_cannot_be_read_fails_nothing(log):
    log.error = JobNotFoundError("it is gone")
    assert log.look() == []
    assert log.look(ended=True) == ["the rest of the log could not be read"]


def test_progress_is_one_line_for_each_tenth(log):
    shown = []
    for step in range(1001):
        shown += log.look(said(step, 1000))
    assert shown == [f"[node-0] progress {p}% ({10 * p}/1000)" for p in range(0, 101, 10)]


def test_progress_is_written_for_people(log):
    assert log.look(said(3, 10, loss=0.25)) == ["[node-0] progress 30% (3/10) loss=0.25"]


def test_progress_without_a_total_is_shown_now_and_then(log):
    assert log.look(said(4)) == ["[node-0] progress 4"]
    assert log.look(said(5)) == []
    log.tail_of_task.shown._next_progress = 0.0
    assert log.look(said(6)) == ["[node-0] progress 6"]


def test_a_last_percent_is_shown(log):
    log.look(said(99, 100))
    assert log.look(said(100, 100)) == ["[node-0] progress 100% (100/100)"]


def test_a_training_that_begins_anew_is_shown(log):
    log.look(said(9, 10))
    assert log.look(said(0, 10)) == ["[node-0] progress 0% (0/10)"]


def test_another_process_goes_on_where_this_one_was(log):
    log.look("one", said(1, 2))
    carried = json.loads(json.dumps(log.tail_of_task.shown.to_dict()))
    log.lines += [("node-0", "two"), ("node-0", said(1, 2))]
    there = []
    LogTail(log, REF, there.append, Shown(REF, carried)).look()
    assert there == ["[node-0] two"]


def test_how_far_another_job_was_shown_counts_for_nothing(log):
    log.look("one")
    carried = {**log.tail_of_task.shown.to_dict(), "uid": "another"}
    assert Shown(REF, carried).place == {}


class TaskLog:
    """The log of a task."""

    def __init__(self):
        self.lines = []

    def info(self, form, *arguments):
        self.lines.append(form % arguments)


class Store(dict):
    """What Airflow keeps over the tries of a task, as JSON."""

    def set(self, key, value):
        self[key] = json.loads(json.dumps(value))


class BrokenStore:
    """A store that does not answer."""

    def get(self, key):
        raise RuntimeError("the API server is away")

    set = get


def test_the_rest_is_what_the_trigger_has_not_shown(log):
    log.look("one")
    task = TaskLog()
    log.lines.append(("node-0", "two"))
    logs.rest(lambda: log, REF, task, None, log.tail_of_task.shown.to_dict())
    assert task.lines == ["[node-0] two"]


@pytest.mark.parametrize("carried", [None, {"uid": "uid", "complete": True}])
def test_where_nothing_is_left_the_backend_is_not_reached(carried):
    logs.rest(pytest.fail, REF, None, None, carried)


def test_a_next_try_goes_on_where_the_one_before_was_told_to_end(log):
    store, task = Store(), TaskLog()
    log.lines.append(("node-0", "one"))
    logs.of_task(log, REF, TaskLog(), store).look()
    log.lines.append(("node-0", "two"))
    logs.of_task(log, REF, task, store).look(ended=True)
    assert task.lines == ["[node-0] two"]


def test_a_next_try_with_another_job_begins_at_its_beginning(log):
    store, task = Store(), TaskLog()
    log.lines.append(("node-0", "one"))
    logs.of_task(log, REF, TaskLog(), store).look(ended=True)
    logs.of_task(log, TrainJobRef("local", "/home", "a-job-1", "another"), task, store).look(ended=True)
    assert task.lines == ["[node-0] one"]


@pytest.mark.parametrize("store", [None, BrokenStore()])
def test_without_a_store_a_next_try_shows_the_log_from_its_beginning(log, store):
    log.lines.append(("node-0", "one"))
    for _ in range(2):
        task = TaskLog()
        logs.of_task(log, REF, task, store).look(ended=True)
        assert task.lines == ["[node-0] one"]
