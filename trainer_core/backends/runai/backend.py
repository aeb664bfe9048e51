"""RunaiBackend: TrainingWorkloads and DistributedWorkloads of Run:ai."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

from trainer_core.backends.clustered import ClusterBackend
from trainer_core.backends.runai import admission, blueprints, manifest
from trainer_core.backends.runai.blueprints import BUILT_IN, GLOBAL_NAMESPACE, Blueprint
from trainer_core.backends.runai.dialect import dialect_of
from trainer_core.cluster import kinds, objects
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError, TakenError
from trainer_core.cluster.raw import Raw
from trainer_core.configs import RunaiBackendConfig
from trainer_core.errors import ConflictError, RuntimeNotFoundError
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runai.spec import TrainingWorkloadSpec
from trainer_core.runtimes import Runtime, RuntimeKind

__all__ = ["RunaiBackend"]

_log = logging.getLogger(__name__)


class RunaiBackend(ClusterBackend):
    """Workloads (``run.ai/v2alpha1``) on a cluster that Run:ai manages.

    A runtime is one of its blueprints, or a Run:ai template of the project or of all projects.

    Args:
        config: Which cluster, and which project.

    Raises:
        BackendUnavailableError: The extra is not installed, or there is no cluster to be found.
    """

    name: ClassVar[str] = "runai"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            *("Name", "Labels", "Annotations", "TrainerCommand", "TrainerArgs"),
            *("Suspend", "DeleteAfter", "RunaiSpec", "RunaiMasterSpec"),
        }
    )

    def __init__(self, config: RunaiBackendConfig) -> None:
        self._config = config
        there = config.model_copy(update={"namespace": config.project_namespace})
        super().__init__(there, dialect_of(config))

    def create_template(
        self, name: str, spec: TrainingWorkloadSpec, framework: str | None = None, shared: bool = False
    ) -> Runtime:
        """Create a template, which requests can name as their runtime from then on.

        Args:
            name: Its name.
            spec: Its fields: image, resources, volumes, environment, …
            framework: What it trains with, such as ``torch`` (the default) or ``python``.
            shared: It serves all projects, which takes an administrator's rights.

        Raises:
            ConflictError: There is a workload or template of that name.
            ValueError: A field cannot be one of a template.
        """
        namespace = GLOBAL_NAMESPACE if shared else self.namespace
        made = manifest.template(name, spec, namespace, framework)
        try:
            created = self._api.create(kinds.TRAINING_WORKLOADS, made, namespace=namespace)
        except TakenError as error:
            raise ConflictError(
                f"{name!r} exists in namespace {namespace!r}; choose another name, or delete it"
            ) from error
        return blueprints.of_template(created).runtime

    def _rendered(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        blueprint = self._asked(request)
        admission.check(request, blueprint)
        return [manifest.workload(request, blueprint, self._config, self.namespace, attempt)]

    def _beside(self, request: TrainJobRequest, ref: TrainJobRef) -> Raw | None:
        if not request.literal_secrets:
            return None
        distributed = manifest.is_distributed(request, self._asked(request))
        owner = kinds.DISTRIBUTED_WORKLOADS if distributed else kinds.TRAINING_WORKLOADS
        return objects.secret(request, ref.name, ref.namespace, ref.uid, owner)

    def list_runtimes(self) -> list[Runtime]:
        # One of the project hides one for all, and both hide what is built in: as where a name is looked up.
        found = {**BUILT_IN, **{template.name: template for template in self._templates()}}
        return [blueprint.runtime for _, blueprint in sorted(found.items())]

    def get_runtime(self, name: str) -> Runtime:
        return self._blueprint(name, None).runtime

    def _asked(self, request: TrainJobRequest) -> Blueprint:
        asked = request.runtime
        return self._blueprint(asked.name if asked else self.default_runtime, asked.kind if asked else None)

    def _blueprint(self, name: str, kind: str | None) -> Blueprint:
        for namespace in (self.namespace, GLOBAL_NAMESPACE):
            found = self._template(name, namespace)
            if found is not None and kind in (None, found.runtime.kind.value):
                return found
        if name in BUILT_IN and kind != RuntimeKind.TRAINING_RUNTIME.value:
            return BUILT_IN[name]
        known = ", ".join(runtime.name for runtime in self.list_runtimes())
        raise RuntimeNotFoundError(
            f"no {kind or 'runtime'} {name!r} for project namespace {self.namespace!r}; there are {known}"
        )

    def _template(self, name: str, namespace: str) -> Blueprint | None:
        # What a role may not see is not there for it.
        with suppress(NotThereError, ForbiddenError, NotInstalledError):
            raw = self._api.get(kinds.TRAINING_WORKLOADS, name, namespace=namespace)
            if blueprints.is_template(raw):
                return blueprints.of_template(raw)
        return None

    def _templates(self) -> Iterator[Blueprint]:
        for namespace in (GLOBAL_NAMESPACE, self.namespace):
            try:
                raws = self._api.list(kinds.TRAINING_WORKLOADS, namespace=namespace)
            except ForbiddenError as error:
                _log.debug("left out: %s", error)
                continue
            for raw in filter(blueprints.is_template, raws):
                try:
                    yield blueprints.of_template(raw)
                except ValueError as error:
                    _log.warning("template %r is left out: %s", raw["metadata"]["name"], error)
