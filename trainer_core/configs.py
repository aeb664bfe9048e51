"""The configurations of the backends: where jobs run, and how to get there. No client library is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from trainer_core import checks

__all__ = [
    "CONFIGS",
    "BackendConfig",
    "ClusterConfig",
    "ContainerBackendConfig",
    "DebugBackendConfig",
    "KubernetesBackendConfig",
    "LocalProcessBackendConfig",
    "RunaiBackendConfig",
    "TrainingOperatorBackendConfig",
    "TrainingRuntimeSource",
    "config_from_dict",
]

_PULL_POLICIES = ("IfNotPresent", "Always", "Never")
_SOURCE = re.compile(r"(github://[^/\s]+/[^/\s]+(/\S*)?|https?://\S+|file://\S+|/.*)")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not True or False")
    return value


def _namespace(value: Any) -> Any:
    if isinstance(value, str) and not checks.is_namespace(value) and not checks.is_placeholder(value):
        raise ValueError("must be a namespace: at most 63 lower-case letters, digits and '-'")
    return value


def _client_configuration(value: Any) -> Any:
    if value is not None and not hasattr(value, "host"):
        raise ValueError("must be a kubernetes.client.Configuration")
    return value


_Namespace = Annotated[str, BeforeValidator(_namespace)]
_Text = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]


class _Settings(BaseModel):
    """Settings whose every mistake is one line, and whose unknown names are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, defer_build=True, hide_input_in_errors=True)

    # Hidden from type checkers, which go on seeing each field as a keyword.
    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise ValueError(f"{type(self).__name__}: {checks.one_line(error)}") from error

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, data: Any) -> Any:
        given = data if isinstance(data, Mapping) else {}
        unknown = sorted(str(name) for name in given if name not in cls.model_fields)
        if unknown:
            known = ", ".join(cls.model_fields) or "none"
            raise ValueError(f"unknown setting {', '.join(unknown)}; known are {known}")
        return data


class BackendConfig(_Settings):
    """What all configurations have in common."""

    #: Name of the backend this is the configuration of.
    backend: ClassVar[str]


