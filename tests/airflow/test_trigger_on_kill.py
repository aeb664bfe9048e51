"""on_kill of the trigger, called by Airflow's trigger runner."""

from __future__ import annotations

import asyncio
import threading

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult
from airflow.sdk.execution_time.supervisor import set_supervisor_comms
from airflow_fakes import double
from standalone import needs_trigger_on_kill

from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.triggers import trainjob
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core.base.errors import BackendUnavailableError

TIMEOUT = 300.0


@pytest.fixture(autouse=True)
def time_to_retry(monkeypatch):
    """Increase the time in which requests are retried for busy machines."""
    monkeypatch.setattr(trainjob, "_RETRY_SECONDS", TIMEOUT)


class Supervisor:
    """Supervisor that answers requests of a trigger."""

    def __init__(self, states):
        self.states = states

    def send(self, msg):
        return TaskStatesResult(task_states=self.states)


class SlowSupervisor(Supervisor):
    """Supervisor that tells the state of tasks after an event is set. Other requests, as for an XCom, do not wait."""

    def __init__(self, states):
        super().__init__(states)
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    def send(self, msg):
        if isinstance(msg, GetTaskStates):
            self.asked.set()
            self.may_answer.wait(TIMEOUT)
        return super().send(msg)


class FailingSupervisor(Supervisor):
    """Supervisor whose first responses fail."""

    def __init__(self, states, failures):
        super().__init__(states)
        self.failures = failures
        self.asked = 0

    def send(self, msg):
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("the API server does not answer")
        return super().send(msg)


def trigger_for(ref, kind=TrainJobTrigger, *, map_index=-1, **arguments):
    trigger = kind(ref.to_dict(), **arguments)
    trigger.task_instance = StandInTaskInstance(run_id="run", map_index=map_index)
    return trigger


async def killed(ref, states, **arguments):
    with set_supervisor_comms(Supervisor(states)):
        await trigger_for(ref, **arguments).on_kill()


async def until(condition):
    """Wait until a function returns a true value; limited by pytest's timeout."""
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "queued", None])
async def test_ending_the_task_cancels_the_job(running, client, state):
    await killed(running, {"run": {"train": state}})
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"


@pytest.mark.parametrize("on_clear", ["new", "ask"])
async def test_the_job_of_a_deleted_task_is_cancelled(running, client, on_clear):
    await killed(running, {}, on_clear=on_clear)
    assert client.get_job_outcome(running).status == "Failed"


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "upstream_failed", "removed"])
async def test_ending_a_task_that_asks_cancels_the_job(running, client, state):
    await killed(running, {"run": {"train": state}}, on_clear="ask")
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "deferred", "up_for_retry"])
async def test_clearing_a_task_that_asks_leaves_the_job_to_its_next_try(running, client, state):
    await killed(running, {"run": {"train": state}}, on_clear="ask")
    assert client.observe(running).outcome is None


async def test_a_trigger_that_moves_to_another_triggerer_keeps_the_job(running, client):
    await killed(running, {"run": {"train": "deferred"}})
    assert client.observe(running).outcome is None


async def test_a_mapped_task_reads_the_state_of_its_own_index(running, client):
    await killed(running, {"run": {"train_3": "deferred", "train_4": "failed"}}, map_index=3)
    assert client.observe(running).outcome is None


async def test_reading_the_task_state_is_retried(running, client):
    with set_supervisor_comms(FailingSupervisor({"run": {"train": "failed"}}, failures=2)):
        await trigger_for(running).on_kill()
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"


async def test_the_job_is_kept_while_airflow_is_unavailable(running, client):
    supervisor = FailingSupervisor({}, failures=1000)
    with set_supervisor_comms(supervisor):
        ending = asyncio.create_task(trigger_for(running).on_kill())
        await until(lambda: supervisor.asked >= 3)
        ending.cancel()
    assert client.observe(running).outcome is None


async def test_on_kill_keep_keeps_the_job(running, client):
    await killed(running, {"run": {"train": "failed"}}, on_kill="keep")
    assert client.observe(running).outcome is None


async def test_the_job_is_kept_after_the_event_was_fired(submit, client):
    ref = submit(double, number=2)
    trigger = TrainJobTrigger(ref.to_dict())
    assert [event async for event in trigger.run()]
    await trigger.on_kill()
    assert client.get_job_outcome(ref).status == "Complete"


class Triggerer:
    """Airflow's trigger runner with one trigger."""

    def __init__(self, trigger):
        self._runner = TriggerRunner()
        self._trigger = trigger
        self.task = None

    def start(self):
        details = {"name": "the trigger", "events": 0, "is_watcher": False}
        self._runner.triggers[1] = details
        self.task = details["task"] = asyncio.create_task(self._runner.run_trigger(1, self._trigger))

    async def round(self):
        """Cancel the trigger, as the runner does in every round while the supervisor lists it."""
        self._runner.to_cancel.append(1)
        await self._runner.cancel_triggers()


class BeginningTrigger(TrainJobTrigger):
    """Trigger that sets an event when it begins: Airflow calls `on_kill` of no trigger before that."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.begun = threading.Event()

    async def _get_client(self):
        self.begun.set()
        return await super()._get_client()


@needs_trigger_on_kill
async def test_repeated_cancellation_by_the_triggerer_does_not_stop_the_cancellation_of_the_job(running, client):
    supervisor = SlowSupervisor({"run": {"train": "failed"}})
    trigger = trigger_for(running, BeginningTrigger)
    triggerer = Triggerer(trigger)
    with set_supervisor_comms(supervisor):
        triggerer.start()
        await until(trigger.begun.is_set)
        await triggerer.round()
        await until(supervisor.asked.is_set)
        await triggerer.round()
        await until(triggerer.task.done)
        supervisor.may_answer.set()
        await until(lambda: client.observe(running).outcome)
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"


class SlowTrigger(BeginningTrigger):
    """Trigger whose client takes long to create."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.may_go_on = threading.Event()

    async def _get_client(self):
        self.begun.set()
        await until(self.may_go_on.is_set)
        return await super()._get_client()


@needs_trigger_on_kill
async def test_a_trigger_that_is_still_starting_cancels_its_job(running, client):
    trigger = trigger_for(running, SlowTrigger)
    triggerer = Triggerer(trigger)
    with set_supervisor_comms(Supervisor({"run": {"train": "failed"}})):
        triggerer.start()
        await until(trigger.begun.is_set)
        await triggerer.round()
        trigger.may_go_on.set()
        await until(lambda: client.observe(running).outcome)
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"


class IsAwayForATime:
    """Client whose backend is away for the first requests to cancel."""

    def __init__(self, client):
        self._client, self._failures = client, 2

    def cancel(self, ref):
        self._failures -= 1
        if self._failures >= 0:
            raise BackendUnavailableError("no answer")
        self._client.cancel(ref)


async def test_a_cancellation_is_repeated_and_its_outcome_is_logged(running, client, task_log):
    class Away(TrainJobTrigger):
        async def _connect(self):
            return IsAwayForATime(client)

    with set_supervisor_comms(Supervisor({"run": {"train": "failed"}})):
        await trigger_for(running, Away).on_kill()
    assert client.get_job_outcome(running).diagnosis.reason == "it was cancelled"
    assert "its cancellation is repeated: no answer" in task_log()
    assert f"TrainJob {running.name} was cancelled" in task_log()
