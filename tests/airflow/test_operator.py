"""The operator against real local jobs, with a task instance that only keeps XComs."""

from __future__ import annotations

import datetime

import pytest
from airflow.sdk.log import mask_secret
from airflow_fakes import die, double, fail, wait_for_file

from airflow_provider.compat import AirflowFailException, TaskDeferralError, TaskDeferred
from airflow_provider.exceptions import (
    TrainJobFailedError,
    TrainJobFailedForGoodError,
    TrainJobInterruptedError,
    TrainJobOutOfMemoryError,
    TrainJobRejectedError,
    TrainJobTimeoutError,
    TrainJobUnreachableError,
)
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer, FileDatasetInitializer, Initializer, Outcome, TrainerClient, TrainJobRef
from trainer_core.errors import BackendUnavailableError


def an_operator(func=double, args=None, **arguments):
    given = {"number": 4} if func is double else {}
    trainer = CustomTrainer(func=func, func_args=given if args is None else args)
    return TrainJobOperator(task_id="train", runtime="python", trainer=trainer, **arguments)


def names(client):
    return sorted(job.name for job in client.list_jobs())


@pytest.fixture
def gate(tmp_path):
    """A file that a training function waits for."""
    return tmp_path / "gate"


@pytest.fixture
def waiting(gate, home):
    """Make an operator whose training goes on until the gate is there."""

    def make(**arguments):
        return an_operator(wait_for_file, {"path": str(gate)}, **arguments)

    return make


def test_where_the_job_is_stands_in_xcom_before_any_waiting(waiting, client):
    ti = StandInTaskInstance()
    returned = waiting(wait_for_completion=False).execute({"ti": ti})
    assert returned == ti.xcoms["ref"]
    assert ti.xcoms["status"] in ("Created", "Running")
    assert client.observe(TrainJobRef.from_dict(returned)).outcome is None


def test_the_log_of_the_training_is_the_log_of_the_task(home, task_log):
    an_operator().execute({"ti": StandInTaskInstance()})
    assert "doubling 4" in task_log()


def test_a_failure_of_the_training_function_fails_the_task_for_good(home, task_log):
    ti = StandInTaskInstance()
    with pytest.raises(TrainJobFailedForGoodError, match="ValueError: the data is odd") as caught:
        an_operator(fail, {"message": "the data is odd"}).execute({"ti": ti})
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.outcome.diagnosis.step == "node-0"
    assert ti.xcoms["status"] == "Failed"
    assert "raise ValueError(message)" in task_log()


def test_a_failure_of_the_machine_leaves_the_task_its_retries(home):
    with pytest.raises(TrainJobFailedError, match="a retry can help") as caught:
        an_operator(die).execute({"ti": StandInTaskInstance()})
    assert not isinstance(caught.value, AirflowFailException)


def test_a_retry_waits_for_the_job_that_still_runs(waiting, gate, client):
    first = StandInTaskInstance(max_tries=1)
    waiting(wait_for_completion=False).execute({"ti": first})
    gate.touch()
    again = first.next_try()
    assert waiting().execute({"ti": again}) == "it came"
    assert again.xcoms["ref"] == first.xcoms["ref"]


def test_a_retry_is_handed_what_a_complete_job_left(home, client):
    first = StandInTaskInstance(max_tries=1)
    an_operator().execute({"ti": first})
    assert an_operator().execute({"ti": first.next_try()})["doubled"] == 8
    assert names(client) == [first.xcoms["ref"]["name"]]


def test_a_retry_runs_a_failed_job_again(home, client):
    first = StandInTaskInstance(max_tries=1)
    with pytest.raises(TrainJobFailedError):
        an_operator(die).execute({"ti": first})
    second = first.next_try()
    with pytest.raises(TrainJobFailedError):
        an_operator(die).execute({"ti": second})
    name = first.xcoms["ref"]["name"]
    assert names(client) == [name, f"{name}-1"]


def test_clearing_a_task_ends_what_runs_and_starts_anew(waiting, client):
    first = StandInTaskInstance()
    waiting(wait_for_completion=False).execute({"ti": first})
    cleared = first.next_try(cleared=True)
    waiting(wait_for_completion=False).execute({"ti": cleared})
    assert client.outcome(TrainJobRef.from_dict(first.xcoms["ref"])).status == "Failed"
    assert client.observe(TrainJobRef.from_dict(cleared.xcoms["ref"])).outcome is None


