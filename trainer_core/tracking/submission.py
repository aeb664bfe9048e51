"""The run of a TrainJob at its submission: created before the job, bound to it afterwards.

The run's id is part of the job's stored request, so a submitter that attaches reads it there. The submit waits for one
request, which creates the run; `binding` has what follows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from trainer_core.backends.base import Backend
from trainer_core.errors import InvalidRequestError, TrackingError, TrainerError
from trainer_core.jobs import TrainJobRef
from trainer_core.request import TrackingRequest, TrainJobRequest
from trainer_core.tracking import tags
from trainer_core.tracking.binding import bind_run, delete_orphans
from trainer_core.tracking.connections import get_report_api, get_submit_api
from trainer_core.tracking.mlflow_api import MlflowApi, MlflowRun
from trainer_core.tracking.run_sender import get_run_sender
from trainer_core.tracking.server import MlflowServer

__all__ = ["Submission", "choose_server", "create_late_run", "prepare_submission"]

_log = logging.getLogger(__name__)

_DEFAULT_EXPERIMENT = "trainjob"
#: Backends whose nodes run on the machine of the submitter, so that a loopback address reaches the same server.
_ON_THIS_MACHINE = frozenset({"local", "debug"})
#: Its nodes read secrets from a file with Python, which only the image of a function is known to have.
_SECRETS_FOR_FUNCTIONS = frozenset({"container"})
#: A submit waits for no server that did not answer recently.
_PAUSE_SECONDS = 30.0
_unreachable_until: dict[str, float] = {}


def choose_server(uri: str | None, configured: MlflowServer | None) -> MlflowServer | None:
    """Return the server for a tracking URI, with the credentials that belong to it; None if none is configured.

    Args:
        uri: Tracking URI of the job. None for the configured one.
        configured: Server of an Airflow connection. None for the environment of this process.
    """
    if configured is not None and (uri is None or configured.has_origin_of(uri)):
        return replace(configured, uri=uri or configured.uri)
    return MlflowServer.from_environment(uri=uri)


def prepare_submission(
    request: TrainJobRequest, configured: MlflowServer | None, backend: Backend
) -> Submission | None:
    """Return the tracking of a submit; None if the request is not tracked.

    Args:
        request: The request.
        configured: Server of an Airflow connection. None for the environment of this process.
        backend: Backend of the job.

    Raises:
        InvalidRequestError: Tracking is required, and no server is configured.
    """
    tracking = request.tracking or TrackingRequest()
    if request.trainer is None and request.initializer is not None:
        return None
    server = choose_server(tracking.uri, configured) if tracking.kind == "mlflow" else None
    if server is None and tracking.kind == "mlflow":
        if tracking.required:
            raise InvalidRequestError(
                "Tracking is required, but no tracking URI is configured; set Tracking(uri=…), MLFLOW_TRACKING_URI, or "
                "an Airflow connection of type mlflow"
            )
        return None
    return Submission(request, tracking, server, configured, backend)


class Submission:
    """Tracks one submit.

    Args:
        request: The request.
        tracking: Its tracking.
        server: Server to track on; None for W&B and Comet.
        configured: Server of an Airflow connection. None for the environment of this process.
        backend: Backend of the job.

    Attributes:
        request: The request to submit, with the server's address and credentials.
    """

    def __init__(
        self,
        request: TrainJobRequest,
        tracking: TrackingRequest,
        server: MlflowServer | None,
        configured: MlflowServer | None,
        backend: Backend,
    ) -> None:
        self._server = server
        self._configured = configured
        self._backend = backend
        self._created: list[str] = []
        experiment = tracking.experiment or (server.experiment if server else None) or _DEFAULT_EXPERIMENT
        uri = server.uri if server else None
        self._tracking = tracking.model_copy(update={"uri": uri, "experiment": experiment})
        secrets = {
            f"trainer.{name}": SecretStr(value)
            for name, value in (
                server.get_training_secrets() if server and self._reaches_training(request) else {}
            ).items()
        }
        self.request = request.model_copy(
            update={"tracking": self._tracking, "literal_secrets": {**secrets, **request.literal_secrets}}
        )

    def create_run(self, request: TrainJobRequest, attempt: int) -> TrainJobRequest:
        """Create the run of a job that is about to be created, and return the request with the run in it.

        Args:
            request: The request, with its name.
            attempt: Attempt of its owner, 0 for the first.

        Raises:
            TrackingError: Tracking is required, and the run could not be created.
        """
        if self._server is None:
            env = _build_client_env(self._tracking, request, attempt)
            return request.model_copy(update={"tracking": self._tracking.model_copy(update={"env": env})})
        run: dict[str, Any] = {}
        try:
            run = self._create_run(self._server, request, attempt)
        except TrackingError as error:
            if self._tracking.required:
                raise
            _log.warning("TrainJob %s is created without a run, which follows later: %s", request.name, error)
        env = self._build_training_env(self._server, request, run) if self._reaches_training(request) else {}
        return request.model_copy(update={"tracking": self._tracking.model_copy(update={**run, "env": env})})

    def bind(self, ref: TrainJobRef) -> None:
        """Complete the run of the submitted job, without waiting for it: `RunSender` calls the server.

        Args:
            ref: The submitted job, created or attached to.
        """
        if self._server is not None:
            get_run_sender().bind(ref.uid, lambda: self._bind(ref))

    def _bind(self, ref: TrainJobRef) -> None:
        try:
            stored = self._backend.get_request(ref)
            run_id = stored.tracking.run_id if stored.tracking else None
            self._delete_runs(keep=run_id)
            server = choose_server(stored.tracking.uri, self._configured) if stored.tracking else None
            if server is None or run_id is None or _did_not_answer(server):
                return  # The next wait for the job completes the run.
            bind_run(get_report_api(server), self._backend, ref, stored)
        except TrainerError as error:  # The job exists: neither the server nor the backend may fail its submit now.
            _log.warning("The run of TrainJob %s is completed later: %s", ref.name, error)
        else:
            if stored.tracking and stored.tracking.experiment_id:
                url = server.get_run_url(stored.tracking.experiment_id, run_id)
                _log.info("TrainJob %s is tracked at %s", ref.name, url)

    def discard(self) -> None:
        """Delete the runs of a submit that was refused."""
        with contextlib.suppress(TrackingError):
            self._delete_runs(keep=None)

    def _delete_runs(self, keep: str | None) -> None:
        """Delete the runs that this submit created, except the one that the job has."""
        for run_id in self._created:
            if self._server is not None and run_id != keep:
                get_report_api(self._server).delete_run(run_id)

    def _create_run(self, server: MlflowServer, request: TrainJobRequest, attempt: int) -> dict[str, Any]:
        if _did_not_answer(server):
            raise TrackingError(f"MLflow server {server.uri} did not answer recently", transient=True)
        try:
            api = get_submit_api(server)
            experiment = self._get_experiment_id(api)
            identity = tags.build_identity(request, attempt)
            run_tags = tags.build_run_tags(request, self._backend, identity)
            run_id = api.create_run(experiment, str(run_tags[tags.RUN_NAME]), run_tags, _now())
        except TrackingError as error:
            if error.transient:
                _unreachable_until[server.uri] = time.monotonic() + _PAUSE_SECONDS
            raise
        self._created.append(run_id)
        return {"run_id": run_id, "experiment_id": experiment}

    def _get_experiment_id(self, api: MlflowApi) -> str:
        """Return the experiment of the parent run, else the one that is named."""
        parent = self._tracking.parent_run_id
        if parent is not None:
            return api.get_run(parent).info.experiment_id
        return api.get_experiment_id(str(self._tracking.experiment))

    def _reaches_training(self, request: TrainJobRequest) -> bool:
        """Return whether mlflow inside the training can use the server."""
        server, trainer = self._server, request.trainer
        if server is None or trainer is None or any(name.startswith("MLFLOW_") for name in trainer.env):
            return False  # The user's own settings count, and would not fit ours.
        if server.get_training_secrets() and trainer.code is None and self._backend.name in _SECRETS_FOR_FUNCTIONS:
            return False
        return bool(self._tracking.training_uri) or not server.is_loopback or self._backend.name in _ON_THIS_MACHINE

    def _build_training_env(
        self, server: MlflowServer, request: TrainJobRequest, run: Mapping[str, Any]
    ) -> dict[str, str]:
        values = {
            "MLFLOW_TRACKING_URI": self._tracking.training_uri or server.uri,
            "MLFLOW_EXPERIMENT_ID": run.get("experiment_id"),
            "MLFLOW_EXPERIMENT_NAME": None if run else self._tracking.experiment,
            "MLFLOW_RUN_ID": run.get("run_id") if self._tracking.join else None,
            "MLFLOW_WORKSPACE": server.workspace,
            "MLFLOW_TRACKING_AUTH": server.auth,
            "MLFLOW_TRACKING_INSECURE_TLS": "true" if server.insecure else None,
        }
        return {name: value for name, value in values.items() if value}


def _did_not_answer(server: MlflowServer) -> bool:
    return time.monotonic() < _unreachable_until.get(server.uri, 0.0)


def create_late_run(api: MlflowApi, backend: Backend, request: TrainJobRequest, ref: TrainJobRef) -> tuple[str, str]:
    """Return experiment id and run id of a job that was created while the server was away; create them if necessary.

    Several processes may do so at the same time: each takes the run with the smallest id, and deletes its own.

    Args:
        api: API of the server.
        backend: Backend of the job.
        request: Stored request of the job.
        ref: The job.
    """
    tracking = request.tracking or TrackingRequest()
    experiment = api.get_experiment_id(tracking.experiment or _DEFAULT_EXPERIMENT)
    identity = tags.build_identity(request, None)
    job_tags = tags.build_job_tags(ref, backend.get_place(ref))
    condition = f"tags.`{tags.KEY}` = '{identity[tags.KEY]}'"

    def list_runs() -> list[MlflowRun]:
        runs = api.search_runs([experiment], condition)
        return sorted((run for run in runs if run.tags.get(tags.UID) == ref.uid), key=lambda run: run.id)

    found = list_runs()
    if not found:
        run_tags = tags.build_run_tags(request, backend, identity)
        own = api.create_run(experiment, str(run_tags[tags.RUN_NAME]), {**run_tags, **job_tags}, _now())
        found = list_runs()
        if not found:
            raise TrackingError(f"run {own} of TrainJob {ref.name!r} is not found yet", transient=True)
        if found[0].id != own:
            api.delete_run(own)
    api.log_batch(found[0].id, params=tags.build_params(request), tags=job_tags)
    delete_orphans(api, backend, ref, found[0].id, api.search_runs([experiment], condition))
    return experiment, found[0].id


def _build_client_env(tracking: TrackingRequest, request: TrainJobRequest, attempt: int) -> dict[str, str]:
    """Return the variables by which W&B's and Comet's clients find the run of this attempt again."""
    import hashlib

    name = request.require_name()
    if tracking.kind == "wandb":
        group = request.owner.key if request.owner else name
        values = {
            "WANDB_RUN_ID": name,
            "WANDB_RESUME": "allow",
            "WANDB_NAME": tracking.run_name or name,
            "WANDB_RUN_GROUP": group[:128],
            "WANDB_PROJECT": tracking.experiment or _DEFAULT_EXPERIMENT,
        }
    else:
        identity = json.dumps([name, tags.build_key(request), request.fingerprint(), attempt])
        values = {
            "COMET_EXPERIMENT_KEY": hashlib.sha256(identity.encode()).hexdigest()[:32],
            "COMET_PROJECT_NAME": tracking.experiment or _DEFAULT_EXPERIMENT,
        }
    trainer_env = request.trainer.env if request.trainer else {}
    return {key: value for key, value in values.items() if key not in trainer_env} if tracking.join else {}


def _now() -> int:
    return int(time.time() * 1000)
