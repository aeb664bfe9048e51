"""Runtimes on a cluster: list, read, create, change, delete."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping
from typing import Any, Literal

from trainer_core.admin import diff, validate
from trainer_core.admin.diff import Change
from trainer_core.admin.findings import ERROR, Finding
from trainer_core.admin.listed import Listed, listed
from trainer_core.admin.raw import at, items, mapping
from trainer_core.cluster.answers import ForbiddenError, NotThereError, StaleError, TakenError
from trainer_core.cluster.api import Api
from trainer_core.cluster.connect import connect
from trainer_core.cluster.kinds import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAINJOBS, Kind
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError, ConflictError, InvalidRequestError, RuntimeNotFoundError

__all__ = ["Applied", "RuntimeAdmin"]

_log = logging.getLogger(__name__)

Raw = Mapping[str, Any]
Applied = Literal["created", "changed", "recreated", "unchanged"]

_ENDED = ("Complete", "Failed")
_MAX_NAMED = 5
#: Seconds to wait for a deleted runtime to be gone, and between looks.
_PATIENCE = 30
_PAUSE = 0.25


class RuntimeAdmin:
    """Runtimes for administrators.

    A TrainingRuntime of the namespace hides the ClusterTrainingRuntime of its name, as it does for TrainJobs. Runtimes
    are plain manifests, as `trainer_core.admin.build` makes them and files hold them.
    Every method raises `BackendUnavailableError` where the cluster cannot be reached or does not permit it.

    Args:
        config: Which cluster and which namespace; None for the usual places.

    Raises:
        BackendUnavailableError: The configuration leads to no cluster.
    """

    def __init__(self, config: KubernetesBackendConfig | None = None) -> None:
        self._api = Api(connect(config or KubernetesBackendConfig()))

    @property
    def namespace(self) -> str:
        """Where TrainingRuntimes are unless they say."""
        return self._api.connection.namespace

    def list(self) -> builtins.list[Listed]:
        """Return the runtimes that a TrainJob of the namespace can refer to, by name.

        Where a role lets only one of the two kinds be listed, it is that kind.
        """
        found: dict[str, Listed] = {}
        refused: builtins.list[ForbiddenError] = []
        for kind in (CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES):
            try:
                found.update({each.name: each for each in map(listed, self._all(kind))})
            except ForbiddenError as error:
                _log.warning("%s are left out: %s", kind.plural, error)
                refused.append(error)
        if len(refused) > 1:
            raise refused[0]
        return sorted(found.values(), key=lambda each: each.name)

    def get(self, name: str) -> dict[str, Any]:
        """Return the runtime that a TrainJob of the namespace gets by this name.

        Raises:
            RuntimeNotFoundError: There is none; the message names those there are.
        """
        for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
            try:
                return self._api.get(kind, name)
            except NotThereError:
                continue
        raise self._missing(name)

    def create(self, runtime: Raw) -> dict[str, Any]:
        """Create a runtime and return it as the server has it.

        Raises:
            InvalidRequestError: It breaks a rule, or the server refuses it. Nothing was created.
            ConflictError: There is one of that name.
        """
        kind = _checked(runtime)
        try:
            return self._api.create(kind, runtime)
        except TakenError:
            name = runtime["metadata"]["name"]
            raise ConflictError(f"{kind.kind} {name!r} exists; apply changes it, another name creates one") from None

    def diff(self, runtime: Raw) -> builtins.list[Change]:
        """Return what `apply` would change: the whole, at path ``""``, where there is none of that name.

        Raises:
            InvalidRequestError: It breaks a rule.
        """
        live = self._live(_checked(runtime), runtime)
        return [Change("", None, dict(runtime))] if live is None else diff.changes(live, runtime)

    def apply(self, runtime: Raw, *, recreate: bool = False) -> Applied:
        """Create a runtime, or make the one there is like it.

        TrainJobs that run are not touched: since Trainer 2.3 each keeps a copy of its runtime.

        Args:
            runtime: What is wanted.
            recreate: Delete it and create it again if the server would refuse a change (`Change.fixed`).

        Raises:
            InvalidRequestError: It breaks a rule, or the server refuses it. Nothing was changed.
            ConflictError: It must be created again and `recreate` is not set, an older Trainer keeps it for TrainJobs
                that run, or somebody else has changed it meanwhile. Nothing was changed.
        """
        kind = _checked(runtime)
        live = self._live(kind, runtime)
        if live is None:
            self.create(runtime)
            return "created"
        fixed = [change.path for change in diff.changes(live, runtime) if change.fixed]
        if fixed:
            return self._recreate(kind, live, runtime, fixed, recreate)
        return self._change(kind, live, runtime)

    def dry_run(self, runtime: Raw) -> None:
        """Let the server say whether it would take the runtime; nothing is created or changed.

        Raises:
            InvalidRequestError: It breaks a rule, or the server refuses it.
        """
        kind = _checked(runtime)
        live = self._live(kind, runtime)
        if live is None or any(change.fixed for change in diff.changes(live, runtime)):
            self._try_out(kind, runtime)
        else:
            name, place = runtime["metadata"]["name"], at(runtime, "metadata", "namespace")
            self._api.patch(kind, name, diff.patch(live, runtime), namespace=place, dry_run=True)

    def users(self, runtime: Raw) -> builtins.list[str]:
        """Return the TrainJobs that refer to a runtime and have not ended, as ``namespace/name``.

        Args:
            runtime: As `get` returns it.
        """
        metadata = runtime["metadata"]
        everywhere = _kind(runtime) is CLUSTER_TRAINING_RUNTIMES
        jobs = self._api.list(TRAINJOBS, namespace=metadata.get("namespace"), everywhere=everywhere)
        using = [job["metadata"] for job in jobs if _refers(job, runtime) and not _has_ended(job)]
        return sorted(f"{found['namespace']}/{found['name']}" for found in using)

    def delete(self, name: str, *, scope: Kind | None = None, force: bool = False) -> None:
        """Delete a runtime.

        Args:
            name: The runtime.
            scope: `TRAINING_RUNTIMES` or `CLUSTER_TRAINING_RUNTIMES`; None for the one that `get` finds.
            force: Do not ask which TrainJobs use it.

        Raises:
            RuntimeNotFoundError: There is none.
            ConflictError: TrainJobs that have not ended refer to it; the message names them.
        """
        runtime = self._of(scope, name) if scope else self.get(name)
        kind = _kind(runtime)
        if not force:
            self._refuse_if_used(kind, runtime)
        metadata = runtime["metadata"]
        self._api.delete(kind, name, uid=metadata["uid"], namespace=metadata.get("namespace"))

    def _all(self, kind: Kind) -> builtins.list[dict[str, Any]]:
        # Items of a list do not say their kind.
        return [{"kind": kind.kind, **found} for found in self._api.list(kind)]

    def _live(self, kind: Kind, runtime: Raw) -> dict[str, Any] | None:
        try:
            return self._api.get(kind, runtime["metadata"]["name"], namespace=at(runtime, "metadata", "namespace"))
        except NotThereError:
            return None

    def _of(self, scope: Kind, name: str) -> dict[str, Any]:
        try:
            return self._api.get(scope, name)
        except NotThereError:
            raise self._missing(name) from None

    def _missing(self, name: str) -> RuntimeNotFoundError:
        known = ", ".join(found.name for found in self.list()) or "none"
        return RuntimeNotFoundError(
            f"no runtime {name!r} in the cluster or namespace {self.namespace!r}; known: {known}"
        )

    def _change(self, kind: Kind, live: Raw, runtime: Raw) -> Applied:
        change = diff.patch(live, runtime)
        if not change:
            return "unchanged"
        metadata = live["metadata"]
        # The version: what is changed is what was compared.
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": metadata["resourceVersion"]}}
        try:
            self._api.patch(kind, metadata["name"], change, namespace=metadata.get("namespace"))
        except (StaleError, NotThereError):
            raise ConflictError(f"runtime {metadata['name']!r} was changed by others meanwhile; apply again") from None
        return "changed"

    def _recreate(self, kind: Kind, live: Raw, runtime: Raw, fixed: builtins.list[str], agreed: bool) -> Applied:
        name, place = live["metadata"]["name"], live["metadata"].get("namespace")
        if not agreed:
            raise ConflictError(
                f"runtime {name!r}: the server does not let {', '.join(fixed)} change; recreate it (delete, create), "
                "which leaves TrainJobs that run as they are"
            )
        if live["metadata"].get("finalizers"):
            # Trainer before 2.3: its jobs have no copy, and it keeps the runtime until they have ended.
            self._refuse_if_used(kind, live)
        self._try_out(kind, runtime)
        self._api.delete(kind, name, uid=live["metadata"]["uid"], namespace=place)
        self._create_when_free(runtime)
        return "recreated"

    def _create_when_free(self, runtime: Raw) -> None:
        """Create it once the deleted one is gone: an older Trainer's controller lets go of it in a moment."""
        import tenacity  # comes with the kubernetes extra

        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ConflictError),
            wait=tenacity.wait_fixed(_PAUSE),
            stop=tenacity.stop_after_delay(_PATIENCE),
            reraise=True,
        )
        retry(self.create, runtime)

    def _try_out(self, kind: Kind, runtime: Raw) -> None:
        """Create it for show, under a name that is free."""
        metadata = {**runtime["metadata"], "name": f"{runtime['metadata']['name'][:240]}.dry-run"}
        self._api.create(kind, {**runtime, "metadata": metadata}, dry_run=True)

    def _refuse_if_used(self, kind: Kind, runtime: Raw) -> None:
        name = runtime["metadata"]["name"]
        try:
            found = self.users(runtime)
        except ForbiddenError as error:
            raise BackendUnavailableError(f"{error}; or use force, which does not ask who uses {name!r}") from error
        if found:
            more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
            shown = ", ".join(found[:_MAX_NAMED]) + more
            raise ConflictError(f"{kind.kind} {name!r} is used by {shown}; wait until they have ended, or use force")


def _kind(runtime: Raw) -> Kind:
    return TRAINING_RUNTIMES if runtime.get("kind") == TRAINING_RUNTIMES.kind else CLUSTER_TRAINING_RUNTIMES


def _checked(runtime: Raw) -> Kind:
    """The kind of a runtime in which no error is found."""
    errors: builtins.list[Finding] = [found for found in validate.findings(runtime) if found.severity == ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        found = errors[0]
        raise InvalidRequestError(f"the runtime breaks rule {found.rule} at {found.path}: {found.message}{more}")
    return _kind(runtime)


def _refers(job: Raw, runtime: Raw) -> bool:
    ref = mapping(job, "spec", "runtimeRef")
    kind = ref.get("kind") or CLUSTER_TRAINING_RUNTIMES.kind
    return (kind, ref.get("name")) == (_kind(runtime).kind, runtime["metadata"]["name"])


def _has_ended(job: Raw) -> bool:
    conditions = items(job, "status", "conditions")
    return any(found.get("type") in _ENDED and found.get("status") == "True" for found in conditions)
