"""Writes the outputs of a step from the outcome of its TrainJob: parameters, metrics, the model, a report."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from kfp_components.step import classification, report
from kfp_components.step.executor_input import Artifact, Task, get_local_path
from kfp_components.step.metric_history import MetricHistory
from trainer_core.base import naming
from trainer_core.base.errors import TrainerError
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import Outcome, TrainJob, TrainJobRef

#: The artifact of an outcome that becomes the model of the pipeline.
_MODEL = "model"
#: Its metadata that tell whether its files are still those of the TrainJob.
_RECORDED = ("stamp", "finished_at")


def write_ref(task: Task, ref: TrainJobRef, output: str = "job") -> None:
    """Write the ref of a job to an output, and print how to read the job's log."""
    task.write(output, ref.to_dict())
    print(f"TrainJob {ref.name} on {ref.backend} (logs: trainjob logs {ref.name})")


def write_submission(task: Task, client: TrainerClient, ref: TrainJobRef) -> None:
    """Write the status and the report of a job that the task does not wait for."""
    job = client.get_job(ref)
    task.write("status", job.status)
    task.get_artifact("report").metadata.update(job=ref.name, backend=ref.backend)
    _write_report(task, report.render_html(ref, job.status, job))
    client.flush_tracking()  # The process of a step ends without exit handlers.


def write_outcome(task: Task, client: TrainerClient, outcome: Outcome, history: MetricHistory) -> None:
    """Write the outputs of a task whose job has ended, well or not."""
    ref = outcome.job
    job = _get_job(client, ref)
    task.write("status", outcome.status)
    for name, step in (("checkpoint", outcome.checkpoint), ("resumed_from", outcome.resumed_from)):
        task.write(name, step or 0)
    task.write("reused", outcome.reused)
    run = client.get_run(ref) if job and client.runs.is_tracked(ref) else None
    facts = {
        "job": ref.name,
        "backend": ref.backend,
        "runtime": job.runtime.name if job else None,
        "run_url": run.url if run else None,
        "checkpoint": outcome.checkpoint,
        "resumed_from": outcome.resumed_from,
    }
    for name in ("model", "report"):
        task.get_artifact(name).metadata.update({key: value for key, value in facts.items() if value is not None})
    resumptions = _describe_resumptions(client, ref, history)
    _write_report(task, report.render_html(ref, outcome.status, job, outcome, history.get_curves(), resumptions))
    task.get_artifact("classification").metadata.update(classification.build_metadata(outcome.result))
    write_result(task, outcome)


def write_result(task: Task, outcome: Outcome) -> None:
    """Write the outputs that every task with an outcome has: result, metrics, model."""
    task.write("result", _wrap_result(outcome.result))
    if outcome.missing_result:
        print(f"TrainJob {outcome.job.name}: {outcome.missing_result}")
    # The metadata of a Metrics artifact are the metrics: nothing else belongs there.
    task.get_artifact("metrics").metadata.update(outcome.metrics)
    if outcome.succeeded and _MODEL in outcome.artifacts:
        model = task.get_artifact("model")
        model.metadata.setdefault("job", outcome.job.name)
        model.metadata.setdefault("backend", outcome.job.backend)
        model.metadata.setdefault("uid", outcome.job.uid)
        # One entry a metric: the UI shows and searches scalars.
        recorded = zip(_RECORDED, ((outcome.stamps or {}).get(_MODEL), outcome.finished_at), strict=True)
        model.metadata.update({name: text for name, text in recorded if text})
        model.metadata = {**outcome.metrics, **model.metadata, "uri": outcome.artifacts[_MODEL]}
        place_artifact(model, outcome.artifacts[_MODEL])


def place_artifact(artifact: Artifact, uri: str) -> None:
    """Copy the content of a URI into an artifact where this step can read it; record the URI in its metadata.

    The artifact keeps the URI that KFP gave it: the launcher fails a task whose output is outside the run's own
    prefix, and fails the consumer of a URI that is none of gs, s3, minio and oci.
    """
    artifact.metadata["uri"] = uri
    source = get_local_path(uri) if uri.startswith("file://") else None
    if source is not None and source.exists():
        # Only for a model that is a file here.
        from trainer_core.node import artifact_stamps
        from trainer_core.tracking.model_registry import copy_path, remove_path

        copy_path(source, artifact.require_path())
        recorded = (artifact.metadata.get(name) for name in _RECORDED)
        problem = artifact_stamps.find_change(uri, *recorded)
        if problem is None:
            return
        remove_path(artifact.require_path())
        print(f"artifact {artifact.name!r}: {problem}")
    print(f"artifact {artifact.name!r}: its content stays at {uri}, which is in its metadata as 'uri'")


def _describe_resumptions(client: TrainerClient, ref: TrainJobRef, history: MetricHistory) -> list[report.Resumption]:
    """Return when the training resumed, and from which step of which attempt."""
    if not history.resumptions:
        return []
    try:
        owner = client.get_job_request(ref).context.owner
    except TrainerError:
        owner = None
    found = []
    for step, job, milliseconds in history.resumptions:
        attempt = naming.find_attempt(owner.slug, owner.key, job) if owner else None
        source = f"TrainJob {job}" if attempt is None else f"attempt {attempt + 1}"
        at = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
        found.append(report.Resumption(f"resumed from step {step} of {source}", at))
    return found


def _get_job(client: TrainerClient, ref: TrainJobRef) -> TrainJob | None:
    try:
        return client.get_job(ref)
    except TrainerError:
        # The report shows what is known without it: the job may have been deleted meanwhile.
        return None


def _write_report(task: Task, text: str) -> None:
    task.get_artifact("report").require_path().write_text(text, encoding="utf-8")


def _wrap_result(result: Any) -> dict[str, Any]:
    """KFP has no parameter of any type: a result that is no dict goes under the name ``value``."""
    if result is None:
        return {}
    return result if isinstance(result, dict) else {"value": result}
