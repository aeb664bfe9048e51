"""TrainJobRequest: the complete description of a TrainJob as plain JSON, independent of the backend.

It is frozen, versioned, and JSON both ways. It does not depend on where or when the TrainJob runs, so that equal
requests have equal fingerprints on every machine.

It has three parts: `work`, which is what trains; `policy`, which is how it is queued, limited and restarted; `context`,
which is who submits it, and what belongs to this attempt. In plain data and JSON they are not grouped.

1. `request_builder` builds its data from a trainer, options and so on, and `TrainJobRequest.parse` checks them.
2. The client adds the name of the attempt and the run in MLflow, and compares `fingerprint`s with existing jobs.
3. The backend stores the JSON with the job, so that any process can read it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from trainer_core.base import naming, resources, secrets, validation
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.secrets import SecretRef, redact
from trainer_core.base.text import shorten
from trainer_core.model import func_args
from trainer_core.model.backend_names import (
    DEFAULT_RECIPE,
    EXTENSIONS_GROUP,
    OWN_BACKENDS,
    get_backend_kinds,
    get_extension_reference,
    is_extension,
    load_class,
)
from trainer_core.model.jobs import Restarts, build_partition_annotations, build_partition_labels, build_reuse_labels
from trainer_core.model.restart_rules import RestartRules
from trainer_core.node import env as node_env

#: Controllers that can reconcile a TrainJob (``spec.managedBy``).
Controller = Literal["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"]
CONTROLLERS: tuple[str, ...] = get_args(Controller)
MULTIKUEUE = CONTROLLERS[1]
#: Label of Kueue and annotation of Volcano: the queue in which a job waits.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
#: Field manager of the patch that the option RuntimePatch makes, as in the Kubeflow SDK.
PATCH_MANAGER = "trainer.kubeflow.org/kubeflow-sdk"
#: Access modes of a volume claim that can be written to (``spec.accessModes``).
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
ACCESS_MODES: tuple[str, ...] = get_args(AccessMode)
#: What a complete TrainJob leaves of its checkpoints.
KeptCheckpoints = Literal["last", "none", "all"]
KEPT_CHECKPOINTS: tuple[str, ...] = get_args(KeptCheckpoints)
#: Marks a field that is not part of the fingerprint: it says where the work lies, or is drawn for each creation.
NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class Option:
    """Marks the field of a request that an option sets.

    Attributes:
        name: Class name of the option.
        kinds: Names and kinds (`BackendConfig.kinds`) of the backends that have it. None: each one has it.
        can_be_default: Whether the configuration of a backend can have it in `default_options`.
        key: Its field in ``spec`` of a TrainJob. None for the name of the field in Kubernetes' spelling.
    """

    name: str
    kinds: frozenset[str] | None = None
    can_be_default: bool = False
    key: str | None = None


#: The kinds of backends. That of the debugger trains in the calling process, and is none of these.
_PROCESSES, _CONTAINERS = frozenset({"processes"}), frozenset({"containers"})
_CLUSTERS, _KUBEFLOW = frozenset({"clusters"}), frozenset({"kubeflow"})
#: Options that set no field alone, with the kinds of backends that have them.
_OTHER_OPTIONS = {
    **dict.fromkeys(("Name", "Labels", "Annotations")),
    **dict.fromkeys(("TrainerCommand", "TrainerArgs"), _CONTAINERS),
    **dict.fromkeys(("QueueName", "PriorityClass", "GangScheduling"), _KUBEFLOW),
}
#: Seconds.
Duration = Annotated[float, BeforeValidator(validation.parse_duration)]
JobName = Annotated[str, AfterValidator(naming.validate_name)]


def _parse_env_value(value: Any) -> Any:
    parsed = secrets.parse_secret(value)
    if not isinstance(parsed, (str, SecretRef)):
        raise ValueError(f"must be a string, or name and key of a Secret, got {type(value).__name__}")
    return parsed


#: `traceparent` of W3C Trace Context.
TRACEPARENT_PATTERN = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
#: Literal secrets that `trainer_core.tracking` adds for mlflow inside the training, on the backends that keep them.
TRACKING_SECRETS = frozenset(
    {"trainer.MLFLOW_TRACKING_TOKEN", "trainer.MLFLOW_TRACKING_USERNAME", "trainer.MLFLOW_TRACKING_PASSWORD"}
)
#: Kubernetes quantities by full resource name, after validation.
Quantities = Annotated[dict[str, str | int | float], AfterValidator(resources.normalize_resources)]
EnvValue = Annotated[str | SecretRef, BeforeValidator(_parse_env_value)]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # It has no public name.


class _PartType(ModelMetaclass):
    """Metaclass by which constructors refuse a value in one line. Validation of nested data does not call it."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:  # noqa: N805  # the class of a metaclass
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            raise ValueError(shorten(f"{cls.__name__}: {validation.format_problems(error)}")) from error


