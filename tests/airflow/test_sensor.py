"""TrainJobSensor with real local jobs and a stand-in task instance."""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import replace

import pytest
from airflow_fakes import die, double, kill_supervisor_once

from airflow_provider.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)
from airflow_provider.exceptions import TrainJobFailedForGoodError, TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, Name, RestartPolicy, TrainerClient
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.testing.case import wait_for_status


def a_sensor(job, **arguments):
    return TrainJobSensor(**{"task_id": "wait", "job": job, "poke_interval": 0.02, **arguments})


def execute(sensor):
    return sensor.execute({"ti": StandInTaskInstance("wait")})


@pytest.mark.parametrize(
    "written", [lambda ref: ref, lambda ref: ref.to_dict(), lambda ref: ref.to_json(), lambda ref: str(ref.to_dict())]
)
def test_a_ref_is_accepted_in_every_rendered_form(submit, written):
    assert execute(a_sensor(written(submit(double, number=3))))["doubled"] == 6


@pytest.mark.parametrize("job", ["not a ref", "a-name", "", None, 3, {"name": "a"}, "[1]", "{[1]: 2}"])
def test_a_value_that_is_not_a_ref_is_refused(job):
    sensor = a_sensor("{{ params.job }}")
    sensor.job = job  # As Airflow renders it.
    with pytest.raises(TrainJobRejectedError, match="job must be the ref of a TrainJob") as caught:
        execute(sensor)
    assert isinstance(caught.value, AirflowFailException)


def test_a_sensor_does_not_retry_a_failed_job(submit):
    with pytest.raises(TrainJobFailedForGoodError):
        execute(a_sensor(submit(die)))


def test_the_log_of_the_training_is_the_log_of_the_sensor(submit, task_log):
    execute(a_sensor(submit(double, number=3)))
    assert task_log().count("doubling 3") == 1


class IsActedUpon(TrainerClient):
    """Client of a job that people suspend, resume and delete on the page while a sensor waits."""

    def __init__(self, config, ti):
        super().__init__(config)
        self._ti, self._page = ti, TrainerClient(config)
        self._steps = iter(
            [None, ("suspend", "ada", "Suspended"), ("resume", "grace", "Running"), ("delete", "joan", None)]
        )

    def observe(self, job):
        step = next(self._steps)
        if step is not None:
            action, by, status = step
            self._ti.xcoms["trainjob_action"] = {"action": action, "by": by}
            getattr(self._page, "delete_job" if action == "delete" else action)(job)
            if status:
                wait_for_status(self._page, job.name, status)
        return super().observe(job)


def test_the_log_of_a_sensor_says_who_suspended_resumed_and_deleted_the_job(running, task_log):
    ti, sensor = StandInTaskInstance("wait"), a_sensor(running)
    sensor.hook.client = IsActedUpon(sensor.hook.config, ti)
    with pytest.raises(TrainJobFailedForGoodError):
        sensor.execute({"ti": ti})
    lines = [
        f"was {done} on the TrainJobs page" for done in ("suspended by ada", "resumed by grace", "deleted by joan")
    ]
    assert [line for line in lines if f"TrainJob {running.name} {line}" in task_log()] == lines


class Away(TrainerClient):
    """Client of an unavailable backend."""

    def observe(self, job):
        raise BackendUnavailableError("no answer")


def test_a_failed_poke_is_logged(running, task_log):
    sensor = a_sensor(running)
    sensor.hook.client = Away(sensor.hook.config)
    assert not sensor.poke({"ti": StandInTaskInstance("wait")}).is_done
    assert f"TrainJob {running.name}: its status cannot be read, retrying: no answer" in task_log()


def test_a_sensor_timeout_leaves_the_job_running(running, client):
    with pytest.raises(AirflowSensorTimeout):
        execute(a_sensor(running, timeout=0.05))
    assert client.observe(running).outcome is None


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_sensor_with_on_kill_cancel_cancels_the_job_at_its_timeout(running, client, soft_fail, error):
    with pytest.raises(error):
        execute(a_sensor(running, timeout=0.05, on_kill="cancel", soft_fail=soft_fail))
    assert client.get_job_outcome(running).status == "Failed"