class ClusterConfig(BackendConfig):
    """How to reach a Kubernetes cluster."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    namespace: _Namespace | None = None
    config_file: _Text | None = None
    context: _Text | None = None
    # A kubernetes.client.Configuration: naming the class here would load that library. It holds credentials.
    client_configuration: Annotated[Any, BeforeValidator(_client_configuration)] = Field(
        default=None, exclude=True, repr=False
    )
    in_cluster: bool = False

    @model_validator(mode="after")
    def _one_way_leads_to_it(self) -> ClusterConfig:
        ways = ("config_file", "context", "client_configuration")
        given = [name for name in ways if getattr(self, name) is not None]
        if self.in_cluster and given:
            raise ValueError(f"in_cluster and {', '.join(given)} contradict each other; leave one of them out")
        return self


class FetchingClusterConfig(ClusterConfig):
    """How to reach a Kubernetes cluster, and with which images pods fetch there."""

    dataset_initializer_image: _Text = "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0"
    model_initializer_image: _Text = "ghcr.io/kubeflow/trainer/model-initializer:v2.3.0"


class KubernetesBackendConfig(FetchingClusterConfig):
    """Run jobs with Kubeflow Trainer on a Kubernetes cluster.

    Attributes:
        namespace: Where jobs run; None for the namespace of the pod this runs in, else of the kubeconfig's
            context, else ``default``.
        config_file: Path of the kubeconfig; None for the usual places.
        context: Context of the kubeconfig; None for its current one.
        client_configuration: A ``kubernetes.client.Configuration``, instead of a kubeconfig.
        in_cluster: Use the service account of the pod this runs in, whatever KUBECONFIG names. It is used without being
            asked for where there is no kubeconfig.
        dataset_initializer_image: Image with which `initialize` fetches datasets; runtimes name their own.
        model_initializer_image: Image with which `initialize` fetches models.

    Raises:
        ValueError: An unknown setting, or a value that cannot be right.
    """

    backend: ClassVar[str] = "kubernetes"
    Config: ClassVar[type[Any]]


class _KubernetesConfigOptions:
    """The same as `model_config`, by the name that the API reference has for it."""

    arbitrary_types_allowed = True


# Inside the class body pydantic would take it for its own old way to configure a model, and warn.
KubernetesBackendConfig.Config = _KubernetesConfigOptions


class LocalProcessBackendConfig(BackendConfig):
    """Run jobs as processes on this machine.

    Attributes:
        cleanup_venv: Remove environments made for `packages_to_install` once no job kept needs them. False keeps
            every environment.
        home: Folder of all state. None for the environment variable ``TRAINJOB_HOME``, else ``~/.trainjob``.
        keep_finished: How many finished jobs to keep at most; older ones are removed.
        keep_finished_days: For how many days to keep a finished job at most.

    Raises:
        ValueError: An unknown setting, or a value that cannot be right.
    """

    backend: ClassVar[str] = "local"

    cleanup_venv: bool = True
    home: Path | None = None
    keep_finished: Annotated[int, BeforeValidator(_no_bool)] = Field(default=1000, ge=0)
    keep_finished_days: Annotated[float, BeforeValidator(_no_bool)] = Field(default=30.0, ge=0, allow_inf_nan=False)

    @field_validator("home", mode="before")
    @classmethod
    def _home_is_a_path(cls, value: Any) -> Any:
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ValueError("must be the path of a folder; leave it out for ~/.trainjob")
        return value

    @property
    def state_home(self) -> Path:
        """The folder of all state as an absolute path; the environment is asked each time."""
        home = self.home or Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob")
        return home.expanduser().absolute()


class TrainingRuntimeSource(_Settings):
    """Where the container backend reads its runtimes from.

    Attributes:
        sources: ``github://owner/repository[/path]``, ``http(s)://…``, ``file://…`` or an absolute path; of two
            runtimes with one name the first source's counts.

    Raises:
        ValueError: A source is none of these.
    """

    sources: list[str] = Field(default_factory=lambda: ["github://kubeflow/trainer"])

    @field_validator("sources")
    @classmethod
    def _sources_are_known(cls, value: list[str]) -> list[str]:
        for source in value:
            if not _SOURCE.fullmatch(source):
                raise ValueError(
                    f"{source!r} must be github://owner/repository[/path], http(s)://…, file://… or an absolute path"
                )
        return value


class ContainerBackendConfig(BackendConfig):
    """Run jobs as containers, with Docker or Podman.

    Attributes:
        pull_policy: When images are pulled: ``IfNotPresent``, ``Always`` or ``Never``.
        auto_remove: Remove the containers of a job that is deleted; False keeps them, stopped, under other names.
        container_host: Address of the engine; None for ``DOCKER_HOST``, ``CONTAINER_HOST`` or the system's own.
        container_runtime: ``docker`` or ``podman``; None for the first of them that answers.
        runtime_source: Where runtimes are read from.
        dataset_initializer_image: Image that fetches datasets.
        model_initializer_image: Image that fetches models.
        initializer_timeout: Seconds the initializers may take.
        namespace: Keeps apart the jobs of those who share an engine, as a cluster's namespaces do.

    Raises:
        ValueError: An unknown setting, or a value that cannot be right.
    """

    backend: ClassVar[str] = "container"

    pull_policy: str = "IfNotPresent"
    auto_remove: bool = True
    container_host: _Text | None = None
    container_runtime: Literal["docker", "podman"] | None = None
    runtime_source: TrainingRuntimeSource = Field(default_factory=TrainingRuntimeSource)
    dataset_initializer_image: _Text = "ghcr.io/kubeflow/trainer/dataset-initializer:latest"
    model_initializer_image: _Text = "ghcr.io/kubeflow/trainer/model-initializer:latest"
    initializer_timeout: _Seconds = 600
    namespace: _Namespace = "default"

    @field_validator("pull_policy")
    @classmethod
    def _pull_policy_is_known(cls, value: str) -> str:
        if value not in _PULL_POLICIES:
            raise ValueError(f"must be one of {', '.join(_PULL_POLICIES)}")
        return value


class RunaiBackendConfig(ClusterConfig):
    """Run jobs as Run:ai workloads.

    Attributes:
        project: The Run:ai project.
        cluster_id: The cluster's id in Run:ai's control plane, which workloads are annotated with; None for no id.
        succeeded_phases: Phases of a workload that has done its work.
        failed_phases: Phases of one that has failed for good.
        stopped_phases: Phases of one that somebody has stopped: suspended where it is not active, else failed. A phase
            that is named nowhere means that it goes on.
        namespace: Where its workloads live; None for ``runai-<project>``.
        config_file: Path of the kubeconfig; None for the usual places.
        context: Context of the kubeconfig; None for its current one.
        client_configuration: A ``kubernetes.client.Configuration``, instead of a kubeconfig.
        in_cluster: Use the service account of the pod this runs in, whatever KUBECONFIG names.

    Raises:
        ValueError: An unknown setting, neither project nor namespace, or a value that cannot be right.
    """

    backend: ClassVar[str] = "runai"

    project: _Text | None = None
    cluster_id: _Text | None = None
    succeeded_phases: tuple[str, ...] = ("Completed", "Succeeded")
    failed_phases: tuple[str, ...] = ("Failed", "Fail", "TimedOut")
    stopped_phases: tuple[str, ...] = ("Stopped", "Deleted")

    @model_validator(mode="after")
    def _place_is_known(self) -> RunaiBackendConfig:
        if self.project is None and self.namespace is None:
            raise ValueError("give the Run:ai project, or the namespace of its workloads")
        return self

    @property
    def project_namespace(self) -> str:
        """Where the project's workloads live."""
        return self.namespace or f"runai-{self.project}"


