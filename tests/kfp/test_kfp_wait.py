"""The wait component, run by its own command as a backend's driver starts it."""

from __future__ import annotations

import signal

import kfp_definitions as definitions
import pytest
from kfp_driver import component_spec, request_for

from kfp_components.step import sigterm
from kfp_components.step.owner_reference import Run
from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJobRequest
from trainer_core.base.errors import BackendUnavailableError


@pytest.fixture
def submit(client):
    """Submit a training function; returns its ref."""

    def _submit(func, func_args=None):
        request = request_for(func, func_args)
        return client.submit(TrainJobRequest.parse({**request, "name": "waited-for"}))

    return _submit


@pytest.fixture
def ref(submit):
    return submit(definitions.train_a_little, {"epochs": 2, "learning_rate": 0.1})


def test_the_outcome_becomes_the_outputs_of_the_task(task, ref, client):
    waiting = task("wait", job=ref.to_dict(), metric_name="accuracy")

    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    assert (waiting.output("status"), waiting.output("metric")) == ("Complete", 0.9)
    assert waiting.artifact("model").read_text() == "weights"
    outcome = client.get_job_outcome(ref)
    assert waiting.metadata("model") == {
        "job": "waited-for",
        "backend": "local",
        "runtime": "python",
        "uid": ref.uid,
        "accuracy": 0.9,
        "loss": 0.25,
        "uri": waiting.metadata("model")["uri"],
        "stamp": outcome.stamps["model"],
        "finished_at": outcome.finished_at,
    }


def test_the_log_of_a_job_is_printed_to_its_end(task, ref):
    waiting = task("wait", job=ref.to_dict())

    printed = waiting.run().stdout

    assert "[node-0] " in printed
    assert waiting.output("resumed_from") == 0


def test_a_metric_that_nobody_asked_for_has_no_value(task, ref):
    waiting = task("wait", job=ref.to_dict())
    waiting.run()
    assert waiting.output("metric") is None


def test_every_declared_output_is_written(task, ref):
    waiting = task("wait", job=ref.to_dict())

    waiting.run()

    declared = component_spec("wait")["outputDefinitions"]
    assert waiting.outputs() == set(declared["parameters"])
    assert set(waiting.executor_output()["artifacts"]) == set(declared["artifacts"])


def test_waiting_again_writes_the_same_outputs(task, ref):
    waiting = task("wait", job=ref.to_dict(), metric_name="accuracy")

    codes = [waiting.run().returncode, waiting.run().returncode]

    assert codes == [0, 0]
    assert waiting.output("metric") == 0.9


def test_the_report_shows_metrics_and_steps(task, ref):
    waiting = task("wait", job=ref.to_dict())

    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    report = waiting.artifact("report").read_text()
    assert "<th>accuracy</th><td>0.9</td>" in report
    assert "<td>node-0</td><td>Succeeded</td>" in report


def test_a_job_is_found_by_its_ref_wherever_the_environment_points(task, ref, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "another home"))

    finished = task("wait", job=ref.to_dict()).run()

    assert finished.returncode == 0, finished.stderr


def test_a_failed_job_fails_the_task(task, submit):
    waiting = task("wait", job=submit(definitions.fail_with_markup).to_dict())

    finished = waiting.run()

    assert finished.returncode == 1
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("error: TrainJob 'waited-for' is Failed: UserCode in node-0: ")
    assert last.endswith("debug waited-for`")
    assert "Diagnosis" in waiting.artifact("report").read_text()


def test_the_log_of_a_failed_task_ends_with_the_diagnosis(task, submit):
    ref = submit(definitions.fail_with_markup)

    finished = task("wait", job=ref.to_dict()).run()

    diagnosis = finished.stdout.partition(f"TrainJob {ref.name} is Failed\n")[2]
    assert "  category: UserCode\n  reason: ValueError: <b>no luck</b>\n  step: node-0\n" in diagnosis
    assert diagnosis.endswith("  | ValueError: <b>no luck</b>\n")


def test_kubernetes_keeps_the_error_of_a_failed_step_as_the_message_of_its_container(task, tmp_path, monkeypatch):
    message = tmp_path / "termination-log"
    message.touch()
    monkeypatch.setenv("TRAINJOB_KFP_CONTAINER", "1")
    monkeypatch.setenv("TRAINJOB_TERMINATION_LOG", str(message))

    finished = task("wait", job={"name": "x"}).run()

    assert finished.stderr == f"error: {message.read_text()}\n"
    assert "is not a TrainJob ref" in message.read_text()


