"""What the wait component does: follow a TrainJob to its end with its log on stdout, and write its outputs.

After a failure that a retry can help, the step submits the next attempt itself: KFP 2.17 repeats no step that exits
with an error (`docs/guides/kfp.md`, Retry).
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kfp_components.step import outputs
from kfp_components.step.client import open_job
from kfp_components.step.executor_input import Task
from kfp_components.step.failure import print_diagnosis
from kfp_components.step.metric_history import MetricHistory
from kfp_components.step.owner_reference import Run, bind_to_run, find_run
from kfp_components.step.sigterm import ON_KILL, attach_job, submit_next
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.lifecycle import wait_state
from trainer_core.lifecycle.wait_state import PendingFailureLog
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef
from trainer_core.model.readable_log import ReadableLog
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.resource_use import strip_resource_report
from trainer_core.model.restart_rules import RestartRules

if TYPE_CHECKING:
    from trainer_core.client.attempts import Attempt

#: Steps whose log is printed. Further nodes print much the same; `trainjob logs` shows them.
_PRINTED_STEPS = ("dataset-initializer", "model-initializer", "node-0")
#: Seconds without a line after which reading a log stops, once the job has ended.
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class WaitInputs:
    """The inputs that train and wait share.

    Args:
        metric_name: Metric for the output `metric`; the task fails if the job did not report it.
        timeout: Seconds to wait at most; 0 for no limit. The job continues.
        on_kill: What this task does to the job when its run is terminated: "cancel" or "keep". With "keep" the job
            also outlives the run.
        attempts: Jobs that this task submits at most, one after the other. After a failure that a retry can
            help, it submits the next one, which continues from the last checkpoint.
        backoff: Seconds between two attempts.
        allow_failure: Whether this task succeeds, with the `status` Failed, although its job failed: for `best_of`
            after a loop. A failed job has no metric for an output.
    """

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
    waiting: WaitInputs,
    output_path: str | None = None,  # Read by KFP alone, which mounts its workspace for it.
    backend_config: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> None:
    """Follow a TrainJob to its end; the component's docstring describes the inputs."""
    client, ref = open_job(job, backend_config)
    run = find_run(client, run_id)
    attached = attach_job(client, ref, waiting.on_kill, run)
    follow_attempts(task, client, attached, None, run, waiting, ref_output="last_job")


def follow_attempts(
    task: Task,
    client: TrainerClient,
    job: AbstractContextManager[TrainJobRef],
    request: TrainJobRequest | None,
    run: Run,
    inputs: WaitInputs,
    ref_output: str = "job",
) -> None:
    """Wait for a TrainJob and its next attempts, and write the last one's outputs.

    `request` is that of a step that has submitted the job, None for a step that only waits.
    """
    history = MetricHistory()
    with ExitStack() as held:
        ref = held.enter_context(job)
        retries = _count_retries(client, request, ref, inputs.attempts)
        for attempt in client.attempts(
            ref,
            timeout=inputs.timeout or None,
            rules=RestartRules(retries, delay=inputs.backoff),
            submit=partial(submit_next, held, client, request, inputs.on_kill, run),
        ):
            outputs.write_ref(task, attempt.ref, ref_output)
            with bind_to_run(client, attempt.ref, run, inputs.on_kill):
                outcome = wait_for_job(client, attempt, history)
            held.close()
            if attempt.following is not None:
                print_diagnosis(outcome)
            if attempt.following is not None and outcome.restarts is None:
                done, retries = inputs.attempts - retries, retries - 1
                print(f"attempt {done} of {inputs.attempts} failed; the next one starts in {inputs.backoff} s")
    outputs.write_outcome(task, client, outcome, history)
    print_diagnosis(outcome)
    if not inputs.allow_failure:
        wait_state.raise_if_failed(outcome)
    name = inputs.metric_name
    task.write("metric", None if name is None else _get_metric(outcome, "metric_name", name))
    for name in task.list_missing_outputs():
        # Outputs that train_task and wait_task have added: metrics by their names.
        task.write(name, _get_metric(outcome, "metrics", name))


def _count_retries(client: TrainerClient, request: TrainJobRequest | None, ref: TrainJobRef, attempts: int) -> int:
    """Return how many attempts may follow a TrainJob without restart rules.

    Read from the jobs, so that a step that is run again continues to count.
    """
    if attempts == 1:
        return 0
    request = request or client.get_job_request(ref)
    if request.context.owner is None:
        print("there is no next attempt: a job with a job_name is one job")
        return 0
    done = next((job.attempt + 1 for job in client.find_jobs(request) if job.name == ref.name), attempts)
    return max(0, attempts - done)


def wait_for_job(client: TrainerClient, attempt: Attempt, history: MetricHistory) -> Outcome:
    """Wait for a TrainJob and print its log meanwhile, from its beginning."""
    ref = attempt.ref
    printers = [_Printer(client, ref, step, history) for step in _PRINTED_STEPS]
    pending = PendingFailureLog(ref.name, lambda line: print(line, file=sys.stderr))

    def report(observation: Observation) -> None:
        # From here on the logs share what the wait knows of the job.
        for printer in printers:
            printer.start_once()
        pending.report(observation)

    outcome = attempt.wait(report)
    for printer in printers:
        printer.finish()
    return outcome


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
