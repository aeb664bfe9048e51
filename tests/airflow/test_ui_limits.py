"""What one answer of the TrainJobs page may cost: characters of a log, and requests to backends."""

from __future__ import annotations

import types

import pytest

from airflow_provider.ui import backend_view
from airflow_provider.ui.backend_view import UnreachableError, read_log, read_unfinished
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.logs import LogChunk

REF = TrainJobRef("local", "/state", "job", "uid")


class Logs:
    """A client whose job has written these lines."""

    def __init__(self, lines):
        self.lines = lines
        self.reads = []

    def tail_job_logs(self, ref, cursor, job_ended, max_lines, step):
        self.reads.append(cursor)
        first = cursor.get(step, 0)
        last = min(first + max_lines, len(self.lines))
        return LogChunk([(step, line) for line in self.lines[first:last]], {step: last}, last == len(self.lines))


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["x"] * 2000, 500),
        (["x" * 9000] * 1000, 55),
        (["x" * 1_000_000] * 100, 49),
        ([*["x" * 9000] * 100, *["y"] * 450], 500),
    ],
    ids=["many lines", "long lines", "very long lines", "long lines before short ones"],
)
def test_an_answer_has_a_bounded_size_and_the_end_of_the_log(lines, shown):
    part = read_log(Logs(lines), REF, "node-0", {})

    assert len(part.lines) == shown
    assert sum(map(len, part.lines)) <= 500_000
    assert part.lines[-1][:10] == lines[-1][:10]
    assert part.left_out == len(lines) - shown
    assert (part.cursor, part.complete) == ({"node-0": len(lines)}, True)


def test_a_log_is_read_once_from_cursor_to_cursor():
    logs = Logs(["x"] * 12_000)
    part = read_log(logs, REF, "node-0", {})
    logs.lines += ["new"]
    assert read_log(logs, REF, "node-0", part.cursor).lines == ["new"]
    assert logs.reads == [{}, {"node-0": 5_000}, {"node-0": 10_000}, {"node-0": 12_000}]


def test_a_very_long_log_is_returned_in_parts(monkeypatch):
    monkeypatch.setattr(backend_view, "_MAX_READ", 20_000)
    logs = Logs(["x"] * 25_000)
    part = read_log(logs, REF, "node-0", {})
    assert (part.cursor, part.complete) == ({"node-0": 10_000}, False)
    assert read_log(logs, REF, "node-0", part.cursor).cursor == {"node-0": 20_000}


def test_a_search_returns_the_lines_with_the_text_in_any_case():
    part = read_log(Logs(["Loss 1", "accuracy", "LOSS 2", "x"]), REF, "node-0", {}, text="loss")
    assert (part.lines, part.left_out, part.cursor) == (["Loss 1", "LOSS 2"], 0, {"node-0": 4})


def make_job(number, status=None):
    ref = TrainJobRef("local", "/state", f"job-{number}", "uid")
    return types.SimpleNamespace(ref=ref, conn_id=None, search=None, xcoms={"status": status} if status else {})


def test_a_list_asks_a_backend_for_a_bounded_number_of_jobs(monkeypatch):
    asked = []

    def connect(job):
        asked.append(job.ref.name)
        raise UnreachableError("its task has another owner")

    monkeypatch.setattr(backend_view, "connect", connect)
    ended = [make_job(number, "Complete") for number in range(5)]
    running = [make_job(number) for number in range(10)]

    read = [job for job, _ in read_unfinished([*ended, *running], limit=3)]

    assert asked == ["job-0", "job-1", "job-2"]
    assert read == [*ended, *running[:3]]


def test_reports_of_the_use_of_resources_are_separate_from_the_lines_of_a_log():
    report = '[trainjob:resources] {"t": 5, "cpu": 71.5, "memory": 4, "memory_limit": 10, "gpus": []}'
    part = read_log(Logs(["one", report, f"two: {report}", "[trainjob:resources] damaged"]), REF, "node-0", {})

    assert part.lines == ["one", "two: "]
    assert part.resources == [{"t": 5, "cpu": 71.5, "memory": 4, "memory_limit": 10, "gpus": []}] * 2
    assert (part.cursor, part.left_out, part.points) == ({"node-0": 4}, 0, [])
