"""Repetition of lists and watches that fail: pauses that grow, that a server asks for, and after a denial."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from clock import Clock

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import reflector, resources
from trainer_core.k8s.cache import Stream, WatchTarget
from trainer_core.k8s.errors import ForbiddenError, ResourceExpiredError
from trainer_core.k8s.reflector import Reflector, WatchTimings, retry_until_success


@pytest.fixture
def fail(monkeypatch):
    """Fail with the errors, one after the other, before the first success; return the pauses and what was reported.

    Of the range that a pause is drawn from it is the end.
    """

    async def run(*errors):
        slept, reported, left = [], [], list(errors)

        pause, thread = asyncio.sleep, threading.get_ident()

        async def sleep(seconds):
            if threading.get_ident() != thread:  # A server of other tests.
                await pause(seconds)
            else:
                slept.append(seconds)

        async def act():
            if left:
                raise left.pop(0)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        await retry_until_success(act, WatchTimings(forbidden_retry=60), reported.append)
        return slept, reported

    monkeypatch.setattr(random, "uniform", lambda low, high: high - low)
    return run


class LimitedError(BackendUnavailableError):
    def __init__(self, retry_after):
        super().__init__("too many requests")
        self.retry_after = retry_after


async def test_pauses_double_up_to_ten_seconds_and_each_error_is_reported(fail):
    errors = [BackendUnavailableError(f"away {number}") for number in range(2000)]
    slept, reported = await fail(*errors)

    assert slept[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10])
    assert set(slept[7:]) == {10}
    assert reported == errors


async def test_pauses_of_many_processes_are_spread_from_none_on(monkeypatch, fail):
    ranges = []
    monkeypatch.setattr(random, "uniform", lambda low, high: ranges.append((low, high)) or low)

    assert (await fail(BackendUnavailableError("away")))[0] == [0]
    assert ranges == [(0, 0.1)]


async def test_after_a_denial_it_pauses_as_long_as_a_change_of_permissions_may_take(fail):
    slept, _ = await fail(*[ForbiddenError("no")] * 3)

    assert slept == [60, 60, 60]


async def test_a_pause_is_at_least_what_the_server_asks_for_and_at_most_ten_seconds(fail):
    slept, _ = await fail(LimitedError(5), LimitedError(0.01), LimitedError(3600))

    assert slept == pytest.approx([5, 0.2, 10])


async def test_a_mistake_in_the_program_is_not_repeated(fail):
    with pytest.raises(KeyError, match="metadata"):
        await fail(KeyError("metadata"))


async def test_an_action_that_succeeds_is_run_once_and_without_a_pause(monkeypatch):
    runs = itertools.count(1)

    async def act():
        next(runs)

    monkeypatch.setattr(asyncio, "sleep", pytest.fail)
    await retry_until_success(act, WatchTimings(), pytest.fail)

    assert next(runs) == 2


class Connection:
    """A connection whose requests the reflector below answers itself."""

    namespace = "default"

    @asynccontextmanager
    async def open_session(self):
        yield None


class Watches(Reflector):
    """A reflector whose watch is accepted, or not, and ends after some seconds.

    Attributes:
        lists: Number of lists.
    """

    def __init__(self, clock, seconds, is_accepted=True, error=None):
        target = WatchTarget(resources.JOBS, "job", lambda raw: raw, lambda raw: raw)
        jobs = SimpleNamespace(clear_error=lambda stream: None, wake=lambda: None)
        super().__init__(Connection(), target, Stream.JOBS, None, WatchTimings(), jobs)
        self.clock, self.seconds, self.is_accepted, self.error, self.lists = clock, seconds, is_accepted, error, 0

    async def list_objects(self, session, job_name):
        self.lists += 1
        return "7"

    async def _watch(self, session, since):
        assert since == "7"
        if self.is_accepted:
            self._handle_open()
        self.clock.sleep(self.seconds)
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(reflector, "time", clock)
    return clock


async def test_a_watch_that_a_server_ends_within_a_second_has_failed(clock):
    with pytest.raises(BackendUnavailableError, match="the server ended the request at once"):
        await Watches(clock, 0.9)._list_and_watch()


async def test_a_watch_that_ends_later_is_followed_by_another_one_without_a_list(clock):
    watches = Watches(clock, 1.0)
    for _ in range(3):
        await watches._list_and_watch()

    assert watches.lists == 1


@pytest.mark.parametrize(("error", "lists"), [(BackendUnavailableError("away"), 1), (ResourceExpiredError("old"), 2)])
async def test_a_watch_that_is_not_accepted_has_failed_however_long_it_took(clock, error, lists):
    watches = Watches(clock, 30, is_accepted=False, error=error)
    for _ in range(2):
        with pytest.raises(type(error)):
            await watches._list_and_watch()

    assert watches.lists == lists
