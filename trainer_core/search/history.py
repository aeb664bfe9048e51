"""State of the trials of a search: the values they reported at rungs, and how the settled ones ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from trainer_core.errors import InvalidRequestError

__all__ = ["COUNTED_STATES", "RungReport", "SettledTrial", "TrialState", "parse_lines"]

#: How a trial ended. Lost: it failed for a reason that says nothing about its parameters, such as a lost node.
TrialState: TypeAlias = Literal["Complete", "StoppedEarly", "Failed", "Lost"]
#: States of the trials from which an algorithm learns.
COUNTED_STATES = ("Complete", "StoppedEarly", "Failed")


class RungReport(NamedTuple):
    """The first value that a trial reported at or after the step of a rung.

    Attributes:
        trial: Number of the trial.
        rung: Number of the rung, 0 for the first.
        step: The step that was reported with it.
        value: The value of the objective. None if it was not a finite number, which JSON does not have.
        time_ms: When it was reported, in milliseconds since 1970.
    """

    trial: int
    rung: int
    step: float
    value: float | None
    time_ms: int


@dataclass(frozen=True)
class SettledTrial:
    """A trial that has ended and is not run again.

    Attributes:
        trial: Its number.
        state: How it ended.
        value: Value of the objective; of a trial that was stopped early, the value at its last rung. None without one.
        rungs: Its reports at rungs, in the order of the rungs.
        parameters: Its parameters.
        job: Name of its last TrainJob.
        seconds: Seconds from the start of its first TrainJob to the end of its last one, without pauses.
        gpu_hours: GPU hours that it used. None if unknown.
        category: Category of its failure (`Category`). None for other states.
        reason: Why it failed or was stopped, in one line. None for other states.
        metrics: Metrics of its outcome.
    """

    trial: int
    state: TrialState
    value: float | None = None
    rungs: tuple[RungReport, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    job: str | None = None
    seconds: float | None = None
    gpu_hours: float | None = None
    category: str | None = None
    reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

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
