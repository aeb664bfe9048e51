"""KubernetesBackend: TrainJobs of Kubeflow Trainer v2."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar

from trainer_core.backends.clustered import ClusterBackend
from trainer_core.backends.kubernetes import admission, ending, manifest, versions
from trainer_core.backends.kubernetes.dialect import DIALECT
from trainer_core.cluster import initialize, kinds, objects, runtimes
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError
from trainer_core.cluster.raw import Raw
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import RuntimeNotFoundError, TrainerError
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["KubernetesBackend"]

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 600.0
_OPENAPI = f"/openapi/v3/apis/{kinds.TRAINJOBS.api_version}"


class KubernetesBackend(ClusterBackend):
    """TrainJobs of Kubeflow Trainer v2 on a Kubernetes cluster.

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
            *("QueueName", "PriorityClass", "GangScheduling", "DistributedConfig"),
        }
    )

    def __init__(self, config: KubernetesBackendConfig | None = None) -> None:
        self._config = config or KubernetesBackendConfig()
        super().__init__(self._config, DIALECT)
        self._swept = -_SWEEP_SECONDS

    @cached_property
    def _server(self) -> versions.Server:
        try:
            return versions.server_of_openapi(self._api.read(_OPENAPI))
        except (NotInstalledError, ForbiddenError):
            return versions.server_of_crd(
                self._api.get(kinds.CRDS, f"{kinds.TRAINJOBS.plural}.{kinds.TRAINJOBS.group}")
            )

    def _rendered(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        if initialize.is_all(request):
            return initialize.manifests(request, self._config, self.namespace, attempt)
        runtime = self._runtime(request)
        admission.check(request, runtime, self._server, self.namespace)
        for warning in admission.warnings(request, runtime):
            _log.warning("%s", warning)
        return [manifest.trainjob(request, runtime, self._server, self.namespace, attempt)]

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        ref = super().create(request, attempt)
        self._sweep_now_and_then()
        return ref

    def reap(self) -> list[str]:
        # Trainer knows no time to live for TrainJobs, so whoever submits does it now and then.
        self._swept = time.monotonic()
        return ending.sweep(self._api, self._changes, self.namespace)

    def _sweep_now_and_then(self) -> None:
        if time.monotonic() - self._swept >= _SWEEP_SECONDS:
            with suppress(TrainerError):  # Somebody else's old jobs are no reason to fail a submit.
                self.reap()

    def _beside(self, request: TrainJobRequest, ref: TrainJobRef) -> Raw | None:
        owner = kinds.JOBS if initialize.is_all(request) else kinds.TRAINJOBS
        return objects.secret(request, ref.name, ref.namespace, ref.uid, owner)

    def list_runtimes(self) -> list[Runtime]:
        shared = {runtimes.name(raw): raw for raw in self._runtimes_of(kinds.CLUSTER_TRAINING_RUNTIMES)}
        # One of the namespace hides one of the cluster, as where a name is looked up.
        mine = {runtimes.name(raw): raw for raw in self._runtimes_of(kinds.TRAINING_RUNTIMES)}
        return [runtimes.runtime(raw) for _, raw in sorted({**shared, **mine}.items())]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.runtime(self._runtime_named(name, None))

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
