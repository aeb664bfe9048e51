"""SIGTERM of a step: cancels its TrainJob if the run was terminated, and leaves it alone if only the pod goes away.

A drained node, a preemption and a terminated run send the same signal; the run's Workflow tells them apart. KFP kills a
step at most a second after SIGTERM, so the handler only shortens what happens anyway: a job carries the id of its run
and `on_kill` from the request that creates it, and `trainjob reap` ends what a killed step leaves.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import FrameType

from kfp_components.step.child_output import pipe_output
from kfp_components.step.owner_reference import Run
from kfp_components.step.pod import is_kfp_pod
from trainer_core.base.errors import TrainerError
from trainer_core.client import TrainerClient
from trainer_core.k8s.kfp_runs import has_run_ended
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.model.request import TrainJobRequest

ON_KILL = ("cancel", "keep")
#: Seconds until a SIGTERM is repeated. KFP kills a step a second after the first one.
_REPEAT_SECONDS = 0.02


class Terminated(BaseException):
    """The step received SIGTERM: its run was terminated, or its pod is deleted or evicted."""


#: Whether `_terminate` has raised `Terminated`.
_was_raised = threading.Event()


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Raise `Terminated` in the block on SIGTERM; a second SIGTERM ends the process at once."""
    _was_raised.clear()
    before, report = signal.signal(signal.SIGTERM, _terminate), sys.unraisablehook
    sys.unraisablehook = partial(_repeat_lost, report)
    try:
        with _restore_terminated():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = report


def _terminate(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _was_raised.set()
    raise Terminated


def _repeat_lost(report: Callable[[sys.UnraisableHookArgs], object], lost: sys.UnraisableHookArgs) -> None:
    """Repeat a SIGTERM whose `Terminated` was dropped: a handler also runs where no exception can be raised.

    Finalizers are such places, and pydantic while it builds a schema.
    """
    if lost.exc_type is not Terminated:
        report(lost)
        return
    signal.signal(signal.SIGTERM, _terminate)
    # Later and from another thread, because an exception in this function would be dropped, too.
    thread = threading.main_thread().ident or 0
    repeat = threading.Timer(_REPEAT_SECONDS, signal.pthread_kill, [thread, signal.SIGTERM])
    repeat.daemon = True
    repeat.start()


@contextmanager
def _restore_terminated() -> Iterator[None]:
    """Raise `Terminated` where a library has made another exception of it.

    A signal handler also runs inside calls from C: pydantic makes a SchemaError of what is raised while it builds one.
    """
    try:
        yield
    except Exception as error:
        if _was_raised.is_set():
            raise Terminated from error
        raise


@contextmanager
def delay_sigterm() -> Iterator[None]:
    """Raise `Terminated` at the end of the block on SIGTERM in it."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if received:
        raise Terminated


@contextmanager
def cancel_on_sigterm(
    client: TrainerClient, name: str, cancel: Callable[[], None], on_kill: str, run: Run
) -> Iterator[None]:
    """Cancel a TrainJob or a search on SIGTERM in the block, if `on_kill` is ``cancel`` and the run of the step ends.

    Outside a pod a person has sent the signal, and the processes of a local job end with the pod of their step.
    """
    try:
        with _restore_terminated():
            yield
    except Terminated:
        reason = _find_reason_to_keep(client, on_kill, run)
        if reason is None:
            _cancel(name, cancel)
        else:
            print(f"terminated: {name} continues: {reason}", file=sys.stderr)
        raise


@contextmanager
def attach_job(client: TrainerClient, ref: TrainJobRef, on_kill: str, run: Run) -> Iterator[TrainJobRef]:
    """Return a job that exists; on SIGTERM in the block do with it what `cancel_on_sigterm` does."""
    run.print_problem()
    with cancel_on_sigterm(client, f"TrainJob {ref.name}", lambda: client.cancel(ref), on_kill, run):
        yield ref


def _find_reason_to_keep(client: TrainerClient, on_kill: str, run: Run) -> str | None:
    """Return why the job of a step that received SIGTERM is not cancelled; None to cancel it."""
    config = client.config
    if on_kill == "keep":
        return "on_kill is keep"
    if not isinstance(config, ClusterConfig) or not is_kfp_pod():
        return None
    todo = "if the run was terminated, `trainjob reap --runs-in NAMESPACE` deletes the job"
    if run.workflow is None or run.namespace is None:
        return f"the Workflow of the run is not known; {todo}"
    try:
        has_ended = has_run_ended(config, run.namespace, run.workflow.name)
    except TrainerError as error:
        return f"the Workflow of the run cannot be read; {todo}: {error}"
    return None if has_ended else "the run was not terminated; the next try of this step attaches to the job"


def submit_next(
    held: ExitStack, client: TrainerClient, request: TrainJobRequest | None, on_kill: str, run: Run, ended: Outcome
) -> TrainJobRef:
    """Do what `submit_job` does with the attempt after an ended one, until `held` is closed; return its ref.

    `request` is that of a step that has submitted it: it has tokens that are not stored. A job without an owner has the
    names of its attempts by what is stored.
    """

    def submit(next_request: TrainJobRequest, *, before_create: Callable[[], None] | None = None) -> TrainJobRef:
        return held.enter_context(submit_job(client, next_request, on_kill, run, before_create))

    if request is not None and request.context.owner is not None:
        return submit(request.without_lookup())
    from trainer_core.client.attempts import start_next_attempt  # Only after a failure.

    return start_next_attempt(client.backend, submit, ended.job, is_new_budget=ended.restarts is None)


@contextmanager
def submit_job(
    client: TrainerClient,
    request: TrainJobRequest,
    on_kill: str,
    run: Run,
    before_create: Callable[[], None] | None = None,
) -> Iterator[TrainJobRef]:
    """Submit a request; cancel its TrainJob as `cancel_on_sigterm` does, also on SIGTERM during the submission.

    On SIGTERM before the job is created, nothing is created.
    """
    received: list[int] = []

    def stop_before_create() -> None:
        if received:
            raise Terminated
        if before_create is not None:
            before_create()

    # An exception in the middle of the request that creates the job would leave a job whose name is unknown.
    before = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    try:
        # The debug backend runs the training function here, to its end.
        with pipe_output() if client.config.backend == "debug" else nullcontext():
            ref = client.submit(request, before_create=stop_before_create)
    except BaseException:
        signal.signal(signal.SIGTERM, before)
        raise
    with cancel_on_sigterm(client, f"TrainJob {ref.name}", lambda: client.cancel(ref), on_kill, run):
        signal.signal(signal.SIGTERM, before)
        if received:
            raise Terminated
        run.print_problem()
        yield ref


def _cancel(name: str, cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except TrainerError as error:
        todo = "`trainjob reap --runs-in NAMESPACE` deletes it"
        print(f"terminated: {name} is not cancelled; {todo}: {error}", file=sys.stderr)
        return
    # After the fact: the step may be killed before the cluster answers.
    print(f"terminated: {name} is cancelled", file=sys.stderr)
