"""RuntimeAdmin: list, read, create, change and delete the runtimes of a cluster."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from trainer_core.base.errors import BackendUnavailableError, ConflictError, InvalidRequestError, RuntimeNotFoundError
from trainer_core.base.retries import repeat_while_failing
from trainer_core.k8s import runtimes
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import (
    AlreadyExistsError,
    ApiNotServedError,
    ForbiddenError,
    NotFoundError,
    WriteConflictError,
)
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAINJOBS, ApiResource
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.runtime_admin import diff, ml_policies, validate
from trainer_core.runtime_admin.accessors import INITIALIZERS, get_items, get_mapping, get_value
from trainer_core.runtime_admin.diagnostics import ERROR, Diagnostic
from trainer_core.runtime_admin.diff import Change
from trainer_core.runtime_admin.ml_policies import MlPolicyFields

_log = logging.getLogger(__name__)

Raw = Mapping[str, Any]
ApplyResult = Literal["created", "changed", "recreated", "unchanged"]

_OPENAPI_PATH = f"/openapi/v3/apis/{TRAINJOBS.api_version}"
_FINISHED = ("Complete", "Failed")
_MAX_NAMED = 5
#: Seconds to wait until a deleted runtime is gone, and between retries.
_DELETE_TIMEOUT = 30
_RETRY_INTERVAL = 0.25


class RuntimeAdmin:
    """Manages the runtimes of a cluster.

    Runtimes are manifests, as `trainer_core.runtime_admin.runtime_builder` builds them or a YAML file contains them. A
    TrainingRuntime of the namespace takes precedence over a ClusterTrainingRuntime of the same name, as it does for
    TrainJobs.

    Every method raises `BackendUnavailableError` if the cluster is unreachable or RBAC denies the request.
    """

    def __init__(self, config: KubernetesBackendConfig | None = None) -> None:
        self._api = ApiClient(Connection(config or KubernetesBackendConfig()))

    @property
    def namespace(self) -> str:
        """Namespace of TrainingRuntimes whose manifest sets none."""
        return self._api.connection.namespace

    @cached_property
    def ml_policy_fields(self) -> MlPolicyFields:
        """Fields of ``spec.mlPolicy`` that the cluster's Trainer has; the newest known ones if it does not say so."""
        try:
            fields = ml_policies.parse_openapi(self._api.get_path(_OPENAPI_PATH))
        except (NotFoundError, ApiNotServedError, ForbiddenError):
            fields = None
        return fields or ml_policies.NEWEST

    def validate(self, runtime: Raw) -> builtins.list[Diagnostic]:
        """Return the problems of a runtime on this cluster, errors first. Sends no runtime to the API server."""
        return validate.validate_runtime(runtime, self.ml_policy_fields)

    def _check(self, runtime: Raw) -> ApiResource:
        """Refuse a runtime that violates a rule, and return its kind."""
        errors = [problem for problem in self.validate(runtime) if problem.severity == ERROR]
        if errors:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            first = errors[0]
            raise InvalidRequestError(f"the runtime violates rule {first.rule} at {first.path}: {first.message}{more}")
        return _get_kind(runtime)

    def list(self) -> builtins.list[RuntimeSummary]:
        """Return the runtimes that TrainJobs of the namespace can use, sorted by name.

        If RBAC allows listing only one of the two kinds, the runtimes of the other kind are missing, with a warning in
        the log.
        """
        summaries: dict[str, RuntimeSummary] = {}
        denied: dict[str, ForbiddenError] = {}
        for kind in (CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES):
            try:
                # The API server omits kind in list items.
                found = [summarize_runtime({"kind": kind.kind, **raw}) for raw in self._api.list(kind)]
                summaries.update({each.name: each for each in found})
            except ForbiddenError as error:
                denied[kind.plural] = error
        if len(denied) > 1:
            raise next(iter(denied.values()))
        for plural, denial in denied.items():
            _log.warning("%s are missing in the list: %s", plural, denial)
        return sorted(summaries.values(), key=lambda each: each.name)

    def get(self, name: str, scope: ApiResource | None = None) -> dict[str, Any]:
        """Return the runtime that a TrainJob of the namespace uses under this name, or that of one kind."""
        for kind in (scope,) if scope else (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
            with suppress(NotFoundError):
                return self._api.get(kind, name)
        names = ", ".join(runtime.name for runtime in self.list()) or "none"
        raise RuntimeNotFoundError(
            f"runtime {name!r} does not exist in the cluster or namespace {self.namespace!r}; existing ones: {names}"
        )

    def create(self, runtime: Raw) -> dict[str, Any]:
        """Create a runtime and return it as stored by the API server."""
        kind = self._check(runtime)
        try:
            return self._api.create(kind, runtime)
        except AlreadyExistsError:
            name = runtime["metadata"]["name"]
            raise ConflictError(
                f"{kind.kind} {name!r} already exists; change it with apply, or choose another name"
            ) from None

    def diff(self, runtime: Raw) -> builtins.list[Change]:
        """Return what `apply` would change; one change at path ``""`` if the runtime does not exist."""
        live = self._find_live(self._check(runtime), runtime)
        return [Change("", None, dict(runtime))] if live is None else diff.list_changes(live, runtime)

    def apply(self, runtime: Raw, *, recreate: bool = False) -> ApplyResult:
        """Create a runtime, or change the existing one.

        Running TrainJobs are not affected: since Trainer 2.3 each has a copy of its runtime.
        """
        kind = self._check(runtime)
        live = self._find_live(kind, runtime)
        if live is None:
            self.create(runtime)
            return "created"
        fixed = [change.path for change in diff.list_changes(live, runtime) if change.fixed]
        if fixed:
            return self._recreate(kind, live, runtime, fixed, recreate)
        return self._change(kind, live, runtime)

    def dry_run(self, runtime: Raw) -> None:
        """Validate a runtime on the API server, without creating or changing it."""
        kind = self._check(runtime)
        live = self._find_live(kind, runtime)
        if live is None or any(change.fixed for change in diff.list_changes(live, runtime)):
            self._dry_run_create(kind, runtime)
        else:
            name, namespace = runtime["metadata"]["name"], get_value(runtime, "metadata", "namespace")
            self._api.patch(kind, name, diff.build_patch(live, runtime), namespace=namespace, dry_run=True)

    def list_trainjobs(self, runtime: Raw) -> builtins.list[str]:
        """Return the unfinished TrainJobs that refer to a runtime, as ``namespace/name``."""
        metadata = runtime["metadata"]
        everywhere = _get_kind(runtime) is CLUSTER_TRAINING_RUNTIMES
        jobs = self._api.list(TRAINJOBS, namespace=metadata.get("namespace"), all_namespaces=everywhere)
        using = [job["metadata"] for job in jobs if _refers(job, runtime) and not _has_ended(job)]
        return sorted(f"{job['namespace']}/{job['name']}" for job in using)

    def delete(self, name: str, *, scope: ApiResource | None = None, force: bool = False) -> None:
        """Delete a runtime."""
        runtime = self.get(name, scope)
        kind = _get_kind(runtime)
        if not force:
            self._refuse_if_used(kind, runtime)
        metadata = runtime["metadata"]
        self._api.delete(kind, name, uid=metadata["uid"], namespace=metadata.get("namespace"))

    def _find_live(self, kind: ApiResource, runtime: Raw) -> dict[str, Any] | None:
        name, namespace = runtime["metadata"]["name"], get_value(runtime, "metadata", "namespace")
        with suppress(NotFoundError):
            return self._api.get(kind, name, namespace=namespace)
        return None

    def _change(self, kind: ApiResource, live: Raw, runtime: Raw) -> ApplyResult:
        change = diff.build_patch(live, runtime)
        if not change:
            return "unchanged"
        metadata = live["metadata"]
        # With resourceVersion, the API server refuses the patch if the runtime has changed since the comparison.
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": metadata["resourceVersion"]}}
        try:
            self._api.patch(kind, metadata["name"], change, namespace=metadata.get("namespace"))
        except (WriteConflictError, NotFoundError):
            raise ConflictError(
                f"runtime {metadata['name']!r} was changed by another client at the same time; apply it again"
            ) from None
        return "changed"

    def _recreate(
        self, kind: ApiResource, live: Raw, runtime: Raw, fixed: builtins.list[str], recreate: bool
    ) -> ApplyResult:
        name, namespace = live["metadata"]["name"], live["metadata"].get("namespace")
        if not recreate:
            raise ConflictError(
                f"runtime {name!r}: {', '.join(fixed)} cannot be changed; recreate the runtime (delete and create), "
                "which does not affect running TrainJobs"
            )
        if live["metadata"].get("finalizers"):
            # Before Trainer 2.3, TrainJobs have no copy of the runtime: a finalizer keeps it until they have ended.
            self._refuse_if_used(kind, live)
        self._dry_run_create(kind, runtime)
        self._api.delete(kind, name, uid=live["metadata"]["uid"], namespace=namespace)
        # As soon as the deleted one is gone: an older Trainer delays that with a finalizer.
        repeat_while_failing(
            lambda: self.create(runtime),
            lambda error: isinstance(error, ConflictError),
            _DELETE_TIMEOUT,
            pauses=(_RETRY_INTERVAL, _RETRY_INTERVAL),
        )
        return "recreated"

    def _dry_run_create(self, kind: ApiResource, runtime: Raw) -> None:
        """Create the runtime as a dry run, under an unused name."""
        metadata = {**runtime["metadata"], "name": f"{runtime['metadata']['name'][:240]}.dry-run"}
        self._api.create(kind, {**runtime, "metadata": metadata}, dry_run=True)

    def _refuse_if_used(self, kind: ApiResource, runtime: Raw) -> None:
        name = runtime["metadata"]["name"]
        try:
            jobs = self.list_trainjobs(runtime)
        except ForbiddenError as error:
            raise BackendUnavailableError(
                f"{error}; or use force, which does not check which TrainJobs use {name!r}"
            ) from error
        if jobs:
            more = f" and {len(jobs) - _MAX_NAMED} more" if len(jobs) > _MAX_NAMED else ""
            names = ", ".join(jobs[:_MAX_NAMED]) + more
            raise ConflictError(f"{kind.kind} {name!r} is used by {names}; wait until they have ended, or use force")


def _get_kind(runtime: Raw) -> ApiResource:
    return TRAINING_RUNTIMES if runtime.get("kind") == TRAINING_RUNTIMES.kind else CLUSTER_TRAINING_RUNTIMES


def _refers(job: Raw, runtime: Raw) -> bool:
    ref = get_mapping(job, "spec", "runtimeRef")
    kind = ref.get("kind") or CLUSTER_TRAINING_RUNTIMES.kind
    return (kind, ref.get("name")) == (_get_kind(runtime).kind, runtime["metadata"]["name"])


def _has_ended(job: Raw) -> bool:
    conditions = get_items(job, "status", "conditions")
    return any(each.get("type") in _FINISHED and each.get("status") == "True" for each in conditions)


@dataclass(frozen=True)
class RuntimeSummary:
    """Summary of a runtime in a list: nodes, image and device are those of a TrainJob that sets none."""

    name: str
    namespace: str | None
    framework: str
    policy: str | None
    num_nodes: int
    image: str
    device: str
    device_count: str
    initializers: tuple[str, ...] = ()
    deprecated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON data."""
        return {**asdict(self), "initializers": list(self.initializers)}


def summarize_runtime(raw: Mapping[str, Any]) -> RuntimeSummary:
    """Return the summary of a runtime."""
    runtime = runtimes.parse_runtime(raw)
    return RuntimeSummary(
        name=runtime.name,
        namespace=raw["metadata"].get("namespace"),
        framework=runtime.trainer.framework,
        policy=runtimes.get_ml_policy(raw),
        num_nodes=runtime.trainer.num_nodes,
        image=runtime.trainer.image,
        device=runtime.trainer.device,
        device_count=runtime.trainer.device_count,
        initializers=tuple(
            step.removesuffix("-initializer") for step in INITIALIZERS if runtimes.find_replicated_job(raw, step)
        ),
        deprecated=runtimes.is_deprecated(raw),
    )
