"""Converts jobs to the plain JSON data of the TrainJobs page. Pure functions.

Empty values are omitted, and the page shows no element for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider import links
from airflow_provider.xcom import DURATION_KEY, PARAMETERS_KEY
from trainer_core.frontend import job_table
from trainer_core.lifecycle import restart_policy
from trainer_core.lifecycle.debugging import suggest_command
from trainer_core.model.jobs import COMPLETE, CREATED, FAILED, RUNNING, SUSPENDED, Category, Progress

if TYPE_CHECKING:
    from airflow_provider.ui.xcom_queries import SubmittedJob, TaskKey
    from trainer_core.lifecycle.adoption import ExistingJob
    from trainer_core.model.jobs import Event, Outcome, Step, TrainJob

#: Status on the page of a Failed job that a person or a clear has cancelled: nothing is wrong with it.
CANCELLED = "Cancelled"
#: The same for a trial that its search has ended, because it was not among the best.
_STOPPED_EARLY = "Stopped early"
_ENDED_STATUSES = (COMPLETE, FAILED, CANCELLED, _STOPPED_EARLY)
_WORDS = {Category.DELETED.value: CANCELLED, Category.STOPPED_EARLY.value: _STOPPED_EARLY}
_ENDED_TASK_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")
#: A longer string in a manifest is code or encoded data, which the page does not show.
_MAX_MANIFEST_STRING = 200
#: Arguments in a label, and characters of each.
_MAX_IN_LABEL, _MAX_VALUE_IN_LABEL = 3, 20


def build_columns(
    job: SubmittedJob, live: TrainJob | None, details: job_table.JobDetails | None = None
) -> dict[str, Any]:
    """Return the columns of a job that have a value, named as by `trainjob list --columns`."""
    params = _get_dict(job, PARAMETERS_KEY)
    if details:
        # The XCom, if there is one, has values of limited length and without secrets.
        row = job_table.build_row(replace(details, params=params or details.params))
        return {**row, "status": _get_status(details.job)}
    if live:
        metrics = live.progress.metrics if live.progress else {}
        return {**job_table.build_row(job_table.JobDetails(live, params, metrics)), "status": _get_status(live)}
    duration, diagnosis, progress = job.xcoms.get(DURATION_KEY), _get_dict(job, "diagnosis"), _get_last_progress(job)
    metrics = _get_dict(job, "metrics") or (progress or {}).get("metrics", {})
    row = {
        "name": job.ref.name,
        "status": get_last_status(job),
        "created": job.at,
        "duration": timedelta(seconds=duration) if isinstance(duration, int) else None,
        "reason": diagnosis.get("reason"),
        "partition": job.partition,
        **job_table.name_values(job_table.PARAM, params),
        **job_table.name_values(job_table.METRIC, metrics),
        **job_table.name_values(job_table.ARTIFACT, _get_dict(job, "artifacts")),
    }
    return {column: value for column, value in row.items() if value is not None}


def build_labels(jobs: Sequence[SubmittedJob], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what tells jobs apart: their task, and the arguments in which they differ, as ``train [5] lr=0.6``."""
    arguments = dict.fromkeys(column for row in rows for column in row if column.startswith(job_table.PARAM))
    differing = [column for column in arguments if len({str(row.get(column)) for row in rows}) > 1]
    labels = []
    for job, row in zip(jobs, rows, strict=True):
        texts = [_format_argument(row, column) for column in differing[:_MAX_IN_LABEL] if column in row]
        labels.append(" ".join([get_task_name(job), *texts]))
    return labels


def label_tasks(jobs: Sequence[SubmittedJob], rows: Sequence[Mapping[str, Any]]) -> dict[TaskKey, str]:
    """Return the labels of jobs in a list: the arguments are those in which the jobs of a mapped task differ."""
    labels: dict[TaskKey, str] = {}
    mapped: dict[tuple[str, str, str], list[int]] = {}
    for number, job in enumerate(jobs):
        mapped.setdefault((job.task.dag_id, job.task.run_id, job.task.task_id), []).append(number)
    for numbers in mapped.values():
        group = [jobs[number] for number in numbers]
        texts = build_labels(group, [rows[number] for number in numbers])
        labels.update(zip((job.task for job in group), texts, strict=True))
    return labels


