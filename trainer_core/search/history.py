"""State of the trials of a search: the values they reported at rungs, and how the settled ones ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from trainer_core.base.errors import InvalidRequestError

#: Why a trial was stopped at the end of its search, by the reason of the search's record.
ENDS = {
    "goal": "another trial has reached the goal of the search",
    "timeout": "the time of the search is over",
    "failed": "the search has failed",
}
#: How a trial ended. Lost: it failed for a reason that says nothing about its parameters, such as a lost node.
TrialState: TypeAlias = Literal["Complete", "StoppedEarly", "Failed", "Lost"]


class RungReport(NamedTuple):
    """The first value that a trial reported at or after the step of a rung."""

    trial: int
    #: Number of the rung, 0 for the first.
    rung: int
    step: float
    #: The value of the objective. None if it was not a finite number, which JSON does not have.
    value: float | None
    #: When it was reported, in milliseconds since 1970.
    time_ms: int


@dataclass(frozen=True)
class SettledTrial:
    """A trial that has ended and is not run again."""

    trial: int
    state: TrialState
    #: Value of the objective; of a trial that was stopped early, the value at its last rung. None without one.
    value: float | None = None
    rungs: tuple[RungReport, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Name of its last TrainJob.
    job: str | None = None
    #: Seconds from the start of its first TrainJob to the end of its last one, without pauses.
    seconds: float | None = None
    gpu_hours: float | None = None
    #: Category of its failure (`Category`). None for other states.
    category: str | None = None
    #: Why it failed or was stopped, in one line. None for other states.
    reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended_with_search(self) -> bool:
        """Whether the end of its search has stopped it: it runs again if the search is extended."""
        return self.state == "StoppedEarly" and self.reason in ENDS.values()

    def to_line(self) -> list[Any]:
        """Return the plain data, as a list because a request carries a line for each trial."""
        rungs = [[each.rung, each.step, each.value, each.time_ms] for each in self.rungs]
        line = [self.trial, self.state, self.value, rungs, dict(self.parameters), self.job]
        return [*line, _round(self.seconds), _round(self.gpu_hours), self.category, self.reason, dict(self.metrics)]

    @classmethod
    def from_line(cls, line: Sequence[Any]) -> SettledTrial:
        """Read what `to_line` returned."""
        try:
            trial, state, value, rungs, parameters, job, seconds, gpu_hours, category, reason, metrics = line
            if state not in get_args(TrialState):
                raise ValueError(f"unknown state {state!r}")
            reports = tuple(RungReport(int(trial), *report) for report in rungs)
            ended = (job, seconds, gpu_hours, category, reason, metrics)
            return cls(int(trial), state, value, reports, dict(parameters), *ended)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"a settled trial of the search is invalid: {error}") from error


def parse_lines(lines: Iterable[Sequence[Any]]) -> dict[int, SettledTrial]:
    """Return the settled trials by number."""
    trials = (SettledTrial.from_line(line) for line in lines)
    return {trial.trial: trial for trial in trials}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
