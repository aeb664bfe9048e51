"""Log of a job in the log of its task: every line once, across reads and processes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from airflow_fakes import fail
from clock import Clock

from airflow_provider import task_log as task_log_module
from airflow_provider.job_wait import JobWait
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.task_log import LogForwarder, LogPosition
from airflow_provider.task_memory import TaskMemory
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, JobNotFoundError, TrainJobRef
from trainer_core.model.jobs import COMPLETE, Outcome
from trainer_core.model.logs import LogChunk

REF = TrainJobRef("local", "/home", "a-job", "uid")


def progress_line(step, total=None, **metrics):
    return "[trainjob:progress] " + json.dumps({"step": step, "total": total, "metrics": metrics})


class Log:
    """Client whose job has a log; it returns at most `max_lines` lines per read."""

    def __init__(self):
        self.lines = []
        self.reads = 0
        self.written = []
        self.error = None
        self.forwarder = LogForwarder(self, REF, self.written.append)

    def tail_job_logs(self, ref, cursor, job_ended=False, max_lines=3):
        self.reads += 1
        if self.error:
            raise self.error
        start = cursor.get("line", 0)
        new = self.lines[start : start + max_lines]
        return LogChunk(new, {"line": start + len(new)}, start + len(new) == len(self.lines))

    def poll(self, *lines, step="node-0", ended=False):
        self.lines += [(step, line) for line in lines]
        self.forwarder._next = 0.0
        self.written.clear()
        self.forwarder.poll(ended=ended)
        return list(self.written)


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(task_log_module, "time", Clock())
    return Log()


def test_new_lines_are_written_with_their_step(log):
    assert log.poll("one", "two") == ["[node-0] one", "[node-0] two"]
    assert log.poll("three", step="node-1") == ["[node-1] three"]
    assert log.poll() == []


def test_all_remaining_lines_are_written_when_the_job_has_ended(log):
    assert log.poll(*"abcdefgh", ended=True) == [f"[node-0] {line}" for line in "abcdefgh"]
    assert log.forwarder.position.complete


def test_a_line_that_would_hold_up_the_triggerer_is_cut(log):
    """Airflow's triggerer takes 4 KiB of the log of a trigger at a time, and runs no trigger meanwhile."""
    longest = "x" * 10_000
    assert log.poll(longest, f"{longest}yz", "the reason") == [
        f"[node-0] {longest}",
        f"[node-0] {longest} … (2 more characters)",
        "[node-0] the reason",
    ]


def test_the_log_is_read_at_intervals(log):
    log.poll("one")
    log.forwarder.poll()
    assert log.reads == 1


def test_a_log_that_cannot_be_read_does_not_fail_the_task(log):
    log.error = JobNotFoundError("it is gone")
    assert log.poll() == []
    assert log.poll(ended=True) == ["the rest of the log cannot be read"]


def test_progress_is_written_every_ten_percent(log):
    written = []
    for step in range(1001):
        written += log.poll(progress_line(step, 1000))
    assert written == [f"[node-0] progress {p}% ({10 * p}/1000)" for p in range(0, 101, 10)]


def test_progress_is_written_as_readable_text(log):
    assert log.poll(progress_line(3, 10, loss=0.25)) == ["[node-0] progress 30% (3/10) loss=0.25"]


def test_progress_without_a_total_is_written_at_intervals(log):
    assert log.poll(progress_line(4)) == ["[node-0] progress 4"]
    assert log.poll(progress_line(5)) == []
    log.forwarder.position._log._next_progress = 0.0
    assert log.poll(progress_line(6)) == ["[node-0] progress 6"]


def test_the_last_percent_is_written(log):
    log.poll(progress_line(99, 100))
    assert log.poll(progress_line(100, 100)) == ["[node-0] progress 100% (100/100)"]


def test_progress_that_restarts_is_written(log):
    log.poll(progress_line(9, 10))
    assert log.poll(progress_line(0, 10)) == ["[node-0] progress 0% (0/10)"]


def test_a_report_about_a_checkpoint_only_is_not_written(log):
    assert log.poll('[trainjob:progress] {"checkpoint": 3}', "next") == ["[node-0] next"]
    assert log.forwarder.position.progress.checkpoint == 3


def test_another_process_continues_at_the_saved_position(log):
    log.poll("one", progress_line(1, 2))
    saved = json.loads(json.dumps(log.forwarder.position.to_dict()))
    log.lines += [("node-0", "two"), ("node-0", progress_line(1, 2))]
    written = []
    LogForwarder(log, REF, written.append, LogPosition(REF, saved)).poll()
    assert written == ["[node-0] two"]


