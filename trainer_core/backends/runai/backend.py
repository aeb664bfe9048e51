"""RunaiBackend: TrainingWorkloads and DistributedWorkloads of Run:ai."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.backends.kubernetes_base import BaseKubernetesBackend
from trainer_core.backends.runai import manifest, parse, runtime_templates, validation
from trainer_core.backends.runai.config import RunaiBackendConfig
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, JOB_LABEL, TRAINING_WORKLOADS, Phases
from trainer_core.backends.runai.runtime_templates import BUILT_IN_TEMPLATES, SHARED_NAMESPACE, RuntimeTemplate
from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.base.errors import ConflictError, RuntimeNotFoundError
from trainer_core.k8s import resources
from trainer_core.k8s.errors import AlreadyExistsError, ApiNotServedError, ForbiddenError, NotFoundError
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime, RuntimeKind

if TYPE_CHECKING:
    from trainer_core.model.preflight import PreflightReport

_log = logging.getLogger(__name__)
#: Kinds of the objects that Run:ai creates for a workload, under the workload's name.
_CHILD_KINDS = ("RunaiJob", "PyTorchJob", "MPIJob")


class RunaiBackend(BaseKubernetesBackend):
    """Workloads (``run.ai/v2alpha1``) on a cluster with Run:ai.

    A job with one node is a TrainingWorkload; a job with several nodes, or with an MPI runtime, is a
    DistributedWorkload. A runtime is built in, or a Run:ai template of the project or of all projects.
    """

    name: ClassVar[str] = "runai"
    accepts: ClassVar[frozenset[str]] = list_options("runai") | {"RunaiSpec", "RunaiMasterSpec"}
    schemes: ClassVar[Collection[str]] = validation.SCHEMES

    @classmethod
    def check_platform(cls, config: RunaiBackendConfig) -> PreflightReport:
        from trainer_core.backends.runai.preflight import check_runai_cluster  # Only for `trainjob doctor`.

        return check_runai_cluster(config)

    def __init__(self, config: RunaiBackendConfig) -> None:
        self._config = config
        project_config = config.model_copy(update={"namespace": config.project_namespace})
        super().__init__(project_config, build_adapter(config))

    def create_template(
        self, name: str, spec: TrainingWorkloadSpec, framework: str | None = None, shared: bool = False
    ) -> Runtime:
        """Create a Run:ai template, which requests can use as their runtime.

        Example:
            ```python
            client.backend.create_template("vision", TrainingWorkloadSpec(image="ghcr.io/team-a/train:1.0"))
            client.train(runtime="vision", trainer=trainer)
            ```
        """
        namespace = SHARED_NAMESPACE if shared else self.namespace
        template = manifest.render_template(name, spec, namespace, framework)
        try:
            created = self._api.create(TRAINING_WORKLOADS, template, namespace=namespace)
        except AlreadyExistsError as error:
            raise ConflictError(
                f"workload {name!r} already exists in namespace {namespace!r}; choose another name, or delete it"
            ) from error
        return runtime_templates.parse_template(created).to_runtime()

    def _render_manifests(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        template = self._get_template(request)
        validation.check_request(request, template)
        return [manifest.render_workload(request, template, self._config, self.namespace, attempt)]

    def list_runtimes(self) -> list[Runtime]:
        # The same precedence as in `_find_template`.
        templates = {**BUILT_IN_TEMPLATES, **{template.name: template for template in self._list_templates()}}
        return [template.to_runtime() for _, template in sorted(templates.items())]

    def get_runtime(self, name: str) -> Runtime:
        return self._find_template(name, None).to_runtime()

    def _get_template(self, request: TrainJobRequest) -> RuntimeTemplate:
        ref = self.get_runtime_ref(request)
        return self._find_template(ref.name, ref.kind)

    def _read_runtime(self, request: TrainJobRequest) -> tuple[Any, str | None]:
        template = self._get_template(request)
        return template.spec.to_dict() if template.spec else {}, template.image

    def _find_template(self, name: str, kind: str | None) -> RuntimeTemplate:
        """Find a runtime: in the project, then in all projects, then among the built-in ones."""
        for namespace in (self.namespace, SHARED_NAMESPACE):
            template = self._read_template(name, namespace)
            if template is not None and kind in (None, template.to_runtime().kind.value):
                return template
        if name in BUILT_IN_TEMPLATES and kind != RuntimeKind.TRAINING_RUNTIME.value:
            return BUILT_IN_TEMPLATES[name]
        known = ", ".join(runtime.name for runtime in self.list_runtimes())
        raise RuntimeNotFoundError(
            f"{kind or 'runtime'} {name!r} not found for namespace {self.namespace!r}; available: {known}"
        )

    def _read_template(self, name: str, namespace: str) -> RuntimeTemplate | None:
        # A role without access to templates can still use the built-in runtimes.
        with suppress(NotFoundError, ForbiddenError, ApiNotServedError):
            raw = self._api.get(TRAINING_WORKLOADS, name, namespace=namespace)
            if runtime_templates.is_template(raw):
                return runtime_templates.parse_template(raw)
        return None

    def _list_templates(self) -> Iterator[RuntimeTemplate]:
        for namespace in (SHARED_NAMESPACE, self.namespace):
            try:
                workloads = self._api.list(TRAINING_WORKLOADS, namespace=namespace)
            except ForbiddenError as error:
                _log.debug("templates of namespace %s are not listed: %s", namespace, error)
                continue
            for raw in filter(runtime_templates.is_template, workloads):
                try:
                    yield runtime_templates.parse_template(raw)
                except ValueError as error:
                    _log.warning("template %s is skipped: %s", raw["metadata"]["name"], error)


def build_adapter(config: RunaiBackendConfig) -> WorkloadAdapter:
    """Return the adapter for a configuration. Equal phases give the same adapter, so that waiters share one watch."""
    phases = (config.succeeded_phases, config.failed_phases, config.stopped_phases)
    return _build_adapter_for_phases(Phases(*(frozenset(name.lower() for name in names) for names in phases)))


@cache
def _build_adapter_for_phases(phases: Phases) -> WorkloadAdapter:
    return WorkloadAdapter(
        pod_labels={TRAINING_WORKLOADS: JOB_LABEL, DISTRIBUTED_WORKLOADS: JOB_LABEL},
        parse_job=partial(parse.parse_job, phases=phases),
        build_suspend_patch=lambda _, suspend: {"spec": {"active": {"value": not suspend}}},
        build_event_name_patterns=_build_event_name_patterns,
        parse_pod=parse.parse_pod,
        is_job=lambda raw: not runtime_templates.is_template(raw),
    )


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    name = re.escape(job.name)
    return {
        resources.PODS.kind: re.compile(rf"{name}-(\d+-\d+|(master|worker|launcher)(-[a-z0-9]+)*)"),
        **dict.fromkeys(_CHILD_KINDS, re.compile(name)),
    }
