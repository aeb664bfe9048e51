"""Diagnoses failures: facts about a failed TrainJob in, its category, reason and retryability out. Pure.

Each backend collects `Facts` in its own way. Only this module decides what they mean.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainer_core.base.text import escape, shorten
from trainer_core.lifecycle import restart_policy
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import (
    AttemptMemory,
    Category,
    Diagnosis,
    Outcome,
    Progress,
    TrainJobRef,
    extract_training_state,
)
from trainer_core.model.logs import find_last_progress
from trainer_core.model.readable_log import TORCHRUN_REPORT
from trainer_core.model.resource_use import ResourceUse, describe_memory, strip_resource_report
from trainer_core.node import env

_RETRYABLE = frozenset(
    {Category.PREEMPTED, Category.NODE_LOST, Category.INFRASTRUCTURE, Category.SCHEDULING, Category.STALLED}
)
_TAIL_LINES = 20
#: In reports that `trainer_core` prints, such as those of progress.
_OWN_LINE = re.compile(r"\[trainjob:|trainjob: (checkpoint|resumed)")
#: Characters of a line in a reason.
_MAX_QUOTED = 200
#: How torchrun reports a process that failed: rank and exit code.
_TORCHRUN_EXIT = re.compile(r"\brank +: (\d+) \(local_rank.*\n.*\bexitcode +: (-?\d+) \(pid")
#: Signals that a process causes itself.
_CRASHES = {
    "SIGABRT": "often a failed check in native code",
    "SIGBUS": "often too little shared memory, /dev/shm",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "native code for another processor",
    "SIGSEGV": "a memory fault in native code",
}
_EXIT_CODES = {126: "the command cannot be executed", 127: "the command was not found"}
#: What a training function raises that saved a checkpoint after SIGTERM: see `node.checkpoints.Stopped`.
_STOPPED = "trainjob.Stopped"
#: What the attendant of a node records whose ranks are silent: see `node.attendant`.
_STALLED = "trainjob.Stalled"
#: What is raised if the files of a large project cannot be fetched, see `node.project_fetch.FetchError`, or if the disk
#: or the server of the checkpoints fails, see `node.checkpoint_folder.StorageError`.
_STORAGE_ERRORS = ("trainjob.FetchError", "trainjob.StorageError")
#: Exit codes of a process that was told to stop, and of one that was killed, perhaps because another one had ended.
_TOLD = (-signal.SIGTERM, 128 + signal.SIGTERM)
_KILLED = (*_TOLD, -signal.SIGKILL, 128 + signal.SIGKILL)
#: Ends of processes in the order in which they are the cause of the others.
_OUT_OF_MEMORY, _KILLED_RANK, _RAISED, _CRASHED, _EXITED, _FAILED, _SAVED, _ENDED, _LOST_PEER, _TERMINATED = range(10)
#: What torch raises if the memory of a GPU is exhausted.
_GPU_MEMORY_ERROR = "OutOfMemoryError"
#: What Python, numpy and torch raise if memory cannot be allocated.
_MEMORY_ERRORS = frozenset({"MemoryError", "_ArrayMemoryError", _GPU_MEMORY_ERROR})
#: How jax and native code report the same. The memory of jax may be that of a GPU.
_JAX_MEMORY_ERROR = "RESOURCE_EXHAUSTED"
_ALLOCATION_ERROR = re.compile(rf"^{_JAX_MEMORY_ERROR}\b|std::bad_alloc|DefaultCPUAllocator: .*memory")
#: What a pool of processes raises if one was killed, torch if a worker that loads data was, subprocess if a child was.
_BROKEN_POOL = "BrokenProcessPool"
#: What faulthandler prints in a process that crashes.
_FATAL_ERROR = re.compile(r"Fatal Python error: (Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)")
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid.*\) is killed by signal: Killed|died with <Signals.SIGKILL")
#: NCCL's watchdog aborts a process whose peers do not answer.
_WATCHDOG = "Watchdog caught collective operation timeout"
_TRACEBACK = "Original Traceback (most recent call last):"
_NO_REASON = "it failed without a reported reason; see its log"


@dataclass(frozen=True)
class StepFacts:
    """Facts about a failed step."""

    name: str
    #: Its exit code; negative for a signal. None if unknown.
    exit_code: int | None = None
    #: Its machine or pod. None if unknown.
    node: str | None = None
    #: Class name of the exception that ended the training function. None without one.
    error_type: str | None = None
    error_message: str = ""
    traceback: str | None = None
    log_tail: Sequence[str] = ()
    #: Whether the system reports that it ran out of memory.
    out_of_memory: bool = False
    #: What the system, or the step itself, reports about its end.
    message: str = ""
    #: Why it was removed from its machine in favour of another workload. None if it was not.
    preempted: str | None = None
    #: What happened to its machine, if the machine is lost. None if it is not.
    node_lost: str | None = None
    #: Its termination record: its use of memory, and how its processes ended. Empty without one.
    record: Mapping[str, Any] = field(default_factory=dict)
    #: The process of it that failed. None if it is not known.
    rank: str | None = None

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any], **known: Any) -> StepFacts:
        """Return the facts of a step from its termination record and from what else is known."""
        error = record.get("error") or {}
        return cls(
            name,
            error_type=error.get("type"),
            error_message=str(error.get("message", "")),
            traceback=error.get("traceback"),
            record=record,
            **known,
        )


@dataclass(frozen=True)
class Facts:
    """Facts about a TrainJob that failed, or is about to fail."""

    #: The failed steps in the order of their failures; for other causes, the affected steps.
    steps: Sequence[StepFacts] = ()
    #: The TrainJob's deadline, if it has passed.
    deadline_seconds: int | None = None
    #: Another deadline that has passed, such as that of a pod.
    deadline_error: str | None = None
    cancelled: bool = False
    #: The diagnosis with which a wait cancelled it.
    cancel_diagnosis: Diagnosis | None = None
    #: Why its image or environment could not be pulled or built.
    image_error: str | None = None
    #: How the backend or its machinery failed.
    infrastructure_error: str | None = None
    #: Why its objects were refused, or what they refer to without its existing.
    rejected: str | None = None
    #: Why no machine accepts it, including an exhausted quota.
    unschedulable: str | None = None
    #: Whether the cause may disappear without a change, so that a retry can help.
    transient: bool = False
    #: What the system reports about the whole TrainJob. Used if nothing better is known.
    message: str = ""
    #: What this attempt and the next one ask for, if that may ask for more.
    memory: AttemptMemory | None = None


def build_failed_outcome(
    ref: TrainJobRef,
    diagnosis: Diagnosis,
    records: Iterable[Mapping[str, Any] | None] = (),
    *,
    started_at: str | None = None,
    finished_at: str | None = None,
    last_progress: Progress | None = None,
    resource_use: ResourceUse | None = None,
    memory: AttemptMemory | None = None,
    restarts: AttemptRestarts | None = None,
    is_recorded: bool = True,
) -> Outcome:
    """Return the outcome of a failed TrainJob. The records are those of its nodes, newest first."""
    last_progress = last_progress or find_last_progress(reversed(diagnosis.log_tail))
    outcome = Outcome(
        ref=ref.to_dict(),
        status="Failed",
        diagnosis=diagnosis,
        started_at=started_at,
        finished_at=finished_at,
        resource_use=resource_use,
        memory=memory,
        **extract_training_state(records, last_progress),
    )
    step = last_progress.step if last_progress else None
    return outcome if restarts is None else restart_policy.decide_outcome(outcome, restarts, step, is_recorded)


def diagnose(facts: Facts) -> Diagnosis:
    """Return why a TrainJob failed.

    The first that applies: it was cancelled; its deadline passed; a step lost its machine; another deadline passed; its
    objects were refused; the infrastructure failed; its image could not be pulled; no machine accepts it; a step
    failed. Among the processes of several failed steps one that the system killed for lack of memory is the cause, then
    one that torchrun saw killed, one with an exception, and one that exited; then a step that ended for its peer and
    saved a checkpoint. An error that the loss of a peer provokes is the last to be.
    """
    if facts.cancel_diagnosis is not None:
        return facts.cancel_diagnosis
    if facts.cancelled:
        return Diagnosis(category=Category.DELETED, reason="it was cancelled")
    if facts.deadline_seconds is not None:
        reason = f"it ran longer than its deadline of {facts.deadline_seconds} s (active_deadline_seconds)"
        return Diagnosis(category=Category.DEADLINE, reason=reason)
    displaced = next((step for step in facts.steps if step.node_lost or step.preempted), None)
    if displaced is not None:
        return _diagnose_step(displaced, facts.memory)
    cause = _find_cause(facts.steps)
    obstacle = next(((category, reason) for category, reason in _list_obstacles(facts) if reason), None)
    if obstacle is not None:
        return _diagnose_obstacle(*obstacle, cause, facts.transient)
    if cause is not None:
        return _diagnose_step(cause, facts.memory)
    reason = f"it failed: {facts.message}" if facts.message else _NO_REASON
    return Diagnosis(category=Category.INFRASTRUCTURE, reason=reason, retryable=True)


def is_consequence(step: StepFacts) -> bool:
    """Return whether a step failed for another one, as far as it is known: it saved, was told to stop, lost a peer."""
    return min(order for order, _ in _list_ends(step, has_saved=True)) >= _SAVED


def _find_cause(steps: Sequence[StepFacts]) -> StepFacts | None:
    """Return the process that made the others fail; of equal ones the first step."""
    has_saved = any(step.error_type == _STOPPED for step in steps)
    ends = [end for step in steps for end in _list_ends(step, has_saved)]
    return min(ends, key=lambda end: end[0])[1] if ends else None


def _list_ends(step: StepFacts, has_saved: bool) -> Iterator[tuple[int, StepFacts]]:
    """Yield how the processes of a step ended, each with its order among the causes.

    A step without a record of its processes ends with its exit code; where another one has saved a checkpoint, it may
    have been killed for that.
    """
    error, exits = step.record.get("error") or {}, _read_exits(step)
    own, lost = str(error.get("rank", "")), error.get("lost")
    explained = {own, *(map(str, lost) if isinstance(lost, list) else ())}
    has_died = step.out_of_memory or bool(step.record.get("oom_kills"))
    for rank, code in exits.items():
        if not (step.error_type and rank in explained):
            end = replace(step, rank=rank, exit_code=code, error_type=None, error_message="", traceback=None)
            watchdog = next((line for line in step.log_tail if _WATCHDOG in line and code == -signal.SIGABRT), None)
            if watchdog:
                yield _LOST_PEER, replace(end, error_type="SIGABRT", error_message=watchdog)
                continue
            is_out_of_memory = has_died and code == -signal.SIGKILL
            yield _order_exit(code, is_out_of_memory), replace(end, out_of_memory=is_out_of_memory)
    if step.out_of_memory:
        yield _OUT_OF_MEMORY, step
    elif step.error_type:
        known = replace(step, rank=own if exits else None)
        has_lost = _has_lost_peer(step)
        order = _SAVED if step.error_type == _STOPPED else _LOST_PEER if has_lost else _RAISED
        if has_died and (has_lost or _lost_worker(step) or _get_error_name(step) == "CalledProcessError"):
            order, known = _OUT_OF_MEMORY, replace(known, out_of_memory=True)
        yield order, known
    elif not exits and has_died and step.exit_code == -signal.SIGKILL:
        yield _OUT_OF_MEMORY, replace(step, out_of_memory=True)
    elif not exits:
        yield (_ENDED if has_saved and step.exit_code in (None, *_KILLED) else _FAILED), step


def _order_exit(code: int, is_out_of_memory: bool) -> int:
    """Return the order of a process that torchrun saw end with a code and that recorded no error."""
    if is_out_of_memory:
        return _OUT_OF_MEMORY
    if code in _TOLD:  # By torchrun.
        return _TERMINATED
    if code < 0:
        return _CRASHED if _get_signal_name(-code) in _CRASHES else _KILLED_RANK
    # With 1 Python ends after any exception, perhaps one that the program has handled itself.
    return _FAILED if code == 1 else _EXITED


def _read_exits(step: StepFacts) -> Mapping[str, int]:
    """Return the exit codes by rank that torchrun has recorded; in an image with a torchrun of its own, reported."""
    exits: Mapping[str, int] | None = step.record.get("exits")
    return exits or {rank: int(code) for rank, code in _TORCHRUN_EXIT.findall("\n".join(step.log_tail))}


def _has_lost_peer(step: StepFacts) -> bool:
    from trainer_core.node.termination import is_lost_peer  # Only where a step has failed.

    return is_lost_peer({"type": step.error_type, "message": step.error_message, "traceback": step.traceback})


def _list_obstacles(facts: Facts) -> Iterator[tuple[Category, str | None]]:
    yield Category.DEADLINE, facts.deadline_error
    yield Category.REJECTED, facts.rejected
    yield Category.INFRASTRUCTURE, facts.infrastructure_error
    yield Category.IMAGE, facts.image_error
    yield Category.SCHEDULING, facts.unschedulable


def _diagnose_obstacle(category: Category, reason: str, step: StepFacts | None, transient: bool) -> Diagnosis:
    return Diagnosis(
        category=category,
        reason=reason,
        step=step.name if step else None,
        node=step.node if step else None,
        exit_code=step.exit_code if step else None,
        log_tail=_cut_log_tail(step) if step else (),
        retryable=transient or category in _RETRYABLE,
    )


def _diagnose_step(step: StepFacts, memory: AttemptMemory | None) -> Diagnosis:
    category, reason = _classify_step(step, memory)
    gets_more = category is Category.OUT_OF_MEMORY and memory is not None and memory.next and not _is_gpu_memory(step)
    return Diagnosis(
        category=category,
        reason=escape(reason),
        step=step.name,
        node=step.node,
        exit_code=_get_exit_code(step),
        traceback=step.traceback,
        log_tail=_cut_log_tail(step),
        retryable=category in _RETRYABLE
        or (category is Category.INITIALIZER and step.exit_code == env.TRY_AGAIN)
        or bool(gets_more),
    )


def _cut_log_tail(step: StepFacts) -> tuple[str, ...]:
    """Return the last lines before torchrun's report, if there is one, without reports of the use of resources."""
    end = next((n for n, line in enumerate(step.log_tail) if TORCHRUN_REPORT.search(line)), 0)
    lines = (strip_resource_report(line) for line in step.log_tail[: end or None])
    return tuple(line for line in lines if line is not None)[-_TAIL_LINES:]