def test_the_position_of_another_job_is_ignored(log):
    log.poll("one")
    saved = {**log.forwarder.position.to_dict(), "uid": "another"}
    assert LogPosition(REF, saved).cursor == {}


class TaskLog:
    """Log of a task."""

    def __init__(self):
        self.lines = []

    def info(self, form, *arguments):
        self.lines.append(form % arguments)


class Store(dict):
    """Airflow's storage that all tries of a task share."""

    def set(self, key, value):
        self[key] = json.loads(json.dumps(value))


class BrokenStore:
    """A storage that is unavailable."""

    def get(self, key):
        raise RuntimeError("the API server is unavailable")

    set = get


def create_wait(log, task, store=None):
    memory, ti = TaskMemory(StandInTaskInstance()), StandInTaskInstance()
    memory._store = store
    return JobWait(SimpleNamespace(log=task, hook=SimpleNamespace(client=log)), ti, memory, None)


def create_forwarder(log, ref, task, store):
    return create_wait(log, task, store).create_log_forwarder(ref)


def receive_end(wait, saved):
    """Take the event of a trigger whose job has ended, with the position in its log."""
    wait.receive({"ref": REF.to_dict(), "outcome": Outcome(ref=REF.to_dict(), status=COMPLETE).to_dict(), "log": saved})


def test_only_lines_that_the_trigger_did_not_write_are_written(log):
    log.poll("one")
    task = TaskLog()
    log.lines.append(("node-0", "two"))
    receive_end(create_wait(log, task), log.forwarder.position.to_dict())
    assert task.lines == ["[node-0] two"]


@pytest.mark.parametrize("saved", [None, {"uid": "uid", "complete": True}])
def test_without_remaining_lines_no_client_is_created(saved):
    wait = JobWait(SimpleNamespace(), None, TaskMemory(StandInTaskInstance()), None)
    receive_end(wait, saved)
    assert wait.take_end(REF).log_is_written is (saved is not None)


def test_the_next_try_continues_where_the_previous_one_stopped(log):
    store, task = Store(), TaskLog()
    log.lines.append(("node-0", "one"))
    create_forwarder(log, REF, TaskLog(), store).poll()
    log.lines.append(("node-0", "two"))
    create_forwarder(log, REF, task, store).poll(ended=True)
    assert task.lines == ["[node-0] two"]


def test_the_next_try_writes_the_whole_log_of_another_job(log):
    store, task = Store(), TaskLog()
    log.lines.append(("node-0", "one"))
    create_forwarder(log, REF, TaskLog(), store).poll(ended=True)
    create_forwarder(log, TrainJobRef("local", "/home", "a-job-1", "another"), task, store).poll(ended=True)
    assert task.lines == ["[node-0] one"]


@pytest.mark.parametrize("store", [None, BrokenStore()])
def test_without_a_store_the_next_try_writes_the_whole_log(log, store):
    log.lines.append(("node-0", "one"))
    for _ in range(2):
        task = TaskLog()
        create_forwarder(log, REF, task, store).poll(ended=True)
        assert task.lines == ["[node-0] one"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_traceback_of_a_failed_training_is_written_once(run_trainjob_task, task_log, deferrable):
    trainer = CustomTrainer(fail, {"message": "no luck"})
    done = run_trainjob_task(TrainJobOperator(task_id="t", runtime="python", trainer=trainer, deferrable=deferrable))
    assert done.error is not None
    assert task_log().count("Traceback (most recent call last)") == 1


def test_a_deferred_task_has_a_log_position_before_its_trigger_reads_it(run_trainjob_task, monkeypatch):
    positions = []
    monkeypatch.setattr(TrainJobOperator, "defer", lambda self, **arguments: positions.append(arguments))
    trainer = CustomTrainer(fail, {"message": "no luck"})
    done = run_trainjob_task(TrainJobOperator(task_id="t", runtime="python", trainer=trainer, deferrable=True))
    assert len(positions) == 1
    assert done.xcoms["trainjob_log"]["uid"] == done.xcoms["ref"]["uid"]


def test_reports_of_the_use_of_resources_are_not_written(log):
    report = '[trainjob:resources] {"t": 5, "cpu": 71.5, "memory": 4, "memory_limit": 10, "gpus": []}'
    assert log.poll(report, "one", f"two: {report}") == ["[node-0] one", "[node-0] two: "]
