"""The configurations of the backends: where TrainJobs run, and how to connect. Loads no client library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from trainer_core.base import naming, validation
from trainer_core.base.secrets import redact
from trainer_core.base.text import shorten
from trainer_core.model.backend_names import get_config_reference, is_backend, list_backends, load_class
from trainer_core.model.request import DEFAULT_OPTIONS

_DEFAULT_OPTIONS_EXAMPLE = "such as [{Stalled: {after: 30m}}]"
#: Volume of a container engine for checkpoints.
CHECKPOINTS_VOLUME = "trainjob-checkpoints"
_PULL_POLICIES = ("IfNotPresent", "Always", "Never")
_SOURCE = re.compile(r"(github://[^/\s]+/[^/\s]+(/\S*)?|https?://\S+|file://\S+|/.*)")


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not True or False")
    return value


def _check_namespace(value: Any) -> Any:
    if isinstance(value, str) and not naming.is_namespace(value) and not validation.is_placeholder(value):
        raise ValueError("must be a namespace: at most 63 lower-case letters, digits and '-'")
    return value


def _check_kube_config(value: Any) -> Any:
    """Check a kubeconfig that is given as text. It may come from a person who may not run programs on this machine."""
    if value is None:
        return None
    from trainer_core.base.yaml_documents import parse_yaml  # Only for a kubeconfig that is given as text.

    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    try:
        data = next(iter(parse_yaml(text, kubernetes=True)), None) if isinstance(text, str) else text
    except ValueError:
        data = None  # The error would quote the credentials.
    if not isinstance(data, Mapping) or not all(isinstance(data.get(key), list) for key in _KUBE_CONFIG_LISTS):
        raise ValueError("must be a kubeconfig in YAML or JSON, with clusters, contexts and users")
    entries = [(key[:-1], each) for key in ("clusters", "users") for each in data[key]]
    for section, entry in entries:
        settings = entry.get(section) if isinstance(entry, Mapping) else None
        refused = sorted(_KUBE_CONFIG_REFUSED & settings.keys()) if isinstance(settings, Mapping) else []
        if refused:
            raise ValueError(
                f"{section} {redact(entry.get('name'))} has {', '.join(refused)}, which runs a program or reads a "
                "file; put certificates into the …-data fields and use a token, or name the file with config_file"
            )
    return SecretStr(json.dumps(data))


def _check_client_configuration(value: Any) -> Any:
    if value is not None and not hasattr(value, "host"):
        raise ValueError("must be a kubernetes.client.Configuration")
    return value


def _check_place_uri(value: Any) -> Any:
    if value is not None and not validation.is_placeholder(value):
        validation.check_place_uri("it", value)
    return value


def _check_code_uri(value: Any) -> Any:
    if value is not None and not validation.is_placeholder(value):
        validation.check_code_uri("it", value)
    return value


def read_default_options(value: Any) -> Any:
    """Return options as plain data: dicts of a name and its settings, which the client checks."""
    if isinstance(value, str):
        from trainer_core.base.yaml_documents import parse_yaml  # Only for options that are given as text.

        value = next(iter(parse_yaml(value)), [])
    validation.check_size("it", value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"must be a list of options, {_DEFAULT_OPTIONS_EXAMPLE}")
    found: dict[str, Any] = {}
    for option in map(_to_option_data, value):
        name = next(iter(option)) if isinstance(option, Mapping) and len(option) == 1 else None
        if name not in list(DEFAULT_OPTIONS):  # A list: the name may be a value that cannot be hashed.
            known = ", ".join(DEFAULT_OPTIONS)
            what = shorten(name, 50) if isinstance(name, str) else redact(option)
            raise ValueError(f"{what} is not one of {known}, {_DEFAULT_OPTIONS_EXAMPLE}")
        if name in found:
            raise ValueError(f"{name} is given twice; give it once")
        found.update(option)
    return tuple({name: settings} for name, settings in found.items())


def _to_option_data(option: Any) -> Any:
    if isinstance(option, str):
        return {option: None}
    if not is_dataclass(option) or isinstance(option, type):
        return option
    settings = {each.name: getattr(option, each.name) for each in fields(option)}
    return {type(option).__name__: settings if len(settings) > 1 else next(iter(settings.values()), None)}


_DefaultOptions = Annotated[tuple[dict[str, Any], ...], BeforeValidator(read_default_options)]
_PlaceUri = Annotated[str, BeforeValidator(_check_place_uri)]
_CodeUri = Annotated[str, BeforeValidator(_check_code_uri)]
_Namespace = Annotated[str, BeforeValidator(_check_namespace)]
#: A setting that is not empty.
Text = Annotated[str, Field(min_length=1)]
_Interval = Annotated[float, BeforeValidator(_reject_bool), Field(ge=0, allow_inf_nan=False)]
_Seconds = Annotated[int, BeforeValidator(_reject_bool), Field(ge=1)]
_Duration = Annotated[float, BeforeValidator(validation.parse_duration)]


_KUBE_CONFIG_LISTS = ("clusters", "contexts", "users")
_KUBE_CONFIG_REFUSED = frozenset(
    ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key", "certificate-authority")
)


class _Settings(BaseModel):
    """Base of the configurations: refuses unknown settings, and reports each invalid value in one line."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, defer_build=True, hide_input_in_errors=True)

    # Hidden from type checkers, so that they see each field as a keyword argument.
    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise ValueError(shorten(f"{type(self).__name__}: {validation.format_problems(error)}")) from error

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        given = data if isinstance(data, Mapping) else {}
        unknown = sorted(str(name) for name in given if name not in cls.model_fields)
        if unknown:
            known = ", ".join(cls.model_fields) or "none"
            raise ValueError(f"unknown setting {validation.list_names(unknown)}; known are {known}")
        return data


