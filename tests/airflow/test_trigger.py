"""TrainJobTrigger with real local jobs."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import replace

import pytest
from airflow_fakes import double, fail

from airflow_provider.exceptions import TrainJobUnreachableError
from airflow_provider.trigger_event import JobEvent
from airflow_provider.triggers import deferred_log, trainjob as triggers
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import LocalProcessBackendConfig, TrainJobRef
from trainer_core.backends.follower import Follower
from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError, TrainerError
from trainer_core.model.jobs import Category, Diagnosis, Observation, Outcome, PendingFailure, RestartCause, Restarts
from trainer_core.model.logs import LogChunk

REF = TrainJobRef("local", "/home", "a-job", "uid")


async def events_of(trigger):
    return [event.payload async for event in trigger.run()]


async def fired(trigger):
    (event,) = await events_of(trigger)
    return json.loads(json.dumps(event))


async def test_the_event_holds_the_outcome_as_json(submit, client):
    ref = submit(double, number=2)
    event = await fired(TrainJobTrigger(ref.to_dict()))
    assert event["ref"] == ref.to_dict()
    assert event["outcome"] == client.get_job_outcome(ref).to_dict()


async def test_the_event_of_a_failed_job_has_its_outcome(submit):
    event = await fired(TrainJobTrigger(submit(fail, message="no").to_dict()))
    assert event["outcome"]["diagnosis"]["reason"] == "ValueError: no"


async def test_the_event_of_a_deleted_job_has_an_outcome(submit, client):
    ref = submit(double, number=2)
    client.delete_job(ref.name)
    event = await fired(TrainJobTrigger(ref.to_dict()))
    assert event["outcome"]["diagnosis"]["category"] == "Deleted"


async def test_a_job_on_a_host_that_the_triggerer_cannot_see_is_not_reported_as_deleted(submit, tmp_path):
    ref = replace(submit(double, number=2), namespace=str(tmp_path / "another-disk"))
    event = await fired(TrainJobTrigger(ref.to_dict()))
    assert "outcome" not in event
    assert event["elsewhere"] is True
    assert "lives on host" in event["error"]


async def test_a_triggerer_gets_the_event_only_when_airflow_knows_of_the_deferral(submit, client, monkeypatch):
    ref = submit(double, number=2)
    client.wait(ref)
    trigger = TrainJobTrigger(ref.to_dict())
    trigger.trigger_id = 1
    monkeypatch.setattr(triggers, "_MIN_DEFERRAL_SECONDS", 9000.0)
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await fired(trigger)
    assert 8000 < pauses[-1] <= 9000


async def test_the_log_of_the_training_is_written_during_the_wait(submit, task_log, monkeypatch):
    # On a busy machine, the default timeout would leave lines to the task.
    monkeypatch.setattr(deferred_log, "_FINAL_READ_TIMEOUT", 60.0)
    await fired(TrainJobTrigger(submit(double, number=2).to_dict()))
    assert task_log().count("doubling 2") == 1


def test_a_trigger_can_be_recreated_from_its_serialized_form():
    arguments = {
        "ref": REF.to_dict(),
        "backend": "local",
        "backend_config": {"home": "/x"},
        "trainjob_conn_id": "cluster",
        "deadline": 5.0,
        "on_kill": "keep",
        "on_clear": "ask",
        "fail_fast": False,
        "masked": [["hf_default", "password"]],
        "tracked_by": {"mlflow_conn_id": None},
    }
    path, stored = TrainJobTrigger(**arguments).serialize()
    assert path == f"{TrainJobTrigger.__module__}.TrainJobTrigger"
    assert json.loads(json.dumps(stored)) == arguments


@pytest.mark.parametrize(
    ("delay", "deadline", "expected"), [(30, None, 30), (30, 9, 9), (5, 9, 5), (30, -9, 0), (None, 9, 0)]
)
def test_the_delay_of_a_restart_ends_at_the_deadline(monkeypatch, delay, deadline, expected):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    following = None if delay is None else RestartCause("NodeLost", delay=float(delay))
    outcome = Outcome(ref=REF.to_dict(), status="Failed", restarts=Restarts(following=following))
    trigger = TrainJobTrigger(REF.to_dict(), deadline=None if deadline is None else 1000.0 + deadline)
    assert trigger._compute_restart_delay(outcome) == expected


@pytest.mark.parametrize("data", [{}, {"ref": {"name": "job"}}, {"ref": None, "error": "x"}])
def test_an_event_without_a_valid_ref_is_refused_in_one_line(data):
    with pytest.raises(TrainJobUnreachableError, match=r"^the event of the trigger has no valid TrainJob ref: .*$"):
        JobEvent.parse(data)


def test_an_event_keeps_what_it_knows_and_ignores_what_a_later_version_adds():
    event = JobEvent(ref=REF.to_dict(), timeout="it is late", cancelled=False)
    assert event.to_dict() == {"ref": REF.to_dict(), "timeout": "it is late", "cancelled": False}
    assert JobEvent.parse({**event.to_dict(), "later": 1}) == event
    assert event.job == REF


async def test_a_passed_deadline_cancels_the_job(running, client):
    event = await fired(TrainJobTrigger(running.to_dict(), deadline=time.time() - 1))
    assert "was cancelled" in event["timeout"]
    assert event["cancelled"] is True
    assert client.get_job_outcome(running).status == "Failed"


async def test_a_passed_deadline_keeps_a_job_with_on_kill_keep(running, client):
    event = await fired(TrainJobTrigger(running.to_dict(), deadline=time.time() - 1, on_kill="keep"))
    assert "was not stopped" in event["timeout"]
    assert client.observe(running).outcome is None


async def test_an_invalid_backend_configuration_is_an_error_event(running):
    event = await fired(TrainJobTrigger(running.to_dict(), backend="local", backend_config={"hme": "/x"}))
    assert "unknown setting hme" in event["error"]


async def test_cancelling_the_trigger_leaves_the_job_running(running, client):
    trigger = TrainJobTrigger(running.to_dict())
    task = asyncio.create_task(events_of(trigger))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await trigger.cleanup()
    assert client.observe(running).outcome is None


class UnwatchedJob(Follower):
    """Client, backend and follower of a job without processes, with a log whose last line has no end.

    It has these states, one after the other; an error is raised. A cancelled job is deleted, with its log.
    """

    config = LocalProcessBackendConfig()
    changed = get_job = next_observation = None

    def __init__(self, *states):
        self.states, self.backend = list(states), self
        self.is_deleted = self.is_closed = False

    def follow(self, ref):
        return self

    async def next_observation_async(self, timeout):
        state = self.states.pop(0)
        if isinstance(state, TrainerError):
            raise state
        return state

    def tail(self, cursor, job_ended=False, max_lines=0):
        if self.is_deleted:
            raise JobNotFoundError("it is gone")
        return LogChunk([("node-0", "the last line")] if job_ended and not cursor else [], {"line": 1})

    def cancel(self, ref, diagnosis):
        self.is_deleted = True
        raise JobNotFoundError("it is gone")

    def store_outcome(self, outcome):
        raise AssertionError("the job has its outcome")

    def close(self):
        self.is_closed = True


def follow(*clients):
    """Return a trigger that gets these clients, one after the other, as when its connection is corrected."""
    found = iter(clients)

    class Corrected(TrainJobTrigger):
        async def _get_client(self):
            return next(found)

    return Corrected(REF.to_dict())


NO_IMAGE = Diagnosis(category=Category.IMAGE, reason="there is no such image")
CANNOT_START = Observation("Created", pending_failure=PendingFailure(NO_IMAGE, grace=0.0))
ENDED = Observation("Complete", outcome=Outcome(ref=REF.to_dict(), status="Complete"), outcome_is_stored=True)


@pytest.mark.parametrize(("state", "status"), [(CANNOT_START, "Failed"), (ENDED, "Complete")])
async def test_the_log_is_written_to_its_end_also_before_a_job_that_cannot_start_is_cancelled(
    state, status, task_log, monkeypatch
):
    monkeypatch.setattr(deferred_log, "_FINAL_READ_TIMEOUT", 60.0)
    event = await fired(follow(UnwatchedJob(state)))
    assert (event["outcome"]["status"], event["log"]["complete"]) == (status, True)
    assert task_log().count("[node-0] the last line") == 1


async def test_a_trigger_goes_on_with_a_corrected_connection_and_leaves_the_old_one():
    wrong, corrected = UnwatchedJob(BackendUnavailableError("no answer")), UnwatchedJob(ENDED)
    event = await fired(follow(wrong, corrected))
    assert event["outcome"]["status"] == "Complete"
    assert (wrong.is_closed, corrected.is_closed) == (True, True)


_watched: dict[str, object] = {"thread": None, "home": "", "seen": []}


def _watch(event, arguments):
    if (
        event == "open"
        and threading.get_ident() == _watched["thread"]
        and str(arguments[0]).startswith(_watched["home"])
    ):
        _watched["seen"].append(arguments[0])


async def test_no_file_is_read_on_the_event_loop(submit, home):
    ref = submit(double, number=2)
    sys.addaudithook(_watch)
    _watched.update(thread=threading.get_ident(), home=str(home), seen=[])
    await fired(TrainJobTrigger(ref.to_dict()))
    _watched["thread"] = None
    assert _watched["seen"] == []