def get_task_name(job: SubmittedJob) -> str:
    """Return the id of the task, with its map index."""
    return job.task.task_id if job.task.map_index < 0 else f"{job.task.task_id} [{job.task.map_index}]"


def _format_argument(row: Mapping[str, Any], column: str) -> str:
    return f"{column.removeprefix(job_table.PARAM)}={str(row[column])[:_MAX_VALUE_IN_LABEL]}"


def serialize_comparison(
    jobs: Sequence[SubmittedJob], rows: Sequence[Mapping[str, Any]], mask: Callable[[str, str | None], str]
) -> dict[str, Any]:
    """Return jobs side by side."""
    columns = [
        {
            "column": column,
            "values": [_mask_argument(column, _serialize_value(value), mask) for value in values],
            "differs": any(value != values[0] for value in values),
        }
        for column, values in job_table.compare_rows(rows, everything=True).items()
    ]
    masked = [{name: _mask_argument(name, value, mask) for name, value in row.items()} for row in rows]
    shown = [
        {**asdict(job.task), "name": job.ref.name, "label": label, "status": row.get("status")}
        for job, row, label in zip(jobs, rows, build_labels(jobs, masked), strict=True)
    ]
    return {"jobs": shown, "rows": columns}


def _mask_argument(column: str, value: Any, mask: Callable[[str, str | None], str]) -> Any:
    is_argument = isinstance(value, str) and column.startswith(job_table.PARAM)
    return mask(value, column.removeprefix(job_table.PARAM)) if is_argument else value


def list_column_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns that the list can have in addition to those that it always has."""
    present = {column for row in rows for column in row}
    names = ["duration", "reason"]
    if "partition" in present:
        names.append("partition")
    for prefix in (job_table.PARAM, job_table.METRIC):
        names += sorted(column for column in present if column.startswith(prefix))
    return names


def serialize_row(
    job: SubmittedJob, live: TrainJob | None, label: str, row: Mapping[str, Any], columns: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a job as a row of the list, with the chosen ones of its columns."""
    status = row.get("status")
    progress = _serialize_progress(live.progress) if live else _get_last_progress(job)
    has_ended = status in _ENDED_STATUSES
    return _drop_empty(
        {
            **asdict(job.task),
            "name": job.ref.name,
            "label": label,
            "backend": job.ref.backend,
            "status": status,
            "is_unknown": (live is None and not has_ended) or None,
            "waits_for": live.reason if live and status == CREATED else None,
            "reason": row.get("reason") if status == FAILED else None,
            "task_state": job.task_state,
            "created": _format_time(live.creation_timestamp if live else job.at),
            "progress": None if status == COMPLETE else progress,
            "columns": {column: _serialize_value(row[column]) for column in columns if column in row},
        }
    )


def matches(job: SubmittedJob, text: str, partition: str) -> bool:
    """Return whether the text is part of the name of the job, DAG, run or task, and the job is of the partition."""
    if partition and job.partition != partition:
        return False
    names = (job.ref.name, job.task.dag_id, job.task.run_id, job.task.task_id)
    return any(text.casefold() in name.casefold() for name in names)


def serialize_attempt(existing: ExistingJob, details: job_table.JobDetails) -> dict[str, Any]:
    """Return an attempt as a row of the table of attempts."""
    job = details.job
    return _drop_empty(
        {
            "name": job.name,
            "number": existing.attempt + 1,
            "status": _get_status(job),
            "created": _format_time(job.creation_timestamp),
            "started": _format_time(job.started),
            "finished": _format_time(job.finished),
            "progress": _serialize_progress(details.progress),
            "resumed_from": details.resumed_from,
            "reason": details.outcome.diagnosis.reason if details.outcome and details.outcome.diagnosis else None,
        }
    )


