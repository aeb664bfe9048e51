"""Given facts, say why a TrainJob failed and whether a retry helps. Pure.

Backends collect `Facts` in their own way; what they mean is decided here, once.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer_core.inside import contract
from trainer_core.outcome import Category, Diagnosis

__all__ = ["Facts", "StepFacts", "diagnose"]

_RETRYABLE = frozenset({Category.PREEMPTED, Category.NODE_LOST, Category.INFRASTRUCTURE, Category.SCHEDULING})
_TAIL_LINES = 20
#: How torchrun reports a worker that did not end by itself.
_TORCHRUN_KILLED = re.compile(r"Signal \d+ \((SIG\w+)\) received by PID")
#: Where torchrun begins to tell that a worker has failed: 40 lines that push the worker's own out of sight.
_TORCHRUN_SAYS = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode")
#: A process brings these upon itself.
_CRASHES = {
    "SIGABRT": "often a failed check in native code",
    "SIGBUS": "often too little shared memory, /dev/shm",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "native code made for another processor",
    "SIGSEGV": "a fault in native code",
}
_EXIT_CODES = {126: "the command cannot be executed", 127: "the command was not found"}


@dataclass(frozen=True)
class StepFacts:
    """What is known of a step that failed.

    Attributes:
        name: The step.
        exit_code: Its exit code, negative for a signal.
        node: The machine or pod.
        error_type: Class name of the exception that ended the training function.
        error_message: Its text.
        traceback: Its traceback.
        log_tail: Last lines of its log.
        out_of_memory: The system says that it ran out of memory.
        message: What the system, or the step itself, says of its end.
        preempted: Why it had to leave its machine to others, if it had.
        node_lost: What became of its machine, if that is gone.
    """

    name: str
    exit_code: int | None = None
    node: str | None = None
    error_type: str | None = None
    error_message: str = ""
    traceback: str | None = None
    log_tail: Sequence[str] = ()
    out_of_memory: bool = False
    message: str = ""
    preempted: str | None = None
    node_lost: str | None = None


@dataclass(frozen=True)
class Facts:
    """What is known of a TrainJob that failed, or will.

    Attributes:
        steps: The steps that failed, in the order in which they did; where something else is wrong, those it hit.
        deadline_seconds: Its deadline, if it has passed.
        deadline_error: What passed another deadline than its own, and how.
        cancelled: Somebody ended it.
        given_up: Whoever waited for it ended it, because of this.
        image_error: What it runs in could not be made or pulled, and why.
        infrastructure_error: What carries it out has failed, and how.
        rejected: What it is made of was refused, or lacks what it refers to, and why.
        unschedulable: No machine takes it, or its quota is used up, and why.
        passing: What is wrong may pass by itself, so that a retry can help.
        message: What the system says of the whole; shown where nothing better is known.
    """

    steps: Sequence[StepFacts] = ()
    deadline_seconds: int | None = None
    deadline_error: str | None = None
    cancelled: bool = False
    given_up: Diagnosis | None = None
    image_error: str | None = None
    infrastructure_error: str | None = None
    rejected: str | None = None
    unschedulable: str | None = None
    passing: bool = False
    message: str = ""


def diagnose(facts: Facts) -> Diagnosis:
    """Say why a TrainJob failed.

    The first that applies: somebody cancelled it, its deadline passed, a step lost its machine, another deadline
    passed, what it is made of was refused, what carries it out failed, what it runs in could not be made, no machine
    takes it, a step failed. Of several failed steps the one with an exception of its own is the cause: the others
    only lost their peer.
    """
    if facts.given_up is not None:
        return facts.given_up
    if facts.cancelled:
        return Diagnosis(category=Category.DELETED, reason="it was cancelled")
    if facts.deadline_seconds is not None:
        reason = f"it ran longer than its deadline of {facts.deadline_seconds} s (active_deadline_seconds)"
        return Diagnosis(category=Category.DEADLINE, reason=reason)
    displaced = next((step for step in facts.steps if step.node_lost or step.preempted), None)
    if displaced is not None:
        return _of_step(displaced)
    cause = next((step for step in facts.steps if step.error_type), next(iter(facts.steps), None))
    found = next(((category, reason) for category, reason in _hindrances(facts) if reason), None)
    if found is not None:
        return _hindered(*found, cause, facts.passing)
    if cause is not None:
        return _of_step(cause)
    reason = f"it failed: {facts.message}" if facts.message else "it failed and nothing says why"
    return Diagnosis(category=Category.INFRASTRUCTURE, reason=reason, retryable=True)


def _hindrances(facts: Facts) -> Iterator[tuple[Category, str | None]]:
    yield Category.DEADLINE, facts.deadline_error
    yield Category.REJECTED, facts.rejected
    yield Category.INFRASTRUCTURE, facts.infrastructure_error
    yield Category.IMAGE, facts.image_error
    yield Category.SCHEDULING, facts.unschedulable


def _hindered(category: Category, reason: str, step: StepFacts | None, passing: bool) -> Diagnosis:
    return Diagnosis(
        category=category,
        reason=reason,
        step=step.name if step else None,
        node=step.node if step else None,
        exit_code=step.exit_code if step else None,
        log_tail=_own_lines(step) if step else (),
        retryable=passing or category in _RETRYABLE,
    )


def _own_lines(step: StepFacts) -> tuple[str, ...]:
    end = next((n for n, line in enumerate(step.log_tail) if _TORCHRUN_SAYS.search(line)), 0)
    return tuple(step.log_tail[: end or None][-_TAIL_LINES:])


def _of_step(step: StepFacts) -> Diagnosis:
    category, reason = _category(step)
    return Diagnosis(
        category=category,
        reason=reason,
        step=step.name,
        node=step.node,
        exit_code=_exit_code(step),
        traceback=step.traceback,
        log_tail=_own_lines(step),
        retryable=category in _RETRYABLE or (category is Category.INITIALIZER and step.exit_code == contract.TRY_AGAIN),
    )


def _exit_code(step: StepFacts) -> int | None:
    """The code that the function left with: torchrun ends with 1 whatever its processes end with."""
    left = step.error_type == "SystemExit" and step.error_message.isdecimal()
    return int(step.error_message) if left else step.exit_code


def _category(step: StepFacts) -> tuple[Category, str]:
    if step.node_lost:
        return Category.NODE_LOST, step.node_lost
    if step.preempted:
        return Category.PREEMPTED, step.preempted
    if step.out_of_memory or step.error_type in ("MemoryError", "OutOfMemoryError"):
        return Category.OUT_OF_MEMORY, "it ran out of memory; ask for more, or use smaller batches"
    error = _first_line(f"{step.error_type}: {step.error_message}") if step.error_type else ""
    if step.name.endswith("-initializer"):
        return Category.INITIALIZER, error or step.message or _last_line(step) or _exit_reason(step)
    return (Category.USER_CODE, error) if error else _by_exit(step)


def _by_exit(step: StepFacts) -> tuple[Category, str]:
    """Of a step that left no exception: by the signal that ended it, or a process of it, else by its exit code."""
    name = _signal_name(-step.exit_code) if step.exit_code is not None and step.exit_code < 0 else None
    if name in _CRASHES:
        return Category.USER_CODE, f"it crashed with {name} ({_CRASHES[name]})"
    if name:
        return Category.INFRASTRUCTURE, f"it was killed by {name}, not by this backend{_hint(name)}"
    killed = next((match for line in reversed(step.log_tail) if (match := _TORCHRUN_KILLED.search(line))), None)
    if killed is None:
        return Category.USER_CODE, _exit_reason(step)
    if killed[1] in _CRASHES:
        return Category.USER_CODE, f"a training process crashed with {killed[1]} ({_CRASHES[killed[1]]})"
    return Category.INFRASTRUCTURE, f"a training process was killed by {killed[1]}{_hint(killed[1])}"


def _hint(signal_name: str) -> str:
    return " (often for lack of memory)" if signal_name == "SIGKILL" else ""


def _exit_reason(step: StepFacts) -> str:
    if step.exit_code is None:
        return step.message or "it failed and nothing says why"
    means = f" ({_EXIT_CODES[step.exit_code]})" if step.exit_code in _EXIT_CODES else ""
    says = f": {step.message}" if step.message else ""
    return f"it ended with exit code {step.exit_code}{means}{says}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(step: StepFacts) -> str:
    return next((line.strip() for line in reversed(step.log_tail) if line.strip()), "")


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else text
