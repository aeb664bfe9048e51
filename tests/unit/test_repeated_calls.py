"""How often what fails is repeated, and for how long."""

from __future__ import annotations

import asyncio

import pytest
from clock import Clock

from trainer_core.base import retries


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()

    async def sleep(seconds):
        clock.sleep(seconds)

    monkeypatch.setattr(retries, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


class Action:
    """Fails a number of times, and records when it was called."""

    def __init__(self, clock, failures):
        self.clock, self.failures, self.calls = clock, failures, []

    def __call__(self):
        self.calls.append(self.clock.now - 1000)
        if len(self.calls) <= self.failures:
            raise OSError(len(self.calls))
        return "done"

    async def run(self):
        return self()


def test_the_pauses_double_up_to_the_longest_and_the_last_one_ends_at_the_limit(clock):
    action = Action(clock, 99)
    with pytest.raises(OSError, match="7"):
        retries.repeat_while_failing(action, lambda _: True, 15.0)
    assert action.calls == [0, 0.5, 1.5, 3.5, 7.5, 11.5, 15]


async def test_an_asynchronous_action_is_repeated_in_the_same_way(clock):
    action = Action(clock, 3)
    assert await retries.repeat_while_failing_async(action.run, lambda _: True, 15.0, pauses=(1.0, 2.0)) == "done"
    assert action.calls == [0, 1, 3, 5]
    with pytest.raises(OSError, match="1"):
        await retries.repeat_while_failing_async(Action(clock, 9).run, lambda _: False, 15.0)


def test_an_error_that_cannot_pass_and_a_limit_of_zero_end_it_at_once(clock):
    for may_pass, limit in ((lambda error: error.args != (1,), 15.0), (lambda _: True, 0.0)):
        action = Action(clock, 99)
        with pytest.raises(OSError, match="1"):
            retries.repeat_while_failing(action, may_pass, limit)
        assert len(action.calls) == 1


def test_the_first_error_is_reported_and_one_each_ten_seconds_with_the_time_that_remains(clock):
    reports = []
    action = Action(clock, 10)
    retries.repeat_while_failing(
        action, lambda _: True, 60.0, lambda error, remaining: reports.append((error.args[0], remaining)), (4.0, 4.0)
    )
    assert reports == [(1, 60), (4, 48), (7, 36), (10, 24)]


@pytest.mark.parametrize(("text", "seconds"), [("", 5.0), ("0", 0.0), ("2.5", 2.5)])
def test_the_limit_is_that_of_the_environment(monkeypatch, text, seconds):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", text)
    assert retries.read_limit(5.0) == seconds


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch, text):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", text)
    with pytest.raises(ValueError, match=r"^TRAINJOB_SUBMIT_RETRY_SECONDS must be a number of seconds, at least 0"):
        retries.read_limit(5.0)