def serialize_job(
    job: SubmittedJob, read: tuple[job_table.JobDetails, Sequence[Event]] | None, unreachable: str | None
) -> dict[str, Any]:
    """Return all data of one job's page, of what was read of the job and its events."""
    details = read[0] if read else None
    fields = _serialize_details(*read) if read else _serialize_xcoms(job)
    return _drop_empty(
        {
            "task": {**asdict(job.task), "state": job.task_state},
            "name": job.ref.name,
            "label": get_task_name(job),
            "is_search": job.search is not None or None,
            "parameters": _get_dict(job, PARAMETERS_KEY),
            "partition": job.partition,
            "backend": job.ref.backend,
            "namespace": job.ref.namespace,
            "status": _get_status(details.job, details.outcome) if details else get_last_status(job),
            "created": _format_time(details.job.creation_timestamp if details else job.at),
            "unreachable": unreachable,
            "deleted": job.deletion,
            "dashboard": links.sanitize_url(job.xcoms.get(links.DashboardLink.xcom_key)),
            "logs": links.sanitize_url(job.xcoms.get(links.LogsLink.xcom_key)),
            "mlflow_run": links.sanitize_url(job.xcoms.get(links.MlflowLink.xcom_key)),
            **fields,
        }
    )


def list_job_actions(status: str) -> list[str]:
    """Return the possible actions on a job that the API server can reach."""
    if status in _ENDED_STATUSES:
        return ["delete"]
    return ["resume" if status == SUSPENDED else "suspend", "delete"]


def list_task_actions(job: SubmittedJob) -> list[str]:
    """Return the possible actions on the task of a job that the API server cannot reach."""
    if job.deletion is not None or job.task_state is None:
        return []
    return ["rerun" if job.task_state in _ENDED_TASK_STATES else "end"]


def mask_manifest(rendered: Mapping[str, Any], mask: Callable[[str, str | None], str]) -> Any:
    """Return a manifest without secret values and without code."""
    return _mask_node(rendered, None, mask)


def mask_strings(data: Any, mask: Callable[[str], str]) -> Any:
    """Return the data with every string masked."""
    if isinstance(data, dict):
        return {key: mask_strings(value, mask) for key, value in data.items()}
    if isinstance(data, list):
        return [mask_strings(value, mask) for value in data]
    return mask(data) if isinstance(data, str) else data


def _serialize_details(details: job_table.JobDetails, events: Sequence[Event]) -> dict[str, Any]:
    observation, live = details.observation, details.job
    outcome, diagnosis = observation.outcome, job_table.get_diagnosis(observation)
    return {
        "runtime": live.runtime.name,
        "num_nodes": live.num_nodes,
        "started": _format_time(live.started),
        "finished": _format_time(live.finished),
        "progress": None if outcome and outcome.succeeded else _serialize_progress(details.progress),
        "resumed_from": outcome.resumed_from if outcome else None,
        "steps": [_serialize_step(step) for step in live.steps],
        "events": [_serialize_event(event) for event in events],
        "metrics": dict(outcome.metrics) if outcome else None,
        "resource_use": _serialize_resource_use(outcome),
        "artifacts": dict(outcome.artifacts) if outcome else None,
        "note": outcome.missing_result if outcome else None,
        "diagnosis": _drop_empty(diagnosis.to_dict()) if diagnosis else None,
        "debug": suggest_command(outcome) if outcome else None,
        "queued": observation.queued,
        "restarts": _serialize_restarts(details),
        "actions": list_job_actions(observation.status),
    }


def _serialize_xcoms(job: SubmittedJob) -> dict[str, Any]:
    xcoms = {key: job.xcoms.get(key) for key in ("metrics", "artifacts", "diagnosis")}
    resumed_from = job.xcoms.get("resumed_from")
    return {
        "progress": _get_last_progress(job),
        "resumed_from": resumed_from,
        **xcoms,
        "actions": list_task_actions(job),
    }


def _get_dict(job: SubmittedJob, key: str) -> dict[str, Any]:
    value = job.xcoms.get(key)
    return value if isinstance(value, dict) else {}


