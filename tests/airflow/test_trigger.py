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

from airflow_provider.triggers import deferred_log, trainjob as triggers
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import TrainJobRef


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
    monkeypatch.setattr(triggers, "_MIN_DEFERRAL_SECONDS", 3.0)
    began = time.monotonic()
    await fired(trigger)
    assert time.monotonic() - began >= 3


async def test_the_log_of_the_training_is_written_during_the_wait(submit, task_log, monkeypatch):
    # On a busy machine, the default timeout would leave lines to the task.
    monkeypatch.setattr(deferred_log, "_FINAL_READ_TIMEOUT", 60.0)
    await fired(TrainJobTrigger(submit(double, number=2).to_dict()))
    assert task_log().count("doubling 2") == 1


def test_a_trigger_can_be_recreated_from_its_serialized_form():
    ref = TrainJobRef("local", "/home", "a-job", "uid").to_dict()
    trigger = TrainJobTrigger(
        ref, backend="local", backend_config={"home": "/x"}, deadline=5.0, on_kill="keep", fail_fast=False
    )
    path, stored = trigger.serialize()
    assert path == f"{TrainJobTrigger.__module__}.TrainJobTrigger"
    assert TrainJobTrigger(**json.loads(json.dumps(stored))).serialize() == (path, stored)


async def test_a_passed_deadline_cancels_the_job(running, client):
    event = await fired(TrainJobTrigger(running.to_dict(), deadline=time.time() - 1))
    assert "was cancelled" in event["timeout"]
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