def test_a_deleted_job_fails_the_task(task, client, ref):
    client.delete_job(ref.name)

    finished = task("wait", job=ref.to_dict()).run()

    assert finished.returncode == 1
    assert "was deleted" in finished.stderr


def test_an_invalid_ref_is_refused(task):
    finished = task("wait", job={"name": "x"}).run()

    assert finished.returncode == 1
    assert "is not a TrainJob ref" in finished.stderr


def test_a_timeout_fails_the_task_and_leaves_the_job_running(task, client, submit):
    ref = submit(definitions.run_for_ever)
    client.wait_for_job_status(ref, {"Running"}, timeout=300, polling_interval=1)

    finished = task("wait", job=ref.to_dict(), timeout=1).run()

    assert finished.returncode == 1
    assert "is still Running after the timeout; it was not stopped" in finished.stderr
    assert client.observe(ref).outcome is None


def terminated(waiting):
    """Start a task, terminate it when its job's log comes through, and return its exit code."""
    process = waiting.start()
    for line in process.stdout:
        if "training has begun" in line:
            process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    return process.returncode


def test_a_terminated_task_cancels_its_job(task, client, submit):
    ref = submit(definitions.run_for_ever)

    code = terminated(task("wait", job=ref.to_dict()))

    assert code == 143
    assert client.get_job_outcome(ref).status == "Failed"


def test_a_terminated_task_with_on_kill_keep_does_not_cancel_its_job(task, client, submit):
    ref = submit(definitions.run_for_ever)

    code = terminated(task("wait", job=ref.to_dict(), on_kill="keep"))

    assert code == 143
    assert client.observe(ref).outcome is None


def test_a_terminated_task_that_submitted_its_job_cancels_it(task, client):
    training = task("train", request=request_for(definitions.run_for_ever))

    code = terminated(training)

    assert code == 143
    assert client.get_job_outcome(training.output("job")["name"]).status == "Failed"


def sigterm_in(client, step):
    """Send SIGTERM to this process when the backend of a client has done one step of a submission."""
    original = getattr(client.backend, step)

    def done(*arguments):
        result = original(*arguments)
        signal.raise_signal(signal.SIGTERM)
        return result

    setattr(client.backend, step, done)


def terminated_in(step, on_kill="cancel"):
    client = TrainerClient(LocalProcessBackendConfig())
    sigterm_in(client, step)
    request = TrainJobRequest.parse({**request_for(definitions.run_for_ever), "name": "just-submitted"})
    submitted = sigterm.submit_job(client, request, on_kill, Run(None))
    with pytest.raises(sigterm.Terminated), sigterm.handle_sigterm(), submitted:
        pytest.fail("the step continues after SIGTERM")


@pytest.mark.parametrize(("on_kill", "ended"), [("cancel", True), ("keep", False)])
def test_a_task_that_is_terminated_while_its_job_is_created_cancels_it(client, on_kill, ended):
    terminated_in("create", on_kill)

    assert (client.observe("just-submitted").outcome is not None) is ended


def test_a_task_that_is_terminated_before_its_job_is_created_creates_none(client):
    terminated_in("find_jobs")

    assert client.list_jobs() == []


def test_a_cancelled_job_is_reported_after_it_is_cancelled(client, capsys):
    terminated_in("create")

    assert capsys.readouterr().err == "terminated: TrainJob just-submitted is cancelled\n"


def test_a_job_that_cannot_be_cancelled_is_not_reported_as_cancelled(client, submit, capsys):
    def refuse(ref):
        raise BackendUnavailableError("connection refused")

    ref = submit(definitions.run_for_ever)
    client.cancel = refuse

    with pytest.raises(sigterm.Terminated), sigterm.attach_job(client, ref, "cancel", Run(None)):
        raise sigterm.Terminated

    assert capsys.readouterr().err == (
        f"terminated: TrainJob {ref.name} is not cancelled; `trainjob reap --runs-in NAMESPACE` deletes it: "
        "connection refused\n"
    )