class _Part(BaseModel, metaclass=_PartType):
    # Pydantic's own message, which a traceback shows, would quote environment variables that are secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class Owner(_Part):
    """What a TrainJob belongs to, such as a task of a DAG run. Its TrainJobs are attempts of the same work.

    Attributes:
        key: Unique, and the same over retries, such as dag/run/task/map index.
        slug: Readable part of the names of its TrainJobs. Default ``job``.
        generation: Number that increases when a person asks for a new run of the same work, and stays the same over
            retries. An older generation is refused once a newer one has a TrainJob. Text without an order is possible.
    """

    key: str = Field(min_length=1, max_length=1000)
    slug: str = "job"
    generation: str | None = None


class RuntimeRef(_Part):
    """The runtime of a TrainJob (``spec.runtimeRef``). Without a kind, the first kind that has this name."""

    name: str = Field(min_length=1, max_length=253)
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] | None = None


class Project(_Part):
    """Files that travel with a training function, as `trainer_core.packaging.project.Project.pack` returns them.

    Attributes:
        archive: The compressed files, in base64. Empty in the request that a cluster records with its job, and after
            they were written to `uri`.
        digest: Hash of the names, contents and executable bits.
        files: Number of files.
        size: Bytes of all files.
        roots: Folders below which modules are imported, relative to the files.
        uri: The object with the compressed files, where they are too large for the arguments of the job. Set when the
            TrainJob is created.
    """

    #: The digest stands for the files, whichever version of zlib compressed them, and whichever way they travel.
    archive: Annotated[str, NOT_COMPARED] = Field(default="", repr=False)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    files: PositiveInt
    size: int = Field(ge=0)
    roots: tuple[str, ...] = ("",)
    uri: Annotated[str | None, NOT_COMPARED] = None

    @property
    def file_uri(self) -> str | None:
        """`uri` if it is a file, which the backend passes to the nodes. None if they fetch the files themselves."""
        return self.uri if self.uri and self.uri.startswith("file://") else None


class Code(_Part):
    """A packaged training function, as `serializer.package` returns it.

    Attributes:
        kind: How the function is packaged.
        text: Source text, pickle, or import path.
        entry: Name of the function.
        args: Its arguments.
        types: Declared types of the arguments, by name.
        digest: Hash of kind, text and entry.
        origin: File and line at which the text begins, for tracebacks.
        project: Files that travel with the function.
    """

    kind: Literal["source", "reference", "cloudpickle"]
    text: str = ""
    entry: str
    args: dict[str, Any] = Field(default_factory=dict)
    types: dict[str, str] = Field(default_factory=dict)
    digest: str = ""
    origin: Annotated[str | None, NOT_COMPARED] = Field(default=None, pattern=r"^[\w-]+\.py:[1-9]\d{0,6}$")
    project: Project | None = None

    @model_validator(mode="after")
    def _coerce_arguments(self) -> Code:
        """Convert rendered arguments, and those of a command line or KFP, to their declared types."""
        object.__setattr__(self, "args", func_args.coerce(self.args, self.types, self.entry))
        return self


