"""Given facts, say why a TrainJob failed and whether a retry helps. Pure.

Backends collect `Facts` in their own way; what they mean is decided here, once.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_core.outcome import Category, Diagnosis

__all__ = ["Facts", "StepFacts", "diagnose"]

_RETRYABLE = frozenset({Category.PREEMPTED, Category.NODE_LOST, Category.INFRASTRUCTURE, Category.SCHEDULING})
_TAIL_LINES = 20
#: How torchrun reports a worker that did not end by itself.
_TORCHRUN_KILLED = re.compile(r"Signal \d+ \((SIG\w+)\) received by PID")


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
    """

    name: str
    exit_code: int | None = None
    node: str | None = None
    error_type: str | None = None
    error_message: str = ""
    traceback: str | None = None
    log_tail: Sequence[str] = ()
    out_of_memory: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known of a TrainJob that failed.

    Attributes:
        steps: The steps that failed, in the order in which they did.
        deadline_seconds: Its deadline, if it has passed.
        cancelled: Somebody ended it.
        image_error: What it runs in could not be made or pulled, and why.
        infrastructure_error: What carries it out has failed, and how.
    """

    steps: Sequence[StepFacts] = ()
    deadline_seconds: int | None = None
    cancelled: bool = False
    image_error: str | None = None
    infrastructure_error: str | None = None


def diagnose(facts: Facts) -> Diagnosis:
    """Say why a TrainJob failed.

    The first that applies: somebody cancelled it, its deadline passed, what carries it out failed, what it runs in
    could not be made, a step failed. Of several failed steps the one with an exception of its own is the cause:
    the others only lost their peer.
    """
    if facts.cancelled:
        return Diagnosis(category=Category.DELETED, reason="it was cancelled")
    if facts.deadline_seconds is not None:
        reason = f"it ran longer than its deadline of {facts.deadline_seconds} s (active_deadline_seconds)"
        return Diagnosis(category=Category.DEADLINE, reason=reason)
    if facts.infrastructure_error:
        return Diagnosis(category=Category.INFRASTRUCTURE, reason=facts.infrastructure_error, retryable=True)
    cause = next((step for step in facts.steps if step.error_type), next(iter(facts.steps), None))
    if facts.image_error:
        tail = tuple(cause.log_tail[-_TAIL_LINES:]) if cause else ()
        return Diagnosis(
            category=Category.IMAGE, reason=facts.image_error, log_tail=tail, step=cause.name if cause else None
        )
    if cause is None:
        return Diagnosis(category=Category.INFRASTRUCTURE, reason="it failed and nothing says why", retryable=True)
    return _of_step(cause)


def _of_step(step: StepFacts) -> Diagnosis:
    category, reason = _category(step)
    return Diagnosis(
        category=category,
        reason=reason,
        step=step.name,
        node=step.node,
        exit_code=step.exit_code,
        traceback=step.traceback,
        log_tail=tuple(step.log_tail[-_TAIL_LINES:]),
        retryable=category in _RETRYABLE,
    )


def _category(step: StepFacts) -> tuple[Category, str]:
    if step.out_of_memory or step.error_type in ("MemoryError", "OutOfMemoryError"):
        return Category.OUT_OF_MEMORY, "it ran out of memory; ask for more, or use smaller batches"
    if step.name.endswith("-initializer"):
        return Category.INITIALIZER, _last_line(step) or f"it ended with exit code {step.exit_code}"
    if step.error_type:
        return Category.USER_CODE, _first_line(f"{step.error_type}: {step.error_message}")
    if step.exit_code is not None and step.exit_code < 0:
        return Category.INFRASTRUCTURE, f"it was killed by {_signal_name(-step.exit_code)}, not by this backend"
    killed = next((match for line in reversed(step.log_tail) if (match := _TORCHRUN_KILLED.search(line))), None)
    if killed:
        return (
            Category.INFRASTRUCTURE,
            f"a training process was killed by {killed[1]} (SIGKILL: often for lack of memory)",
        )
    return Category.USER_CODE, f"it ended with exit code {step.exit_code}"


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