class TrainingOperatorBackendConfig(FetchingClusterConfig):
    """Run jobs as PyTorchJobs, on clusters that have the older Training Operator.

    Attributes:
        namespace: Where jobs run; None as for `KubernetesBackendConfig`.
        config_file: Path of the kubeconfig; None for the usual places.
        context: Context of the kubeconfig; None for its current one.
        client_configuration: A ``kubernetes.client.Configuration``, instead of a kubeconfig.
        in_cluster: Use the service account of the pod this runs in, whatever KUBECONFIG names.
        dataset_initializer_image: Image with which pods fetch datasets.
        model_initializer_image: Image with which pods fetch models.
        runtimes: Folder of further runtimes: YAML files in the shape of a ClusterTrainingRuntime, since the operator
            has none. None for the environment variable ``TRAINJOB_RUNTIMES``, else those that come with this backend.

    Raises:
        ValueError: An unknown setting, or a value that cannot be right.
    """

    backend: ClassVar[str] = "training-operator"

    runtimes: Path | None = None

    @field_validator("runtimes", mode="before")
    @classmethod
    def _runtimes_is_a_path(cls, value: Any) -> Any:
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ValueError("must be the path of a folder; leave it out for the packaged runtimes")
        return value

    @property
    def runtimes_folder(self) -> Path | None:
        """Where further runtimes lie; the environment is asked each time."""
        folder = self.runtimes or os.environ.get("TRAINJOB_RUNTIMES")
        return Path(folder).expanduser() if folder else None


class DebugBackendConfig(BackendConfig):
    """Run jobs inside the calling process, where breakpoints work.

    Raises:
        ValueError: A setting: there are none.
    """

    backend: ClassVar[str] = "debug"


#: The configuration of each backend, by the backend's name.
CONFIGS: Mapping[str, type[BackendConfig]] = {
    config.backend: config
    for config in (
        LocalProcessBackendConfig,
        DebugBackendConfig,
        ContainerBackendConfig,
        KubernetesBackendConfig,
        RunaiBackendConfig,
        TrainingOperatorBackendConfig,
    )
}


def config_from_dict(backend: str, settings: Mapping[str, Any]) -> BackendConfig:
    """Build the configuration of a backend from plain data.

    Args:
        backend: Its name, such as ``"local"``.
        settings: Values by setting.

    Raises:
        ValueError: No backend has that name, an unknown setting, or a value that cannot be right.
    """
    if backend not in CONFIGS:
        raise ValueError(f"unknown backend {backend!r}; known are {', '.join(sorted(CONFIGS))}")
    return CONFIGS[backend](**settings)
