"""The wait component, run by its own command as a backend's driver starts it."""

from __future__ import annotations

import signal

import kfp_definitions as definitions
import pytest
from kfp_driver import component_spec, request_for

from kfp_components import _follow
from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJobRequest


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


def test_what_the_job_left_is_handed_over(task, ref):
    waiting = task("wait", job=ref.to_dict(), metric_name="accuracy")

    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    assert (waiting.output("status"), waiting.output("metric")) == ("Complete", 0.9)
    assert waiting.artifact("model").read_text() == "weights"
    assert waiting.metadata("model") == {
        "job": "waited-for",
        "backend": "local",
        "runtime": "python",
        "accuracy": 0.9,
        "loss": 0.25,
        "uri": waiting.metadata("model")["uri"],
    }


def test_every_declared_output_is_written(task, ref):
    waiting = task("wait", job=ref.to_dict())

    waiting.run()

    declared = component_spec("wait")["outputDefinitions"]
    assert waiting.outputs() == set(declared["parameters"])
    assert set(waiting.executor_output()["artifacts"]) == set(declared["artifacts"])


def test_waiting_again_hands_over_the_same(task, ref):
    waiting = task("wait", job=ref.to_dict(), metric_name="accuracy")

    codes = [waiting.run().returncode, waiting.run().returncode]

    assert codes == [0, 0]
    assert waiting.output("metric") == 0.9


def test_the_report_shows_metrics_and_steps(task, ref):
    waiting = task("wait", job=ref.to_dict())

    waiting.run()

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
    assert "error: TrainJob 'waited-for' is Failed: UserCode in node-0: " in finished.stderr
    assert "Diagnosis" in waiting.artifact("report").read_text()


def test_a_job_that_is_gone_fails_the_task(task, client, ref):
    client.delete_job(ref.name)

    finished = task("wait", job=ref.to_dict()).run()

    assert finished.returncode == 1
    assert "was deleted" in finished.stderr


def test_what_is_no_ref_is_refused(task):
    finished = task("wait", job={"name": "x"}).run()

    assert finished.returncode == 1
    assert finished.stderr.startswith("error: not a TrainJob ref")


def test_time_that_is_over_fails_the_task_and_leaves_the_job_running(task, client, submit):
    ref = submit(definitions.run_for_ever)

    finished = task("wait", job=ref.to_dict(), timeout=1).run()

    assert finished.returncode == 1
    assert "the time to wait is over; it was not stopped" in finished.stderr
    assert client.observe(ref).outcome is None


def terminated(waiting):
    """Start a task, terminate it when its job's log comes through, and return its exit code."""
    process = waiting.start()
    for line in process.stdout:
        if "training has begun" in line:
            process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode


def test_a_terminated_task_ends_its_job(task, client, submit):
    ref = submit(definitions.run_for_ever)

    code = terminated(task("wait", job=ref.to_dict()))

    assert code == 143
    assert client.outcome(ref).status == "Failed"


def test_a_terminated_task_leaves_its_job_alone_when_told_so(task, client, submit):
    ref = submit(definitions.run_for_ever)

    code = terminated(task("wait", job=ref.to_dict(), on_kill="keep"))

    assert code == 143
    assert client.observe(ref).outcome is None


def test_a_terminated_task_that_submitted_its_job_ends_it(task, client):
    training = task("train", request=request_for(definitions.run_for_ever), wait=True)

    code = terminated(training)

    assert code == 143
    assert client.outcome(training.output("job")["name"]).status == "Failed"


class Terminated(TrainerClient):
    """Its task is told to end when the job is created and nobody knows it yet."""

    def submit(self, request):
        ref = super().submit(request)
        signal.raise_signal(signal.SIGTERM)
        return ref


@pytest.mark.parametrize(("on_kill", "ended"), [("cancel", True), ("keep", False)])
def test_a_task_that_is_terminated_while_it_submits_ends_its_job(client, on_kill, ended):
    request = TrainJobRequest.parse({**request_for(definitions.run_for_ever), "name": "just-submitted"})
    submitted = _follow.submitted(Terminated(LocalProcessBackendConfig()), request, on_kill)

    with pytest.raises(_follow.Terminated), _follow.terminable(), submitted:
        pytest.fail("it goes on although it was terminated")

    assert (client.observe("just-submitted").outcome is not None) is ended