def test_clearing_a_successful_task_trains_again(home, client):
    first = StandInTaskInstance()
    an_operator().execute({"ti": first})
    an_operator().execute({"ti": first.next_try(cleared=True)})
    assert len(names(client)) == 2


def test_tasks_of_different_runs_have_different_jobs(home, client):
    for run_id in ("a/b", "a%2Fb", "a"):
        an_operator().execute({"ti": StandInTaskInstance(run_id=run_id)})
    assert len(names(client)) == 3


def test_a_runtime_that_does_not_exist_is_refused_before_anything_is_created(home, client):
    operator = TrainJobOperator(
        task_id="train", runtime="nope", trainer=CustomTrainer(func=double, func_args={"number": 1})
    )
    with pytest.raises(TrainJobRejectedError, match="no runtime 'nope'"):
        operator.execute({"ti": StandInTaskInstance()})
    assert names(client) == []


def test_a_rendered_argument_of_the_wrong_type_is_refused_before_anything_is_created(home, client):
    with pytest.raises(TrainJobRejectedError, match="number is declared as int, and 'many' cannot be read as one"):
        an_operator(args={"number": "many"}).execute({"ti": StandInTaskInstance()})
    assert names(client) == []


def test_a_dataset_that_is_not_there_is_refused_before_anything_is_created(home, client, tmp_path):
    missing = Initializer(dataset=FileDatasetInitializer(f"file://{tmp_path}/missing"))
    with pytest.raises(TrainJobRejectedError, match="missing does not exist"):
        InitializeOperator(task_id="fetch", initializer=missing).execute({"ti": StandInTaskInstance()})
    assert names(client) == []


def test_deferring_stores_plain_data_and_a_deadline_that_stays(waiting):
    ti = StandInTaskInstance()
    operator = waiting(deferrable=True, execution_timeout=datetime.timedelta(hours=1))
    with pytest.raises(TaskDeferred) as caught:
        operator.execute({"ti": ti})
    _, stored = caught.value.trigger.serialize()
    assert stored["ref"] == ti.xcoms["ref"]
    assert stored["deadline"] == ti.start_date.timestamp() + 3600
    assert stored["backend"] == "local"
    assert caught.value.method_name == "execute_complete"
    assert caught.value.timeout > datetime.timedelta(hours=1)


def test_a_job_that_has_ended_is_not_waited_for_in_the_triggerer(home):
    ti = StandInTaskInstance()
    an_operator().execute({"ti": ti})
    assert an_operator(deferrable=True).execute({"ti": ti})["doubled"] == 8


def ended(ref, **left):
    return {"ref": ref, "outcome": Outcome(ref=ref, **left).to_dict()}


REF = TrainJobRef("local", "/nowhere", "train-1", "uid").to_dict()


def test_resuming_needs_nothing_but_the_event(home):
    ti = StandInTaskInstance()
    event = ended(REF, status="Complete", result=[1], metrics={"loss": 0.5}, artifacts={"model": "file:///m"})
    assert an_operator(deferrable=True).execute_complete({"ti": ti}, event) == [1]
    assert ti.xcoms == {"status": "Complete", "metrics": {"loss": 0.5}, "artifacts": {"model": "file:///m"}}


def test_why_a_job_failed_is_an_xcom_without_what_it_printed(home):
    ti = StandInTaskInstance()
    why = {"category": "OutOfMemory", "reason": "it was killed", "step": "node-0", "log_tail": ["a line"]}
    with pytest.raises(TrainJobOutOfMemoryError):
        an_operator(deferrable=True).execute_complete({"ti": ti}, ended(REF, status="Failed", diagnosis=why))
    assert ti.xcoms["diagnosis"] == {
        "category": "OutOfMemory",
        "reason": "it was killed",
        "step": "node-0",
        "retryable": False,
    }