def test_killing_a_sensor_leaves_the_job_running(running, client):
    a_sensor(running).on_kill()
    assert client.observe(running).outcome is None


def test_killing_a_sensor_with_on_kill_cancel_cancels_the_job(running, client):
    a_sensor(running, on_kill="cancel").on_kill()
    assert client.wait(running).diagnosis.reason == "it was cancelled"


def deferred(sensor):
    with pytest.raises(TaskDeferred) as caught:
        execute(sensor)
    return caught.value


def test_a_deferred_sensor_has_the_shorter_of_its_two_timeouts(running):
    limit = datetime.timedelta(minutes=5)
    by_timeout = deferred(a_sensor(running, deferrable=True, timeout=60, execution_timeout=limit))
    by_execution = deferred(a_sensor(running, deferrable=True, timeout=3600, execution_timeout=limit))
    assert by_execution.trigger.deadline - by_timeout.trigger.deadline > 200


def test_a_deferred_sensor_does_not_cancel_the_job(running):
    assert deferred(a_sensor(running, deferrable=True)).trigger.on_kill_policy == "keep"


def test_a_task_with_an_ended_job_does_not_defer(submit, client):
    ref = submit(double, number=3)
    client.wait(ref)
    assert execute(a_sensor(ref, deferrable=True))["doubled"] == 6


def test_soft_fail_skips_for_a_job_that_failed_before_the_deferral(submit, client):
    ref = submit(die)
    client.wait(ref)
    with pytest.raises(AirflowSkipException):
        execute(a_sensor(ref, deferrable=True, soft_fail=True))


def resumed(sensor, event):
    return sensor.resume_execution("execute_complete", {"event": event}, {"ti": StandInTaskInstance("wait")})


def test_a_timeout_event_is_a_sensor_timeout(running):
    with pytest.raises(AirflowSensorTimeout, match="over"):
        resumed(a_sensor(running), {"ref": running.to_dict(), "timeout": "it is over"})


def test_soft_fail_skips_for_a_timeout_event(running):
    with pytest.raises(AirflowSkipException):
        resumed(a_sensor(running, soft_fail=True), {"ref": running.to_dict(), "timeout": "it is over"})


def test_an_unreachable_job_is_retried_by_the_sensor(running):
    with pytest.raises(TrainJobUnreachableError, match="no answer") as caught:
        resumed(a_sensor(running), {"ref": running.to_dict(), "error": "no answer"})
    assert not isinstance(caught.value, AirflowFailException)


def test_the_sensor_waits_in_the_worker_for_a_job_that_the_triggerer_cannot_see(submit):
    ref = submit(double, number=3)
    event = {"ref": ref.to_dict(), "error": "it lives on another host", "elsewhere": True}
    assert resumed(a_sensor(ref, poke_interval=0.05), event)["doubled"] == 6


def test_the_sensor_on_a_host_that_cannot_see_the_job_fails_with_the_host(submit, tmp_path):
    ref = replace(submit(double, number=3), namespace=str(tmp_path / "another-disk"))
    event = {"ref": ref.to_dict(), "error": "it lives on another host", "elsewhere": True}
    with pytest.raises(TrainJobUnreachableError, match="lives on host"):
        resumed(a_sensor(ref), event)


def test_a_deferral_that_airflow_timed_out_cancels_the_job_with_on_kill_cancel(running, client):
    sensor = a_sensor(running, on_kill="cancel")
    with pytest.raises(AirflowSensorTimeout):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": StandInTaskInstance("wait")})
    assert client.get_job_outcome(running).status == "Failed"


def test_after_a_failed_trigger_the_next_try_attaches_to_the_job(running, client):
    sensor = a_sensor(running, on_kill="cancel")
    with pytest.raises(TaskDeferralError):
        sensor.resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": StandInTaskInstance("wait")})
    assert client.observe(running).outcome is None


def test_the_event_of_an_earlier_try_is_ignored(running):
    with pytest.raises(TaskDeferred) as caught:
        resumed(a_sensor(running), {"ref": {**running.to_dict(), "uid": "another"}, "timeout": "it is over"})
    assert caught.value.trigger.ref == running.to_dict()


