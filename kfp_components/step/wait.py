"""What the wait component does: follow a TrainJob to its end with its log on stdout, and write its outputs.

After a failure that a retry can help, the step submits the next attempt itself: KFP 2.17 repeats no step that exits
with an error (`docs/guides/kfp.md`, Retry).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kfp_components.step import outputs
from kfp_components.step.client import open_job
from kfp_components.step.executor_input import Task
from kfp_components.step.failure import print_diagnosis
from kfp_components.step.metric_history import MetricHistory
from kfp_components.step.owner_reference import Run, bind_to_run, find_run
from kfp_components.step.sigterm import ON_KILL, attach_job, submit_again, submit_job
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.lifecycle import wait_state
from trainer_core.lifecycle.wait_state import PendingFailureLog
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef
from trainer_core.model.readable_log import ReadableLog
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.resource_use import strip_resource_report

#: Steps whose log is printed. Further nodes print much the same; `trainjob logs` shows them.
_PRINTED_STEPS = ("dataset-initializer", "model-initializer", "node-0")
#: Seconds without a line after which reading a log stops, once the job has ended.
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class WaitInputs:
    """The inputs that train and wait share; the components' docstrings describe them."""

    metric_name: str | None = None
    timeout: int = 0
    on_kill: str = "cancel"
    attempts: int = 1
    backoff: int = 10
    allow_failure: bool = False

    def __post_init__(self) -> None:
        validation.check_one_of("on_kill", self.on_kill, ON_KILL)
        for name, least in (("attempts", 1), ("backoff", 0), ("timeout", 0)):
            if getattr(self, name) < least:
                raise InvalidRequestError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.allow_failure and self.metric_name is not None:
            raise InvalidRequestError("allow_failure: a failed job has no metric; leave out metric_name")


def wait(
    task: Task,
    *,
    job: dict[str, Any],
    output_path: str | None = None,  # Read by KFP alone, which mounts its workspace for it.
    backend_config: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> None:
    """Follow a TrainJob to its end; the component's docstring describes the inputs."""
    inputs = WaitInputs(**task.get_arguments(WaitInputs))
    client, ref = open_job(job, backend_config)
    run = find_run(client, run_id)
    attached = attach_job(client, ref, inputs.on_kill, run)
    follow_attempts(task, client, attached, client.get_job_request, run, inputs, ref_output="last_job")


def follow_attempts(
    task: Task,
    client: TrainerClient,
    job: AbstractContextManager[TrainJobRef],
    get_request: Callable[[TrainJobRef], TrainJobRequest],
    run: Run,
    inputs: WaitInputs,
    ref_output: str = "job",
) -> None:
    """Wait for a TrainJob, submit its next attempts while a retry can help, and write the last one's outputs."""
    history = MetricHistory()
    deadline = time.monotonic() + inputs.timeout if inputs.timeout else None
    while True:
        with job as ref:
            outputs.write_ref(task, ref, ref_output)
            with bind_to_run(client, ref, run, inputs.on_kill):
                outcome = wait_for_job(client, ref, deadline, history)
        if client.wait_for_restart(outcome, _get_remaining(deadline)):
            print_diagnosis(outcome)
            job = submit_again(client, outcome, inputs.on_kill, run)
            continue
        if inputs.attempts == 1 or outcome.diagnosis is None or not outcome.diagnosis.retryable:
            break
        request = get_request(ref)
        done = _count_attempts(client, request, ref)
        if done is None or done >= inputs.attempts:
            break
        print_diagnosis(outcome)
        print(f"attempt {done} of {inputs.attempts} failed; the next one starts in {inputs.backoff} s")
        time.sleep(inputs.backoff)
        job = submit_job(client, request, inputs.on_kill, run)
    outputs.write_outcome(task, client, outcome, history)
    print_diagnosis(outcome)
    if not inputs.allow_failure:
        wait_state.raise_if_failed(outcome)
    name = inputs.metric_name
    task.write("metric", None if name is None else _get_metric(outcome, "metric_name", name))
    for name in task.list_missing_outputs():
        # Outputs that train_task and wait_task have added: metrics by their names.
        task.write(name, _get_metric(outcome, "metrics", name))


def _count_attempts(client: TrainerClient, request: TrainJobRequest, ref: TrainJobRef) -> int | None:
    """Return how many attempts of an owner there are up to a job; None for a job without an owner, which has no next.

    Read from the jobs, so that a step that is run again continues to count.
    """
    if request.owner is None:
        print("there is no next attempt: a job with a job_name is one job")
        return None
    return next((job.attempt + 1 for job in client.find_jobs(request) if job.name == ref.name), None)


def wait_for_job(client: TrainerClient, ref: TrainJobRef, deadline: float | None, history: MetricHistory) -> Outcome:
    """Wait for a TrainJob and print its log meanwhile, from its beginning."""
    printers = [_Printer(client, ref, step, history) for step in _PRINTED_STEPS]
    pending = PendingFailureLog(ref.name, lambda line: print(line, file=sys.stderr))

    def report(observation: Observation) -> None:
        # From here on the logs share what the wait knows of the job.
        for printer in printers:
            printer.start_once()
        pending.report(observation)

    outcome = client.wait(ref, timeout=_get_remaining(deadline), on_observation=report, restarts=False)
    for printer in printers:
        printer.finish()
    return outcome


def _get_remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class _Printer(threading.Thread):
    """Prints the log of one step, and adds the metrics in it to their history."""

    def __init__(self, client: TrainerClient, ref: TrainJobRef, step: str, history: MetricHistory) -> None:
        super().__init__(name=f"log of {step}", daemon=True)
        self._client = client
        self._ref = ref
        self._step = step
        self._history = history
        self._lines = 0

    def start_once(self) -> None:
        if self.ident is None:
            self.start()

    def run(self) -> None:
        log = ReadableLog()
        try:
            for raw in self._client.get_job_logs(self._ref, self._step, follow=True, raw=True):
                self._lines += 1
                line = strip_resource_report(raw)
                if line is None:
                    continue
                self._history.add(line)
                for text in log.format(self._step, line, time.monotonic()):
                    sys.stdout.write(f"[{self._step}] {text}\n")
        except InvalidRequestError:
            return  # The job has no such step.
        except TrainerError as error:
            print(f"the log of {self._step} ends here: {error}", file=sys.stderr)

    def finish(self) -> None:
        """Wait until the log of an ended job is printed; stop at a log that is silent before its end."""
        lines = -1
        while self.is_alive() and lines != self._lines:
            lines = self._lines
            self.join(_SILENCE_SECONDS)


def _get_metric(outcome: Outcome, given_as: str, name: str) -> float:
    metrics = outcome.metrics
    if name not in metrics:
        known = ", ".join(sorted(metrics)) or "none"
        why = f" ({outcome.missing_result})" if outcome.missing_result else ""
        raise InvalidRequestError(f"{given_as}: the job reported no metric {name!r}; it reported {known}{why}")
    return metrics[name]
