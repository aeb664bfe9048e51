"""Builds what users see of a search from its table."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainer_core.base.errors import TrainerError
from trainer_core.search import decisions
from trainer_core.search.decisions import SearchTable, TrialView
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.parameters import to_text
from trainer_core.search.results import BestTrial, Metric, Result, SearchOutcome, Trial

if TYPE_CHECKING:
    from trainer_core.search.trial_client import TrialClient


def build_trials(definition: SearchDefinition, table: SearchTable) -> list[Trial]:
    """Return the trials by number."""
    return [_build_trial(definition, trial) for _, trial in sorted(table.trials.items())]


def name_columns(parameters: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """Return the column of each parameter in a table with other columns: ``{"value": "param.value", "lr": "lr"}``."""
    return {name: f"param.{name}" if name in others else name for name in parameters}


def build_result(definition: SearchDefinition, table: SearchTable) -> Result | None:
    """Return the best trial; None while none has a value."""
    best = table.best
    if best is None:
        return None
    trial = _build_trial(definition, best)
    return Result(
        trial.parameters, trial.metrics, trial.values, best.value, best.job, best.number, best.status != "Complete"
    )


def build_outcome(client: TrialClient, name: str, definition: SearchDefinition, table: SearchTable) -> SearchOutcome:
    """Return how a search ended, with what the best trial left if its TrainJob still exists."""
    lines = table.settled.values()
    return SearchOutcome(
        name=name,
        status=get_status(table),
        reason=str(table.reason),
        message=_explain(definition, table),
        best=_build_best(client, table),
        trials=tuple(build_trials(definition, table)),
        gpu_hours=sum(line.gpu_hours or 0.0 for line in lines),
        stopped_gpu_hours=sum(line.gpu_hours or 0.0 for line in lines if line.state == "StoppedEarly"),
    )


def get_status(table: SearchTable) -> str:
    """Return the status of a search: ``Created``, ``Running``, ``Complete`` or ``Failed``."""
    if table.reason is None:
        return "Running" if any(trial.status != "Created" for trial in table.trials.values()) else "Created"
    is_ended_well = table.reason in (decisions.COMPLETED, decisions.GOAL, decisions.TIMEOUT)
    return "Complete" if is_ended_well and table.best is not None else "Failed"


def describe(definition: SearchDefinition, table: SearchTable) -> str:
    """Return the progress in a line: ``14 of 20, 4 running, 6 stopped early, best loss 0.21 (minimized, trial 9)``."""
    counts: dict[str, int] = {}
    for trial in table.trials.values():
        status = trial.status.lower() if trial.settled or trial.status == "Paused" else "running"
        counts[status] = counts.get(status, 0) + 1
    ended = sum(trial.settled is not None for trial in table.trials.values())
    parts = [f"{ended} of {table.total}"]
    parts += [f"{counts[status]} {status}" for status in ("running", "paused", "stopped early") if counts.get(status)]
    failed = counts.get("failed", 0) + counts.get("lost", 0)
    parts += [f"{failed} failed"] if failed else []
    if table.best is not None and table.best.value is not None:
        how = f"{definition.direction.value}d, trial {table.best.number}"
        parts.append(f"best {definition.objective.metric} {table.best.value:.6g} ({how})")
    return ", ".join(parts)


def _build_trial(definition: SearchDefinition, trial: TrialView) -> Trial:
    line = trial.settled
    metrics = dict(line.metrics) if line else {}
    if trial.value is not None:
        metrics = {definition.objective.metric: trial.value, **metrics}
    return Trial(
        name=trial.job or "",
        parameters={name: to_text(value) for name, value in trial.parameters.items()},
        trainjob=None,
        metrics=[_build_metric(definition, trial, name, value) for name, value in metrics.items()],
        number=trial.number,
        status=trial.status,
        values=dict(trial.parameters),
        value=trial.value,
        step=trial.step,
        reason=line.reason if line else None,
        seconds=line.seconds if line else None,
        gpu_hours=line.gpu_hours if line else None,
    )


def _build_metric(definition: SearchDefinition, trial: TrialView, name: str, value: float) -> Metric:
    values = [value]
    if name == definition.objective.metric:
        values += [each.value for each in trial.reports if each.value is not None and math.isfinite(each.value)]
    return Metric(name, repr(min(values)), repr(max(values)), repr(value))


def _build_best(client: TrialClient, table: SearchTable) -> BestTrial | None:
    best = table.best
    if best is None:
        return None
    metrics = dict(best.settled.metrics) if best.settled else {}
    found: dict[str, Any] = {}
    if best.job is not None:
        with suppress(TrainerError):  # It may have been deleted. Its value and parameters are known without it.
            ref = client.get_job_ref(best.job)
            outcome = client.observe(ref).outcome
            found = {"ref": ref.to_dict()}
            if outcome is not None:
                found |= {"result": outcome.result, "artifacts": outcome.artifacts}
                metrics = {**outcome.metrics, **metrics}
    is_stopped = best.status != "Complete"
    return BestTrial(
        best.number, best.parameters, best.value, best.job, metrics=metrics, stopped_early=is_stopped, **found
    )


def _explain(definition: SearchDefinition, table: SearchTable) -> str:
    """Return in a line how a search ended."""
    line = describe(definition, table)
    why = {
        decisions.GOAL: "a trial reached the goal",
        decisions.TIMEOUT: "its time was over",
        decisions.CANCELLED: "it was cancelled",
        decisions.SUPERSEDED: "a newer generation of it began",
    }.get(str(table.reason))
    failed = [each for each in table.settled.values() if each.state in ("Failed", "Lost")]
    if table.reason == decisions.FAILED and failed:
        why = f"too many trials failed, the first: {failed[0].category}: {failed[0].reason}"
    if table.best is not None and table.best.status != "Complete":
        line += "; no trial was trained fully"
    return f"{why}: {line}" if why else line