def _get_exit_code(step: StepFacts) -> int | None:
    """Return the code of the function's `SystemExit`: torchrun ends with 1, whatever code its processes end with."""
    has_code = step.error_type == "SystemExit" and step.error_message.removeprefix("-").isdecimal()
    return int(step.error_message) & 0xFF if has_code else step.exit_code


def _classify_step(step: StepFacts, memory: AttemptMemory | None) -> tuple[Category, str]:
    if step.node_lost:
        return Category.NODE_LOST, step.node_lost
    if step.preempted:
        return Category.PREEMPTED, step.preempted
    if _ran_out_of_memory(step):
        return Category.OUT_OF_MEMORY, _explain_memory(step, memory)
    if step.error_type == _STOPPED:
        return Category.PREEMPTED, step.error_message or "it was told to stop"
    if step.error_type == _STALLED:
        return Category.STALLED, step.error_message
    if step.error_type in _STORAGE_ERRORS:
        return Category.INFRASTRUCTURE, step.error_message
    error = _get_first_line(": ".join(filter(None, (step.error_type, step.error_message))))
    if step.name.endswith("-initializer"):
        return Category.INITIALIZER, error or step.message or _get_last_line(step) or _explain_exit_code(step)
    return _classify_error(step, error, memory) if error else _classify_exit(step)


