"""XComs and final log lines of a TrainJob's task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider.person_actions import ACTION_KEY, describe_deletion
from trainer_core.model.jobs import COMPLETE, Outcome
from trainer_core.model.readable_log import format_log_line
from trainer_core.model.request import TrainJobRequest

if TYPE_CHECKING:
    from trainer_core.search.results import SearchOutcome, Trial

#: XComs that the TrainJobs page shows as columns: the arguments of the training function as text, nested ones with
#: dots, and the seconds between the start of the first step and the end of the job.
PARAMETERS_KEY, DURATION_KEY = "parameters", "duration"
#: XComs of a search: how it ended, in a line, and its best trials.
SUMMARY_KEY, TRIALS_KEY = "summary", "trials"
#: Arguments, and characters of each, that are pushed: XComs are rows of Airflow's database.
_MAX_PARAMETERS, _MAX_PARAMETER = 100, 200
#: Trials of a search that are pushed.
_MAX_TRIALS = 100
#: XComs of a task that entries of its result do not overwrite, besides those whose keys begin with ``trainjob_``.
_RESERVED = {"ref", "status", "metrics", "artifacts", "diagnosis", "progress", "checkpoint", "resumed_from"}
_RESERVED |= {PARAMETERS_KEY, DURATION_KEY, SUMMARY_KEY, TRIALS_KEY, "resource_use", "search", "best_ref", "best_value"}
_RESERVED |= {"mlflow_run_id"}


def pull(ti: Any, key: str) -> Any:
    """Return an XCom of the task instance itself; None if there is none."""
    return ti.xcom_pull(task_ids=ti.task_id, key=key, map_indexes=ti.map_index)


def push_parameters(ti: Any, request: TrainJobRequest) -> None:
    """Push the arguments of the training function; values of arguments that are named like secrets are masked."""
    parameters = islice(request.get_parameters().items(), _MAX_PARAMETERS)
    values = {name: _mask(value, name)[:_MAX_PARAMETER] for name, value in parameters}
    if values:
        ti.xcom_push(key=PARAMETERS_KEY, value=values)


def push_outcome(ti: Any, outcome: Outcome) -> None:
    """Push status, metrics, artifacts, duration, checkpoints, use of resources and, of a failed job, the diagnosis."""
    data = outcome.to_dict()
    for key in ("status", "metrics", "artifacts"):
        ti.xcom_push(key=key, value=data[key])
    if outcome.duration is not None:
        ti.xcom_push(key=DURATION_KEY, value=int(outcome.duration.total_seconds()))
    for key in ("checkpoint", "resumed_from"):
        if data[key] is not None:
            ti.xcom_push(key=key, value=data[key])
    if outcome.resource_use is not None:
        ti.xcom_push(key="resource_use", value=data["resource_use"])
    if outcome.diagnosis is not None:
        # Log lines and traceback belong in the task's log, not in the database.
        hidden = ("log_tail", "traceback")
        diagnosis = {key: value for key, value in data["diagnosis"].items() if key not in hidden and value is not None}
        ti.xcom_push(key="diagnosis", value={**diagnosis, "reason": _mask(diagnosis["reason"])})


def keep_reserved(task: Any, ti: Any, result: Any) -> Any:
    """Return the result; of one that Airflow would push by entries, push those that do not overwrite other XComs."""
    if not (task.multiple_outputs and task.do_xcom_push and isinstance(result, Mapping)):
        return result
    entries = {str(key): value for key, value in result.items()}
    reserved = sorted(key for key in entries if key in _RESERVED or key.startswith("trainjob_"))
    if reserved:
        task.multiple_outputs = False
        for key in entries.keys() - reserved:
            ti.xcom_push(key=key, value=entries[key])
        task.log.info(
            "XComs of the TrainJob have the keys %s; these entries are in return_value only", ", ".join(reserved)
        )
    return result


def push_search_outcome(ti: Any, outcome: SearchOutcome, *, maximize: bool) -> dict[str, Any]:
    """Push how a search ended, with its best trials; return what the task returns: the best trial."""
    data = outcome.to_dict()
    ti.xcom_push(key="status", value=outcome.status)
    ti.xcom_push(key=SUMMARY_KEY, value=_mask(outcome.message))
    ti.xcom_push(key=TRIALS_KEY, value=_list_best_trials(outcome, maximize))
    use = {"gpu_hours": outcome.gpu_hours, "stopped_gpu_hours": outcome.stopped_gpu_hours}
    ti.xcom_push(key="resource_use", value=use)
    if not outcome.succeeded:
        ti.xcom_push(key="diagnosis", value={"category": "Search", "reason": _mask(outcome.message)})
    best = data["best"]
    if best is None:
        return {}
    for key, name in (
        ("parameters", "parameters"),
        ("best_value", "value"),
        ("best_ref", "ref"),
        ("metrics", "metrics"),
    ):
        ti.xcom_push(key=key, value=best[name])
    return {name: best[name] for name in ("parameters", "value", "trial", "job", "result")}


def report_outcome(ti: Any, log: Any, outcome: Outcome, log_is_written: bool) -> None:
    """Push how the job ended, and log it: also who deleted it on the TrainJobs page."""
    push_outcome(ti, outcome)
    if not outcome.succeeded and (deletion := describe_deletion(outcome, pull(ti, ACTION_KEY))):
        log.info("%s", deletion)
    log_outcome(log, outcome, log_is_written)


def log_outcome(log: Any, outcome: Outcome, log_is_written: bool) -> None:
    """Log how the job ended: its status, or the traceback or last log lines of a failed job."""
    diagnosis = outcome.diagnosis
    if diagnosis is None:
        log.info("TrainJob %s is %s", outcome.job.name, outcome.status)
        if outcome.missing_result:
            log.warning("TrainJob %s: %s", outcome.job.name, outcome.missing_result)
        return
    if log_is_written:
        return
    if diagnosis.traceback:
        log.error("The training function failed:\n%s", diagnosis.traceback)
    elif diagnosis.log_tail:
        lines = filter(None, map(format_log_line, diagnosis.log_tail))
        log.error("The last lines of %s:\n%s", diagnosis.step or "its log", "\n".join(lines))


def _list_best_trials(outcome: SearchOutcome, maximize: bool) -> list[dict[str, Any]]:
    """Return the best trials, the best first: complete ones, then other ones with a value, then the rest."""

    def rank(trial: Trial) -> tuple[bool, bool, float, int]:
        value = 0.0 if trial.value is None else -trial.value if maximize else trial.value
        return trial.status != COMPLETE, trial.value is None, value, trial.number

    return [
        {
            "trial": trial.number,
            "status": trial.status,
            "value": trial.value,
            "parameters": trial.values,
            "job": trial.name,
            **({"reason": _mask(trial.reason)} if trial.reason else {}),
        }
        for trial in sorted(outcome.trials, key=rank)[:_MAX_TRIALS]
    ]


def _mask(text: str, name: str | None = None) -> str:
    """Mask secrets: an argument, or the message of an exception in the training function, may contain one."""
    from airflow.sdk._shared.secrets_masker import redact  # only workers need it, and they have imported it already

    return str(redact(text, name))
