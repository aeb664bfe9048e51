"""Logs and events: streaming, cursors, restarts and order."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trainer_core.base.errors import InvalidRequestError
from trainer_core.client import TrainerClient
from trainer_core.definition.initializers import FileDatasetInitializer, Initializer
from trainer_core.model.logs import LogLine
from trainer_core.testing.case import BackendCase, Contract, Run, Submit, applies_to, wait_until_suspended
from trainer_core.testing.training_functions import print_lines, return_value, run_forever, write_text

_LINES = 3000


class Logs(Contract):
    """Logs are streamed per step, without lost or repeated lines."""

    def test_every_log_line_is_returned_once_and_in_order(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(print_lines, {"lines": _LINES})
        lines = list(client.get_job_logs("job", follow=True))
        assert lines == [f"line {number}" for number in range(_LINES)]
        client.wait(ref)
        assert list(client.get_job_logs("job")) == lines

    def test_the_log_contains_stderr_and_a_last_line_without_newline(self, client: TrainerClient, run: Run) -> None:
        run(write_text, {"text": "größer\n\nlast line"})
        lines = list(client.get_job_logs("job"))
        # The order of lines of different streams is undefined.
        lines.remove("to stderr")
        assert lines == ["größer", "", "last line"]

    def test_reading_from_a_cursor_returns_every_line_once(
        self, case: BackendCase, client: TrainerClient, submit: Submit
    ) -> None:
        begin = time.time()
        ref = submit(print_lines, {"lines": _LINES})
        lines: list[str] = []
        cursor: dict[str, Any] = {}
        ended = complete = False
        while not (ended and complete):
            ended = client.observe(ref).outcome is not None
            chunk = client.tail_job_logs(ref, cursor, ended, max_lines=700)
            lines += [line for _, line in chunk.lines]
            cursor, complete = json.loads(json.dumps(chunk.cursor)), chunk.complete
        assert lines == [f"line {number}" for number in range(_LINES)]
        times = [line.time for line in lines if isinstance(line, LogLine)]
        assert len(times) == (_LINES if case.times_log_lines else 0)
        assert all(begin - 2 <= each <= time.time() + 2 for each in times)

    def test_an_unknown_step_is_refused_with_the_known_steps(self, client: TrainerClient, run: Run) -> None:
        run()
        with pytest.raises(InvalidRequestError, match=r"no step 'trainer'; (it has|its steps are) node-0"):
            client.get_job_logs("job", step="trainer")
        with pytest.raises(InvalidRequestError, match=r"no step 'trainer'; (it has|its steps are) node-0"):
            client.tail_job_logs("job", step="trainer")

    @applies_to(reads_local_files=True)
    def test_an_initializer_has_its_own_log(self, client: TrainerClient, tmp_path: Path, run: Run) -> None:
        source = tmp_path / "digits.csv"
        source.write_text("1,2", encoding="utf-8")
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        run(initializer=fetch)
        *_, last = client.get_job_logs("job", step="dataset-initializer")
        chunk = client.tail_job_logs("job", job_ended=True, step="dataset-initializer")
        assert chunk.lines[-1] == ("dataset-initializer", last)
        assert {step for step, _ in chunk.lines} == {"dataset-initializer"}
        assert source.as_uri() in last

    @applies_to(runs_in_background=True)
    def test_a_followed_log_shows_lines_while_the_job_runs_and_ends_with_the_job(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        submit(run_forever)
        lines = client.get_job_logs("job", follow=True)
        assert next(lines) == "it runs"
        client.cancel("job")
        assert "it runs" not in lines

    @applies_to(runs_in_background=True)
    def test_a_followed_log_continues_after_suspend_and_resume(self, client: TrainerClient, submit: Submit) -> None:
        submit(run_forever)
        lines = client.get_job_logs("job", follow=True)
        assert next(lines) == "it runs"
        client.suspend("job")
        wait_until_suspended(client, "job")
        client.resume("job")
        # The launcher may write lines when it receives SIGTERM.
        assert "it runs" in lines
        client.cancel("job")
        assert "it runs" not in lines

    @applies_to(runs_in_background=True)
    def test_a_followed_log_ends_when_the_job_is_deleted(self, client: TrainerClient, submit: Submit) -> None:
        submit(run_forever)
        lines = client.get_job_logs("job", follow=True)
        next(lines)
        client.delete_job("job")
        assert "it runs" not in lines

    def test_events_are_listed_oldest_first(self, client: TrainerClient, run: Run) -> None:
        run(return_value)
        events = client.get_job_events("job")
        assert [event.event_time for event in events] == sorted(event.event_time for event in events)
        job_reasons = [event.reason for event in events if event.involved_object_kind == "TrainJob"]
        assert (job_reasons[0], job_reasons[-1]) == ("Created", "Complete")
        assert all(event.message and event.involved_object_name for event in events)
