"""The run of a TrainJob at its submission: created before the job, bound to it afterwards.

The run's id is part of the job's stored request, so a submitter that attaches reads it there. The submit waits for one
request, which creates the run; `reporter` sends the rest.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import SecretStr

from trainer_core.backends.base import Backend
from trainer_core.base.errors import InvalidRequestError, TrackingError, TrainerError
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.model.request import TrackingRequest, TrainJobRequest
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowApi, get_report_api, get_submit_api
from trainer_core.tracking.reporter import RunReporter, bind, forget_warnings, get_run_sender, warn_incomplete
from trainer_core.tracking.run import DEFAULT_EXPERIMENT
from trainer_core.tracking.server import MlflowServer, choose_server

_log = logging.getLogger(__name__)

#: Backends whose nodes run on the machine of the submitter, so that a loopback address reaches the same server.
_ON_THIS_MACHINE = frozenset({"local", "debug"})
#: Its nodes read secrets from a file with Python, which only the image of a function is known to have.
_SECRETS_FOR_FUNCTIONS = frozenset({"container"})
#: A submit waits this long for the run in all, and for no server that did not answer recently.
_SUBMIT_SECONDS = 5.0
_PAUSE_SECONDS = 30.0
_unreachable_until: dict[str, float] = {}


def prepare_submission(
    request: TrainJobRequest,
    configured: MlflowServer | None,
    backend: Backend,
    redact: Callable[[str], str],
) -> Submission | None:
    """Return the tracking of a submit; None if the request is not tracked."""
    tracking = request.policy.tracking or TrackingRequest()
    if request.work.trainer is None and request.work.initializer is not None:
        return None
    if request.context.search is not None and request.context.search.kind == "record":
        return None  # It trains nothing.
    server = choose_server(tracking.uri, configured) if tracking.kind == "mlflow" else None
    if server is None and tracking.kind == "mlflow":
        if tracking.required:
            raise InvalidRequestError(
                "Tracking is required, but no tracking URI is configured; set Tracking(uri=…), MLFLOW_TRACKING_URI, or "
                "an Airflow connection of type mlflow"
            )
        return None
    return Submission(request, tracking, server, configured, backend, redact)


class Submission:
    """Tracks one submit.

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
        redact: Callable[[str], str],
    ) -> None:
        self._redact = redact
        self._server = server
        self._configured = configured
        self._backend = backend
        self._created: list[str] = []
        experiment = tracking.experiment or (server.experiment if server else None) or DEFAULT_EXPERIMENT
        uri = server.uri if server else None
        self._tracking = tracking.model_copy(update={"uri": uri, "experiment": experiment})
        secrets = {
            f"trainer.{name}": SecretStr(value)
            for name, value in (
                server.get_training_secrets() if server and self._reaches_training(request) else {}
            ).items()
        }
        self.request = request.with_fields(
            tracking=self._tracking, literal_secrets={**secrets, **request.context.literal_secrets}
        )

    def create_run(self, request: TrainJobRequest, attempt: int) -> TrainJobRequest:
        """Create the run of a job that is about to be created, and return the request with the run in it."""
        if self._server is None:
            env = _build_client_env(self._tracking, request, attempt)
            return request.with_fields(tracking=self._tracking.model_copy(update={"env": env}))
        run: dict[str, Any] = {}
        forget_warnings(request.require_name())
        try:
            run = self._create_run(self._server, request, attempt)
        except TrackingError as error:
            if self._tracking.required:
                raise
            warn_incomplete(self._backend, request.require_name(), error)
        env = self._build_training_env(self._server, request, run) if self._reaches_training(request) else {}
        return request.with_fields(tracking=self._tracking.model_copy(update={**run, "env": env}))

    def bind(self, ref: TrainJobRef) -> None:
        """Complete the run of the submitted job, without waiting for it: `RunSender` calls the server."""
        if self._server is not None:
            get_run_sender().bind(ref.uid, lambda: self._bind(ref))

    def _bind(self, ref: TrainJobRef) -> None:
        try:
            stored = self._backend.get_request(ref)
            run_id = stored.policy.tracking.run_id if stored.policy.tracking else None
            self._delete_runs(keep=run_id)
            server = choose_server(stored.policy.tracking.uri, self._configured) if stored.policy.tracking else None
            if server is None or run_id is None or did_not_answer(server):
                return  # The next wait for the job completes the run.
            bind(self._backend, ref, stored, server, self._redact)
        except TrainerError as error:  # The job exists: neither the server nor the backend may fail its submit now.
            warn_incomplete(self._backend, ref.name, error)
        else:
            if stored.policy.tracking and stored.policy.tracking.experiment_id:
                url = server.get_run_url(stored.policy.tracking.experiment_id, run_id)
                _log.info("TrainJob %s is tracked at %s", ref.name, url)

    def discard(self) -> None:
        """Delete the runs of a submit that was refused, without waiting for it."""
        if self._created:
            get_run_sender().bind("", self._discard)

    def _discard(self) -> None:
        with suppress(TrackingError):  # The error of the submit is raised, and nobody waits for these runs.
            self._delete_runs(keep=None)

    def _delete_runs(self, keep: str | None) -> None:
        """Delete the runs that this submit created, except the one that the job has."""
        for run_id in self._created:
            if self._server is not None and run_id != keep:
                get_report_api(self._server).delete_run(run_id)

    def _create_run(self, server: MlflowServer, request: TrainJobRequest, attempt: int) -> dict[str, Any]:
        if did_not_answer(server):
            raise _build_silence(server)
        found: list[dict[str, Any] | Exception] = []

        def create() -> None:
            try:
                api = get_submit_api(server)
                experiment = self._get_experiment_id(api)
                identity = tags.build_identity(request, attempt)
                run_tags = tags.build_run_tags(request, self._backend, identity)
                run_id = api.create_run(experiment, str(run_tags[tags.RUN_NAME]), run_tags, int(time.time() * 1000))
                self._created.append(run_id)
                found.append({"run_id": run_id, "experiment_id": experiment})
            except Exception as error:  # noqa: BLE001 -- raised by the thread that waits
                found.append(error)

        # The time limits of a connection start again with each byte that the server sends.
        thread = threading.Thread(target=create, name="creates a run", daemon=True)
        thread.start()
        thread.join(_SUBMIT_SECONDS)
        late = TrackingError(f"MLflow server {server.uri} takes more than {_SUBMIT_SECONDS:g} s", transient=True)
        result = found[0] if found else late
        if isinstance(result, TrackingError):
            note_unreachable(server, result)
        if isinstance(result, Exception):
            raise result
        return result

    def _get_experiment_id(self, api: MlflowApi) -> str:
        """Return the experiment of the parent run, else the one that is named."""
        parent = self._tracking.parent_run_id
        if parent is not None:
            return api.get_run(parent).info.experiment_id
        return api.get_experiment_id(str(self._tracking.experiment))

    def _reaches_training(self, request: TrainJobRequest) -> bool:
        """Return whether mlflow inside the training can use the server."""
        server, trainer = self._server, request.work.trainer
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