def _classify_error(step: StepFacts, error: str, memory: AttemptMemory | None) -> tuple[Category, str]:
    """Classify an exception of the training function."""
    if _lost_worker(step):
        return _classify_lost_worker(step, error, memory)
    if _has_lost_peer(step):
        return Category.INFRASTRUCTURE, f"{error} (a peer was lost, and none is known to have failed before)"
    if step.error_type == "SystemExit" and step.error_message.removeprefix("-").isdecimal():
        error += _quote_last_line(step)
    return Category.USER_CODE, error


def _classify_exit(step: StepFacts) -> tuple[Category, str]:
    """Classify a step or rank without an exception by the signal that ended it, or its exit code."""
    name = _get_signal_name(-step.exit_code) if step.exit_code is not None and step.exit_code < 0 else None
    what = _name_process(step)
    if name in _CRASHES:
        return Category.USER_CODE, f"{what} crashed with {name} ({_CRASHES[name]})"
    if name:
        return Category.INFRASTRUCTURE, f"{what} was killed by {name}, not by this backend{_explain_signal(name)}"
    return Category.USER_CODE, _explain_exit_code(step)


def _classify_lost_worker(step: StepFacts, error: str, memory: AttemptMemory | None) -> tuple[Category, str]:
    """Classify the exception about a process that the training started and that was killed or crashed."""
    if crash := next((match for line in step.log_tail if (match := _FATAL_ERROR.search(line))), None):
        return Category.USER_CODE, f"a process that it started crashed ({crash[1]}): {error}"
    if step.record.get("oom_kills") == 0:
        return Category.INFRASTRUCTURE, f"{error} (a process that it started was killed, and not for lack of memory)"
    return Category.OUT_OF_MEMORY, _explain_memory(step, memory)


