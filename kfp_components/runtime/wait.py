"""What the wait component does: follow a TrainJob to its end with its log on stdout, and write its outputs."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

from kfp_components.runtime import outputs
from kfp_components.runtime.client import create_client_for_ref
from kfp_components.runtime.executor_input import Task
from kfp_components.runtime.failure import print_diagnosis
from kfp_components.runtime.metric_history import MetricHistory
from kfp_components.runtime.owner_reference import bind_to_run, find_run
from kfp_components.runtime.sigterm import cancel_on_sigterm, check_on_kill
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError, TrainerError
from trainer_core.jobs import Outcome, TrainJobRef
from trainer_core.lifecycle import wait_state
from trainer_core.lifecycle.pending_failure_log import PendingFailureLog
from trainer_core.resource_use import strip_resource_report

__all__ = ["finish_job", "wait", "wait_for_job"]

#: Steps whose log is printed. Further nodes print much the same; `trainjob logs` shows them.
_PRINTED_STEPS = ("dataset-initializer", "model-initializer", "node-0")
#: Seconds without a line after which reading a log stops, once the job has ended.
_SILENCE_SECONDS = 30.0


def wait(
    task: Task,
    *,
    job: dict[str, Any],
    metric_name: str | None = None,
    output_path: str | None = None,  # Read by KFP alone, which mounts its workspace for it.
    backend_config: dict[str, Any] | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
    run_id: str | None = None,
) -> None:
    """Follow a TrainJob to its end; the component's docstring describes the inputs."""
    check_on_kill(on_kill)
    ref = TrainJobRef.from_dict(job)
    client = create_client_for_ref(ref, backend_config)
    with cancel_on_sigterm(client, ref, on_kill):
        run = find_run(client, run_id, ref.namespace)
        with bind_to_run(client, ref, run, on_kill):
            finish_job(task, client, ref, metric_name, timeout)


def finish_job(task: Task, client: TrainerClient, ref: TrainJobRef, metric_name: str | None, timeout: int) -> None:
    """Wait for a TrainJob and write its outputs.

    Raises:
        JobFailedError: The job failed; its diagnosis is printed.
        InvalidRequestError: The job did not report a metric that an output needs.
    """
    outcome, history = wait_for_job(client, ref, timeout)
    outputs.write_outcome(task, client, outcome, history)
    print_diagnosis(outcome)
    wait_state.raise_if_failed(outcome)
    task.write("metric", _get_metric(outcome.metrics, metric_name))
    for name in task.list_missing_outputs():
        # Outputs that train_task and wait_task have added: metrics by their names.
        task.write(name, _get_metric(outcome.metrics, name))


def wait_for_job(client: TrainerClient, ref: TrainJobRef, timeout: int) -> tuple[Outcome, MetricHistory]:
    """Wait for a TrainJob and print its log meanwhile; return its outcome and the history of its metrics.

    The log is read from its beginning, so that a retry has the whole history too.

    Args:
        client: Of the job's backend.
        ref: The job.
        timeout: Seconds to wait at most; 0 for as long as it takes.

    Raises:
        WaitTimeoutError: The time is over; the job continues.
        Terminated: The step received SIGTERM; `cancel_on_termination` decides what becomes of the job.
    """
    history = MetricHistory()
    printers = _start_printers(client, ref, history)
    pending = PendingFailureLog(ref.name, lambda line: print(line, file=sys.stderr, flush=True))
    outcome = client.wait(ref, timeout=timeout or None, on_observation=pending.report)
    for printer in printers:
        printer.finish()
    return outcome, history


class _Printer(threading.Thread):
    """Prints the log of one step, and adds the metrics in it to their history."""

    def __init__(self, client: TrainerClient, ref: TrainJobRef, step: str, history: MetricHistory) -> None:
        super().__init__(name=f"log of {step}", daemon=True)
        self._client = client
        self._ref = ref
        self._step = step
        self._history = history
        self._lines = 0

    def run(self) -> None:
        try:
            for raw in self._client.get_job_logs(self._ref, self._step, follow=True):
                line = strip_resource_report(raw)
                if line is None:
                    continue
                sys.stdout.write(f"[{self._step}] {line}\n")
                sys.stdout.flush()
                self._history.add(line)
                self._lines += 1
        except TrainerError as error:
            print(f"the log of {self._step} ends here: {error}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Wait until the log of an ended job is printed; stop at a log that is silent before its end."""
        lines = -1
        while self.is_alive() and lines != self._lines:
            lines = self._lines
            self.join(_SILENCE_SECONDS)


def _start_printers(client: TrainerClient, ref: TrainJobRef, history: MetricHistory) -> list[_Printer]:
    try:
        steps = [step.name for step in client.get_job(ref).steps if step.name in _PRINTED_STEPS]
    except TrainerError as error:
        # Without its log a job can still be waited for.
        print(f"no log of TrainJob {ref.name}: {error}", file=sys.stderr, flush=True)
        return []
    printers = [_Printer(client, ref, step, history) for step in steps]
    for printer in printers:
        printer.start()
    return printers


def _get_metric(metrics: dict[str, float], name: str | None) -> float:
    if name is None:
        return 0.0
    if name not in metrics:
        known = ", ".join(sorted(metrics)) or "none"
        raise InvalidRequestError(f"metric_name: the job reported no metric {name!r}; it reported {known}")
    if not math.isfinite(metrics[name]):
        raise InvalidRequestError(
            f"metric_name: the job reported {name!r} as {metrics[name]}, which is no measure of it"
        )
    return metrics[name]
