"""SIGTERM of a step: raised as an exception, and passed on to the step's TrainJob as `on_kill` says.

KFP kills a step at most a second after SIGTERM, so the handler only shortens what happens anyway: a job carries the id
of its run and `on_kill` from the request that creates it, and `trainjob reap` ends what a killed step leaves.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from kfp_components.runtime.child_output import pipe_output
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError, TrainerError
from trainer_core.jobs import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.secrets import redact

__all__ = ["ON_KILL", "Terminated", "cancel_on_sigterm", "check_on_kill", "handle_sigterm", "submit_job"]

ON_KILL = ("cancel", "keep")


class Terminated(BaseException):
    """The step received SIGTERM: its run was terminated, or its pod is deleted or evicted."""


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Raise `Terminated` in the block on SIGTERM; a second SIGTERM ends the process at once."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def check_on_kill(on_kill: str) -> None:
    """Refuse a value of `on_kill` that `cancel_on_termination` does not know.

    Raises:
        InvalidRequestError: It is neither ``cancel`` nor ``keep``.
    """
    if on_kill not in ON_KILL:
        raise InvalidRequestError(f"on_kill must be one of {', '.join(ON_KILL)}, got {redact(on_kill)}")


@contextmanager
def cancel_on_sigterm(client: TrainerClient, ref: TrainJobRef, on_kill: str) -> Iterator[None]:
    """Cancel the TrainJob, if `on_kill` is ``cancel``, when the step receives SIGTERM in the block."""
    try:
        yield
    except Terminated:
        if on_kill == "cancel":
            _cancel(client, ref)
        raise


@contextmanager
def submit_job(client: TrainerClient, request: TrainJobRequest, on_kill: str) -> Iterator[TrainJobRef]:
    """Submit a request; cancel its TrainJob as `cancel_on_termination` does, also on SIGTERM during the submission.

    On SIGTERM before the job is created, nothing is created.

    Raises:
        TrainerError: The request was refused; nothing was created.
    """
    received: list[int] = []

    def stop_before_create() -> None:
        if received:
            raise Terminated

    # An exception in the middle of the request that creates the job would leave a job whose name is unknown.
    before = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    try:
        # The debug backend runs the training function here, to its end.
        with pipe_output() if client.config.backend == "debug" else nullcontext():
            ref = client.submit(request, before_create=stop_before_create)
    except BaseException:
        signal.signal(signal.SIGTERM, before)
        raise
    with cancel_on_sigterm(client, ref, on_kill):
        signal.signal(signal.SIGTERM, before)
        if received:
            raise Terminated
        yield ref


def _cancel(client: TrainerClient, ref: TrainJobRef) -> None:
    try:
        client.cancel(ref)
    except TrainerError as error:
        todo = "`trainjob reap --runs-in NAMESPACE` deletes it"
        print(f"terminated: TrainJob {ref.name} is not cancelled; {todo}: {error}", file=sys.stderr, flush=True)
        return
    # After the fact: the step may be killed before the cluster answers.
    print(f"terminated: TrainJob {ref.name} is cancelled", file=sys.stderr, flush=True)