def _name_process(step: StepFacts) -> str:
    return f"rank {step.rank}" if step.rank else "it"


def _get_error_name(step: StepFacts) -> str:
    """Return the name of the exception's class without its module."""
    return (step.error_type or "").rpartition(".")[2]


def _ran_out_of_memory(step: StepFacts) -> bool:
    is_allocation = step.error_type is not None and _ALLOCATION_ERROR.search(step.error_message) is not None
    return step.out_of_memory or is_allocation or _get_error_name(step) in _MEMORY_ERRORS


def _lost_worker(step: StepFacts) -> bool:
    """Return whether a process that the training started was killed: its own exception is the cause of the last one."""
    texts = (step.error_message, step.traceback or "")
    return _get_error_name(step) == _BROKEN_POOL or any(_WORKER_KILLED.search(text) for text in texts)


def _is_gpu_memory(step: StepFacts) -> bool:
    """Return whether a step ran out of the memory of a GPU, as torch's exception says."""
    return not step.out_of_memory and (
        _get_error_name(step) == _GPU_MEMORY_ERROR
        or (step.error_message.startswith(_JAX_MEMORY_ERROR) and describe_memory(step.record, gpu=True) is not None)
    )


def _explain_memory(step: StepFacts, memory: AttemptMemory | None) -> str:
    """Return the reason of a step that ran out of memory."""
    is_gpu = _is_gpu_memory(step)
    used = describe_memory(step.record, is_gpu)
    quoted = f" ({used})" if used else ""
    if is_gpu:
        return f"it ran out of GPU memory{quoted}; use smaller batches, or a GPU with more"
    what = "a process that it started was killed, most often for lack of memory"
    if _ran_out_of_memory(step):
        what = f"{_name_process(step)} ran out of memory"
    return f"{what}{quoted}; {_advise_memory(memory)}"


