"""The sensor against real local jobs, with a task instance that only keeps XComs."""

from __future__ import annotations

import datetime

import pytest
from airflow_fakes import die, double

from airflow_provider.compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)
from airflow_provider.exceptions import TrainJobFailedForGoodError, TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import TrainerClient
from trainer_core.errors import BackendUnavailableError


def a_sensor(job, **arguments):
    return TrainJobSensor(**{"task_id": "wait", "job": job, "poke_interval": 0.02, **arguments})


def execute(sensor):
    return sensor.execute({"ti": StandInTaskInstance("wait")})


@pytest.mark.parametrize(
    "written", [lambda ref: ref, lambda ref: ref.to_dict(), lambda ref: ref.to_json(), lambda ref: str(ref.to_dict())]
)
def test_a_ref_is_taken_in_every_form_a_template_gives_it(submit, written):
    assert execute(a_sensor(written(submit(double, number=3))))["doubled"] == 6


@pytest.mark.parametrize("job", ["not a ref", "a-name", "", None, 3, {"name": "a"}, "[1]", "{[1]: 2}"])
def test_what_is_no_ref_is_refused_in_one_line(job):
    with pytest.raises(TrainJobRejectedError, match="job must be the ref of a TrainJob") as caught:
        execute(a_sensor(job))
    assert isinstance(caught.value, AirflowFailException)


def test_a_failure_that_a_retry_could_mend_is_not_mended_by_reading_it_again(submit):
    with pytest.raises(TrainJobFailedForGoodError):
        execute(a_sensor(submit(die)))


def test_the_log_of_the_training_is_the_log_of_the_sensor(submit, task_log):
    execute(a_sensor(submit(double, number=3)))
    assert task_log().count("doubling 3") == 1


class Away(TrainerClient):
    """Its backend does not answer."""

    def observe(self, job):
        raise BackendUnavailableError("no answer")


def test_a_look_that_failed_is_in_the_log(running, task_log):
    sensor = a_sensor(running)
    sensor.hook.client = Away(sensor.hook.config)
    assert not sensor.poke({"ti": StandInTaskInstance("wait")}).is_done
    assert f"TrainJob {running.name} could not be looked at; trying again: no answer" in task_log()


def test_a_sensor_that_times_out_leaves_the_job_alone(running, client):
    with pytest.raises(AirflowSensorTimeout):
        execute(a_sensor(running, timeout=0.05))
    assert client.observe(running).outcome is None


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_sensor_that_was_told_so_ends_the_job_when_it_times_out(running, client, soft_fail, error):
    with pytest.raises(error):
        execute(a_sensor(running, timeout=0.05, on_kill="cancel", soft_fail=soft_fail))
    assert client.outcome(running).status == "Failed"


def test_killing_a_sensor_leaves_the_job_alone(running, client):
    a_sensor(running).on_kill()
    assert client.observe(running).outcome is None


def test_killing_a_sensor_that_was_told_so_ends_the_job(running, client):
    a_sensor(running, on_kill="cancel").on_kill()
    assert client.wait(running).diagnosis.reason == "it was cancelled"


def deferred(sensor):
    with pytest.raises(TaskDeferred) as caught:
        execute(sensor)
    return caught.value


def test_a_deferred_sensor_has_the_nearer_of_its_two_limits(running):
    limit = datetime.timedelta(minutes=5)
    by_timeout = deferred(a_sensor(running, deferrable=True, timeout=60, execution_timeout=limit))
    by_execution = deferred(a_sensor(running, deferrable=True, timeout=3600, execution_timeout=limit))
    assert by_execution.trigger.deadline - by_timeout.trigger.deadline > 200


def test_a_deferred_sensor_does_not_end_the_job(running):
    assert deferred(a_sensor(running, deferrable=True)).trigger.on_kill_policy == "keep"


def test_a_job_that_has_ended_is_not_waited_for_in_the_triggerer(submit, client):
    ref = submit(double, number=3)
    client.wait(ref)
    assert execute(a_sensor(ref, deferrable=True))["doubled"] == 6


def test_a_job_that_failed_before_the_deferral_skips_where_failing_softly(submit, client):
    ref = submit(die)
    client.wait(ref)
    with pytest.raises(AirflowSkipException):
        execute(a_sensor(ref, deferrable=True, soft_fail=True))


def resumed(sensor, event):
    return sensor.resume_execution("execute_complete", {"event": event}, {"ti": StandInTaskInstance("wait")})


def test_a_timeout_in_the_triggerer_is_a_timeout_of_the_sensor(running):
    with pytest.raises(AirflowSensorTimeout, match="over"):
        resumed(a_sensor(running), {"ref": running.to_dict(), "timeout": "it is over"})


def test_a_timeout_in_the_triggerer_skips_where_failing_softly(running):
    with pytest.raises(AirflowSkipException):
        resumed(a_sensor(running, soft_fail=True), {"ref": running.to_dict(), "timeout": "it is over"})


def test_a_job_that_could_not_be_followed_leaves_the_sensor_its_retries(running):
    with pytest.raises(TrainJobUnreachableError, match="no answer") as caught:
        resumed(a_sensor(running), {"ref": running.to_dict(), "error": "no answer"})
    assert not isinstance(caught.value, AirflowFailException)


def test_a_deferral_that_airflow_timed_out_ends_the_job_if_the_sensor_was_told_so(running, client):
    sensor = a_sensor(running, on_kill="cancel")
    with pytest.raises(AirflowSensorTimeout):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": StandInTaskInstance("wait")})
    assert client.outcome(running).status == "Failed"


def test_a_trigger_that_failed_leaves_the_job_to_the_next_try(running, client):
    sensor = a_sensor(running, on_kill="cancel")
    with pytest.raises(TaskDeferralError):
        sensor.resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": StandInTaskInstance("wait")})
    assert client.observe(running).outcome is None


def test_an_event_that_an_earlier_try_left_behind_is_not_taken_for_ours(running):
    with pytest.raises(TaskDeferred) as caught:
        resumed(a_sensor(running), {"ref": {**running.to_dict(), "uid": "another"}, "timeout": "it is over"})
    assert caught.value.trigger.ref == running.to_dict()
