"""What the page shows, as plain JSON data. Pure.

What has no value is left out, and the page shows no element for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider import links
from trainer_core.observation import COMPLETE, CREATED, FAILED, RUNNING, SUSPENDED, Progress

if TYPE_CHECKING:
    from airflow_provider.ui.live import Log, Look
    from airflow_provider.ui.store import Pushed
    from trainer_core.jobs import Event, Step, TrainJob
    from trainer_core.outcome import Diagnosis, Outcome

__all__ = ["actions", "job", "log", "manifest", "masked", "matches", "row", "task_actions"]

_ENDED = (COMPLETE, FAILED)
_TASK_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
#: A longer text in a manifest is code, or data for programs.
_MANIFEST_TEXT = 200


def row(pushed: Pushed, known: TrainJob | None) -> dict[str, Any]:
    """Return the line of a job in the list."""
    return _known(
        {
            **asdict(pushed.task),
            "name": pushed.ref.name,
            "backend": pushed.ref.backend,
            "status": known.status if known else _last_status(pushed),
            "task_state": pushed.task_state,
            "created": _time(known.creation_timestamp if known else pushed.at),
            "progress": _progress(known.progress) if known else _last_progress(pushed),
        }
    )


def matches(pushed: Pushed, text: str) -> bool:
    """Say whether a job is one that somebody looks for by a part of some name."""
    names = (pushed.ref.name, pushed.task.dag_id, pushed.task.run_id, pushed.task.task_id)
    return any(text.casefold() in name.casefold() for name in names)


def job(pushed: Pushed, look: Look | None, unreachable: str | None) -> dict[str, Any]:
    """Return all that is known of one job.

    Args:
        pushed: What its task wrote.
        look: What its backend says; None where it cannot be asked.
        unreachable: Why it cannot be asked.
    """
    said = _of_backend(look) if look else _of_task(pushed)
    return _known(
        {
            "task": {**asdict(pushed.task), "state": pushed.task_state},
            "name": pushed.ref.name,
            "backend": pushed.ref.backend,
            "namespace": pushed.ref.namespace,
            "status": look.observation.status if look else _last_status(pushed),
            "created": _time(look.job.creation_timestamp if look else pushed.at),
            "unreachable": unreachable,
            "deleted": pushed.deletion,
            "dashboard": links.safe(pushed.left.get(links.DashboardLink.xcom_key)),
            "logs": links.safe(pushed.left.get(links.LogsLink.xcom_key)),
            **said,
        }
    )


def actions(status: str) -> list[str]:
    """Return what can be asked of a job that can be reached."""
    if status in _ENDED:
        return ["delete"]
    return ["resume" if status == SUSPENDED else "suspend", "delete"]


def task_actions(pushed: Pushed) -> list[str]:
    """Return what can be asked of the task of a job that cannot be reached, which then sees to its job."""
    if pushed.deletion is not None or pushed.task_state is None:
        return []
    return ["rerun" if pushed.task_state in _TASK_ENDED else "end"]


def log(part: Log) -> dict[str, Any]:
    """Return a part of a log."""
    return asdict(part)


def manifest(rendered: Mapping[str, Any], mask: Callable[[str, str | None], str]) -> Any:
    """Return what a backend was given, as people may see it: no value of a secret, no code as text.

    Args:
        rendered: The manifest.
        mask: Given a text and the name of what it is the value of, returns what may be shown of it.
    """
    return _shown(rendered, None, mask)


def masked(data: Any, mask: Callable[[str], str]) -> Any:
    """Return the data with every text as it may be shown."""
    if isinstance(data, dict):
        return {key: masked(value, mask) for key, value in data.items()}
    if isinstance(data, list):
        return [masked(value, mask) for value in data]
    return mask(data) if isinstance(data, str) else data


def _of_backend(look: Look) -> dict[str, Any]:
    seen, known = look.observation, look.job
    outcome, diagnosis = seen.outcome, _diagnosis(look)
    return {
        "runtime": known.runtime.name,
        "num_nodes": known.num_nodes,
        "started": _time(known.started),
        "finished": _time(known.finished),
        "progress": _progress(seen.progress) if seen.outcome is None or seen.outcome.succeeded else None,
        "steps": [_step(step) for step in known.steps],
        "events": [_event(event) for event in look.events],
        "metrics": dict(outcome.metrics) if outcome else None,
        "artifacts": dict(outcome.artifacts) if outcome else None,
        "note": _note(outcome),
        "diagnosis": _known(diagnosis.model_dump(mode="json")) if diagnosis else None,
        "actions": actions(seen.status),
    }


def _of_task(pushed: Pushed) -> dict[str, Any]:
    told = {key: pushed.left.get(key) for key in ("metrics", "artifacts", "diagnosis")}
    return {"progress": _last_progress(pushed), **told, "actions": task_actions(pushed)}


def _last_status(pushed: Pushed) -> str | None:
    """What the task said when it had submitted or ended; in between, a job of which its trigger tells progress runs."""
    said: str | None = pushed.left.get("status")
    return RUNNING if said == CREATED and _last_progress(pushed) else said


def _last_progress(pushed: Pushed) -> dict[str, Any] | None:
    told = pushed.left.get("progress")
    ended = pushed.left.get("status") in _ENDED
    return _known(told) if isinstance(told, dict) and not ended else None


def _diagnosis(look: Look) -> Diagnosis | None:
    seen = look.observation
    if seen.outcome is not None:
        return seen.outcome.diagnosis
    return seen.trouble.diagnosis if seen.trouble else None


def _note(outcome: Outcome | None) -> str | None:
    if outcome is None:
        return None
    return "The result is larger than what travels, and left out." if outcome.result_truncated else outcome.result_note


def _step(step: Step) -> dict[str, Any]:
    return _known(
        {
            "name": step.name,
            "status": step.status,
            "runs_as": step.pod_name,
            "machine": step.node,
            "device": _device(step),
            "exit_code": step.exit_code,
            "restarts": step.restarts or None,
            "started": _time(step.started),
            "finished": _time(step.finished),
        }
    )


def _device(step: Step) -> str | None:
    if step.device == "Unknown":
        return None
    return step.device if step.device_count == "Unknown" else f"{step.device_count} {step.device}"


def _event(event: Event) -> dict[str, Any]:
    return {
        "time": _time(event.event_time),
        "type": event.type,
        "reason": event.reason,
        "about": event.involved_object_name,
        "message": event.message,
    }


def _progress(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    numbers = {"step": progress.step, "total": progress.total, "percentage": progress.percentage}
    return _known({**numbers, "metrics": dict(progress.metrics)})


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    """Without what there is nothing to show of."""
    return {key: value for key, value in data.items() if value not in (None, "", [], {}, ())}


def _shown(node: Any, name: str | None, mask: Callable[[str, str | None], str]) -> Any:
    if isinstance(node, Mapping):
        return {key: _shown(value, _name_of(node, key, name), mask) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_shown(value, name, mask) for value in node]
    return _text(node, name, mask) if isinstance(node, str) else node


def _name_of(node: Mapping[str, Any], key: str, outer: str | None) -> str:
    """The name that says what the value is: that of a variable of the environment stands beside or above it."""
    if key in ("data", "stringData") and node.get("kind") == "Secret":
        return "secret"
    if outer == "secret":
        return outer
    return str(node.get("name", outer or key)) if key == "value" else str(key)


def _text(text: str, name: str | None, mask: Callable[[str, str | None], str]) -> str:
    if len(text) > _MANIFEST_TEXT or text.startswith("{"):
        return f"({len(text):,} characters, not shown)"
    return mask(text, name)
