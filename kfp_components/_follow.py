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
from trainer_core.request import TrainJobRequest

__all__ = ["ON_KILL", "Terminated", "check_on_kill", "ended_with", "follow", "submitted", "terminable"]

ON_KILL = ("cancel", "keep")
#: Steps whose log is shown; those of further nodes say the same, and `trainjob logs` shows them.
_SHOWN = ("dataset-initializer", "model-initializer", "node-0")
#: Seconds without a line after which the rest of a log is given up, once the job has ended.
_SILENCE_SECONDS = 30.0


class Terminated(BaseException):
    """The task was asked to end (SIGTERM): somebody terminated the run, or its pod must go."""


class _Termination:
    """Whether SIGTERM has to wait, because the task does not know its job yet; and whether it came meanwhile."""

    waits = False
    came = False


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the block when SIGTERM comes; a second one ends the process at once."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(signum: int, frame: FrameType | None) -> None:
    if _Termination.waits and not _Termination.came:
        _Termination.came = True
        return
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


@contextmanager
def submitted(client: TrainerClient, request: TrainJobRequest, on_kill: str) -> Iterator[TrainJobRef]:
    """Submit a request, and end its TrainJob as `ended_with` does, also if the task is terminated while it submits.

    Raises:
        TrainerError: It was refused; nothing was created.
    """
    _Termination.waits = True
    try:
        ref = client.submit(request)
        with ended_with(client, ref, on_kill):
            _Termination.waits = False
            if _Termination.came:
                _terminate(signal.SIGTERM, None)
            yield ref
    finally:
        _Termination.waits = _Termination.came = False


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
        printer.finish()
    return outcome, history


class _Printer(threading.Thread):
    """Prints the log of one step, and adds to the history of metrics what it says of them."""

    def __init__(self, client: TrainerClient, ref: TrainJobRef, step: str, history: History) -> None:
        super().__init__(name=f"log of {step}", daemon=True)
        self._client = client
        self._ref = ref
        self._step = step
        self._history = history
        self._lines = 0

    def run(self) -> None:
        try:
            for line in self._client.get_job_logs(self._ref.name, self._step, follow=True):
                sys.stdout.write(f"[{self._step}] {line}\n")
                sys.stdout.flush()
                self._history.add(line)
                self._lines += 1
        except TrainerError as error:
            print(f"the log of {self._step} ends here: {error}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Wait until all is printed of a job that has ended; a log that goes silent before its end is given up."""
        lines = -1
        while self.is_alive() and lines != self._lines:
            lines = self._lines
            self.join(_SILENCE_SECONDS)


def _print_logs(client: TrainerClient, ref: TrainJobRef, history: History) -> list[_Printer]:
    try:
        steps = [step.name for step in client.get_job(ref.name).steps if step.name in _SHOWN]
    except TrainerError as error:
        # Without its log a job can still be waited for.
        print(f"no log of TrainJob {ref.name}: {error}", file=sys.stderr, flush=True)
        return []
    printers = [_Printer(client, ref, step, history) for step in steps]
    for printer in printers:
        printer.start()
    return printers
