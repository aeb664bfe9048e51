"""TrainJobOperator with real local jobs and a stand-in task instance."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import psutil
import pytest
from airflow.sdk.log import mask_secret
from airflow_fakes import die, double, fail, wait_for_file

from airflow_provider.compat import AirflowFailException, AirflowTaskTimeout, TaskDeferralError, TaskDeferred
from airflow_provider.exceptions import (
    TrainJobElsewhereError,
    TrainJobFailedError,
    TrainJobFailedForGoodError,
    TrainJobInterruptedError,
    TrainJobOutOfMemoryError,
    TrainJobRejectedError,
    TrainJobTimeoutError,
    TrainJobUnreachableError,
)
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.task_memory import TaskMemory
from airflow_provider.testing.tasks import StandInTaskInstance
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core import (
    CustomTrainer,
    FileDatasetInitializer,
    Initializer,
    LocalProcessBackendConfig,
    Outcome,
    TrainerClient,
    TrainJobRef,
)
from trainer_core.base.errors import BackendUnavailableError, UnsupportedError


def an_operator(func=double, args=None, **arguments):
    given = {"number": 4} if func is double else {}
    trainer = CustomTrainer(func=func, func_args=given if args is None else args)
    return TrainJobOperator(task_id="train", runtime="python", trainer=trainer, **arguments)


def names(client):
    return sorted(job.name for job in client.list_jobs())


@pytest.fixture
def gate(tmp_path):
    """File that a training function waits for."""
    return tmp_path / "gate"


@pytest.fixture
def waiting(gate, home):
    """Create an operator whose training runs until the gate exists."""

    def make(**arguments):
        return an_operator(wait_for_file, {"path": str(gate)}, **arguments)

    return make


def test_the_ref_is_pushed_before_the_task_waits(waiting, client):
    ti = StandInTaskInstance()
    returned = waiting(wait_for_completion=False).execute({"ti": ti})
    assert returned == ti.xcoms["ref"]
    assert ti.xcoms["status"] in ("Created", "Running")
    assert client.observe(TrainJobRef.from_dict(returned)).outcome is None


def test_the_log_of_the_training_is_the_log_of_the_task(home, task_log):
    an_operator().execute({"ti": StandInTaskInstance()})
    assert "doubling 4" in task_log()


def test_an_error_in_the_training_function_fails_the_task_without_retries(home, task_log):
    ti = StandInTaskInstance()
    with pytest.raises(TrainJobFailedForGoodError, match="ValueError: the data is odd") as caught:
        an_operator(fail, {"message": "the data is odd"}).execute({"ti": ti})
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.outcome.diagnosis.step == "node-0"
    assert ti.xcoms["status"] == "Failed"
    assert "raise ValueError(message)" in task_log()


def test_a_failure_of_the_machine_is_retried(home):
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


def test_a_retry_returns_the_result_of_a_complete_job(home, client):
    first = StandInTaskInstance(max_tries=1)
    an_operator().execute({"ti": first})
    assert an_operator().execute({"ti": first.next_try()})["doubled"] == 8
    assert names(client) == [first.xcoms["ref"]["name"]]


def test_a_retry_starts_a_new_attempt_after_a_failed_job(home, client):
    first = StandInTaskInstance(max_tries=1)
    with pytest.raises(TrainJobFailedError):
        an_operator(die).execute({"ti": first})
    second = first.next_try()
    with pytest.raises(TrainJobFailedError):
        an_operator(die).execute({"ti": second})
    name = first.xcoms["ref"]["name"]
    assert names(client) == [name, f"{name}-1"]


def test_clearing_a_task_cancels_the_running_job_and_starts_a_new_one(waiting, client):
    first = StandInTaskInstance()
    waiting(wait_for_completion=False).execute({"ti": first})
    cleared = first.next_try(cleared=True)
    waiting(wait_for_completion=False).execute({"ti": cleared})
    assert client.get_job_outcome(TrainJobRef.from_dict(first.xcoms["ref"])).status == "Failed"
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


def test_a_missing_runtime_is_refused_before_anything_is_created(home, client):
    operator = TrainJobOperator(
        task_id="train", runtime="nope", trainer=CustomTrainer(func=double, func_args={"number": 1})
    )
    with pytest.raises(TrainJobRejectedError, match="runtime 'nope' does not exist"):
        operator.execute({"ti": StandInTaskInstance()})
    assert names(client) == []


def test_a_rendered_argument_of_the_wrong_type_is_refused_before_anything_is_created(home, client):
    with pytest.raises(
        TrainJobRejectedError, match=r"^func_args.number: 'many' is not an int \(double\(number: int\)\)$"
    ):
        an_operator(args={"number": "many"}).execute({"ti": StandInTaskInstance()})
    assert names(client) == []


def test_a_missing_dataset_is_refused_before_anything_is_created(home, client, tmp_path):
    missing = Initializer(dataset=FileDatasetInitializer(f"file://{tmp_path}/missing"))
    with pytest.raises(TrainJobRejectedError, match="missing does not exist"):
        InitializeOperator(task_id="fetch", initializer=missing).execute({"ti": StandInTaskInstance()})
    assert names(client) == []


@pytest.mark.parametrize(("of_connection", "experiment"), [({}, "a_dag"), ({"experiment": "digits"}, "digits")])
def test_the_run_of_a_task_is_in_the_experiment_of_the_connection_or_else_of_its_dag(
    home, client, mlflow, monkeypatch, of_connection, experiment
):
    connection = {"conn_type": "mlflow", "host": "http://127.0.0.1", "port": mlflow.port, "extra": of_connection}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
    an_operator(wait_for_completion=False).execute({"ti": StandInTaskInstance()})
    assert client.get_job_request(*names(client)).policy.tracking.experiment == experiment


def test_the_trigger_has_plain_data_and_a_fixed_deadline(waiting):
    ti = StandInTaskInstance()
    operator = waiting(deferrable=True, on_clear="ask", execution_timeout=datetime.timedelta(hours=1))
    with pytest.raises(TaskDeferred) as caught:
        operator.execute({"ti": ti})
    _, stored = caught.value.trigger.serialize()
    assert stored["ref"] == ti.xcoms["ref"]
    assert stored["deadline"] == ti.start_date.timestamp() + 3600
    assert stored["backend"] == "local"
    assert stored["on_clear"] == "ask"
    assert caught.value.method_name == "execute_complete"
    assert caught.value.timeout > datetime.timedelta(hours=1)


def test_a_task_with_an_ended_job_does_not_defer(home):
    ti = StandInTaskInstance()
    an_operator().execute({"ti": ti})
    assert an_operator(deferrable=True).execute({"ti": ti})["doubled"] == 8


def ended(ref, **left):
    return {"ref": ref, "outcome": Outcome(ref=ref, **left).to_dict()}


REF = TrainJobRef("local", "/nowhere", "train-1", "uid").to_dict()


def test_resuming_uses_only_the_event(home):
    ti = StandInTaskInstance()
    event = ended(REF, status="Complete", result=[1], metrics={"loss": 0.5}, artifacts={"model": "file:///m"})
    assert an_operator(deferrable=True).execute_complete({"ti": ti}, event) == [1]
    assert ti.xcoms == {"status": "Complete", "metrics": {"loss": 0.5}, "artifacts": {"model": "file:///m"}}


def test_the_diagnosis_xcom_has_no_log_lines(home):
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


def test_a_secret_in_an_exception_of_the_training_is_masked_in_xcoms(home):
    mask_secret("quoted-by-the-training")
    ti = StandInTaskInstance()
    why = {"category": "UserCode", "reason": "ValueError: no such token: quoted-by-the-training"}
    with pytest.raises(TrainJobFailedForGoodError):
        an_operator(deferrable=True).execute_complete({"ti": ti}, ended(REF, status="Failed", diagnosis=why))
    assert ti.xcoms["diagnosis"]["reason"] == "ValueError: no such token: ***"


def test_a_timeout_event_fails_the_task_and_allows_retries(home):
    with pytest.raises(TrainJobTimeoutError, match="time is over"):
        an_operator().execute_complete({"ti": StandInTaskInstance()}, {"ref": REF, "timeout": "time is over"})


def test_the_event_of_an_earlier_try_is_ignored(waiting, gate):
    ti = StandInTaskInstance()
    deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferred) as caught:
        waiting(deferrable=True).execute_complete({"ti": ti}, ended(REF, status="Complete"))
    assert caught.value.trigger.ref == ti.xcoms["ref"]


def deferred(operator, ti, store=None):
    with pytest.raises(TaskDeferred):
        operator.execute({"ti": ti, "task_state_store": store})
    return TrainJobRef.from_dict(ti.xcoms["ref"])


def test_a_deferral_that_airflow_timed_out_cancels_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=1)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TrainJobTimeoutError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
    assert client.get_job_outcome(ref).status == "Failed"


def test_after_a_failed_trigger_the_next_try_attaches_to_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=1)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferralError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": ti})
    assert client.observe(ref).outcome is None


def test_a_failed_trigger_in_the_last_try_cancels_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TaskDeferralError):
        waiting(deferrable=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": ti})
    assert client.get_job_outcome(ref).status == "Failed"


def test_an_unreachable_job_is_cancelled_in_the_last_try(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    ref = deferred(waiting(deferrable=True), ti)
    with pytest.raises(TrainJobUnreachableError, match="no answer"):
        waiting(deferrable=True).execute_complete({"ti": ti}, {"ref": ref.to_dict(), "error": "no answer"})
    assert client.get_job_outcome(ref).status == "Failed"


class TaskStore(dict):
    """Storage that all tries of a task share, as Airflow 3.3 has it."""

    set = dict.__setitem__
    delete = dict.__delitem__


ELSEWHERE = {"error": "it lives on another host", "elsewhere": True}


def test_a_worker_waits_for_a_job_that_the_triggerer_cannot_see(waiting, gate):
    ti = StandInTaskInstance(max_tries=0)
    ref = deferred(waiting(deferrable=True), ti)
    gate.write_text("go")
    result = waiting(deferrable=True).execute_complete({"ti": ti}, {"ref": ref.to_dict(), **ELSEWHERE})
    assert result == "it came"


def test_a_task_on_a_host_that_cannot_see_the_job_fails_without_a_retry(waiting, client, home):
    ti = StandInTaskInstance(max_tries=3)
    ref = deferred(waiting(deferrable=True), ti)
    with another_disk(home), pytest.raises(TrainJobElsewhereError, match=r"lives on host .*set queue= to one host"):
        waiting(deferrable=True).execute_complete({"ti": ti}, {"ref": ref.to_dict(), **ELSEWHERE})
    assert client.observe(ref).outcome is None


def test_a_retry_on_another_host_does_not_start_a_second_job(waiting, client, home):
    context = {"ti": StandInTaskInstance(max_tries=3), "task_state_store": TaskStore()}
    ref = TrainJobRef.from_dict(waiting(wait_for_completion=False).execute(context))
    with another_disk(home):
        with pytest.raises(TrainJobUnreachableError, match="no second TrainJob was started") as caught:
            waiting(wait_for_completion=False).execute(context)
        assert TrainerClient(client.config).list_jobs() == []
    assert not isinstance(caught.value, AirflowFailException)
    assert TrainJobRef.from_dict(waiting(wait_for_completion=False).execute(context)) == ref


def test_a_cleared_task_starts_a_job_on_another_host(waiting, client, home):
    store = TaskStore()
    waiting(wait_for_completion=False).execute({"ti": StandInTaskInstance(max_tries=3), "task_state_store": store})
    cleared = {"ti": StandInTaskInstance(max_tries=4), "task_state_store": store}
    with another_disk(home):
        ref = TrainJobRef.from_dict(waiting(wait_for_completion=False).execute(cleared))
        assert [job.name for job in TrainerClient(client.config).list_jobs()] == [ref.name]
        client.delete_job(ref)


def test_a_retry_on_another_host_starts_a_job_after_a_failed_one(home, client):
    context = {"ti": StandInTaskInstance(max_tries=3), "task_state_store": TaskStore()}
    with pytest.raises(TrainJobFailedError):
        an_operator(die).execute(context)
    with another_disk(home):
        assert an_operator().execute(context)["doubled"] == 8


@pytest.mark.parametrize("event", [{"cancelled": True}, {"cancelled": False}])
def test_a_retry_after_a_timeout_starts_a_job_on_another_host_if_the_first_was_cancelled(waiting, home, client, event):
    store, ti = TaskStore(), StandInTaskInstance(max_tries=3)
    ref = deferred(waiting(deferrable=True), ti, store)
    context = {"ti": ti, "task_state_store": store}
    with pytest.raises(TrainJobTimeoutError):
        waiting(deferrable=True).execute_complete(
            context, {"ref": ref.to_dict(), "timeout": "it took too long", **event}
        )
    assert ("trainjob_ref" not in store) == event["cancelled"]


@pytest.mark.parametrize(("on_kill", "is_saved"), [("cancel", False), ("keep", True)])
def test_a_retry_of_a_killed_task_starts_a_job_on_another_host_if_the_first_was_cancelled(waiting, on_kill, is_saved):
    store = TaskStore()
    operator = waiting(on_kill=on_kill)
    operator.on_kill()
    ti = StandInTaskInstance(max_tries=3)
    ti.state = "failed"
    with pytest.raises(TrainJobInterruptedError):
        operator.execute({"ti": ti, "task_state_store": store})
    assert ("trainjob_ref" in store) == is_saved


def end_deferral(operator, ti, store):
    """End the deferral of a last try, as Airflow does after its timeout."""
    with pytest.raises(TrainJobTimeoutError):
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti, "task_state_store": store})


def test_a_job_whose_wait_has_timed_out_is_saved_until_it_is_cancelled(waiting, home):
    store, ti = TaskStore(), StandInTaskInstance(max_tries=0)
    operator = waiting(deferrable=True)
    ref = deferred(operator, ti, store)
    with another_disk(home):
        end_deferral(operator, ti, store)
    assert store["trainjob_ref"]["ref"] == ref.to_dict()
    end_deferral(operator, ti, store)
    assert "trainjob_ref" not in store


def test_a_task_that_has_moved_to_another_backend_is_refused(home, client):
    store, ti = TaskStore(), StandInTaskInstance(max_tries=3)
    earlier = TrainJobRef("container", "default", "train", "uid-1", "another host")
    TaskMemory(ti, store).record_submit(earlier.to_dict())
    with pytest.raises(TrainJobUnreachableError, match=r"'train' was submitted to backend 'container', and .* 'local'"):
        an_operator().execute({"ti": ti, "task_state_store": store})
    assert names(client) == []


class DiesAfterSubmit(TrainerClient):
    """Client of a worker that is killed after it has created a job, and before it knows of it."""

    def submit(self, request, **arguments):
        super().submit(request, **arguments)
        raise SystemExit


def test_a_retry_on_another_host_knows_of_a_job_whose_ref_was_not_saved(waiting, client, home):
    context = {"ti": StandInTaskInstance(max_tries=3), "task_state_store": TaskStore()}
    operator = waiting()
    operator.hook.client = DiesAfterSubmit(operator.hook.config)
    with pytest.raises(SystemExit):
        operator.execute(context)
    with another_disk(home), pytest.raises(TrainJobUnreachableError, match="no second TrainJob was started"):
        waiting(wait_for_completion=False).execute(context)
    ref = TrainJobRef.from_dict(waiting(wait_for_completion=False).execute(context))
    assert names(client) == [ref.name]


class DiesWhileWaiting(TrainerClient):
    """Client of a worker that is killed while it waits."""

    def wait(self, job, timeout=None, **arguments):
        if timeout is None:
            raise SystemExit
        return super().wait(job, timeout=timeout, **arguments)


@pytest.fixture
def lost(waiting):
    """Task instance and storage of a task whose worker was killed in its last try; its job runs."""
    ti, store = StandInTaskInstance(max_tries=0), TaskStore()
    operator = waiting()
    operator.hook.client = DiesWhileWaiting(operator.hook.config)
    with pytest.raises(SystemExit):
        operator.execute({"ti": ti, "task_state_store": store})
    return ti, store


def test_a_clear_attaches_to_the_unchanged_job_of_a_worker_that_was_killed(lost, waiting, gate, client):
    ti, store = lost
    gate.touch()
    cleared = ti.next_try(cleared=True)
    assert waiting().execute({"ti": cleared, "task_state_store": store}) == "it came"
    assert names(client) == [ti.xcoms["ref"]["name"]]


def test_a_clear_cancels_the_job_of_a_killed_worker_if_the_definition_has_changed(lost, waiting, gate, client):
    ti, store = lost
    gate.touch()
    cleared = ti.next_try(cleared=True)
    waiting(options=[{"Labels": {"team": "vision"}}]).execute({"ti": cleared, "task_state_store": store})
    assert len(names(client)) == 2
    assert client.get_job_outcome(TrainJobRef.from_dict(ti.xcoms["ref"])).diagnosis.reason == "it was cancelled"


def test_a_clear_of_a_task_whose_job_has_ended_starts_another(lost, waiting, gate, client):
    ti, store = lost
    gate.touch()
    client.wait(TrainJobRef.from_dict(ti.xcoms["ref"]))
    waiting().execute({"ti": ti.next_try(cleared=True), "task_state_store": store})
    assert len(names(client)) == 2


def test_a_clear_of_a_deferred_task_still_starts_another_job(waiting, gate, client):
    ti, store = StandInTaskInstance(max_tries=0), TaskStore()
    deferred(waiting(deferrable=True), ti, store)
    gate.touch()
    waiting().execute({"ti": ti.next_try(cleared=True), "task_state_store": store})
    assert len(names(client)) == 2


def test_a_job_that_was_not_created_is_not_saved(home):
    store = TaskStore()
    missing = Initializer(dataset=FileDatasetInitializer(f"file://{home}/missing"))
    with pytest.raises(TrainJobRejectedError, match="does not exist"):
        an_operator(initializer=missing).execute({"ti": StandInTaskInstance(), "task_state_store": store})
    assert store == {}


def test_a_retry_does_not_defer_its_wait_for_a_job_that_the_triggerer_cannot_see(waiting, home, gate):
    store = TaskStore()
    ti = StandInTaskInstance(max_tries=3)
    ref = deferred(waiting(deferrable=True), ti, store)
    with another_disk(home), pytest.raises(TrainJobUnreachableError):
        waiting(deferrable=True).execute_complete(
            {"ti": ti, "task_state_store": store}, {"ref": ref.to_dict(), **ELSEWHERE}
        )
    again = ti.next_try()
    with ThreadPoolExecutor() as threads:
        result = threads.submit(waiting(deferrable=True).execute, {"ti": again, "task_state_store": store})
        while "status" not in again.xcoms and not result.done():
            wait([result], timeout=0.01)
        gate.touch()
        assert result.result() == "it came"


@contextmanager
def another_disk(home):
    """Replaces the state folder by an empty one, as another host has it at the same path."""
    with suspended_jobs(home):
        aside = home.rename(home.with_name("disk-of-the-first-host"))
        yield
        others = TrainerClient(LocalProcessBackendConfig(home=home))
        for job in others.list_jobs():
            others.delete_job(job.name)
        shutil.rmtree(home, ignore_errors=True)
        aside.rename(home)


@contextmanager
def suspended_jobs(home):
    """Suspend the processes of the running jobs: those of the first host do not notice that its folder is away."""
    records = [json.loads(path.read_text()) for path in home.glob("jobs/*/status.json")]
    held = [each for record in records if not record["finished"] for each in suspend(record["supervisor"])]
    try:
        yield
    finally:
        for process in held:
            process.resume()


def suspend(pid):
    """Suspend a process and its children; return them."""
    process, pause = psutil.Process(pid), threading.Event()
    process.suspend()
    # A signal takes effect later. A stopped process starts no children.
    while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
        pause.wait(0.01)
    return [process, *(each for child in process.children() for each in suspend(child.pid))]


class LosesSight(TrainerClient):
    """Client that becomes unavailable while it waits."""

    def wait(self, job, timeout=None, **arguments):
        if timeout is None:
            raise BackendUnavailableError("no answer")
        return super().wait(job, timeout, **arguments)


class IsNotAllowed(TrainerClient):
    """Client that is denied to cancel."""

    def cancel(self, job):
        raise UnsupportedError("not allowed")


class IsAwayForATime(TrainerClient):
    """Client whose backend is away for the first requests to cancel."""

    failures = 3

    def cancel(self, job):
        self.failures -= 1
        if self.failures >= 0:
            raise BackendUnavailableError("no answer")
        super().cancel(job)


def test_a_cancellation_is_repeated_while_the_backend_is_away(waiting, client):
    ti = StandInTaskInstance()
    operator = waiting(wait_for_completion=False)
    operator.execute({"ti": ti})
    operator.hook.client = IsAwayForATime(operator.hook.config)
    operator.on_kill()
    assert client.wait(TrainJobRef.from_dict(ti.xcoms["ref"])).diagnosis.reason == "it was cancelled"


@pytest.mark.parametrize(("max_tries", "ended"), [(0, True), (1, False)])
def test_a_worker_cancels_an_unreachable_job_in_the_last_try_only(waiting, client, max_tries, ended):
    ti = StandInTaskInstance(max_tries=max_tries)
    operator = waiting()
    operator.hook.client = LosesSight(operator.hook.config)
    with pytest.raises(TrainJobUnreachableError, match="no answer"):
        operator.execute({"ti": ti})
    assert (client.observe(TrainJobRef.from_dict(ti.xcoms["ref"])).outcome is not None) is ended


def test_a_job_with_on_kill_keep_is_never_cancelled(waiting, client):
    ti = StandInTaskInstance(max_tries=0)
    operator = waiting(deferrable=True, on_kill="keep")
    ref = deferred(operator, ti)
    operator.on_kill()
    with pytest.raises(TrainJobTimeoutError):
        operator.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
    assert client.observe(ref).outcome is None


class IsActedUpon(TrainerClient):
    """Client of a job that a person suspends and resumes on the page while the task waits; then the gate opens."""

    def __init__(self, config, ti, gate):
        super().__init__(config)
        self._ti, self._gate = ti, gate

    def wait(self, job, timeout=None, on_observation=None, **arguments):
        def see(observation):
            on_observation(observation)
            if timeout == 0:
                return
            if observation.status == "Running" and "trainjob_action" not in self._ti.xcoms:
                self._ti.xcoms["trainjob_action"] = {"action": "suspend", "by": "ada"}
                self.suspend(job)
            elif observation.status == "Suspended":
                self._ti.xcoms["trainjob_action"] = {"action": "resume", "by": "grace"}
                self._gate.touch()
                self.resume(job)

        return super().wait(job, timeout, on_observation=see, **arguments)


def test_the_log_says_who_suspended_and_resumed_the_job(waiting, gate, task_log):
    ti = StandInTaskInstance()
    operator = waiting()
    operator.hook.client = IsActedUpon(operator.hook.config, ti, gate)
    operator.execute({"ti": ti})
    name = ti.xcoms["ref"]["name"]
    assert f"TrainJob {name} was suspended by ada on the TrainJobs page" in task_log()
    assert f"TrainJob {name} was resumed by grace on the TrainJobs page" in task_log()


def test_the_log_says_who_deleted_the_job(waiting, client, task_log):
    ti = StandInTaskInstance()
    ref = deferred(waiting(deferrable=True), ti)
    client.delete_job(ref)
    ti.xcoms["trainjob_action"] = {"action": "delete", "by": "ada"}
    event = asyncio.run(anext(TrainJobTrigger(ref.to_dict(), backend="local").run())).payload
    with pytest.raises(TrainJobFailedError):
        waiting(deferrable=True).execute_complete({"ti": ti}, event)
    assert f"TrainJob {ref.name} was deleted by ada on the TrainJobs page" in task_log()


def test_killing_a_task_cancels_its_job(waiting, client):
    ti = StandInTaskInstance()
    operator = waiting(wait_for_completion=False)
    operator.execute({"ti": ti})
    operator.on_kill()
    # A task has a few seconds after SIGTERM, so it does not wait for the end of its job.
    outcome = client.wait(TrainJobRef.from_dict(ti.xcoms["ref"]))
    assert outcome.diagnosis.reason == "it was cancelled"


class UnknownState(StandInTaskInstance):
    """Task instance whose state cannot be read, because Airflow's API server is away."""

    def get_task_states(self, **_):
        raise ConnectionError("503")