class BackendConfig(_Settings):
    """Base of the configurations of all backends."""

    #: Name of the backend.
    backend: ClassVar[str]
    #: Module and class of the backend, as ``module:Class``.
    implementation: ClassVar[str]
    #: What its nodes are: ``processes``, ``containers``, ``clusters``, ``kubeflow``. It has the options of these kinds.
    kinds: ClassVar[frozenset[str]] = frozenset()
    #: Module and function by which `trainjob migrate` converts a document that another program wrote for it.
    migration: ClassVar[str | None] = None
    #: The setting that the namespace of a ref is the value of. It need not exist.
    namespace_setting: ClassVar[str] = "namespace"
    #: Settings that an Airflow connection can have in addition to those of its form. Others can edit connections.
    connection_settings: ClassVar[frozenset[str]] = frozenset()


class ClusterConfig(BackendConfig):
    """How to connect to a Kubernetes cluster."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kinds: ClassVar[frozenset[str]] = frozenset({"processes", "containers", "clusters"})

    namespace: _Namespace | None = None
    config_file: Text | None = None
    context: Text | None = None
    # A kubernetes.client.Configuration. Naming the class here would load that library. It contains credentials.
    client_configuration: Annotated[Any, BeforeValidator(_check_client_configuration)] = Field(
        default=None, exclude=True, repr=False
    )
    kube_config: Annotated[SecretStr | None, BeforeValidator(_check_kube_config)] = Field(
        default=None, exclude=True, repr=False
    )
    in_cluster: bool = False
    checkpoints_uri: _PlaceUri | None = None
    code_uri: _CodeUri | None = None
    resource_interval: _Interval | None = None
    default_options: _DefaultOptions | None = None
    scheduling_grace: _Duration = 1800.0

    @model_validator(mode="before")
    @classmethod
    def _hide_kube_config(cls, data: Any) -> Any:
        """Wrap the text before it is validated: a message quotes text that is invalid."""
        if isinstance(data, Mapping) and isinstance(data.get("kube_config"), str):
            return {**data, "kube_config": SecretStr(data["kube_config"])}
        return data

    @model_validator(mode="after")
    def _check_connection(self) -> ClusterConfig:
        names = ("config_file", "context", "client_configuration", "kube_config")
        conflicts = [name for name in names if getattr(self, name) is not None]
        if self.in_cluster and conflicts:
            raise ValueError(f"in_cluster conflicts with {', '.join(conflicts)}; leave one of them out")
        others = [name for name in conflicts if name in ("config_file", "client_configuration")]
        if self.kube_config is not None and others:
            raise ValueError(f"kube_config conflicts with {', '.join(others)}; leave one of them out")
        return self


class FetchingClusterConfig(ClusterConfig):
    """How to connect to a Kubernetes cluster with Kubeflow, and the images of its initializer pods."""

    kinds: ClassVar[frozenset[str]] = ClusterConfig.kinds | {"kubeflow"}

    dataset_initializer_image: Text = "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0"
    model_initializer_image: Text = "ghcr.io/kubeflow/trainer/model-initializer:v2.3.0"


class KubernetesBackendConfig(FetchingClusterConfig):
    """Run jobs with Kubeflow Trainer on a Kubernetes cluster.

    Attributes:
        namespace: Namespace of the TrainJobs. None (the default) for the namespace of the pod that this runs in,
            otherwise of the kubeconfig's context, otherwise ``default``.
        config_file: Path of the kubeconfig. None (the default) for ``KUBECONFIG`` or ``~/.kube/config``.
        context: Context of the kubeconfig. None (the default) for its current context.
        client_configuration: A ``kubernetes.client.Configuration`` to use instead of a kubeconfig.
        kube_config: Content of a kubeconfig, in YAML or JSON, to use instead of a file. It may not run programs or
            refer to files. It is a secret: no JSON and no text form of this configuration contains it.
        in_cluster: Use the service account of the pod that this runs in, even if there is a kubeconfig. Default False:
            use it only without a kubeconfig.
        checkpoints_uri: Where the option `Checkpoints` keeps checkpoints if it has no ``uri``, such as
            ``pvc://checkpoints``. None (the default): the option must have one.
        code_uri: Where the files of a large ``code`` go, such as ``s3://bucket/code``. None (the default): the trainer
            must name a place.
        resource_interval: Seconds between two reports of the use of resources, unless the trainer's environment has
            ``TRAINJOB_RESOURCE_INTERVAL``; 0 for no reports. None (the default) for 10.
        default_options: Options of each TrainJob whose request does not have them, as text in YAML, too, such as
            ``[{Stalled: {after: 30m}}]``. None (the default): those of the environment variable
            ``TRAINJOB_DEFAULT_OPTIONS``.
        scheduling_grace: How long a pod may wait for a Kubernetes node before a wait with ``fail_fast`` cancels its
            TrainJob, in seconds or as text such as ``"45m"``. Waiting for an autoscaler that adds a node, for a queue
            or for quota has no limit. Default 30 minutes.
        dataset_initializer_image: Image with which `initialize` fetches datasets. Runtimes name their own.
        model_initializer_image: Image with which `initialize` fetches models. Runtimes name their own.

    Raises:
        ValueError: A setting is unknown, or a value is invalid.
    """

    backend: ClassVar[str] = "kubernetes"
    implementation: ClassVar[str] = "trainer_core.backends.trainer_v2.backend:KubernetesBackend"
    Config: ClassVar[type[Any]]


class _KubernetesConfigOptions:
    """The `model_config` under its name in the Kubeflow SDK."""

    arbitrary_types_allowed = True


# In the class body, pydantic would read it as the configuration of a pydantic 1 model, and warn.
KubernetesBackendConfig.Config = _KubernetesConfigOptions


class LocalProcessBackendConfig(BackendConfig):
    """Run jobs as processes on this machine.

    Attributes:
        cleanup_venv: True (the default) removes the virtual environments for `packages_to_install` when no kept
            TrainJob needs them. False keeps all.
        home: Folder of all state. None (the default) for the environment variable ``TRAINJOB_HOME``, otherwise
            ``~/.trainjob``.
        keep_finished: Maximum number of ended TrainJobs to keep. Default 1,000. The oldest are removed.
        keep_finished_days: Maximum number of days to keep an ended TrainJob. Default 30.
        checkpoints_uri: Where the option `Checkpoints` keeps checkpoints if it has no ``uri``, as ``file:///<folder>``.
            None (the default) for the folder ``checkpoints`` in `home`.
        code_uri: Where the files of a large ``code`` go, as ``file:///<folder>`` or ``s3://<bucket>/<path>``. None (the
            default) for the folder ``code`` in `home`, from which those that no kept TrainJob uses are removed.
        resource_interval: Seconds between two reports of the use of resources, unless the trainer's environment has
            ``TRAINJOB_RESOURCE_INTERVAL``; 0 for no reports. None (the default) for 10.
        default_options: Options of each TrainJob whose request does not have them, as text in YAML, too, such as
            ``[{Stalled: {after: 30m}}]``. None (the default): those of the environment variable
            ``TRAINJOB_DEFAULT_OPTIONS``.
        max_parallel: How many TrainJobs of `home` run on this machine at the same time. Further ones are queued and
            start in the order in which they were submitted. A suspended TrainJob does not count. None (the default)
            for no limit.

    Raises:
        ValueError: A setting is unknown, or a value is invalid.
    """

    backend: ClassVar[str] = "local"
    implementation: ClassVar[str] = "trainer_core.backends.local.backend:LocalProcessBackend"
    kinds: ClassVar[frozenset[str]] = frozenset({"processes"})
    namespace_setting: ClassVar[str] = "home"

    cleanup_venv: bool = True
    home: Path | None = None
    keep_finished: Annotated[int, BeforeValidator(_reject_bool)] = Field(default=1000, ge=0)
    keep_finished_days: Annotated[float, BeforeValidator(_reject_bool)] = Field(default=30.0, ge=0, allow_inf_nan=False)
    checkpoints_uri: _PlaceUri | None = None
    code_uri: _CodeUri | None = None
    resource_interval: _Interval | None = None
    default_options: _DefaultOptions | None = None
    max_parallel: Annotated[int | None, BeforeValidator(_reject_bool), Field(ge=1)] = None

    @field_validator("home", mode="before")
    @classmethod
    def _check_home(cls, value: Any) -> Any:
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ValueError("must be the path of a folder; leave it out for ~/.trainjob")
        return value

    @property
    def state_home(self) -> Path:
        """The folder of all state as an absolute path. Reads the environment on each access."""
        home = self.home or Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob")
        return home.expanduser().absolute()


class TrainingRuntimeSource(_Settings):
    """Where the container backend reads its runtimes from.

    Attributes:
        sources: ``github://owner/repository[/path]``, ``http(s)://…``, ``file://…`` or an absolute path. If two
            sources have a runtime of the same name, the first one is used.

    Raises:
        ValueError: A source has another form.
    """

    sources: list[str] = Field(default_factory=lambda: ["github://kubeflow/trainer"])

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: list[str]) -> list[str]:
        for source in value:
            if not _SOURCE.fullmatch(source):
                raise ValueError(
                    f"{redact(source)} must be github://owner/repository[/path], http(s)://…, file://… or an "
                    "absolute path"
                )
        return value


class ContainerBackendConfig(BackendConfig):
    """Run jobs as containers, with Docker or Podman.

    Attributes:
        pull_policy: When to pull images: ``IfNotPresent`` (the default), ``Always`` or ``Never``.
        auto_remove: True (the default) removes the containers of a deleted TrainJob. False stops and renames them.
        container_host: Address of the engine. None (the default) for ``DOCKER_HOST``, ``CONTAINER_HOST`` or the
            system's default.
        container_runtime: ``docker`` or ``podman``. None (the default) for the first that answers.
        runtime_source: Where to read runtimes from. Default ``github://kubeflow/trainer``.
        dataset_initializer_image: Image that fetches datasets.
        model_initializer_image: Image that fetches models.
        initializer_timeout: Maximum run time of the initializers, in seconds. Default 600.
        namespace: Separates the TrainJobs of users who share an engine, as Kubernetes namespaces do. Default
            ``default``.
        checkpoints_uri: Where the option `Checkpoints` keeps checkpoints if it has no ``uri``: ``pvc://<volume>``, a
            volume of the engine, or ``file:///<folder>``. Default ``pvc://trainjob-checkpoints``.
        code_uri: Where the files of a large ``code`` go: ``file:///<folder>`` of this machine, which is copied into the
            containers, or ``s3://<bucket>/<path>``. None (the default) for a folder in ``TRAINJOB_HOME``.
        resource_interval: Seconds between two reports of the use of resources, unless the trainer's environment has
            ``TRAINJOB_RESOURCE_INTERVAL``; 0 for no reports. None (the default) for 10.
        default_options: Options of each TrainJob whose request does not have them, as text in YAML, too, such as
            ``[{Stalled: {after: 30m}}]``. None (the default): those of the environment variable
            ``TRAINJOB_DEFAULT_OPTIONS``.

    Raises:
        ValueError: A setting is unknown, or a value is invalid.
    """

    backend: ClassVar[str] = "container"
    implementation: ClassVar[str] = "trainer_core.backends.container.backend:ContainerBackend"
    kinds: ClassVar[frozenset[str]] = frozenset({"processes", "containers"})

    pull_policy: str = "IfNotPresent"
    auto_remove: bool = True
    container_host: Text | None = None
    container_runtime: Literal["docker", "podman"] | None = None
    runtime_source: TrainingRuntimeSource = Field(default_factory=TrainingRuntimeSource)
    dataset_initializer_image: Text = "ghcr.io/kubeflow/trainer/dataset-initializer:latest"
    model_initializer_image: Text = "ghcr.io/kubeflow/trainer/model-initializer:latest"
    initializer_timeout: _Seconds = 600
    namespace: _Namespace = "default"
    checkpoints_uri: _PlaceUri = f"pvc://{CHECKPOINTS_VOLUME}"
    code_uri: _CodeUri | None = None
    resource_interval: _Interval | None = None
    default_options: _DefaultOptions | None = None

    @field_validator("pull_policy")
    @classmethod
    def _check_pull_policy(cls, value: str) -> str:
        if value not in _PULL_POLICIES:
            raise ValueError(f"must be one of {', '.join(_PULL_POLICIES)}")
        return value


class DebugBackendConfig(BackendConfig):
    """Run jobs inside the calling process, where breakpoints work.

    Raises:
        ValueError: A setting was given; there are none.
    """

    backend: ClassVar[str] = "debug"
    implementation: ClassVar[str] = "trainer_core.backends.debug:DebugBackend"


def config_class(name: str) -> type[BackendConfig]:
    """Return the class of a backend's configuration. Loads neither the backend nor its client library.

    Raises:
        ValueError: No backend has this name.
        BackendUnavailableError: It belongs to another distribution, and cannot be loaded.
    """
    if not is_backend(name):
        raise ValueError(f"unknown backend {redact(name)}; known are {', '.join(list_backends())}")
    return load_class(name, get_config_reference(name), BackendConfig, "backend")


def config_from_dict(backend: str, settings: Mapping[str, Any]) -> BackendConfig:
    """Build the configuration of a backend from plain data.

    Args:
        backend: Name of the backend, such as ``"local"``.
        settings: Values by name of the setting.

    Raises:
        ValueError: No backend has this name, a setting is unknown, or a value is invalid.
        BackendUnavailableError: It belongs to another distribution, and cannot be loaded.
    """
    kind = config_class(backend)
    validation.check_mapping(f"settings of the {backend} backend", settings, "{'namespace': 'team-a'}")
    return kind(**(settings or {}))
