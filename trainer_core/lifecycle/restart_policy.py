"""Decides whether a training with the option `RestartPolicy` is started again after a failure. Pure.

The decision depends only on the settings and on how the starts ended, those of earlier TrainJobs of the same owner and
generation included. A supervisor that starts its steps again and a process that submits the next TrainJob decide by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainer_core.model.jobs import Category, Outcome, RestartCause, Restarts
from trainer_core.model.restart_rules import FINAL, RestartRules

if TYPE_CHECKING:
    from trainer_core.model.request import TrainJobRequest

#: Causes that are kept.
_MAX_CAUSES = 20
_MAX_DELAY = 300.0
#: So many starts in a row may have made progress of which nothing is known.
_MAX_UNKNOWN = 10
#: Failures before the function is called.
_BEFORE_TRAINING = (Category.IMAGE, Category.SCHEDULING, Category.REJECTED, Category.INITIALIZER)
#: A shell and Kubernetes report the end by a signal as 128 and its number, `subprocess` as its negative number.
_SIGNALLED = 128


@dataclass(frozen=True)
class EndedStart:
    """How a start of a training ended."""

    category: Category
    #: Whether a retry can help, by the diagnosis alone.
    retryable: bool = False
    exit_code: int | None = None
    #: Its last checkpoint, or without the option Checkpoints the last step reported. 0 for none. None if unknown.
    step: float | None = None
    at: str | None = None
    #: Its run time.
    seconds: float = 0.0


@dataclass(frozen=True)
class RestartDecision:
    """What follows the end of a start."""

    #: The restart; None if there is none.
    cause: RestartCause | None = None
    #: For the diagnosis: why, in a few words. Empty if the diagnosis explains it.
    reason: str = ""


@dataclass(frozen=True)
class AttemptRestarts:
    """What is stored with a TrainJob so that any process can decide whether it is started again."""

    rules: RestartRules
    earlier: Restarts = field(default_factory=Restarts)
    active_deadline_seconds: int | None = None
    has_checkpoints: bool = False
    #: When the last start began, ISO 8601. None for the first start of the TrainJob.
    started_at: str | None = None

    @property
    def seconds_left(self) -> float | None:
        """What the earlier starts have left of `active_deadline_seconds`. None without a deadline."""
        limit = self.active_deadline_seconds
        return None if limit is None else max(1.0, limit - self.earlier.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "rules": self.rules.to_dict()}

    @classmethod
    def parse(cls, data: object) -> AttemptRestarts | None:
        """Read what `to_dict` returned; None without the option, or if it is damaged: anyone may edit an annotation.

        A category of a later version is left out of the rules: this version diagnoses no failure as it.
        """
        if not isinstance(data, Mapping):
            return None
        try:
            rules, known = dict(data["rules"]), {category.value for category in Category}
            rules |= {name: [each for each in rules[name] if each in known] for name in ("free", "never")}
            earlier = dict(data["earlier"])
            causes = tuple(RestartCause(**cause) for cause in earlier.pop("causes"))
            restarts = Restarts(**earlier, causes=causes)
            return cls(**{**data, "rules": RestartRules.parse(rules), "earlier": restarts})
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def parse_json(cls, text: str | None) -> AttemptRestarts | None:
        """Read the JSON of `to_dict`."""
        try:
            return cls.parse(json.loads(text)) if text else None
        except (ValueError, RecursionError):
            return None


def decide_restart(rules: RestartRules, earlier: Restarts, ended: EndedStart) -> RestartDecision:
    """Decide whether a training is started again after a start, given the restarts before."""
    if ended.category.value in FINAL:
        return RestartDecision()
    rule, reason = _choose_rule(rules, ended)
    if rule == "never":
        return RestartDecision(reason=reason)
    is_counted = rule == "count"
    if is_counted and earlier.counted >= rules.max_restarts:
        return RestartDecision(reason=f"the budget of RestartPolicy is used up (max_restarts={rules.max_restarts})")
    without = _count_without_progress(earlier, ended.step)
    if without >= rules.no_progress:
        starts = "this start" if without == 1 else f"{without} starts in a row"
        return RestartDecision(reason=f"no restart follows, because {starts} made no progress")
    delay = min(_MAX_DELAY, rules.delay * 2.0 ** min(earlier.total, _MAX_CAUSES))
    number = f"restart {earlier.counted + 1} of {rules.max_restarts}" if is_counted else "a restart that is not counted"
    cause = RestartCause(ended.category.value, ended.step, ended.at, is_counted, delay, ended.seconds)
    return RestartDecision(cause, f"{number} follows")


def decide_next(ended: Outcome, rules: RestartRules | None, restarts: int) -> RestartCause | None:
    """Return what starts a training again after a TrainJob: its own policy, else the rules of a process that waits.

    Args:
        ended: Its outcome.
        rules: The rules of the process, whose delay does not grow. None for none.
        restarts: How often the process has started the training again.
    """
    diagnosis = ended.diagnosis
    if ended.restarts is not None or rules is None or diagnosis is None:
        return ended.restarts.following if ended.restarts else None
    start = EndedStart(diagnosis.category, diagnosis.retryable, diagnosis.exit_code)
    cause = decide_restart(rules, Restarts(counted=restarts), start).cause
    return cause and replace(cause, delay=rules.delay)


def _choose_rule(rules: RestartRules, ended: EndedStart) -> tuple[str, str]:
    """Return ``never``, ``free`` or ``count``, and for ``never`` the reason."""
    code, category = ended.exit_code, ended.category.value
    rule = None if code is None else rules.exit_codes.get(_SIGNALLED - code if code < 0 else code)
    if rule is not None:
        return rule, f"RestartPolicy never restarts after exit code {code}"
    if category in rules.never:
        return "never", f"RestartPolicy never restarts after {category}"
    if category in rules.free:
        return "free", ""
    return ("count", "") if ended.retryable else ("never", "")


def _count_without_progress(earlier: Restarts, step: float | None) -> int:
    if step is None and sum(cause.step is None for cause in earlier.causes[-_MAX_UNKNOWN:]) < _MAX_UNKNOWN:
        return earlier.without_progress
    return 0 if (step or 0) > (earlier.step or 0) else earlier.without_progress + 1


def add_restart(earlier: Restarts, cause: RestartCause) -> Restarts:
    """Return the restarts before the start that follows the one that ended for a cause."""
    steps = [step for step in (earlier.step, cause.step) if step is not None]
    return Restarts(
        total=earlier.total + 1,
        counted=earlier.counted + cause.counted,
        causes=(*earlier.causes, cause)[-_MAX_CAUSES:],
        seconds=earlier.seconds + cause.seconds,
        step=max(steps, default=None),
        without_progress=_count_without_progress(earlier, cause.step),
    )


def decide_outcome(
    outcome: Outcome, attempt: AttemptRestarts, reported_step: float | None, is_recorded: bool = True
) -> Outcome:
    """Return the outcome of a failed TrainJob with its restarts, and with the one that follows, if any.

    Without its record, which goes with a pod, a step that is not known may have been reached.
    """
    diagnosis, memory = outcome.diagnosis, outcome.memory
    if diagnosis is None:
        return replace(outcome, restarts=attempt.earlier)
    step = outcome.checkpoint if attempt.has_checkpoints else reported_step
    if step is None and (is_recorded or diagnosis.category in _BEFORE_TRAINING):
        step = 0
    seconds = _get_seconds(replace(outcome, started_at=attempt.started_at or outcome.started_at))
    ended = EndedStart(diagnosis.category, diagnosis.retryable, diagnosis.exit_code, step, outcome.finished_at, seconds)
    decision = decide_restart(attempt.rules, attempt.earlier, ended)
    limit = attempt.active_deadline_seconds
    if decision.cause and limit is not None and limit - attempt.earlier.seconds - seconds < 1:
        decision = RestartDecision(reason="no restart follows, because no time is left of active_deadline_seconds")
    if memory is not None and diagnosis.category is Category.OUT_OF_MEMORY and not diagnosis.retryable:
        memory = replace(memory, next=None)  # It was the memory of a GPU, which no next attempt raises.
    reason = "; ".join(filter(None, (diagnosis.reason, decision.reason)))
    return replace(
        outcome,
        diagnosis=replace(diagnosis, reason=reason, retryable=decision.cause is not None),
        memory=memory,
        restarts=replace(attempt.earlier, following=decision.cause),
    )


def count_restart(outcome: Outcome) -> Restarts:
    """Return the restarts before the start that follows an outcome: none without an earlier start to follow."""
    restarts = outcome.restarts or Restarts()
    return add_restart(restarts, restarts.following) if restarts.following else Restarts()


def _get_seconds(outcome: Outcome) -> float:
    return max(0.0, outcome.duration.total_seconds()) if outcome.duration else 0.0


def get_attempt_restarts(request: TrainJobRequest) -> AttemptRestarts | None:
    """Return what is stored with the TrainJob of a request; None without the option."""
    if request.policy.restart_policy is None:
        return None
    return AttemptRestarts(
        request.policy.restart_policy,
        request.context.attempt_restarts or Restarts(),
        request.policy.active_deadline_seconds,
        request.policy.checkpoints is not None,
    )


def is_final(request: TrainJobRequest, ended: Outcome | None) -> bool:
    """Return whether the policy of a request allows no further start after the outcome of the last one."""
    restarts = ended.restarts if ended else None
    return request.policy.restart_policy is not None and restarts is not None and restarts.following is None


def build_next_request(request: TrainJobRequest, ended: Outcome | None) -> TrainJobRequest:
    """Return the request of the attempt that follows an outcome. None for one with a new budget."""
    if request.policy.restart_policy is None:
        return request
    restarts = count_restart(ended) if ended else Restarts()
    return request.with_fields(attempt_restarts=restarts if restarts.total else None, retry_of=None)


def describe(rules: RestartRules, restarts: Restarts) -> str:
    """Return the restarts as text, such as ``0 of 3`` or ``2 of 3 (NodeLost; 2 more were free)``."""
    free = restarts.total - restarts.counted
    notes = [restarts.causes[-1].category] if restarts.causes else []
    if free:
        notes.append(f"{free} {'more ' * bool(restarts.counted)}{'was' if free == 1 else 'were'} free")
    return f"{restarts.counted} of {rules.max_restarts}" + (f" ({'; '.join(notes)})" if notes else "")