def did_not_answer(server: MlflowServer) -> bool:
    """Return whether a submit does not wait for a server, because it did not answer recently."""
    return time.monotonic() < _unreachable_until.get(server.uri, 0.0)


def note_unreachable(server: MlflowServer, error: TrackingError) -> None:
    """Let no submit wait for a server for a while, if the error is that it did not answer."""
    if error.transient:
        _unreachable_until[server.uri] = time.monotonic() + _PAUSE_SECONDS


def finish_unless_silent(reporter: RunReporter, outcome: Outcome | None) -> None:
    """Report how a job ended: for the many jobs that a process deletes, a server that hangs is waited for once."""
    server = None
    with suppress(TrainerError):  # Of the backend; `finish` tries again.
        server = reporter.find_server()
    if server is not None and did_not_answer(server):
        reporter.warn(_build_silence(server))
        return
    reporter.finish(outcome)
    if server is not None and isinstance(reporter.problem, TrackingError):
        note_unreachable(server, reporter.problem)


def _build_silence(server: MlflowServer) -> TrackingError:
    return TrackingError(f"MLflow server {server.uri} did not answer recently", transient=True)


def _build_client_env(tracking: TrackingRequest, request: TrainJobRequest, attempt: int) -> dict[str, str]:
    """Return the variables by which W&B's and Comet's clients find the run of this attempt again."""
    import hashlib

    name = request.require_name()
    if tracking.kind == "wandb":
        group = request.context.owner.key if request.context.owner else name
        values = {
            "WANDB_RUN_ID": name,
            "WANDB_RESUME": "allow",
            "WANDB_NAME": tracking.run_name or name,
            "WANDB_RUN_GROUP": group[:128],
            "WANDB_PROJECT": tracking.experiment or DEFAULT_EXPERIMENT,
        }
    else:
        identity = json.dumps([name, tags.build_key(request), request.fingerprint(), attempt])
        values = {
            "COMET_EXPERIMENT_KEY": hashlib.sha256(identity.encode()).hexdigest()[:32],
            "COMET_PROJECT_NAME": tracking.experiment or DEFAULT_EXPERIMENT,
        }
    trainer_env = request.work.trainer.env if request.work.trainer else {}
    return {key: value for key, value in values.items() if key not in trainer_env} if tracking.join else {}