def _advise_memory(memory: AttemptMemory | None) -> str:
    if memory is None:
        return "request more, or use smaller batches"
    if memory.next is None:
        return f"{memory.amount}, the limit of MoreMemory, was not enough: raise it, or use smaller batches"
    return f"{memory.amount} was not enough, the next attempt asks for {memory.next}"


def _explain_signal(name: str) -> str:
    return " (often for lack of memory)" if name == "SIGKILL" else ""


def _explain_exit_code(step: StepFacts) -> str:
    if step.exit_code is None:
        return step.message or _NO_REASON
    meaning = f" ({_EXIT_CODES[step.exit_code]})" if step.exit_code in _EXIT_CODES else ""
    message = f": {step.message}" if step.message else _quote_last_line(step)
    return f"{_name_process(step)} ended with exit code {step.exit_code}{meaning}{message}"


def _get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _quote_last_line(step: StepFacts) -> str:
    """Return the last line of the training, which is the reason where a program exits after a message."""
    lines = (line.strip() for line in reversed(_cut_log_tail(step)))
    line = next((line for line in lines if line and not _OWN_LINE.search(line)), "")
    return f"; its last line: {shorten(line, _MAX_QUOTED)}" if line else ""


def _get_last_line(step: StepFacts) -> str:
    return next((line.strip() for line in reversed(step.log_tail) if line.strip()), "")


def _get_first_line(text: str) -> str:
    """Return the first line of an error; of one with the traceback of a DataLoader's worker, that worker's own last."""
    lines = text.strip().splitlines()
    return lines[-1 if _TRACEBACK in text else 0] if lines else text