def _serialize_value(value: Any) -> Any:
    """Return the value of a column as JSON; a duration in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value


def _get_status(job: TrainJob, outcome: Outcome | None = None) -> str:
    """Return the status that the page shows; without an outcome, the reason of the job begins with its category."""
    diagnosis = outcome.diagnosis if outcome else None
    category = diagnosis.category if diagnosis else (job.reason or "").partition(":")[0]
    return _rename_cancelled(outcome.status if outcome else job.status, category) or job.status


def _rename_cancelled(status: str | None, category: Any) -> str | None:
    return _WORDS.get(category, status) if status == FAILED else status


def get_last_status(job: SubmittedJob) -> str | None:
    """Return the status that the task pushed; Running if it pushed Created and its trigger pushed progress later."""
    status: str | None = job.xcoms.get("status")
    if status == CREATED and _get_last_progress(job):
        return RUNNING
    return _rename_cancelled(status, _get_dict(job, "diagnosis").get("category"))


def _get_last_progress(job: SubmittedJob) -> dict[str, Any] | None:
    progress = job.xcoms.get("progress")
    has_succeeded = job.xcoms.get("status") == COMPLETE
    return _drop_empty(progress) if isinstance(progress, dict) and not has_succeeded else None


def _serialize_restarts(details: job_table.JobDetails) -> dict[str, Any] | None:
    """Return the restarts before this start or end; None without the option."""
    restarts = (details.outcome or details.observation).restarts
    rules = details.request.policy.restart_policy if details.request else None
    if restarts is None or rules is None:
        return None
    return {"text": restart_policy.describe(rules, restarts), "causes": [asdict(each) for each in restarts.causes]}


def _serialize_resource_use(outcome: Outcome | None) -> dict[str, Any] | None:
    use = outcome.resource_use if outcome else None
    return _drop_empty(asdict(use)) if use else None


def _serialize_step(step: Step) -> dict[str, Any]:
    return _drop_empty(
        {
            "name": step.name,
            "status": step.status,
            "runs_as": step.pod_name,
            "machine": step.node,
            "device": _format_device(step),
            "exit_code": step.exit_code,
            "restarts": step.restarts or None,
            "started": _format_time(step.started),
            "finished": _format_time(step.finished),
        }
    )


def _format_device(step: Step) -> str | None:
    if step.device == "Unknown":
        return None
    return step.device if step.device_count == "Unknown" else f"{step.device_count} {step.device}"


def _serialize_event(event: Event) -> dict[str, Any]:
    return {
        "time": _format_time(event.event_time),
        "type": event.type,
        "reason": event.reason,
        "about": event.involved_object_name,
        "message": event.message,
    }


def _serialize_progress(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    numbers = {"step": progress.step, "total": progress.total, "percentage": progress.percentage}
    checkpoint = {"checkpoint": progress.checkpoint, "resumed_from": progress.resumed_from}
    return _drop_empty({**numbers, "metrics": dict(progress.metrics), **checkpoint, "silent": progress.silent})


def _format_time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _drop_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in (None, "", [], {}, ())}


def _mask_node(node: Any, name: str | None, mask: Callable[[str, str | None], str]) -> Any:
    if isinstance(node, Mapping):
        return {key: _mask_node(value, _get_value_name(node, key, name), mask) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_mask_node(value, name, mask) for value in node]
    return _mask_text(node, name, mask) if isinstance(node, str) else node


def _get_value_name(node: Mapping[str, Any], key: str, outer: str | None) -> str:
    """Return the name that tells whether a value is secret: the name of the variable that the value belongs to."""
    if key in ("data", "stringData") and node.get("kind") == "Secret":
        return "secret"
    if outer == "secret":
        return outer
    return str(node.get("name", outer or key)) if key == "value" else str(key)


def _mask_text(text: str, name: str | None, mask: Callable[[str, str | None], str]) -> str:
    if len(text) > _MAX_MANIFEST_STRING or text.startswith("{"):
        return f"({len(text):,} characters, not shown)"
    return mask(text, name)
