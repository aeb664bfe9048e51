"""What users see of a search: its trials, its best trial, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainer_core.search.definition import Algorithm, Objective, TrialConfig
from trainer_core.search.space import Distribution

if TYPE_CHECKING:
    from trainer_core.model.jobs import TrainJob


@dataclass(frozen=True)
class Metric:
    """A metric of a trial.

    Attributes:
        name: Name of the metric.
        min: Smallest value that is known, as text.
        max: Largest value that is known, as text.
        latest: The value that counts, as text.
    """

    name: str
    min: str
    max: str
    latest: str


@dataclass(frozen=True)
class Trial:
    """A trial of a search.

    Attributes:
        name: Name of its last TrainJob.
        parameters: Its parameters, as text.
        trainjob: Its last TrainJob. None if it was deleted, and in a `SearchOutcome`.
        metrics: The objective and the further metrics that it reported.
        number: Number of the trial, 0 for the first.
        status: ``Created``, ``Suspended``, ``Running``, ``Retrying``, ``Paused``, ``Complete``, ``Stopped early``,
            ``Failed`` or ``Lost``.
        values: Its parameters in their types.
        value: Value of the objective. None without one.
        step: The step that it reported last. None without one.
        reason: Why it failed or was stopped. None for others.
        seconds: Seconds that it trained. None if unknown.
        gpu_hours: GPU hours that it used. None if unknown.
    """

    name: str
    parameters: dict[str, str]
    trainjob: TrainJob | None
    metrics: list[Metric] = field(default_factory=list)
    number: int = 0
    status: str = "Created"
    values: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    step: float | None = None
    reason: str | None = None
    seconds: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Result:
    """The best parameters of a search.

    Attributes:
        parameters: The parameters, as text.
        metrics: The objective and the further metrics.
        values: The parameters in their types.
        value: Value of the objective.
        job: Name of the TrainJob.
        trial: Number of the trial.
        stopped_early: True if no trial is complete, and this is the best one that was stopped early.
    """

    parameters: dict[str, str]
    metrics: list[Metric]
    values: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    job: str | None = None
    trial: int = 0
    stopped_early: bool = False


@dataclass(frozen=True)
class OptimizationJob:
    """A search.

    Attributes:
        name: Its name.
        search_space: Distributions by the name of the parameter.
        objectives: The objective, and further metrics.
        algorithm: How parameters are chosen.
        trial_config: The limits.
        trials: The trials that exist so far.
        creation_timestamp: When it was created.
        status: ``Created``, ``Running``, ``Complete`` or ``Failed``.
        reason: Why it has ended, such as ``goal``. None before.
        total: Number of trials that it will have.
    """

    name: str
    search_space: Mapping[str, Distribution]
    objectives: list[Objective]
    algorithm: Algorithm
    trial_config: TrialConfig
    trials: list[Trial]
    creation_timestamp: datetime
    status: str
    reason: str | None = None
    total: int = 0


@dataclass(frozen=True)
class BestTrial:
    """The best trial of a search that has ended.

    Attributes:
        trial: Number of the trial.
        parameters: Its parameters.
        value: Value of the objective.
        job: Name of its TrainJob. None if it is unknown.
        ref: Its TrainJob, as `TrainJobRef.to_dict` returns it. None if it was deleted.
        result: What its training function returned. None if its TrainJob was deleted.
        metrics: Its metrics.
        artifacts: URIs of its artifacts by name.
        stopped_early: True if no trial is complete, and this is the best one that was stopped early.
    """

    trial: int
    parameters: Mapping[str, Any]
    value: float | None
    job: str | None = None
    ref: Mapping[str, Any] | None = None
    result: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    stopped_early: bool = False


@dataclass(frozen=True)
class SearchOutcome:
    """How a search ended.

    Attributes:
        name: Name of the search.
        status: ``Complete`` or ``Failed``.
        reason: ``complete``, ``goal``, ``timeout``, ``failed`` or ``cancelled``.
        message: The same in a line, with what failed.
        best: The best trial. None if no trial has a value.
        trials: All trials, by number.
        gpu_hours: GPU hours of all trials.
        stopped_gpu_hours: GPU hours of the trials that were stopped early.
    """

    name: str
    status: str
    reason: str
    message: str
    best: BestTrial | None
    trials: tuple[Trial, ...]
    gpu_hours: float = 0.0
    stopped_gpu_hours: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the search is Complete."""
        return self.status == "Complete"

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchOutcome:
        """Read what `to_dict` returned."""
        best = BestTrial(**data["best"]) if data["best"] else None
        trials = tuple(
            Trial(**{**each, "metrics": [Metric(**metric) for metric in each["metrics"]]}) for each in data["trials"]
        )
        return cls(**{**data, "best": best, "trials": trials})
