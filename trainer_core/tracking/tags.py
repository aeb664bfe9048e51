"""Tags and parameters of the run of a TrainJob. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.base import naming
from trainer_core.base.secrets import is_secret_name
from trainer_core.model.jobs import Category, Outcome, TrainJobRef
from trainer_core.model.request import TrainJobRequest
from trainer_core.tracking.mlflow_api import fit_names

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

RUN_NAME = "mlflow.runName"
#: Description of a run in MLflow's UI.
NOTE = "mlflow.note.content"
PARENT = "mlflow.parentRunId"
#: What attempts of the same work have in common: hash of the owner, or of the job's name.
KEY = "trainjob.key"
NAME = "trainjob.name"
NAMESPACE = "trainjob.namespace"
BACKEND = "trainjob.backend"
#: Result of `Backend.get_place`.
PLACE = "trainjob.place"
#: Set once the job exists and the run has everything else that a submit gives it.
UID = "trainjob.uid"
ATTEMPT = "trainjob.attempt"
GENERATION = "trainjob.generation"
PARTITION = "trainjob.partition"
#: Prefix of the tags that have the metric of the run for each name in progress lines, as JSON. A tag is never changed,
#: so that processes that send at the same time lose none. Other metrics were logged by the training itself.
CURVES = "trainjob.curves"
#: Position in the job's log up to which its points were sent, as JSON.
CURSOR = "trainjob.cursor"
#: Set with the final status, until `REPORTED` is set.
PENDING = "trainjob.pending"
#: The job's uid once everything that it left has been sent, whatever the status of the run; empty before.
REPORTED = "trainjob.reported"
#: Prefix of the tags that have the key in MLflow of names that it does not take, as JSON.
RENAMED = "trainjob.renamed"
#: The search that the run is of, the search of a trial, and the trial's number.
SEARCH_KEY, SEARCH, TRIAL = "trainjob.search.key", "trainjob.search", "trainjob.trial"
#: The limits of a search as JSON, and its best trial so far.
SEARCH_LIMITS, BEST_TRIAL, BEST_JOB = "trainjob.search.limits", "trainjob.best.trial", "trainjob.best.job"
_MAX_NAME = 250


def build_key(request: TrainJobRequest) -> str:
    """Return what the attempts of the same work have in common: 40 hex digits."""
    return naming.hash_owner_key(request.context.owner.key if request.context.owner else f"name/{request.context.name}")


def build_search_key(key: str, generation: str | None) -> str:
    """Return what the trials of a search have in common, and no other search."""
    owner = naming.hash_owner_key(key)
    return owner if generation is None else f"{owner}/{generation}"


def build_identity(request: TrainJobRequest, attempt: int | None) -> dict[str, str]:
    """Return the tags that tell one attempt of one generation from all others."""
    generation = request.context.owner.generation if request.context.owner else None
    identity = {KEY: build_key(request), "trainjob.fingerprint": request.fingerprint()}
    if attempt is not None:
        identity[ATTEMPT] = str(attempt)
    if generation is not None:
        identity[GENERATION] = generation
    return identity


def build_run_tags(request: TrainJobRequest, backend: Backend, identity: Mapping[str, str]) -> dict[str, str]:
    tracking = request.policy.tracking
    name = request.require_name()
    code = request.work.trainer.code if request.work.trainer else None
    image = request.work.trainer.image if request.work.trainer else None
    own = {
        RUN_NAME: (tracking.run_name if tracking else None) or name,
        "mlflow.source.type": "JOB",
        "mlflow.source.name": code.entry if code else image or name,
        "mlflow.user": "trainjob",
        PARENT: tracking.parent_run_id if tracking else None,
        NAME: name,
        BACKEND: backend.name,
        PLACE: backend.get_place(None),
        PARTITION: request.context.partition,
        "trainjob.owner": request.context.owner.key if request.context.owner else None,
        **identity,
    }
    if request.context.search is not None and request.context.owner is not None:
        own[SEARCH] = build_search_key(request.context.search.key, request.context.owner.generation)
        own[TRIAL] = str(request.context.search.trial)
    given = tracking.tags if tracking else {}
    return {**given, **{key: value for key, value in own.items() if value}, REPORTED: ""}


def build_job_tags(ref: TrainJobRef, place: str | None) -> dict[str, str]:
    tags = {UID: ref.uid, NAME: ref.name, NAMESPACE: ref.namespace, BACKEND: ref.backend}
    return {**tags, PLACE: place} if place else tags


def build_params(request: TrainJobRequest) -> dict[str, str]:
    """Return the parameters: the arguments of the training function, nested ones with dots, and what it runs on."""
    tracking, trainer = request.policy.tracking, request.work.trainer
    if trainer is None or (tracking is not None and not tracking.params):
        return {}
    fixed = {
        "trainjob.num_nodes": trainer.num_nodes,
        "trainjob.num_proc_per_node": trainer.num_proc_per_node,
        "trainjob.image": trainer.image,
        "trainjob.runtime": request.work.runtime.name if request.work.runtime else None,
    }
    arguments = {
        name: "***" if value and is_secret_name(name) else value for name, value in request.get_parameters().items()
    }
    return {**arguments, **{key: str(value) for key, value in fixed.items() if value is not None}}


def build_renamed(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the tag that has the keys in MLflow of the names that it does not take; empty if it takes all."""
    renamed = {name[:_MAX_NAME]: key for name, key in fit_names(values).items() if name != key}
    text = json.dumps(renamed, ensure_ascii=False)
    return {f"{RENAMED}.{kind}": text} if renamed else {}


def build_outcome_tags(outcome: Outcome) -> dict[str, str]:
    """Return the tags of an ended job: its status, its diagnosis in one line, and where its artifacts are."""
    tags: dict[str, str] = {"trainjob.status": outcome.status}
    if outcome.diagnosis is not None:
        tags["trainjob.diagnosis"] = f"{outcome.diagnosis.category}: {outcome.diagnosis.reason}"
    return {**tags, **{f"trainjob.artifact.{name}": uri for name, uri in outcome.artifacts.items()}}


def get_run_status(outcome: Outcome) -> str:
    """Return MLflow's status for an outcome.

    KILLED is a job that was cancelled, deleted or reached its deadline. A trial that was stopped early is FINISHED.
    """
    category = outcome.diagnosis.category if outcome.diagnosis else None
    if outcome.succeeded or category is Category.STOPPED_EARLY:
        return "FINISHED"
    return "KILLED" if category in (Category.DELETED, Category.DEADLINE) else "FAILED"
