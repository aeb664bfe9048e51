"""Converts a search to the plain JSON data of the TrainJobs page. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider.ui import serializers
from airflow_provider.ui.xcom_queries import SubmittedJob
from airflow_provider.xcom import SUMMARY_KEY, TRIALS_KEY
from trainer_core.frontend import job_table
from trainer_core.model.jobs import FAILED
from trainer_core.search.decisions import CANCELLED, SUPERSEDED
from trainer_core.search.results import Trial
from trainer_core.search.snapshot import SearchSnapshot
from trainer_core.search.space import Choice, Distribution, LogUniform, RandInt


def build_columns(job: SubmittedJob, search: SearchSnapshot) -> dict[str, Any]:
    """Return the columns of a search in the list, with the parameters and the metrics of its best trial."""
    best, metric = search.table.best, search.definition.objective.metric
    parameters = {name: str(value) for name, value in best.parameters.items()} if best else {}
    return {
        "name": job.ref.name,
        "status": _get_status(search),
        "created": job.at,
        **({"partition": job.partition} if job.partition else {}),
        **job_table.name_values(job_table.PARAM, parameters),
        **({f"{job_table.METRIC}{metric}": best.value} if best and _is_number(best.value) else {}),
    }


def serialize_row(
    job: SubmittedJob, search: SearchSnapshot | None, label: str, row: Mapping[str, Any], columns: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a search as a row of the list."""
    shown = {**serializers.serialize_row(job, None, label, row, columns), "name": "search", "is_search": True}
    if search is None:
        return {**shown, "summary": job.xcoms.get(SUMMARY_KEY)}
    shown.pop("is_unknown", None)
    ended, total = len(search.table.settled), search.table.total
    return {**shown, "summary": search.summary, "progress": {"percentage": 100 * ended // total if total else 0}}


def serialize_search(job: SubmittedJob, search: SearchSnapshot | None, unreachable: str | None) -> dict[str, Any]:
    """Return the data of a search's page: from its trials, or else from the XComs of its task."""
    fields = _serialize_snapshot(search) if search else _serialize_xcoms(job)
    return {
        "task": {**asdict(job.task), "state": job.task_state},
        "label": serializers.get_task_name(job),
        "backend": job.ref.backend,
        "created": job.at.isoformat(),
        "unreachable": unreachable,
        **fields,
    }


def _serialize_snapshot(search: SearchSnapshot) -> dict[str, Any]:
    definition, best = search.definition, search.table.best
    reason = next((trial.reason for trial in search.trials if trial.status == "Failed" and trial.reason), None)
    return {
        "status": _get_status(search),
        "summary": search.summary,
        "reason": reason if _get_status(search) == FAILED else None,
        "metric": definition.objective.metric,
        "direction": definition.direction.value,
        "algorithm": type(definition.algorithm).__name__,
        "stop": type(definition.stop).__name__ if definition.stop else None,
        "space": {name: _serialize_distribution(each) for name, each in definition.space.items()},
        "best": best.number if best else None,
        "trials": [_serialize_trial(trial) for trial in search.trials],
    }


def _serialize_trial(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "status": trial.status,
        "value": trial.value if _is_number(trial.value) else None,
        "parameters": trial.values,
        "job": trial.name or None,
        "step": trial.step,
        "seconds": trial.seconds,
        "reason": trial.reason,
    }


def _serialize_xcoms(job: SubmittedJob) -> dict[str, Any]:
    pushed = job.xcoms.get(TRIALS_KEY)
    trials = [
        {**trial, "number": trial.get("trial"), "value": trial["value"] if _is_number(trial.get("value")) else None}
        for trial in (pushed if isinstance(pushed, list) else [])
        if isinstance(trial, Mapping) and isinstance(trial.get("parameters"), Mapping)
    ]
    # The best one is the first.
    best = trials[0]["number"] if trials and trials[0]["value"] is not None else None
    names = dict.fromkeys(name for trial in trials for name in trial["parameters"])
    return {
        "status": serializers.get_last_status(job),
        "summary": job.xcoms.get(SUMMARY_KEY),
        "space": {name: {} for name in names},
        "best": best,
        "trials": sorted(trials, key=lambda trial: trial["number"]),
    }


def _serialize_distribution(distribution: Distribution) -> dict[str, Any]:
    if isinstance(distribution, Choice):
        return {"choices": list(distribution.values)}
    return {"log": isinstance(distribution, LogUniform) or (isinstance(distribution, RandInt) and distribution.log)}


def _get_status(search: SearchSnapshot) -> str:
    return serializers.CANCELLED if search.table.reason in (CANCELLED, SUPERSEDED) else search.status


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