class TrainerRequest(_Part):
    """What to run (``spec.trainer``).

    Attributes:
        kind: ``custom`` (a function), ``container`` (an image) or ``builtin`` (a recipe of the runtime).
        pip_index_urls: Package indexes: the first is ``--index-url``, the others ``--extra-index-url``.
        image: Container image. None for the runtime's image.
        command: Replaces the image's entry point.
        args: Replaces the image's arguments.
        num_nodes: Number of nodes. None for the runtime's number.
        num_proc_per_node: Processes per node. None to derive it from the resources.
        resources_per_node: Kubernetes quantities by resource name (``spec.trainer.resourcesPerNode``).
        env: Environment variables: strings, or references to secrets.
        config: Settings of the recipe of a builtin trainer.
        recipe: Name of the recipe. None for torchtune.
        result_uri: Absolute path or ``file://`` URI to which the result is written as JSON, of any size.
        code_uri: Where the files of the function's project go if they are too large for the arguments of the job. None
            for the place of the backend.
    """

    kind: Literal["custom", "container", "builtin"]
    code: Code | None = None
    packages: tuple[str, ...] = ()
    pip_index_urls: tuple[str, ...] = ()
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    num_nodes: PositiveInt | None = None
    num_proc_per_node: PositiveInt | None = None
    resources_per_node: Quantities | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)
    config: dict[str, Any] | None = None
    recipe: str | None = None
    result_uri: str | None = None
    code_uri: Annotated[str | None, NOT_COMPARED] = None

    @model_validator(mode="after")
    def _check_texts(self) -> TrainerRequest:
        """Check the values that the constructors accepted as templates, which are rendered now."""
        validation.check_image("image", self.image)
        validation.check_env("env", self.env)
        validation.check_packages("packages", self.packages)
        validation.check_index_urls("pip_index_urls", self.pip_index_urls)
        validation.check_result_uri("result_uri", self.result_uri)
        if self.code_uri is not None:
            validation.check_code_uri("code_uri", self.code_uri)
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> TrainerRequest:
        needed = {
            "custom": ("code", self.code),
            "container": ("image, command or args", self.image or self.command or self.args),
            "builtin": ("config", self.config is not None),
        }
        name, part = needed[self.kind]
        if not part:
            raise ValueError(f"a {self.kind} trainer needs its {name}")
        return self

    @property
    def program(self) -> str | None:
        """The framework whose runtimes have the program of a builtin trainer; None for functions and images."""
        return (self.recipe or DEFAULT_RECIPE) if self.kind == "builtin" else None

    @property
    def literal_env(self) -> dict[str, str]:
        """The environment variables that are not secrets."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @property
    def secret_env(self) -> dict[str, SecretRef]:
        """The environment variables that refer to secrets."""
        return {name: value for name, value in self.env.items() if isinstance(value, SecretRef)}


class InitializerSource(_Part):
    """A dataset or a model to fetch before training (``spec.initializer.dataset``, ``spec.initializer.model``).

    Attributes:
        env: Further settings by the environment variables of Trainer's initializers (``env``).
        secrets: References to secrets by environment variable.
    """

    storage_uri: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://.+$", max_length=2048)
    ignore_patterns: tuple[str, ...] | None = None
    link: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretRef] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_env(self) -> InitializerSource:
        if "\0" in self.storage_uri:
            raise ValueError("storage_uri contains a NUL character; remove it")
        validation.check_env("env", self.env)
        validation.check_env("secrets", self.secrets)
        is_reserved = validation.RESERVED_INITIALIZER_ENV.__contains__
        for what, names in (("env", self.env), ("secrets", self.secrets)):
            validation.check_reserved_env(what, names, is_reserved, "another field of the initializer, or the backend,")
        return self


class InitializerRequest(_Part):
    """What to fetch before training (``spec.initializer``): a dataset, a pre-trained model, or both."""

    dataset: InitializerSource | None = None
    model: InitializerSource | None = None

    def sources(self) -> list[tuple[str, InitializerSource]]:
        """Return each source with its role (``"dataset"``, ``"model"``), in the order in which they are fetched."""
        pairs = (("dataset", self.dataset), ("model", self.model))
        return [(role, source) for role, source in pairs if source is not None]


class Metadata(_Part):
    """Labels and annotations of the TrainJob (``metadata``)."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_labels_and_annotations(self) -> Metadata:
        validation.check_labels("labels", self.labels)
        validation.check_annotations("annotations", self.annotations)
        return self


