"""TrainJobRequest: the whole description of a TrainJob as plain JSON, before any backend has seen it.

Frozen, JSON both ways, versioned. Nothing in it depends on where or when it runs, so equal requests have equal
fingerprints on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

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

from trainer_core import checks, naming, packaging, resources, secrets
from trainer_core.errors import InvalidRequestError
from trainer_core.pytorch_jobs import PyTorchJob
from trainer_core.runai.fields import RunaiFields
from trainer_core.secrets import SecretRef

__all__ = [
    "ACCESS_MODES",
    "CONTROLLERS",
    "Code",
    "Distributed",
    "InitializerRequest",
    "InitializerSource",
    "Metadata",
    "Owner",
    "RuntimeRef",
    "TrainJobRequest",
    "TrainerRequest",
    "Workspace",
]

#: Who may see to a TrainJob (specs.md A2).
Controller = Literal["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"]
CONTROLLERS: tuple[str, ...] = get_args(Controller)
#: Who can mount a volume that is written to.
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
ACCESS_MODES: tuple[str, ...] = get_args(AccessMode)
JobName = Annotated[str, AfterValidator(naming.validate_name)]


def _env_value(value: Any) -> Any:
    found = secrets.secret_from(value)
    if not isinstance(found, (str, SecretRef)):
        raise ValueError(f"must be a text, or name and key of a Secret, not {type(value).__name__}")
    return found


#: Resources of a node, with their full names and texts as quantities once they are validated.
Quantities = Annotated[dict[str, str | int | float], AfterValidator(resources.validate)]
EnvValue = Annotated[str | SecretRef, BeforeValidator(_env_value)]


class _Part(BaseModel):
    # Pydantic's own report, which tracebacks show, would quote environments with what is secret in them.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Owner(_Part):
    """What a TrainJob belongs to.

    Attributes:
        key: Stable over retries and unique, such as dag, run, task and map index; attempts of one owner are
            attempts at one thing.
        slug: The readable part of the names of its jobs.
        generation: Changes when a person asks for a new run of the same thing; not when a task retries.
    """

    key: str = Field(min_length=1, max_length=1000)
    slug: str = "job"
    generation: str | None = None


class RuntimeRef(_Part):
    """The runtime a TrainJob refers to; ``kind`` None means wherever the name is found first."""

    name: str = Field(min_length=1, max_length=253)
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] | None = None


class Code(_Part):
    """A training function as `packaging.package` made it: shipped text, entry, arguments."""

    kind: Literal["source", "reference", "cloudpickle"]
    text: str = ""
    entry: str
    args: dict[str, Any] = Field(default_factory=dict)
    types: dict[str, str] = Field(default_factory=dict)
    digest: str = ""

    @model_validator(mode="after")
    def _arguments_get_their_types(self) -> Code:
        """Arguments that came through a template, a command line or KFP become what the function declares."""
        object.__setattr__(self, "args", packaging.coerce(self.args, self.types))
        return self


class TrainerRequest(_Part):
    """What to run.

    Attributes:
        kind: ``custom`` (a function), ``container`` (an image) or ``builtin`` (a packaged recipe).
        code: The function of a custom trainer.
        packages: What pip installs before the function runs.
        pip_index_urls: Where from: the first is the index, the others are extra ones.
        image: Container image; None for the runtime's own.
        command: Replaces the image's entry point.
        args: Replaces the image's arguments.
        num_nodes: How many nodes; None for the runtime's own number.
        num_proc_per_node: Processes on each node; None to derive it from the resources.
        resources_per_node: Kubernetes quantities by resource name.
        env: Environment variables; values may be secrets, by reference.
        config: Fields of the recipe of a builtin trainer.
        result_uri: Path or ``file://`` URI where the whole result is written as JSON, whatever its size.
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
    result_uri: str | None = None

    @model_validator(mode="after")
    def _texts_are_what_they_stand_for(self) -> TrainerRequest:
        """Checked once more after the constructors: templates have been filled in since."""
        secrets.check_env("env", self.env)
        checks.check_packages("packages", self.packages)
        checks.check_index_urls("pip_index_urls", self.pip_index_urls)
        checks.check_result_uri("result_uri", self.result_uri)
        return self

    @model_validator(mode="after")
    def _kind_has_its_part(self) -> TrainerRequest:
        needed = {"custom": ("code", self.code), "container": ("image", self.image), "builtin": ("config", self.config)}
        name, part = needed[self.kind]
        if not part:
            raise ValueError(f"a {self.kind} trainer needs its {name}")
        return self

    @property
    def literal_env(self) -> dict[str, str]:
        """The environment variables that are no secrets."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}


class InitializerSource(_Part):
    """One thing to fetch before training: where from, and what not.

    Attributes:
        storage_uri: ``scheme://…``; the scheme says who fetches it.
        ignore_patterns: Glob patterns of files to leave out.
        link: Link instead of copying, where the source lies on the same machine (``file://``).
        env: Further settings, by the environment variable names of Trainer's initializers.
        secrets: Secret settings by environment variable name, by reference.
    """

    storage_uri: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://.+$", max_length=2048)
    ignore_patterns: tuple[str, ...] | None = None
    link: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretRef] = Field(default_factory=dict)


class InitializerRequest(_Part):
    """What to fetch first: a dataset, a pre-trained model, or both."""

    dataset: InitializerSource | None = None
    model: InitializerSource | None = None


class Metadata(_Part):
    """Labels and annotations of the TrainJob."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _they_are_what_kubernetes_takes(self) -> Metadata:
        checks.check_labels("labels", self.labels)
        checks.check_annotations("annotations", self.annotations)
        return self


class Distributed(Metadata):
    """What a `DistributedConfig` says of every node; what lies deeper is in Kubernetes' spelling.

    Attributes:
        env: EnvVars beside those of the trainer.
        env_from: EnvFromSources.
        requests: Quantities by resource name that a node is to have.
        limits: Quantities by resource name that a node may not exceed.
        node_selector: Labels that a machine must have.
        affinity: An Affinity.
        tolerations: Tolerations.
        run_policy: What the request has no words of its own for: backoffLimit, cleanPodPolicy, schedulingPolicy.
    """

    env: tuple[dict[str, Any], ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    run_policy: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _a_cluster_could_start_it(self) -> Distributed:
        checks.check_labels("node_selector", self.node_selector)
        for name in self.requests.keys() & self.limits.keys():
            if resources.parse_quantity(self.requests[name]) > resources.parse_quantity(self.limits[name]):
                raise ValueError(
                    f"requests of {name}, {self.requests[name]}, are more than its limits, {self.limits[name]}"
                )
        return self


class Workspace(_Part):
    """The volume claim into which a job that only initializes fetches; made where there is none of that name.

    Attributes:
        claim: Its name; None for the job's.
        size: How much it is to hold, as a Kubernetes quantity.
        storage_class: What provides it; None for the cluster's default.
        access_mode: Who can mount it at a time.
    """

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access_mode: AccessMode = "ReadWriteOnce"

    @model_validator(mode="after")
    def _a_cluster_takes_it(self) -> Workspace:
        for name in ("claim", "storage_class"):
            if getattr(self, name) is not None:
                checks.check_object_name(name, getattr(self, name))
        if resources.parse_quantity(self.size) <= 0:
            raise ValueError(f"size must be more than nothing, got {self.size!r}")
        return self


class TrainJobRequest(_Part):
    """A TrainJob as it was asked for.

    Attributes:
        version: Of this description.
        name: Name of the TrainJob; None to derive it from the owner.
        owner: What the job belongs to; None for a job that stands for itself.
        runtime: The blueprint; None for the backend's default.
        trainer: What to run; None for a job that only initializes, or runs the runtime as it is.
        initializer: What to fetch first.
        metadata: Labels and annotations.
        patches: RuntimePatch entries in the shape of ``spec.runtimePatches``.
        active_deadline_seconds: Seconds the job may run, without the time it is suspended.
        suspend: Create it suspended.
        managed_by: The controller that sees to it; None for Trainer's own.
        delete_after_seconds: Seconds after its end when it may be deleted; None to keep it.
        workspace: Where a job that only initializes leaves what it fetched.
        distributed: What a `DistributedConfig` says of every node.
        pytorch_job: What a `PyTorchJobSpec` says.
        runai: What a `RunaiSpec` and a `RunaiMasterSpec` say.
        literal_secrets: Secrets given as literal text, by ``dataset.ENV``, ``model.ENV`` or ``trainer.ENV``. They live
            in this process only: left out of the JSON, the fingerprint and every text form.
    """

    version: Literal[1] = 1
    name: JobName | None = None
    owner: Owner | None = None
    runtime: RuntimeRef | None = None
    trainer: TrainerRequest | None = None
    initializer: InitializerRequest | None = None
    metadata: Metadata = Field(default_factory=Metadata)
    patches: tuple[dict[str, Any], ...] = ()
    active_deadline_seconds: PositiveInt | None = None
    suspend: bool = False
    managed_by: Controller | None = None
    delete_after_seconds: PositiveInt | None = None
    workspace: Workspace | None = None
    distributed: Distributed | None = None
    pytorch_job: PyTorchJob | None = None
    runai: RunaiFields | None = None
    literal_secrets: dict[str, SecretStr] = Field(default_factory=dict, exclude=True, repr=False)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> TrainJobRequest:
        """Validate and freeze a description; the last place where a user's mistake can be found.

        Raises:
            InvalidRequestError: One line that names each wrong field by its dotted path.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InvalidRequestError(checks.one_line(error)) from error

    @classmethod
    def from_json(cls, text: str) -> TrainJobRequest:
        """Read what `to_json` wrote.

        Raises:
            InvalidRequestError: Not JSON, or not a request.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidRequestError(f"the request is not JSON: {error}") from error
        return cls.parse(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain JSON data, without what is not set."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_json(self) -> str:
        """Return the request as canonical JSON: one line, keys sorted."""
        return json.dumps(self.to_dict(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> str:
        """Return a hash of what would run: everything but name and owner."""
        return hashlib.sha256(_canonical(self._work())).hexdigest()

    def differences(self, other: TrainJobRequest) -> list[str]:
        """Name the fields, by dotted path, in which two requests ask for different work."""
        mine, theirs = dict(_leaves(self._work())), dict(_leaves(other._work()))
        return sorted(path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path))

    def cluster_only(self) -> list[str]:
        """Name what it asks for that only a cluster has, by dotted path."""
        env = self.trainer.env if self.trainer else {}
        found = [f"trainer.env.{name} (a SecretRef)" for name, value in env.items() if isinstance(value, SecretRef)]
        found += [f"{key} (a secret)" for key in self.literal_secrets if key.startswith("trainer.")]
        asked = ("managed_by", "delete_after_seconds", "workspace", "distributed", "pytorch_job", "runai")
        return found + [name for name in asked if getattr(self, name) is not None]

    def named(self, name: str) -> TrainJobRequest:
        """Return this request under a name."""
        return self.model_copy(update={"name": naming.validate_name(name)})

    def attempt_name(self, attempt: int = 0) -> str:
        """Return the name of an attempt: the given name, else one derived from the owner; the first has no suffix.

        Raises:
            InvalidRequestError: It has neither name nor owner.
        """
        if self.owner is None:
            return self.require_name()
        if self.name is None:
            return naming.job_name(self.owner.slug, self.owner.key, attempt)
        return naming.numbered(self.name, attempt) if attempt else self.name

    def require_name(self) -> str:
        """Return the name.

        Raises:
            InvalidRequestError: It has neither name nor owner.
        """
        if self.name is None:
            raise InvalidRequestError("the request has neither a name nor an owner; give it one of them")
        return self.name

    def _work(self) -> dict[str, Any]:
        return {key: value for key, value in self.to_dict().items() if key not in ("name", "owner")}


def _canonical(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _leaves(data: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(data, dict):
        return [(path, data)]
    return [leaf for key, value in data.items() for leaf in _leaves(value, f"{path}.{key}" if path else str(key))]
