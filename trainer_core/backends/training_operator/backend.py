"""TrainingOperatorBackend: PyTorchJobs of the Training Operator v1."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.backends.kubernetes_base import BaseKubernetesBackend
from trainer_core.backends.training_operator import manifest, runtime_templates, validation
from trainer_core.backends.training_operator.config import TrainingOperatorBackendConfig
from trainer_core.backends.training_operator.parse import JOB_NAME_LABEL, PYTORCH_JOBS, parse_job, parse_pod
from trainer_core.base.errors import JobNotFoundError
from trainer_core.k8s import events, initializer_job, resources, runtimes
from trainer_core.k8s.errors import ForbiddenError, NotFoundError, RejectedError, WriteConflictError
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import JOB_LABEL
from trainer_core.model.jobs import Diagnosis, Outcome, TrainJobRef
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime

if TYPE_CHECKING:
    from trainer_core.model.preflight import PreflightReport


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    if job.kind == resources.JOBS.kind:
        return events.build_jobset_name_patterns(job.name)
    return {resources.PODS.kind: re.compile(rf"{re.escape(job.name)}-(master|worker)-\d+")}


def _build_suspend_patch(job: JobState, suspend: bool) -> dict[str, Any]:
    fields = {"suspend": suspend}
    return {"spec": fields if job.kind == resources.JOBS.kind else {"runPolicy": fields}}


ADAPTER = WorkloadAdapter(
    pod_labels={PYTORCH_JOBS: JOB_NAME_LABEL, resources.JOBS: JOB_LABEL},
    parse_job=parse_job,
    build_suspend_patch=_build_suspend_patch,
    build_event_name_patterns=_build_event_name_patterns,
    parse_pod=parse_pod,
    shared_resources=frozenset({resources.JOBS}),
    foreground_resources=frozenset({PYTORCH_JOBS, resources.JOBS}),
)

_CLEAN_POD_POLICY = "cleanPodPolicy"


class TrainingOperatorBackend(BaseKubernetesBackend):
    """PyTorchJobs (``kubeflow.org/v1``) on a Kubernetes cluster with the Training Operator."""

    name: ClassVar[str] = "training-operator"
    accepts: ClassVar[frozenset[str]] = list_options("training-operator") | {"PyTorchJobSpec"}
    schemes: ClassVar[Collection[str]] = validation.SCHEMES

    @classmethod
    def check_platform(cls, config: TrainingOperatorBackendConfig) -> PreflightReport:
        from trainer_core.backends.training_operator.preflight import (
            check_training_operator,  # Only for `trainjob doctor`.
        )

        return check_training_operator(config)

    def __init__(self, config: TrainingOperatorBackendConfig | None = None) -> None:
        self._config = config or TrainingOperatorBackendConfig()
        super().__init__(self._config, ADAPTER)

    def _render_manifests(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        if initializer_job.is_initialize_only(request):
            return initializer_job.render_manifests(request, self._config, self.namespace, attempt)
        runtime = self._get_raw_runtime(request)
        validation.check_request(request, runtime)
        return [manifest.render_pytorch_job(request, runtime, self._config, self.namespace, attempt)]

    def _get_raw_runtime(self, request: TrainJobRequest) -> RawObject:
        ref = self.get_runtime_ref(request)
        return runtime_templates.get_raw_runtime(self._config.runtimes_folder, ref.name, ref.kind)

    def _read_runtime(self, request: TrainJobRequest) -> tuple[Any, str | None]:
        raw = self._get_raw_runtime(request)
        return raw["spec"], runtimes.parse_runtime(raw).trainer.image

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        try:
            super().cancel(ref, diagnosis)
        except RejectedError:
            # Operators before 1.7 have no `suspend` in the run policy.
            self.delete(ref)

    def store_outcome(self, outcome: Outcome) -> None:
        # First, because an outcome that is stored is not stored again: no other process would do this then.
        if not outcome.succeeded:
            self._delete_running_pods(outcome.job)
        super().store_outcome(outcome)

    def _delete_running_pods(self, ref: TrainJobRef) -> None:
        """Make the operator delete pods that wait for a failed one, unless a cleanPodPolicy is set."""
        with suppress(JobNotFoundError, ForbiddenError):
            raw = self._reader.get_object_by_ref(ref)
            policy = raw["spec"].get("runPolicy") or {}
            if raw["kind"] == PYTORCH_JOBS.kind and _CLEAN_POD_POLICY not in policy:
                patch = {"metadata": {"uid": ref.uid}, "spec": {"runPolicy": {_CLEAN_POD_POLICY: "Running"}}}
                with suppress(NotFoundError, WriteConflictError):
                    self._api.patch(PYTORCH_JOBS, ref.name, patch, namespace=ref.namespace)

    def list_runtimes(self) -> list[Runtime]:
        raws = runtime_templates.list_raw_runtimes(self._config.runtimes_folder)
        return [runtimes.parse_runtime(raw) for raw in raws]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.parse_runtime(runtime_templates.get_raw_runtime(self._config.runtimes_folder, name))