class Distributed(Metadata):
    """Settings of a `DistributedConfig` for the pods of all nodes, in Kubernetes' spelling."""

    env: tuple[dict[str, Any], ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    #: The keys that have no field in the request: backoffLimit, cleanPodPolicy, schedulingPolicy.
    run_policy: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_resources(self) -> Distributed:
        validation.check_labels("node_selector", self.node_selector)
        for name in self.requests.keys() & self.limits.keys():
            if resources.parse_quantity(self.requests[name]) > resources.parse_quantity(self.limits[name]):
                raise ValueError(f"requests of {name} ({self.requests[name]}) exceed its limits ({self.limits[name]})")
        return self


class Workspace(_Part):
    """Settings of a `Workspace` option: the volume claim into which a TrainJob that only initializes fetches."""

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access_mode: AccessMode = "ReadWriteOnce"

    @model_validator(mode="after")
    def _check_claim(self) -> Workspace:
        for name in ("claim", "storage_class"):
            if getattr(self, name) is not None:
                validation.check_object_name(name, getattr(self, name))
        if resources.parse_quantity(self.size) <= 0:
            raise ValueError(f"size must be greater than 0, got {self.size!r}")
        return self


class Checkpoints(_Part):
    """Settings of a `Checkpoints` option."""

    uri: str | None = None
    keep: PositiveInt = 3
    keep_best: str | None = None
    mode: Literal["max", "min"] | None = None
    every_steps: PositiveInt | None = None
    every_seconds: float = Field(default=600, ge=0, allow_inf_nan=False)
    load: str = "fresh"
    grace: int = Field(default=30, ge=3)
    after: KeptCheckpoints = "last"
    ttl: int = Field(default=7 * 24 * 3600, ge=0)
    #: Identifies a TrainJob that shares checkpoints with no other one. Set when it is created.
    nonce: Annotated[str | None, NOT_COMPARED] = Field(default=None, pattern=r"^[0-9a-f]{10}$")
    #: Folder of the first attempt of a TrainJob without an owner. Set for its later attempts.
    scope: Annotated[str | None, NOT_COMPARED] = Field(default=None, pattern=r"^[a-z0-9-]+/g-0$")

    @model_validator(mode="after")
    def _check_places(self) -> Checkpoints:
        if self.uri is not None:
            validation.check_place_uri("uri", self.uri)
        validation.check_load(self.load)
        return self


class MoreMemory(_Part):
    """Settings of a `MoreMemory` option."""

    limit: Annotated[str, BeforeValidator(resources.parse_memory)]
    factor: float = Field(default=1.5, gt=1, le=16)


class Reuse(_Part):
    """Settings of a `Reuse` option. Without `within` it trains in any case, and others can take its result."""

    within: Duration | None = None


class Stalled(_Part):
    """Settings of a `Stalled` option, in seconds."""

    after: Duration
    startup: Duration | None = None
    save: Duration | None = None
    output: bool = False


class TrackingRequest(_Part):
    """Settings of a `Tracking` option. Not part of the fingerprint: they do not change the training."""

    kind: Literal["mlflow", "wandb", "comet"] = "mlflow"
    uri: str | None = None
    experiment: str | None = Field(default=None, min_length=1, max_length=500)
    run_name: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    params: bool = True
    join: bool = True
    training_uri: str | None = None
    required: bool = False
    #: Run below which the run is nested.
    parent_run_id: str | None = None
    #: Set, with what follows, when the TrainJob is created; None if the server could not be reached then.
    run_id: str | None = None
    experiment_id: str | None = None
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_uris(self) -> TrackingRequest:
        validation.check_tracking_uri("uri", self.uri)
        validation.check_tracking_uri("training_uri", self.training_uri)
        return self


class SearchEntry(_Part):
    """Which trial of a hyperparameter search a TrainJob is. Not part of the fingerprint.

    Each entry describes the whole search, so that any process can continue it from what is left of its TrainJobs.

    Attributes:
        key: Key of the search: the owner's key of its entries is ``<key>/<entry>``.
        entry: Number of the TrainJob in the search, 0 for the first.
        kind: ``run`` trains; ``record`` ends the search, or precedes a stop that deletes a job, and trains nothing.
        reason: Why a record was written. None for a run.
        trial: Number of the trial. None for a record.
        parameters: Parameters of the trial.
        rung: With promotion, the rung at which the run ends. None for the end of the training.
        until: Step of that rung.
        created: When it was created, in seconds since 1970.
        started: When entry 0 was created, in seconds since 1970.
        shares_start: Whether `started` is the same in all such entries of the search, and in no other search. False in
            entries of earlier releases, in which each of several drivers that began at once kept its own.
        seed: Seed of the algorithm.
        lag: How many trials back the parameters were chosen from. None: from those that had ended.
        definition: The search, as `SearchDefinition.to_dict` returns it.
        limits_since: When its limits were set, in seconds since 1970: of several drivers, the latest limits hold.
        template: Command, arguments and environment of an image without the parameters.
        digest: Hash of what cannot change when the search is continued, with the TrainJob of a trial.
        settled: Lines of `SettledTrial`: of all trials that have ended in entry 0, every 32nd entry and records; in
            others, of those that have ended since.
    """

    key: str = Field(min_length=1, max_length=1000)
    entry: int = Field(ge=0)
    kind: Literal["run", "record"] = "run"
    reason: str | None = None
    trial: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    rung: int | None = None
    until: float | None = None
    created: float = 0.0
    started: float = 0.0
    shares_start: bool = False
    seed: str = ""
    lag: int | None = None
    definition: dict[str, Any]
    limits_since: float = 0.0
    template: dict[str, Any] = Field(default_factory=dict)
    digest: str = ""
    settled: tuple[list[Any], ...] = ()


class Extension(_Part):
    """Base of the model of what the options of one backend set in a request."""

    #: Class name of the option that sets it.
    option: ClassVar[str]
    #: Name of the backend that has it.
    backend: ClassVar[str]

    @property
    def sets_memory(self) -> bool:
        """Whether the memory of a node is set here, and not by the trainer."""
        return False


def _parse_extensions(data: Any) -> Any:
    """Validate each extension by the model of its backend."""
    if not isinstance(data, Mapping):
        raise ValueError("must be a dict of extensions by name")
    problems, found = [], {}
    for name, value in data.items():
        if not is_extension(name):
            raise ValueError(f"{redact(name)} is not the name of an extension")
        kind = load_class(name, get_extension_reference(name), Extension, None, EXTENSIONS_GROUP)
        try:
            found[name] = value if isinstance(value, kind) else kind.model_validate(value)
        except ValidationError as error:
            problems += [
                InitErrorDetails(
                    type=each["type"], loc=(name, *each["loc"]), input=each["input"], ctx=each.get("ctx", {})
                )
                for each in error.errors()
            ]
    if problems:
        raise ValidationError.from_exception_data("extensions", problems, hide_input=True)
    return found


class Work(_Part):
    """What trains.

    Attributes:
        runtime: The runtime (``spec.runtimeRef``). None for the backend's default.
        trainer: What to run (``spec.trainer``). None to only initialize, or to run the runtime unchanged.
        initializer: What to fetch first (``spec.initializer``).
        patches: Runtime patches, in the shape of ``spec.runtimePatches``.
        workspace: Volume claim for what a TrainJob that only initializes fetches.
        distributed: Settings of a `DistributedConfig`.
        extensions: What the options of one backend set, by the name of the extension: the model of that backend. In
            plain data and JSON each is a field of its own.
    """

    runtime: RuntimeRef | None = None
    trainer: TrainerRequest | None = None
    initializer: InitializerRequest | None = None
    patches: Annotated[
        tuple[dict[str, Any], ...], Option("RuntimePatch", _KUBEFLOW | {"container"}, key="runtimePatches")
    ] = ()
    workspace: Annotated[Workspace | None, Option("Workspace", _KUBEFLOW)] = None
    distributed: Annotated[Distributed | None, Option("DistributedConfig", _KUBEFLOW)] = None
    extensions: Annotated[dict[str, Any], BeforeValidator(_parse_extensions)] = Field(default_factory=dict)


class Policy(_Part):
    """How the TrainJob is queued, limited, restarted, kept and tracked.

    Attributes:
        metadata: Labels and annotations.
        active_deadline_seconds: Maximum run time in seconds (``spec.activeDeadlineSeconds``).
        start_within: Seconds within which all its pods must have a node. None for no limit.
        suspend: Whether to create it suspended (``spec.suspend``).
        managed_by: Controller that reconciles it (``spec.managedBy``). None for Trainer's controller.
        delete_after_seconds: Seconds after its end when it may be deleted. None to keep it.
        checkpoints: Settings of a `Checkpoints` option.
        more_memory: Settings of a `MoreMemory` option.
        restart_policy: Settings of a `RestartPolicy` option.
        stalled: Settings of a `Stalled` option.
        reuse: Settings of a `Reuse` option.
        tracking: Where its run is tracked. None for where the submitting process is configured to.
    """

    metadata: Metadata = Field(default_factory=Metadata)
    active_deadline_seconds: Annotated[
        PositiveInt | None, Option("ActiveDeadlineSeconds", _KUBEFLOW | {"container", "local"})
    ] = None
    start_within: Annotated[Duration | None, Option("StartWithin", _CLUSTERS | {"local"}, can_be_default=True)] = None
    suspend: Annotated[bool, Option("Suspend", _PROCESSES)] = False
    managed_by: Annotated[Controller | None, Option("ManagedBy", _KUBEFLOW)] = None
    delete_after_seconds: Annotated[
        PositiveInt | None, Option("DeleteAfter", _CONTAINERS, key="ttlSecondsAfterFinished")
    ] = None
    checkpoints: Annotated[Checkpoints | None, Option("Checkpoints")] = None
    more_memory: Annotated[MoreMemory | None, Option("MoreMemory", _CONTAINERS, can_be_default=True)] = None
    restart_policy: Annotated[
        Annotated[RestartRules, BeforeValidator(RestartRules.parse)] | None,
        Option("RestartPolicy", _PROCESSES, can_be_default=True),
    ] = None
    stalled: Annotated[Stalled | None, Option("Stalled", _PROCESSES, can_be_default=True)] = None
    reuse: Annotated[Reuse | None, NOT_COMPARED, Option("Reuse", _PROCESSES, can_be_default=True)] = None
    tracking: Annotated[TrackingRequest | None, NOT_COMPARED, Option("Tracking")] = None


def _check_defaults(names: tuple[str, ...]) -> tuple[str, ...]:
    known = sorted(DEFAULT_OPTIONS.values())
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return names


class Context(_Part):
    """Who submits the TrainJob, and what belongs to this attempt of it. Not part of the fingerprint.

    Attributes:
        name: Name of the TrainJob (``metadata.name``). None to derive it from the owner.
        owner: What the TrainJob belongs to. None for a TrainJob that is identified by its name.
        search: Which trial of a search it is. None for a TrainJob outside of a search.
        partition: Key of the partition of data that it trains for.
        traceparent: W3C trace context of what submits it.
        retry_of: The failed attempt that a person retries, with a new budget of restarts.
        defaults: Fields of the policy that the configuration of the backend has set.
        attempt_memory: Memory of a node in this attempt, where it is more than the request has. This and what follows
            is set when the TrainJob is created.
        attempt_restarts: The restarts before this attempt. None without one.
        secret_names: With a `RestartPolicy`: the names of `literal_secrets`, without which another process cannot
            start the next attempt.
        reuse_key: Hash of all that decides what it trains, by which a later TrainJob finds it. None if a part is
            unknown.
        literal_secrets: Secrets given as text, by ``dataset.ENV``, ``model.ENV`` or ``trainer.ENV``. They stay in this
            process: neither the JSON, nor the fingerprint, nor any text form contains them.
    """

    name: JobName | None = None
    owner: Owner | None = None
    search: SearchEntry | None = None
    partition: Annotated[Annotated[str, AfterValidator(validation.check_partition)] | None, Option("Partition")] = None
    traceparent: str | None = Field(default=None, pattern=TRACEPARENT_PATTERN)
    retry_of: str | None = None
    defaults: Annotated[tuple[str, ...], AfterValidator(_check_defaults)] | None = None
    attempt_memory: Annotated[str, BeforeValidator(resources.parse_memory)] | None = None
    attempt_restarts: Restarts | None = None
    secret_names: tuple[str, ...] | None = None
    reuse_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    literal_secrets: dict[str, SecretStr] = Field(default_factory=dict, exclude=True, repr=False)


#: Parts of a request, and the part of each of its fields.
PARTS: dict[str, type[_Part]] = {"work": Work, "policy": Policy, "context": Context}
PART_OF_FIELD = {name: part for part, kind in PARTS.items() for name in kind.model_fields}
#: Groups of fields, which plain data do not name.
UNNAMED = {*PARTS, "extensions"}
#: The option that sets each field.
OPTION_OF_FIELD = {
    name: mark
    for kind in PARTS.values()
    for name, field in kind.model_fields.items()
    for mark in field.metadata
    if isinstance(mark, Option)
}
#: The options that a configuration can set for all TrainJobs, with the field that each of them sets.
DEFAULT_OPTIONS = {option.name: name for name, option in OPTION_OF_FIELD.items() if option.can_be_default}


def list_options(backend: str) -> frozenset[str]:
    """Return the names of the options that a backend has by its name and its kinds."""
    options = {**_OTHER_OPTIONS, **{option.name: option.kinds for option in OPTION_OF_FIELD.values()}}
    own = {backend, *get_backend_kinds(backend)}
    return frozenset(name for name, kinds in options.items() if kinds is None or not kinds.isdisjoint(own))


class TrainJobRequest(_Part):
    """The complete description of a TrainJob.

    Attributes:
        version: Version of this description.
        work: What trains.
        policy: How it is queued, limited, restarted, kept and tracked.
        context: Who submits it, and what belongs to this attempt.
    """

    version: Literal[1] = 1
    work: Work = Field(default_factory=Work)
    policy: Policy = Field(default_factory=Policy)
    context: Context = Field(default_factory=Context)

    @model_validator(mode="before")
    @classmethod
    def _group_fields(cls, data: Any) -> Any:
        """Give each field of plain data to its part; the last one refuses unknown fields."""
        if not isinstance(data, Mapping) or any(isinstance(data.get(part), _Part) for part in PARTS):
            return data
        grouped: dict[str, Any] = {part: {} for part in PARTS}
        extensions = grouped["work"]["extensions"] = {}
        for name, value in data.items():
            if name not in PART_OF_FIELD and name != "version" and is_extension(name):
                extensions.update({name: value} if value is not None else {})
                continue
            is_known = name in PART_OF_FIELD and name != "extensions"  # Those are fields of their own in plain data.
            target = grouped if name == "version" else grouped[PART_OF_FIELD[name] if is_known else "context"]
            target[name] = value
        return grouped

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> TrainJobRequest:
        """Validate plain data in which all templates are rendered.

        Args:
            data: The request as plain data.

        Raises:
            InvalidRequestError: One line that names each invalid field by its dotted path.
        """
        try:
            validation.check_size("the request", data)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            # Without pydantic's own report, which says the same in five lines.
            raise InvalidRequestError(validation.format_problems(error, hidden=UNNAMED)) from None

    @classmethod
    def from_json(cls, text: str) -> TrainJobRequest:
        """Read what `to_json` returned.

        Args:
            text: The JSON.

        Raises:
            InvalidRequestError: The string is not JSON, or not a request.
        """
        return cls.parse(validation.parse_json("the request", text))

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain JSON data, without fields that are None."""
        data = self.model_dump(mode="json", exclude_none=True)
        extensions = data["work"].pop("extensions")
        return {"version": data["version"], **data["work"], **extensions, **data["policy"], **data["context"]}

    def to_json(self) -> str:
        """Return the request as canonical JSON: one line, keys sorted."""
        return _to_canonical_json(self.to_dict())

    def to_record_json(self) -> str:
        """Return the request as `to_json` does, without the files of the project, which would not fit an annotation.

        Its fingerprint is the same: that contains the digest of the files.
        """
        data = self.to_dict()
        project = ((data.get("trainer") or {}).get("code") or {}).get("project") or {}
        project.pop("archive", None)
        return _to_canonical_json(data)

    def fingerprint(self) -> str:
        """Return a hash of what is compared when a TrainJob of the same name or owner exists."""
        return hashlib.sha256(_to_canonical_json(self._get_compared()).encode()).hexdigest()

    def list_differences(self, other: TrainJobRequest) -> list[str]:
        """Return the fields, by dotted path, in which two requests with other fingerprints differ."""
        mine, theirs = dict(_leaves(self._get_compared())), dict(_leaves(other._get_compared()))
        return sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))

    def get_parameters(self) -> dict[str, str]:
        """Return the arguments of the training function or the values of the recipe as text, nested ones with dots.

        Where two have the same dotted name, as in ``{"a": {"b": 1}, "a.b": 2}``, the second one gets ``-2``.
        """
        code = self.work.trainer.code if self.work.trainer else None
        values = code.args if code else (self.work.trainer.config if self.work.trainer else None) or {}
        found: dict[str, str] = {}
        for path, value in _leaves(values):
            names = chain([path], (f"{path}-{number}" for number in count(2)))
            if path and value is not None:
                found[next(name for name in names if name not in found)] = _to_text(value)
        return found

    @property
    def attempt_deadline_seconds(self) -> int | None:
        """What the starts before this attempt have left of `active_deadline_seconds`. None without a deadline."""
        if self.policy.active_deadline_seconds is None or self.context.attempt_restarts is None:
            return self.policy.active_deadline_seconds
        return max(1, int(self.policy.active_deadline_seconds - self.context.attempt_restarts.seconds))

    @property
    def tracking_env(self) -> dict[str, str]:
        """The environment variables of the nodes by which the training finds its run."""
        return dict(self.policy.tracking.env) if self.policy.tracking else {}

    @property
    def job_env(self) -> dict[str, str]:
        """The environment variables of the nodes that do not belong to the work: run, partition and trace."""
        own = {node_env.PARTITION: self.context.partition, "TRACEPARENT": self.context.traceparent}
        return {**self.tracking_env, **{name: value for name, value in own.items() if value is not None}}

    @property
    def job_metadata(self) -> Metadata:
        """Labels and annotations of the TrainJob: those of the request, its partition, and its key for `Reuse`."""
        own = {**build_partition_labels(self.context.partition), **build_reuse_labels(self.context.reuse_key)}
        labels = {**self.policy.metadata.labels, **own}
        annotations = {**self.policy.metadata.annotations, **build_partition_annotations(self.context.partition)}
        return self.policy.metadata.model_copy(update={"labels": labels, "annotations": annotations})

    def initializer_sources(self) -> list[tuple[str, InitializerSource]]:
        """Return each initializer source with its role; empty for a request without an initializer."""
        return self.work.initializer.sources() if self.work.initializer else []

    def check_options(self, backend: str, accepted: Collection[str] | None = None) -> None:
        """Check that a backend accepts the options whose fields are set; None: it accepts those of its kinds."""
        accepted = list_options(backend) if accepted is None else accepted
        for name, option in OPTION_OF_FIELD.items():
            if option.name not in accepted and self.get_field(name):
                others = sorted(each for each in OWN_BACKENDS if option.name in list_options(each))
                raise UnsupportedError(
                    f"{name}: the {backend} backend has no {option.name}; remove it, or use one of {', '.join(others)}"
                )
        for name, extension in self.work.extensions.items():
            if extension.backend != backend:
                raise UnsupportedError(
                    f"{name}: the {backend} backend has no {extension.option}; remove it, or use one of "
                    f"{extension.backend}"
                )

    def get_field(self, name: str) -> Any:
        """Return a field of any part by its name."""
        return getattr(getattr(self, PART_OF_FIELD[name]), name)

    def with_fields(self, **changes: Any) -> TrainJobRequest:
        """Return a copy in which fields of any part have other values, which are not validated."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            parts.setdefault(PART_OF_FIELD[name], {})[name] = value
        copies = {part: getattr(self, part).model_copy(update=values) for part, values in parts.items()}
        return self.model_copy(update=copies)

    def with_name(self, name: str) -> TrainJobRequest:
        """Return a copy of this request with a name.

        Args:
            name: The name.

        Raises:
            ValueError: The name is invalid.
        """
        return self.with_fields(name=naming.validate_name(name))

    def with_checkpoints_nonce(self, nonce: str) -> TrainJobRequest:
        """Return a copy in which checkpoints that no other TrainJob shares are identified by a nonce."""
        if self.policy.checkpoints is None or (
            self.context.owner is not None and self.policy.checkpoints.load != "never"
        ):
            return self
        return self.with_fields(checkpoints=self.policy.checkpoints.model_copy(update={"nonce": nonce}))

    def with_checkpoints_scope(self, scope: str) -> TrainJobRequest:
        """Return a copy that shares the folder of checkpoints of an earlier attempt; unchanged without checkpoints."""
        if self.policy.checkpoints is None:
            return self
        return self.with_fields(checkpoints=self.policy.checkpoints.model_copy(update={"scope": scope}))

    def with_checkpoints_uri(self, uri: str | None) -> TrainJobRequest:
        """Return a copy whose checkpoints are kept at a place, unless the request names one or keeps none."""
        if self.policy.checkpoints is None or self.policy.checkpoints.uri is not None or uri is None:
            return self
        return self.with_fields(checkpoints=self.policy.checkpoints.model_copy(update={"uri": uri}))

    def without_lookup(self) -> TrainJobRequest:
        """Return a copy that trains although an earlier TrainJob may have trained the same."""
        return self.with_fields(reuse=Reuse()) if self.policy.reuse is not None else self

    @property
    def project(self) -> Project | None:
        """The files that travel with the training function; None without any."""
        return self.work.trainer.code.project if self.work.trainer and self.work.trainer.code else None

    def with_project(self, **changes: str) -> TrainJobRequest:
        """Return a copy in which fields of the `project` have other values."""
        if self.work.trainer is None or self.work.trainer.code is None or self.work.trainer.code.project is None:
            return self
        project = self.work.trainer.code.project.model_copy(update=changes)
        code = self.work.trainer.code.model_copy(update={"project": project})
        return self.with_fields(trainer=self.work.trainer.model_copy(update={"code": code}))

    def with_resource_interval(self, seconds: float | None) -> TrainJobRequest:
        """Return a copy whose function reports its use of resources at an interval, unless its environment has one."""
        trainer = self.work.trainer
        if seconds is None or trainer is None or trainer.code is None or node_env.RESOURCE_INTERVAL in trainer.env:
            return self
        variables = {**trainer.env, node_env.RESOURCE_INTERVAL: f"{seconds:g}"}
        return self.with_fields(trainer=trainer.model_copy(update={"env": variables}))

    @property
    def stalled_env(self) -> dict[str, str]:
        """The variable with which the nodes watch for a stall; empty without the option."""
        if self.policy.stalled is None:
            return {}
        if self.work.trainer is None or self.work.trainer.code is None:
            raise UnsupportedError(
                "Stalled needs a function as trainer: a program in an image and a torchtune recipe give no signs of "
                "progress; remove it, or use a CustomTrainer"
            )
        return {node_env.STALLED: self.policy.stalled.model_dump_json(exclude_none=True)}

    def get_attempt_name(self, attempt: int = 0) -> str:
        """Return the name of an attempt: the given name, or one derived from the owner, with a number for retries.

        Args:
            attempt: The attempt, 0 (the default) for the first, which has no number.

        Raises:
            InvalidRequestError: The request has neither a name nor an owner.
        """
        if self.context.owner is None:
            return self.require_name()
        if self.context.name is None:
            return naming.build_job_name(self.context.owner.slug, self.context.owner.key, attempt)
        return naming.build_attempt_name(self.context.name, attempt) if attempt else self.context.name

    def require_name(self) -> str:
        """Return the name."""
        if self.context.name is None:
            raise InvalidRequestError("the request has neither a name nor an owner; give one of them")
        return self.context.name

    def get_work(self) -> dict[str, Any]:
        """Return what trains as plain data, without the places where it lies."""
        work = _dump_compared(self.work)
        work.update(work.pop("extensions"))
        trainer = work.get("trainer", {})
        # It does not change the training, and a backend's configuration can set it.
        trainer.get("env", {}).pop(node_env.RESOURCE_INTERVAL, None)
        code = trainer.get("code", {})
        if "types" in code:  # How a type is written changes nothing.
            code["types"] = {name: func_args.read_type(declared)[0] for name, declared in code["types"].items()}
        return {"version": self.version, **work}

    def _get_compared(self) -> dict[str, Any]:
        """Return the work and what the request itself says in its policy, which a configuration does not."""
        policy = _dump_compared(self.policy)
        for name in self.context.defaults or ():
            policy.pop(name, None)
        return {**self.get_work(), **policy}


def _dump_compared(part: _Part) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_none=True, exclude=_list_not_compared(type(part)))


@cache
def _list_not_compared(kind: type[_Part]) -> dict[str, Any]:
    """Return the fields that are marked with `NOT_COMPARED`, nested ones in dicts, as `model_dump` excludes them."""
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        parts = [each for each in types if isinstance(each, type) and issubclass(each, _Part)]
        nested = {key: value for each in parts for key, value in _list_not_compared(each).items()}
        if NOT_COMPARED in field.metadata:
            found[name] = True
        elif nested:
            found[name] = nested
    return found


def _to_canonical_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _to_text(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float, bool)) else json.dumps(value, default=str)


def _leaves(data: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(data, dict):
        return [(path, data)]
    return [leaf for key, value in data.items() for leaf in _leaves(value, f"{path}.{key}" if path else str(key))]
