"""Binds the run of a submitted TrainJob to its job, and ends the runs of earlier attempts.

Only the run's id must be known before the job exists. Everything else is sent after the submit has returned: by the
thread of the process that submitted, else by the next process that waits for the job or submits it again. The tag
``trainjob.uid`` is sent last; a run that has it is complete.

A run without this tag whose TrainJob exists with another run was created by a submitter that was killed, or that lost a
race. It is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from trainer_core.backends.base import Backend
from trainer_core.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.jobs import Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowApi, MlflowRun
from trainer_core.tracking.run_writer import RunWriter

__all__ = ["bind_run", "delete_orphans", "find_abandoned_outcome", "find_outcome"]

_log = logging.getLogger(__name__)


def bind_run(api: MlflowApi, backend: Backend, ref: TrainJobRef, request: TrainJobRequest) -> None:
    """Complete the run of a TrainJob, and settle the other runs of the same work. Repeating it changes nothing.

    Args:
        api: API of the server.
        backend: Backend of the job.
        ref: The job.
        request: Its stored request.

    Raises:
        TrackingError: The server cannot be reached, or refuses; or a person has deleted the run.
        TrainerError: The backend cannot be reached.
    """
    tracking = request.tracking
    if tracking is None or tracking.run_id is None or tracking.experiment_id is None:
        return
    runs = api.search_runs([tracking.experiment_id], f"tags.`{tags.KEY}` = '{tags.build_key(request)}'")
    own = next((run for run in runs if run.id == tracking.run_id), None) or api.get_run(tracking.run_id)
    if own.info.lifecycle_stage == "deleted":
        raise TrackingError(f"run {own.id} was deleted; it is left alone")
    for run in runs:
        if run.id != own.id and run.is_active and run.tags.get(tags.BACKEND) == backend.name:
            _end_abandoned_run(api, backend, run, runs)
    _bind(api, backend, ref, request, own, runs)


def _bind(
    api: MlflowApi,
    backend: Backend,
    ref: TrainJobRef,
    request: TrainJobRequest,
    own: MlflowRun,
    runs: Sequence[MlflowRun],
) -> None:
    delete_orphans(api, backend, ref, own.id, runs)
    if tags.UID in own.tags:
        return
    bound = tags.build_job_tags(ref, backend.get_place(ref))
    first = next((run.id for run in runs if run.tags.get(tags.ATTEMPT) == "0"), own.id)
    if tags.PARENT not in own.tags and own.tags.get(tags.ATTEMPT) != "0" and first != own.id:
        bound[tags.PARENT] = first
    api.log_batch(own.id, params=tags.build_params(request), tags=bound)


def delete_orphans(api: MlflowApi, backend: Backend, ref: TrainJobRef, run_id: str, runs: Sequence[MlflowRun]) -> None:
    """Delete the runs that other submits created for a TrainJob.

    Args:
        api: API of the server.
        backend: Backend of the job.
        ref: The job.
        run_id: Its run, which is kept.
        runs: Runs of the same work; those of other jobs are kept.
    """
    place = backend.get_place(None)
    orphans = [
        run.id
        for run in runs
        if run.id != run_id
        and run.is_active
        and tags.UID not in run.tags
        and (run.tags.get(tags.NAME), run.tags.get(tags.BACKEND)) == (ref.name, backend.name)
        # Another state folder, engine, namespace or cluster may have a TrainJob of the same name.
        and place is not None
        and run.tags.get(tags.PLACE) == place
    ]
    # Read after the runs: a submit after the job was deleted may be about to use one.
    if orphans and _find_ref(backend, ref.name) == ref:
        for each in orphans:
            _log.debug("Deleting run %s, for TrainJob %s has another", each, ref.name)
            api.delete_run(each)


def find_outcome(
    api: MlflowApi, backend: Backend, run: MlflowRun, runs: Sequence[MlflowRun] | None = None
) -> Outcome | None:
    """Return the outcome of a run's job that has ended or is gone; bind the run first if its submitter was killed.

    Args:
        api: API of the server.
        backend: Backend for which the run was created.
        run: The run.
        runs: All runs of the same work. None (the default) to search for them, and to settle them too.

    Returns:
        None if the job is active or cannot be seen from here, or if no job has the run: then it belongs to a submit
        that runs now, or to a killed one, which the next submit repeats.

    Raises:
        TrackingError: The server cannot be reached, or refuses; or a person has deleted the run.
        TrainerError: The backend cannot be reached.
    """
    run_tags = run.tags
    if tags.UID not in run_tags:
        job = _find_unbound_job(backend, run)
        if job is None:
            return None
        if runs is None:
            bind_run(api, backend, *job)
        else:
            _bind(api, backend, *job, run, runs)
        run_tags = {**run_tags, **tags.build_job_tags(job[0], backend.get_place(job[0]))}
    return find_abandoned_outcome(backend, run_tags)


def _find_unbound_job(backend: Backend, run: MlflowRun) -> tuple[TrainJobRef, TrainJobRequest] | None:
    """Return the TrainJob of a run, and its request; None if no job has the run, or it cannot be seen from here."""
    name = run.tags.get(tags.NAME)
    if not name:
        return None
    try:
        ref = _find_ref(backend, name)
        request = backend.get_request(ref) if ref else None
    except TrainerError:
        return None
    is_own = request is not None and request.tracking is not None and request.tracking.run_id == run.id
    return (ref, request) if ref and request and is_own else None


def find_abandoned_outcome(backend: Backend, run_tags: Mapping[str, str]) -> Outcome | None:
    """Return the outcome of a run's job that has ended or is gone; None if it is active, or cannot be seen from here.

    Args:
        backend: Backend of the job.
        run_tags: Tags of the run.
    """
    name, place = run_tags[tags.NAME], run_tags.get(tags.PLACE)
    ref = TrainJobRef(backend.name, run_tags.get(tags.NAMESPACE, ""), name, run_tags[tags.UID], place)
    try:
        return backend.observe(ref).outcome
    except JobNotFoundError:
        # Another cluster or machine, or a release that recorded no place, may have the job.
        if place is None or place != backend.get_place(ref):
            return None
        diagnosis = Diagnosis(category=Category.DELETED, reason=f"TrainJob {name!r} was deleted")
        return Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis)
    except TrainerError:
        return None


def _end_abandoned_run(api: MlflowApi, backend: Backend, run: MlflowRun, runs: Sequence[MlflowRun]) -> None:
    """End a run whose job has ended, or is gone, without reading its log."""
    outcome = find_outcome(api, backend, run, runs)
    if outcome is not None:
        writer = RunWriter(api, run.id)
        writer.load()
        writer.end(outcome, 0)


def _find_ref(backend: Backend, name: str) -> TrainJobRef | None:
    try:
        return backend.get_ref(name)
    except JobNotFoundError:
        return None
