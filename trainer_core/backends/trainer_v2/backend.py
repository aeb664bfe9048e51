"""KubernetesBackend: TrainJobs of Kubeflow Trainer v2 on a Kubernetes cluster."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.backends.kubernetes_base import BaseKubernetesBackend
from trainer_core.backends.trainer_v2 import SCHEMES
from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.base.errors import RuntimeNotFoundError, TrainerError
from trainer_core.k8s import events, initializer_job, labels, resources, runtimes
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.job_writer import JobWriter
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import JOB_LABEL, JOBSET_LABEL
from trainer_core.k8s.resources import ApiResource
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime

if TYPE_CHECKING:
    from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    return events.build_jobset_name_patterns(job.name, [each.name for each in job.replicated_jobs])


ADAPTER = WorkloadAdapter(
    pod_labels={resources.TRAINJOBS: JOBSET_LABEL, resources.JOBS: JOB_LABEL},
    parse_job=parse_job,
    build_suspend_patch=lambda _, suspend: {"spec": {"suspend": suspend}},
    build_event_name_patterns=_build_event_name_patterns,
    shared_resources=frozenset({resources.JOBS}),
    # TrainJobs are not deleted in the foreground: up to 2.3, the Trainer controller recreates the JobSet of a TrainJob
    # that is being deleted and waits for its JobSet.
    foreground_resources=frozenset({resources.JOBS}),
    owned_resources=(resources.JOBSETS,),
)

_log = logging.getLogger(__name__)
#: Minimum interval between two deletions of expired jobs by `create`.
_EXPIRY_INTERVAL_SECONDS = 600.0
_OPENAPI_PATH = f"/openapi/v3/apis/{resources.TRAINJOBS.api_version}"


class KubernetesBackend(BaseKubernetesBackend):
    """TrainJobs of Kubeflow Trainer v2 on a Kubernetes cluster."""

    name: ClassVar[str] = "kubernetes"
    accepts: ClassVar[frozenset[str]] = list_options("kubernetes")
    schemes: ClassVar[Collection[str]] = SCHEMES

    def __init__(self, config: KubernetesBackendConfig | None = None) -> None:
        self._config = config or KubernetesBackendConfig()
        super().__init__(self._config, ADAPTER)
        self._last_expiry: dict[resources.ApiResource, float] = {}

    @cached_property
    def _schema(self) -> TrainJobSchema:
        return fetch_trainjob_schema(self._api)

    def _render_manifests(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        # What waits for a job, or shows it, renders none.
        from trainer_core.backends.trainer_v2 import manifest, validation

        if initializer_job.is_initialize_only(request):
            return initializer_job.render_manifests(request, self._config, self.namespace, attempt)
        runtime = self._get_raw_runtime(request)
        validation.check_request(request, runtime, self._schema, self.namespace)
        for warning in validation.list_warnings(request, runtime):
            _log.warning("%s", warning)
        return [manifest.render_trainjob(request, runtime, self._schema, self.namespace, attempt)]

    def _prepare_creation(self, kind: ApiResource) -> None:
        if time.monotonic() - self._last_expiry.get(kind, -_EXPIRY_INTERVAL_SECONDS) >= _EXPIRY_INTERVAL_SECONDS:
            with suppress(TrainerError):  # An error about other jobs must not fail this submit.
                self._delete_expired(kind)

    def reap(self) -> list[str]:
        return self._delete_expired(resources.TRAINJOBS, resources.JOBS)

    def _delete_expired(self, *kinds: resources.ApiResource) -> list[str]:
        self._last_expiry.update(dict.fromkeys(kinds, time.monotonic()))
        return delete_expired(self._api, self._writer, self.namespace, kinds)

    def list_runtimes(self) -> list[Runtime]:
        cluster = {runtimes.get_name(raw): raw for raw in self._list_raw_runtimes(resources.CLUSTER_TRAINING_RUNTIMES)}
        # As in `get_runtime`, a TrainingRuntime of the namespace takes precedence over a ClusterTrainingRuntime.
        namespaced = {runtimes.get_name(raw): raw for raw in self._list_raw_runtimes(resources.TRAINING_RUNTIMES)}
        return [runtimes.parse_runtime(raw) for _, raw in sorted({**cluster, **namespaced}.items())]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.parse_runtime(self._find_raw_runtime(name, None))

    def _get_raw_runtime(self, request: TrainJobRequest) -> RawObject:
        ref = self.get_runtime_ref(request)
        return self._find_raw_runtime(ref.name, ref.kind)

    def _read_runtime(self, request: TrainJobRequest) -> tuple[Any, str | None]:
        raw = self._get_raw_runtime(request)
        return raw["spec"], runtimes.parse_runtime(raw).trainer.image

    def _find_raw_runtime(self, name: str, kind: str | None) -> RawObject:
        for resource in (resources.TRAINING_RUNTIMES, resources.CLUSTER_TRAINING_RUNTIMES):
            if kind in (None, resource.kind):
                # A role without access to TrainingRuntimes can still use ClusterTrainingRuntimes.
                ignored = (ForbiddenError,) if (kind, resource) == (None, resources.TRAINING_RUNTIMES) else ()
                with suppress(NotFoundError, *ignored):
                    return self._api.get(resource, name, namespace=self.namespace)
        raise RuntimeNotFoundError(
            f"{kind or 'runtime'} {name!r} not found for namespace {self.namespace!r}; available: "
            f"{self._describe_available_runtimes()}"
        )

    def _describe_available_runtimes(self) -> str:
        """Return the names of the runtimes, and what RBAC does not let this role list."""
        names: set[str] = set()
        denied = []
        for resource in (resources.CLUSTER_TRAINING_RUNTIMES, resources.TRAINING_RUNTIMES):
            try:
                names |= {runtimes.get_name(raw) for raw in self._api.list(resource, namespace=self.namespace)}
            except ForbiddenError:
                denied.append(resource.kind)
        unknown = f" ({' and '.join(f'{kind}s' for kind in denied)} cannot be listed by this role)" if denied else ""
        return (", ".join(sorted(names)) or ("unknown" if denied else "none")) + unknown

    def _list_raw_runtimes(self, resource: resources.ApiResource) -> list[dict[str, Any]]:
        try:
            return self._api.list(resource, namespace=self.namespace)
        except ForbiddenError as error:
            _log.warning("runtimes of kind %s are not listed: %s", resource.kind, error)
            return []


def fetch_trainjob_schema(api: ApiClient) -> TrainJobSchema:
    """Read the schema of TrainJob from the OpenAPI document, or from the CRD if that is not served or forbidden."""
    from trainer_core.backends.trainer_v2 import schema_compat  # As for `_render_manifests`.

    try:
        return schema_compat.parse_openapi(api.get_path(_OPENAPI_PATH))
    except (NotFoundError, ApiNotServedError, ForbiddenError):
        crd = api.get(resources.CRDS, f"{resources.TRAINJOBS.plural}.{resources.TRAINJOBS.group}")
        return schema_compat.parse_crd(crd)


def select_expired(raws: Sequence[RawObject], now: datetime) -> list[RawObject]:
    """Return the jobs that ended longer ago than the seconds in their label. Pure."""
    expired = []
    for raw in raws:
        job = parse_job(raw)
        seconds, finished_at = job.labels.get(labels.DELETE_AFTER, ""), job.finished_at
        if seconds.isdecimal() and finished_at is not None and finished_at + timedelta(seconds=int(seconds)) <= now:
            expired.append(raw)
    return expired


def delete_expired(api: ApiClient, writer: JobWriter, namespace: str, kinds: Iterable[ApiResource]) -> list[str]:
    """Delete expired jobs without waiting; return their names. A TrainJob has no `ttlSecondsAfterFinished`."""
    selector = f"{labels.MANAGED_BY}={labels.MANAGER},{labels.DELETE_AFTER}"
    raws: list[RawObject] = []
    for kind in kinds:
        # Without initialize-only requests, no role for Jobs is needed.
        with suppress(*((ForbiddenError,) if kind == resources.JOBS else ())):
            raws += api.list(kind, label_selector=selector, namespace=namespace)
    names = []
    for raw in select_expired(raws, datetime.now(timezone.utc)):
        job = parse_job(raw)
        if writer.request_deletion(job):
            names.append(job.name)
    return names
