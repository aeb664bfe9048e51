"""Hands over what a TrainJob left: parameters, metrics, the model, a report."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

from kfp_components import _classification, _report
from kfp_components._executor import Artifact, Task, local_path
from kfp_components._history import History
from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError
from trainer_core.jobs import TrainJob
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["ended", "left", "place", "replace", "submitted"]

#: The artifact of an outcome that becomes the model of the pipeline.
_MODEL = "model"


def submitted(task: Task, client: TrainerClient, ref: TrainJobRef) -> None:
    """Write the outputs of a task that does not wait: a report that says so."""
    job = client.get_job(ref.name)
    task.write("status", job.status)
    task.write("result", {})
    task.write("metric", 0.0)
    for name in ("model", "report"):
        task.artifact(name).metadata.update(job=ref.name, backend=ref.backend)
    _write_report(task, _report.html(ref, job.status, job))


def ended(task: Task, client: TrainerClient, outcome: Outcome, history: History) -> None:
    """Write the outputs of a task whose job has ended, well or not."""
    ref = outcome.job
    job = _job(client, ref)
    task.write("status", outcome.status)
    facts = {"job": ref.name, "backend": ref.backend, "runtime": job.runtime.name if job else None}
    for name in ("model", "report"):
        task.artifact(name).metadata.update({key: value for key, value in facts.items() if value})
    _write_report(task, _report.html(ref, outcome.status, job, outcome, history))
    task.artifact("classification").metadata.update(_classification.metadata(outcome.result))
    left(task, outcome)


def left(task: Task, outcome: Outcome) -> None:
    """Write the outputs that every task with an outcome has: result, metrics, model."""
    task.write("result", _as_dict(outcome.result))
    # The metadata of a Metrics artifact are the metrics: nothing else belongs there.
    task.artifact("metrics").metadata.update(outcome.metrics)
    if outcome.succeeded and _MODEL in outcome.artifacts:
        model = task.artifact("model")
        model.metadata.setdefault("job", outcome.job.name)
        model.metadata.setdefault("backend", outcome.job.backend)
        # One entry a metric: the UI shows and searches scalars.
        model.metadata = {**outcome.metrics, **model.metadata, "uri": outcome.artifacts[_MODEL]}
        place(model, outcome.artifacts[_MODEL])


def place(artifact: Artifact, uri: str) -> None:
    """Let an artifact hold what lies at a URI: its content where this machine has it, else the URI."""
    source = local_path(uri) if uri.startswith("file://") else None
    if source is not None and not source.exists():
        # In a pod of the job, on no volume that this step has too.
        print(f"{uri} is not on this machine: the artifact {artifact.name!r} stays empty", flush=True)
        return
    if source is None:
        artifact.uri, artifact.custom_path = uri, None
        return
    replace(source, artifact.require_path())


def replace(source: Path, target: Path) -> None:
    """Copy a file or folder; the target is whole or not there, and what it held before is gone.

    Raises:
        FileNotFoundError: There is no such source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        if source.is_dir():
            # Contents only: what lies in an initializer's cache is read-only.
            shutil.copytree(source, temporary, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, temporary)
        _remove(target)
        temporary.replace(target)
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _job(client: TrainerClient, ref: TrainJobRef) -> TrainJob | None:
    try:
        return client.get_job(ref.name)
    except TrainerError:
        # The report shows what is known without it: the job may have been deleted meanwhile.
        return None


def _write_report(task: Task, text: str) -> None:
    task.artifact("report").require_path().write_text(text, encoding="utf-8")


def _as_dict(result: Any) -> dict[str, Any]:
    """KFP has no parameter of any type: a result that is no dict goes under the name ``value``."""
    if result is None:
        return {}
    return result if isinstance(result, dict) else {"value": result}