def test_a_secret_that_the_training_function_raised_is_in_no_xcom(home):
    mask_secret("quoted-by-the-training")
    ti = StandInTaskInstance()
    why = {"category": "UserCode", "reason": "ValueError: no such token: quoted-by-the-training"}
    with pytest.raises(TrainJobFailedForGoodError):
        an_operator(deferrable=True).execute_complete({"ti": ti}, ended(REF, status="Failed", diagnosis=why))
    assert ti.xcoms["diagnosis"]["reason"] == "ValueError: no such token: ***"


def test_an_event_of_a_timeout_fails_the_task_and_leaves_its_retries(home):
    with pytest.raises(TrainJobTimeoutError, match="time is over"):
        an_operator().execute_complete({"ti": StandInTaskInstance()}, {"ref": REF, "timeout": "time is over"})


def test_an_event_that_an_earlier_try_left_behind_is_not_taken_for_ours(waiting, gate):
    ti = StandInTaskInstance()
    deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferred) as caught:
        waiting(deferrable=True).execute_complete({"ti": ti}, ended(REF, status="Complete"))
    assert caught.value.trigger.ref == ti.xcoms["ref"]


def deferred(operator, ti):
    with pytest.raises(TaskDeferred):
        operator.execute({"ti": ti})
    return TrainJobRef.from_dict(ti.xcoms["ref"])


def test_a_deferral_that_airflow_timed_out_ends_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=1)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TrainJobTimeoutError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
    assert client.outcome(ref).status == "Failed"


def test_a_trigger_that_failed_leaves_the_job_to_the_next_try(waiting, client):
    ti = StandInTaskInstance(max_tries=1)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferralError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": ti})
    assert client.observe(ref).outcome is None


def test_a_trigger_that_failed_in_the_last_try_ends_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferralError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": ti})
    assert client.outcome(ref).status == "Failed"


def test_a_job_that_cannot_be_followed_in_the_last_try_is_ended(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TrainJobUnreachableError, match="no answer"):
        waiting(deferrable=True).execute_complete({"ti": ti}, {"ref": ref.to_dict(), "error": "no answer"})
    assert client.outcome(ref).status == "Failed"


class LosesSight(TrainerClient):
    """Reaches its backend, but not for long enough to follow a job."""

    def wait(self, job, timeout=None, **arguments):
        if timeout is None:
            raise BackendUnavailableError("no answer")
        return super().wait(job, timeout, **arguments)


@pytest.mark.parametrize(("max_tries", "ended"), [(0, True), (1, False)])
def test_a_job_that_a_worker_loses_sight_of_is_ended_in_the_last_try_only(waiting, client, max_tries, ended):
    ti = StandInTaskInstance(max_tries=max_tries)
    operator = waiting()
    operator.hook.client = LosesSight(operator.hook.config)
    with pytest.raises(TrainJobUnreachableError, match="no answer"):
        operator.execute({"ti": ti})
    assert (client.observe(TrainJobRef.from_dict(ti.xcoms["ref"])).outcome is not None) is ended


def test_nothing_ends_a_job_that_is_to_be_kept(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    operator = waiting(deferrable=True, on_kill="keep")
    ref = deferred(operator, ti)
    operator.on_kill()
    with pytest.raises(TrainJobTimeoutError):
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
    assert client.observe(ref).outcome is None


def test_killing_a_task_ends_its_job(waiting, client):
    ti = StandInTaskInstance()
    operator = waiting(wait_for_completion=False)
    operator.execute({"ti": ti})
    operator.on_kill()
    # A task has seconds to end itself, and need not see the end of its job.
    outcome = client.wait(TrainJobRef.from_dict(ti.xcoms["ref"]))
    assert outcome.diagnosis.reason == "it was cancelled"


def test_killing_a_task_before_it_knows_its_job_ends_the_job(waiting, client):
    ti = StandInTaskInstance()
    operator = waiting()
    operator.on_kill()
    with pytest.raises(TrainJobInterruptedError, match="was cancelled"):
        operator.execute({"ti": ti})
    (job,) = client.list_jobs()
    assert client.wait(client.ref(job.name)).diagnosis.reason == "it was cancelled"


def test_killing_a_task_after_its_job_is_done_is_harmless(home):
    operator = an_operator()
    operator.execute({"ti": StandInTaskInstance()})
    operator.on_kill()
