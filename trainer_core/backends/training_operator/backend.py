"""TrainingOperatorBackend: PyTorchJobs of the Training Operator v1."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from trainer_core.backends.clustered import ClusterBackend
from trainer_core.backends.training_operator import admission, blueprints, manifest
from trainer_core.backends.training_operator.dialect import DIALECT
from trainer_core.cluster import initialize, kinds, objects, runtimes
from trainer_core.cluster.answers import ForbiddenError, NotThereError, RejectedError, StaleError
from trainer_core.cluster.raw import Raw
from trainer_core.configs import TrainingOperatorBackendConfig
from trainer_core.errors import JobNotFoundError
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["TrainingOperatorBackend"]

_CLEAN = "cleanPodPolicy"


class TrainingOperatorBackend(ClusterBackend):
    """PyTorchJobs (``kubeflow.org/v1``) on a Kubernetes cluster that has the Training Operator.

    Args:
        config: Which cluster, and where in it.

    Raises:
        BackendUnavailableError: The extra is not installed, or there is no cluster to be found.
    """

    name: ClassVar[str] = "training-operator"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            *("Name", "Labels", "Annotations", "TrainerCommand", "TrainerArgs", "RuntimePatch"),
            *("ActiveDeadlineSeconds", "Suspend", "ManagedBy", "DeleteAfter", "Workspace"),
            *("QueueName", "PriorityClass", "GangScheduling", "DistributedConfig", "PyTorchJobSpec"),
        }
    )

    def __init__(self, config: TrainingOperatorBackendConfig | None = None) -> None:
        self._config = config or TrainingOperatorBackendConfig()
        super().__init__(self._config, DIALECT)

    def _rendered(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        if initialize.is_all(request):
            return initialize.manifests(request, self._config, self.namespace, attempt)
        asked = request.runtime
        name, kind = (asked.name, asked.kind) if asked else (self.default_runtime, None)
        runtime = blueprints.get(self._config.runtimes_folder, name, kind)
        admission.check(request, runtime)
        return [manifest.pytorch_job(request, runtime, self._config, self.namespace, attempt)]

    def _beside(self, request: TrainJobRequest, ref: TrainJobRef) -> Raw | None:
        owner = kinds.JOBS if initialize.is_all(request) else kinds.PYTORCH_JOBS
        return objects.secret(request, ref.name, ref.namespace, ref.uid, owner)

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        try:
            super().cancel(ref, because)
        except RejectedError:
            # Operators before 1.7 suspend nothing, and say so of the field.
            self.delete(ref)

    def note(self, outcome: Outcome) -> None:
        super().note(outcome)
        if not outcome.succeeded:
            self._end_the_rest(outcome.job)

    def _end_the_rest(self, ref: TrainJobRef) -> None:
        """End the nodes of a failed job that wait for those that are gone, unless the job says that they shall stay."""
        with suppress(JobNotFoundError, ForbiddenError):
            raw = self._looks.of(ref)
            if raw["kind"] == kinds.PYTORCH_JOBS.kind and _CLEAN not in (raw["spec"].get("runPolicy") or {}):
                change = {"metadata": {"uid": ref.uid}, "spec": {"runPolicy": {_CLEAN: "Running"}}}
                with suppress(NotThereError, StaleError):
                    self._api.patch(kinds.PYTORCH_JOBS, ref.name, change, namespace=ref.namespace)

    def list_runtimes(self) -> list[Runtime]:
        return [runtimes.runtime(raw) for raw in blueprints.list_all(self._config.runtimes_folder)]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.runtime(blueprints.get(self._config.runtimes_folder, name))
