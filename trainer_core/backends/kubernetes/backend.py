"""KubernetesBackend: TrainJobs of Kubeflow Trainer v2."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar

from trainer_core.attempts import Found
from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.backends.following import MOST, Follower
from trainer_core.backends.kubernetes import admission, ending, initialize, manifest, observe, packages, versions
from trainer_core.backends.kubernetes.follow import Watching
from trainer_core.backends.kubernetes.looks import Looks
from trainer_core.cluster import connect, kinds, runtimes
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError, TakenError
from trainer_core.cluster.api import Api
from trainer_core.cluster.raw import Raw
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
    RuntimeNotFoundError,
    TrainerError,
)
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import Observation, Tail
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["KubernetesBackend"]

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 600.0
#: Seconds in which the garbage collector deletes what belonged to a job that is gone.
_SECONDS_GONE = 5.0
_OPENAPI = f"/openapi/v3/apis/{kinds.TRAINJOBS.api_version}"


class KubernetesBackend(Backend):
    """TrainJobs of Kubeflow Trainer v2 on a Kubernetes cluster.

    Everything about a job is on the cluster, so any process that reaches it can follow, suspend or delete the job.

    Args:
        config: Which cluster, and where in it.

    Raises:
        BackendUnavailableError: The extra is not installed, or there is no cluster to be found.
    """

    name: ClassVar[str] = "kubernetes"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            *("Name", "Labels", "Annotations", "TrainerCommand", "TrainerArgs", "RuntimePatch"),
            *("ActiveDeadlineSeconds", "Suspend", "ManagedBy", "DeleteAfter", "Workspace"),
            *("QueueName", "PriorityClass", "GangScheduling"),
        }
    )

    def __init__(self, config: KubernetesBackendConfig | None = None) -> None:
        self._config = config or KubernetesBackendConfig()
        self._connection = connect.connect(self._config)
        self._api = Api(self._connection)
        self._looks = Looks(self._api)
        self._swept = -_SWEEP_SECONDS

    @property
    def namespace(self) -> str:
        """Where jobs are created and looked for."""
        return self._connection.namespace

    @cached_property
    def _server(self) -> versions.Server:
        try:
            return versions.server_of_openapi(self._api.read(_OPENAPI))
        except (NotInstalledError, ForbiddenError):
            return versions.server_of_crd(
                self._api.get(kinds.CRDS, f"{kinds.TRAINJOBS.plural}.{kinds.TRAINJOBS.group}")
            )

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        made = self._rendered(request, attempt=0)
        return made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made}

    def _rendered(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        """The objects of a job in the order in which they are created; the job itself is the last."""
        if _only_initializes(request):
            return initialize.manifests(request, self._config, self.namespace, attempt)
        runtime = self._runtime(request)
        admission.check(request, runtime, self._server, self.namespace)
        for warning in admission.warnings(request, runtime):
            _log.warning("%s", warning)
        return [manifest.trainjob(request, runtime, self._server, self.namespace, attempt)]

    def dry_run(self, request: TrainJobRequest) -> None:
        for each in self._rendered(request, attempt=0):
            with suppress(TakenError):  # Of that name there is one, which says nothing of the rest.
                self._api.create(kinds.of(each), each, dry_run=True)

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        owned = self._looks.of_owner(request.owner.key, self.namespace) if request.owner else []
        found = [observe.found(raw) for raw in owned]
        last = max((job.attempt for job in found), default=-1)
        # A stranger may have the name of the first attempt, or of the next one.
        for name in {request.attempt_name(0), request.attempt_name(last + 1)} - {job.name for job in found}:
            with suppress(JobNotFoundError):
                found.append(observe.found(self._looks.raw(name, self.namespace)))
        return found

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        *before, job = self._rendered(request, attempt)
        made = [each for each in before if self._made(each)]
        try:
            created = self._api.create(kinds.of(job), job)
        except TakenError as error:
            # Whoever was faster uses the claim that was made for it.
            raise NameTakenError(request.require_name()) from error
        except TrainerError as error:
            # Where the server went away in the middle, the job may be there, and need its claim.
            if not isinstance(error, BackendUnavailableError) or not error.transient:
                self._undo(made)
            raise
        ref = observe.ref_of(created)
        try:
            self._complete(ref, request, patience=_SECONDS_GONE)
        except TrainerError:
            self.delete(ref)
            raise
        self._sweep_now_and_then()
        return ref

    def reap(self) -> list[str]:
        # Trainer knows no time to live for TrainJobs, so whoever submits does it now and then.
        self._swept = time.monotonic()
        return ending.sweep(self._api, self.namespace)

    def _sweep_now_and_then(self) -> None:
        if time.monotonic() - self._swept >= _SWEEP_SECONDS:
            with suppress(TrainerError):  # Somebody else's old jobs are no reason to fail a submit.
                self.reap()

    def complete(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        self._complete(ref, request)

    def _complete(self, ref: TrainJobRef, request: TrainJobRequest, patience: float = 0.0) -> None:
        owner = kinds.JOBS if _only_initializes(request) else kinds.TRAINJOBS
        secret = manifest.secret(request, ref.name, ref.namespace, ref.uid, owner)
        if secret is not None:
            self._made(secret, patience)

    def _made(self, raw: Raw, patience: float = 0.0) -> bool:
        """Create what may be there already; say whether it was not.

        Args:
            raw: The object.
            patience: Seconds for which one of that name may be left over from an earlier job, about to go.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

        again = Retrying(
            retry=retry_if_exception_type(TakenError),
            stop=stop_after_delay(patience),
            wait=wait_exponential(0.05, max=1.0),
            reraise=True,
        )
        try:
            again(self._api.create, kinds.of(raw), raw)
        except TakenError:
            return False
        return True

    def _undo(self, made: Sequence[Raw]) -> None:
        for raw in made:
            with suppress(TrainerError):
                self._api.delete(kinds.of(raw), raw["metadata"]["name"], namespace=self.namespace)

    def note(self, outcome: Outcome) -> None:
        ending.note(self._api, outcome)

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observe.request_of(self._looks.of(ref))

    def ref(self, name: str) -> TrainJobRef:
        return observe.ref_of(self._looks.raw(name, self.namespace))

    def observe(self, ref: TrainJobRef) -> Observation:
        return self._looks.observation(ref)

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        # Progress is in the log, which no watch tells of.
        if progress or ref.namespace != self.namespace:
            return super().follow(ref, progress)
        return Watching(self._looks, self._connection, ref)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        job = self._looks.train_job(ref)
        steps = [known.name for known in job.steps]
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return self._looks.log(ref, step, follow)

    def tail(self, ref: TrainJobRef, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        job = observe.read(self._looks.of(ref))
        return self._looks.tail(job, self._looks.pods(job), place, whole, most)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return self._looks.events(ref)

    def suspend(self, ref: TrainJobRef) -> None:
        ending.suspend(self._api, self._looks.of(ref), suspend=True)

    def resume(self, ref: TrainJobRef) -> None:
        ending.suspend(self._api, self._looks.of(ref), suspend=False)

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        with suppress(JobNotFoundError):
            ending.cancel(self._api, self._looks.of(ref), because)

    def delete(self, ref: TrainJobRef) -> None:
        with suppress(JobNotFoundError):
            ending.delete(self._api, self._looks.of(ref))

    def get_job(self, name: str) -> TrainJob:
        return self._looks.named_train_job(name, self.namespace)

    def list_jobs(self) -> list[TrainJob]:
        return self._looks.train_jobs(self.namespace)

    def list_runtimes(self) -> list[Runtime]:
        shared = {runtimes.name(raw): raw for raw in self._runtimes_of(kinds.CLUSTER_TRAINING_RUNTIMES)}
        # One of the namespace hides one of the cluster, as where a name is looked up.
        mine = {runtimes.name(raw): raw for raw in self._runtimes_of(kinds.TRAINING_RUNTIMES)}
        return [runtimes.runtime(raw) for _, raw in sorted({**shared, **mine}.items())]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.runtime(self._runtime_named(name, None))

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        return packages.of(self, runtime)

    def _runtime(self, request: TrainJobRequest) -> Raw:
        asked = request.runtime
        return self._runtime_named(asked.name if asked else self.default_runtime, asked.kind if asked else None)

    def _runtime_named(self, name: str, kind: str | None) -> Raw:
        for each in (kinds.TRAINING_RUNTIMES, kinds.CLUSTER_TRAINING_RUNTIMES):
            if kind in (None, each.kind):
                # Whoever may not see the namespace's runtimes can still use the cluster's.
                hidden = (ForbiddenError,) if (kind, each) == (None, kinds.TRAINING_RUNTIMES) else ()
                with suppress(NotThereError, *hidden):
                    return self._api.get(each, name, namespace=self.namespace)
        known = ", ".join(runtime.name for runtime in self.list_runtimes()) or "none"
        raise RuntimeNotFoundError(
            f"no {kind or 'runtime'} {name!r} for namespace {self.namespace!r}; there are {known}"
        )

    def _runtimes_of(self, kind: kinds.Kind) -> list[dict[str, Any]]:
        try:
            return self._api.list(kind, namespace=self.namespace)
        except ForbiddenError as error:
            _log.warning("runtimes of kind %s are left out: %s", kind.kind, error)
            return []


def _only_initializes(request: TrainJobRequest) -> bool:
    """With a runtime it is a TrainJob that runs the runtime as it is."""
    return request.trainer is None and request.runtime is None and request.initializer is not None
