"""Logs and events: every line once, in order, and what happened when."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.initializers import FileDatasetInitializer, Initializer
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, halted, where
from trainer_core.testing.functions import goes_on, prints, returns, writes_text

__all__ = ["Logs"]

Ask = Callable[..., TrainJobRequest]

_MANY = 3000


class Logs(Contract):
    """Logs are streamed for each step; no line is lost or given twice."""

    def test_every_line_comes_once_and_in_order_followed_or_not(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(prints, {"lines": _MANY}))
        lines = list(client.get_job_logs("job", follow=True))
        assert lines == [f"line {number}" for number in range(_MANY)]
        client.wait(ref)
        assert list(client.get_job_logs("job")) == lines

    def test_a_last_line_without_an_end_and_what_goes_to_stderr_are_there(
        self, client: TrainerClient, ask: Ask
    ) -> None:
        client.wait(client.submit(ask(writes_text, {"text": "größer\n\nthe end"})))
        lines = list(client.get_job_logs("job"))
        # Two streams: what was written first to the one may be read after what was written to the other.
        lines.remove("to stderr")
        assert lines == ["größer", "", "the end"]

    def test_reading_on_from_a_place_gives_every_line_once(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(prints, {"lines": _MANY}))
        lines: list[str] = []
        place: dict[str, Any] = {}
        whole = complete = False
        while not (whole and complete):
            whole = client.observe(ref).outcome is not None
            tail = client.backend.tail(ref, place, whole, most=700)
            lines += [line for _, line in tail.lines]
            place, complete = json.loads(json.dumps(tail.place)), tail.complete
        assert lines == [f"line {number}" for number in range(_MANY)]

    def test_an_unknown_step_is_refused_with_the_known_ones(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask()))
        with pytest.raises(InvalidRequestError, match=r"no step 'trainer'; it has node-0"):
            client.get_job_logs("job", step="trainer")

    @where(reads_this_machine=True)
    def test_an_initializer_has_a_log_of_its_own(self, client: TrainerClient, ask: Ask, tmp_path: Path) -> None:
        source = tmp_path / "digits.csv"
        source.write_text("1,2", encoding="utf-8")
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        client.wait(client.submit(ask(initializer=fetch)))
        *_, last = client.get_job_logs("job", step="dataset-initializer")
        assert source.as_uri() in last

    @where(runs_beside_its_client=True)
    def test_a_follower_sees_lines_while_the_job_runs_and_ends_with_it(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(goes_on))
        lines = client.get_job_logs("job", follow=True)
        assert next(lines) == "it runs"
        client.cancel("job")
        assert "it runs" not in lines

    @where(runs_beside_its_client=True)
    def test_a_follower_goes_on_over_a_restart(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(goes_on))
        lines = client.get_job_logs("job", follow=True)
        assert next(lines) == "it runs"
        client.suspend("job")
        halted(client, "job")
        client.resume("job")
        # What launches the function may have its own last word when it is told to stop.
        assert "it runs" in lines
        client.cancel("job")
        assert "it runs" not in lines

    @where(runs_beside_its_client=True)
    def test_following_a_job_that_is_deleted_ends(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(goes_on))
        lines = client.get_job_logs("job", follow=True)
        next(lines)
        client.delete_job("job")
        assert "it runs" not in lines

    def test_events_tell_what_happened_oldest_first(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask(returns)))
        events = client.get_job_events("job")
        assert [event.event_time for event in events] == sorted(event.event_time for event in events)
        of_the_job = [event.reason for event in events if event.involved_object_kind == "TrainJob"]
        assert (of_the_job[0], of_the_job[-1]) == ("Created", "Complete")
        assert all(event.message and event.involved_object_name for event in events)