def test_a_task_that_is_stopped_while_airflow_does_not_answer_keeps_its_job(waiting, client, task_log):
    ti = UnknownState(max_tries=1)
    operator = waiting(wait_for_completion=False)
    operator.execute({"ti": ti})
    operator.on_kill()
    assert client.observe(TrainJobRef.from_dict(ti.xcoms["ref"])).outcome is None
    assert "the state of the task cannot be read: 503" in task_log()


def test_a_worker_that_is_stopped_in_the_last_try_cancels_the_job(waiting, client):
    ti = StandInTaskInstance(max_tries=1, try_number=2)
    operator = waiting(wait_for_completion=False)
    operator.execute({"ti": ti})
    operator.on_kill()
    assert client.wait(TrainJobRef.from_dict(ti.xcoms["ref"])).diagnosis.reason == "it was cancelled"


def test_the_time_limit_of_a_running_task_cancels_its_job(waiting, client, task_log):
    ti = StandInTaskInstance(max_tries=1)
    operator = waiting(wait_for_completion=False, execution_timeout=datetime.timedelta(hours=1))
    operator.execute({"ti": ti})
    try:
        raise AirflowTaskTimeout
    except AirflowTaskTimeout:
        operator.on_kill()
    assert client.wait(TrainJobRef.from_dict(ti.xcoms["ref"])).diagnosis.reason == "it was cancelled"
    assert ti.xcoms["status"] == "Failed"
    assert "task 'train' exceeded its execution_timeout of 1:00:00: TrainJob" in task_log()


def test_killing_a_task_during_submission_cancels_the_job(waiting, client):
    ti = StandInTaskInstance()
    operator = waiting()
    operator.on_kill()
    with pytest.raises(TrainJobInterruptedError, match="was cancelled"):
        operator.execute({"ti": ti})
    (job,) = client.list_jobs()
    assert client.wait(client.get_job_ref(job.name)).diagnosis.reason == "it was cancelled"


def test_a_job_that_could_not_be_cancelled_is_not_called_cancelled(waiting, gate):
    operator = waiting()
    operator.hook.client = IsNotAllowed(operator.hook.config)
    operator.on_kill()
    with pytest.raises(TrainJobInterruptedError, match="may still run: its cancellation failed"):
        operator.execute({"ti": StandInTaskInstance()})
    gate.touch()


def test_killing_a_task_after_its_job_has_ended_has_no_effect(client):
    operator = an_operator()
    operator.execute({"ti": StandInTaskInstance()})
    operator.on_kill()
    assert [job.status for job in client.list_jobs()] == ["Complete"]
