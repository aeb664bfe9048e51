"""A job's log as the log of its step, at the end of the job."""

from __future__ import annotations

import threading

import kfp_definitions as definitions
import pytest

from kfp_components.step import wait
from kfp_components.step.metric_history import MetricHistory
from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient
from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.jobs import (
    COMPLETE,
    CREATED,
    Category,
    Diagnosis,
    Observation,
    Outcome,
    PendingFailure,
    TrainJobRef,
)


class GoesSilent(TrainerClient):
    """A client whose connection says nothing more, and does not end, after the first lines of a log."""

    def __init__(self):
        super().__init__(DebugBackendConfig())
        self.silent, self.gate = threading.Event(), threading.Event()

    def get_job_logs(self, name, step="node-0", follow=False, raw=False):
        if step != "node-0":
            raise InvalidRequestError(f"no step {step!r}")
        yield '[trainjob:progress] {"step": 1, "metrics": {"loss": 1}}'
        yield '[trainjob:resources] {"t": 5, "cpu": 71.5, "memory": 4, "memory_limit": 10, "gpus": []}'
        yield '[trainjob:progress] {"step": 2, "metrics": {"loss": 0.5}}'
        self.silent.set()
        self.gate.wait()

    def wait(self, *arguments, on_observation, **more):
        def observe(observation):
            on_observation(observation)
            assert self.silent.wait(300)

        return super().wait(*arguments, on_observation=observe, **more)


@pytest.fixture
def client():
    client = GoesSilent()
    yield client
    client.gate.set()


def test_a_log_that_goes_silent_before_its_end_does_not_hold_up_the_end_of_the_task(client, monkeypatch, capsys):
    monkeypatch.setattr(wait, "_SILENCE_SECONDS", 0.1)
    trainer = CustomTrainer(definitions.score, {"rate": 0.5})
    ref = client.get_job_ref(client.train(runtime="python", trainer=trainer))

    history = MetricHistory()
    outcome = wait.wait_for_job(client, next(iter(client.attempts(ref))), history)

    assert outcome.succeeded
    assert history.get_curves()["loss"] == [(1.0, 1.0), (2.0, 0.5)]
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[node-0]")]
    assert shown == ["[node-0] progress 1 loss=1"]


class PrintsAtItsEnd:
    """A client, and the attempt of a job that cannot start at first and prints its last line only after its end."""

    ref = TrainJobRef("kubernetes", "default", "train", "uid")

    def __init__(self):
        self.is_waited_for = threading.Event()

    def get_job_logs(self, ref, step="node-0", follow=False, raw=False):
        if step != "node-0":
            raise InvalidRequestError(f"no step {step!r}")
        assert (follow, raw) == (True, True)
        assert self.is_waited_for.wait(300)
        yield "the last line"

    def wait(self, on_observation):
        diagnosis = Diagnosis(category=Category.SCHEDULING, reason="no node has 8 GPUs")
        on_observation(Observation(CREATED, pending_failure=PendingFailure(diagnosis)))
        return Outcome(ref=self.ref.to_dict(), status=COMPLETE)


def test_a_step_shows_why_its_job_does_not_start_and_ends_after_the_last_line_of_its_log(capsys, monkeypatch):
    client = PrintsAtItsEnd()
    finish = wait._Printer.finish

    def note_and_finish(printer):
        client.is_waited_for.set()
        finish(printer)

    monkeypatch.setattr(wait._Printer, "finish", note_and_finish)
    wait.wait_for_job(client, client, MetricHistory())

    printed = capsys.readouterr()
    assert printed.out == "[node-0] the last line\n"
    assert "TrainJob train is Created: " in printed.err
    assert "no node has 8 GPUs" in printed.err
