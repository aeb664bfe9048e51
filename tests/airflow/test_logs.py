"""The log of a job in the log of a task: every line once, whenever one looks."""

from __future__ import annotations

import pytest

from airflow_provider.logs import LogTail
from trainer_core import InvalidRequestError, TrainJobRef


class Log:
    """A client whose job has one log, which grows as a test says."""

    def __init__(self):
        self.lines = {"node-0": []}
        self.shown = []
        self.backend = self
        self.tail = LogTail(self, TrainJobRef("local", "/home", "a-job", "uid"), self.shown.append)

    def logs(self, ref, step):
        if step not in self.lines:
            raise InvalidRequestError(f"no step {step}")
        return iter(self.lines[step])

    def look(self, *lines, step="node-0", ended=False):
        self.lines[step] = list(lines)
        self.tail._next = 0.0
        self.shown.clear()
        self.tail.look(ended=ended)
        return list(self.shown)


@pytest.fixture
def log():
    return Log()


def test_lines_are_shown_as_they_come(log):
    assert log.look("one", "two", "th") == ["one", "two"]
    assert log.look("one", "two", "three", "fo") == ["three"]


def test_the_last_line_is_shown_when_the_job_has_ended(log):
    assert log.look("one", "two") == ["one"]
    assert log.look("one", "two", ended=True) == ["two"]


def test_a_last_line_that_does_not_grow_is_shown_once(log):
    assert log.look("one") == []
    assert log.look("one") == ["one"]
    assert log.look("one") == []
    assert log.look("one", ended=True) == []


def test_a_last_line_that_grew_after_it_was_shown_is_shown_whole(log):
    log.look("loading...")
    assert log.look("loading...") == ["loading..."]
    assert log.look("loading... done", "next") == ["loading... done"]


def test_a_line_that_is_like_the_one_before_is_shown_too(log):
    log.look("x")
    assert log.look("x") == ["x"]
    assert log.look("x", "x", "x") == ["x", "x"]
    assert log.look("x", "x", "x", ended=True) == []


def test_a_growing_progress_bar_is_shown_when_it_is_done(log):
    assert log.look("10%") == []
    assert log.look("10% 20%") == []
    assert log.look("10% 20% 100%", ended=True) == ["10% 20% 100%"]


def test_lines_of_initializers_say_whose_they_are(log):
    assert log.look("3 files", step="dataset-initializer", ended=True) == ["[dataset-initializer] 3 files"]


def test_progress_is_written_for_people(log):
    line = '[trainjob:progress] {"step": 3, "total": 10, "metrics": {"loss": 0.25}}'
    assert log.look(line, '[trainjob:progress] {"step": 4}', ended=True) == ["progress 3/10 loss=0.25", "progress 4"]


def test_a_huge_log_does_not_keep_its_reader_busy(log):
    log.look("one", "two")
    log.tail._next = float("inf")
    log.shown.clear()
    log.tail.look()
    assert log.shown == []
