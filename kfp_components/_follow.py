"""Waits for a TrainJob: its log goes to stdout, its progress is kept, and a terminated task may end the job with it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kfp_components._history import History
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError, TrainerError
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["ON_KILL", "Terminated", "check_on_kill", "ended_with", "follow", "terminable"]

ON_KILL = ("cancel", "keep")
#: Steps whose log is shown; those of further nodes say the same, and `trainjob logs` shows them.
_SHOWN = ("dataset-initializer", "model-initializer", "node-0")
#: Seconds for the last lines to come after the job has ended.
_LAST_LINES_SECONDS = 5.0


class Terminated(BaseException):
    """The task was asked to end (SIGTERM): somebody terminated the run, or its pod must go."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the block when SIGTERM comes; a second one ends the process at once."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def check_on_kill(on_kill: str) -> None:
    """Refuse what `ended_with` does not know.

    Raises:
        InvalidRequestError: Neither ``cancel`` nor ``keep``.
    """
    if on_kill not in ON_KILL:
        raise InvalidRequestError(f"on_kill must be one of {', '.join(ON_KILL)}, got {on_kill!r}")


@contextmanager
def ended_with(client: TrainerClient, ref: TrainJobRef, on_kill: str) -> Iterator[None]:
    """End the TrainJob, if `on_kill` says so, when the task is terminated in the block."""
    try:
        yield
    except Terminated:
        if on_kill == "cancel":
            print(f"terminated: ending TrainJob {ref.name}", file=sys.stderr, flush=True)
            client.cancel(ref)
        raise


def follow(client: TrainerClient, ref: TrainJobRef, timeout: int) -> tuple[Outcome, History]:
    """Wait for a TrainJob and print its log meanwhile; return what it left and how its metrics came to be.

    The log is read from its beginning, so that a retry knows the whole history too.

    Args:
        client: Of the job's backend.
        ref: The job.
        timeout: Seconds to wait at most; 0 for as long as it takes.

    Raises:
        WaitTimeoutError: The time is over; the job goes on.
        Terminated: This task was terminated; `ended_with` says what becomes of the job.
    """
    history = History()
    printers = _print_logs(client, ref, history)
    outcome = client.wait(ref, timeout=timeout or None)
    for printer in printers:
        printer.join(_LAST_LINES_SECONDS)
    return outcome, history


def _print_logs(client: TrainerClient, ref: TrainJobRef, history: History) -> list[threading.Thread]:
    try:
        steps = [step.name for step in client.get_job(ref.name).steps if step.name in _SHOWN]
    except TrainerError as error:
        # Without its log a job can still be waited for.
        print(f"no log of TrainJob {ref.name}: {error}", file=sys.stderr, flush=True)
        return []
    threads = [threading.Thread(target=_print_log, args=(client, ref, step, history), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    return threads


def _print_log(client: TrainerClient, ref: TrainJobRef, step: str, history: History) -> None:
    try:
        for line in client.get_job_logs(ref.name, step, follow=True):
            sys.stdout.write(f"[{step}] {line}\n")
            sys.stdout.flush()
            history.add(line)
    except TrainerError as error:
        print(f"the log of {step} ends here: {error}", file=sys.stderr, flush=True)