def submit_killed(client, tmp_path, name="submitted", gate=""):
    """Submit a job whose supervisor is killed at its first start, and wait for the end of this start."""
    trainer = CustomTrainer(kill_supervisor_once, {"marker": str(tmp_path / name), "gate": gate})
    ref = client.get_job_ref(
        client.train(runtime="python", trainer=trainer, options=[RestartPolicy(delay=0), Name(name)])
    )
    client.wait(ref, restarts=False)
    return ref


def test_a_sensor_starts_no_training_again_unless_it_is_asked_to(client, tmp_path):
    ref = submit_killed(client, tmp_path)
    with pytest.raises(AirflowFailException, match="restart 1 of 3 follows"):
        execute(a_sensor(ref))
    assert len(client.list_jobs()) == 1


def test_a_deferred_sensor_waits_for_the_attempt_that_it_has_started_also_after_a_late_event(client, tmp_path):
    ref, ti = submit_killed(client, tmp_path), StandInTaskInstance("wait")
    event = {"ref": ref.to_dict(), "outcome": client.get_job_outcome(ref).to_dict()}
    for _ in range(2):  # Airflow can deliver an event twice.
        sensor = a_sensor(ref, deferrable=True, restarts=True)
        with suppress(TaskDeferred):
            sensor.resume_execution("execute_complete", {"event": event}, {"ti": ti})
        assert (sensor.ref.name, ti.xcoms["ref"]["name"]) == ("submitted-1", "submitted-1")
    assert client.wait("submitted-1").result == "trained"
    assert len(client.list_jobs()) == 2


def test_a_sensor_that_starts_trainings_again_keeps_the_budget_of_its_retries(client, tmp_path):
    ref = submit_killed(client, tmp_path)
    assert [execute(a_sensor(ref, restarts=True)) for _ in range(2)] == ["trained"] * 2
    assert len(client.list_jobs()) == 2


def test_a_sensor_reports_the_attempt_that_it_has_started_and_not_the_one_before(client, tmp_path):
    ref, ti = submit_killed(client, tmp_path, gate=str(tmp_path / "never")), StandInTaskInstance("wait")
    sensor = a_sensor(ref, restarts=True)
    assert not sensor.poke({"ti": ti}).is_done
    client.delete_job("submitted-1")
    with pytest.raises(AirflowFailException, match="TrainJob 'submitted-1' was deleted during the wait"):
        sensor.poke({"ti": ti})


def test_a_sensor_does_not_start_a_deleted_training_again(client, tmp_path):
    ref = submit_killed(client, tmp_path)
    sensor, event = a_sensor(ref, restarts=True), {"ref": ref.to_dict()}
    event["outcome"] = client.get_job_outcome(ref).to_dict()
    client.delete_job(ref)
    with pytest.raises(AirflowFailException, match="Infrastructure"):
        resumed(sensor, event)
    assert client.list_jobs() == []


@pytest.mark.parametrize(
    ("arguments", "interval"),
    [
        ({"mode": "reschedule", "poke_interval": 1}, 10),
        ({"mode": "reschedule", "poke_interval": 30}, 30),
        ({"mode": "reschedule", "poke_interval": 1, "deferrable": True}, 1),
        ({"mode": "poke", "poke_interval": 1}, 1),
    ],
)
def test_a_rescheduled_sensor_raises_an_interval_that_is_too_short_for_airflow(submit, task_log, arguments, interval):
    sensor = a_sensor(submit(double, number=3), **arguments)
    assert sensor.poke_interval == interval
    ti = StandInTaskInstance("wait")
    ti.get_first_reschedule_date = lambda context: None
    with suppress(AirflowException, TaskDeferred):
        sensor.execute({"ti": ti})
    assert ("poke_interval is 10 s instead of 1 s" in task_log()) is (interval == 10)


def test_a_sensor_of_mode_reschedule_refuses_restarts(running):
    with pytest.raises(ValueError, match=r"restarts=True needs deferrable=True or mode='poke'"):
        a_sensor(running, restarts=True, mode="reschedule")
    assert a_sensor(running, restarts=True, mode="reschedule", deferrable=True).restarts
