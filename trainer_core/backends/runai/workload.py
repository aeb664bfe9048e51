"""TrainingWorkloadSpec: the fields of the spec of a Run:ai TrainingWorkload. Pure."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel

from trainer_core.backends.runai.workload_items import (
    EnvValue,
    ExposedUrl,
    GitRepository,
    HostPath,
    Item,
    ItemModel,
    Nfs,
    NonEmptyString,
    NonNegativeInt,
    Port,
    Quantity,
    Removed,
    S3Bucket,
    ServiceType,
    Toleration,
    VolumeClaim,
)
from trainer_core.base import resources, validation
from trainer_core.base.secrets import SecretRef, parse_secret, redact
from trainer_core.base.text import shorten

_SECRET_PREFIX = "SECRET:"  # noqa: S105 -- the prefix of a reference
_DELETED = {"deleted": True}


def wrap(value: Any) -> dict[str, Any]:
    """Wrap the value of a field: a dict as items, anything else as a value."""
    if isinstance(value, Mapping):
        return {"items": {str(label): _wrap_item(item) for label, item in value.items()}}
    return _wrap_item(value)


def unwrap(raw: Any) -> Any:
    """Return the value that `wrap` wrapped."""
    if isinstance(raw, Mapping) and raw.keys() == {"value"}:
        return raw["value"]
    if isinstance(raw, Mapping) and raw.keys() == {"items"} and isinstance(raw["items"], Mapping):
        return {label: _unwrap_item(label, item) for label, item in raw["items"].items()}
    raise ValueError(f"expected {{'value': …}} or {{'items': …}}, got {str(raw)[:80]}")


def format_secret(ref: SecretRef) -> str:
    """Return the value of an environment variable that refers to an entry of a Secret."""
    return f"{_SECRET_PREFIX}{ref.name},{ref.key}"


def parse_secret_text(value: Any) -> Any:
    """Return the value of an environment variable, as a SecretRef if it refers to an entry of a Secret."""
    if isinstance(value, str) and value.startswith(_SECRET_PREFIX):
        name, _, key = value.removeprefix(_SECRET_PREFIX).partition(",")
        try:
            return SecretRef(name, key)
        except ValueError:
            return value
    return value


def _wrap_item(value: Any) -> dict[str, Any]:
    if isinstance(value, Removed):
        return dict(_DELETED)
    if isinstance(value, SecretRef):
        return {"value": format_secret(value)}
    return {"value": value.to_wire() if isinstance(value, ItemModel) else value}


def _unwrap_item(label: str, raw: Any) -> Any:
    if raw == _DELETED:
        return Removed()
    if not isinstance(raw, Mapping) or raw.keys() != {"value"}:
        raise ValueError(f"item {label!r}: expected {{'value': …}} or {{'deleted': true}}, got {str(raw)[:80]}")
    return raw["value"]


#: Models of the fields whose items have several members.
_ITEM_MODELS: Mapping[str, type[ItemModel]] = {
    "exposed_urls": ExposedUrl,
    "git_sync": GitRepository,
    "nfs": Nfs,
    "ports": Port,
    "pvcs": VolumeClaim,
    "s3": S3Bucket,
    "tolerations": Toleration,
    "volumes": HostPath,
}
#: Upstream fields that are not wrapped.
_UNWRAPPED_FIELDS = ("usage", "baseWorkload")
#: Fields that Run:ai sets, and why they are refused.
_INTERNAL_FIELDS = {"ingress_url": "internal to Run:ai", "user_id": "set by Run:ai to the user who submits"}
_PULL_POLICIES = {name.lower(): name for name in ("Always", "IfNotPresent", "Never")}
#: Validation contexts: fields read from the server, which include internal ones; fields of which others are templated,
#: so that combinations cannot be checked yet.
_FROM_SERVER = {"from_server": True}
_PARTIAL = {"partial": True}


def _parse_env_value(value: Any) -> Any:
    """Parse the value of an environment variable: a string, a number, a reference to a Secret, or a removal."""
    if isinstance(value, Mapping) and "deleted" not in value:
        return parse_secret(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def _build_list_parser(separator: str) -> Callable[[Any], Any]:
    """Return a function that joins a list with a separator and accepts a joined string as well."""

    def join_list(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        for entry in value:
            text = str(entry)
            if isinstance(entry, bool) or not isinstance(entry, (str, int)) or not text or separator in text:
                raise ValueError(f"{redact(entry)} must be a non-empty string without the separator '{separator}'")
        return separator.join(map(str, value))

    return join_list


def _parse_pull_policy(value: Any) -> Any:
    """Return a pull policy in the case of Kubernetes; Run:ai documents it in lower case."""
    return _PULL_POLICIES.get(value.lower(), value) if isinstance(value, str) else value


_SpaceSeparated = Annotated[str, BeforeValidator(_build_list_parser(" "))]
_SemicolonSeparated = Annotated[str, BeforeValidator(_build_list_parser(";"))]
_PullPolicy = Annotated[Literal["Always", "IfNotPresent", "Never"], BeforeValidator(_parse_pull_policy)]


class TrainingWorkloadSpec(BaseModel):
    """Fields of the ``spec`` of a Run:ai TrainingWorkload (``run.ai/v2alpha1``).

    Each field has the upstream name in snake case; the upstream name is accepted as well (``gpu_memory`` or
    ``gpuMemory``). All fields default to None: the value of the base workload applies, otherwise that of the policies
    of the project, otherwise Run:ai's default. Fields with items are dicts by a label of your choice; an item
    ``{"deleted": True}`` removes an inherited one. CPUs are a number of cores, and amounts of memory are quantities
    such as ``"16Gi"``.

    Attributes:
        active: Whether the workload runs; False suspends it. Run:ai's default is True.
        allow_privilege_escalation: Whether processes can gain more privileges than their parent, as in a Kubernetes
            securityContext.
        annotations: Annotations of the pods.
        arguments: Arguments of the command, as one string in shell syntax.
        auto_deletion_time_after_completion_seconds: Seconds after completion until the workload is deleted; 0 for at
            once. Run:ai's default is never.
        backoff_limit: Number of retries of failed pods before the workload fails. Run:ai's default is 6.
        base_workload: Name of the workload or template to inherit from, in the same namespace or in ``runai``.
        capabilities: Linux capabilities to add, by label: ``{"net": "NET_ADMIN"}``.
        command: Command that replaces the entry point of the image, as one string in shell syntax.
        completions: Number of pods that must succeed, for hyperparameter optimization. Run:ai's default is 1.
        cpu: Guaranteed CPUs, such as 2, 0.5 or ``"500m"``. Required for scheduling.
        cpu_limit: Maximum of CPUs.
        create_home_dir: Whether to create a temporary home directory. Run:ai's default is the value of `run_as_user`.
        environment: Environment variables by name. A `SecretRef` refers to an entry of a Secret; the wire format is
            ``SECRET:<name>,<key>``.
        exposed_urls: Ports to expose at a URL, by label; an item has ``container``, ``url``, ``authorization_type``,
            ``authorized_users`` and ``authorized_groups``.
        extended_resources: Quantities of extended resources by name: ``{"rdma/ib": 1, "hugepages-2Mi": "1Gi"}``.
        git_sync: Git repositories to clone, by label; an item has ``repository``, ``path``, ``branch``, ``revision``
            and references to a Secret.
        gpu: Number of GPUs: a whole number, or a fraction of one GPU between 0 and 1. Excludes `gpu_memory` and
            `mig_profile`. Run:ai's default is no GPU.
        gpu_limit: Maximum of GPU memory for opportunistic workloads, such as ``"20M"`` or ``"1G"``.
        gpu_memory: Guaranteed memory on one GPU, such as ``"8G"``. Excludes `gpu` and `mig_profile`.
        host_ipc: Whether to use the IPC namespace of the Kubernetes node.
        host_network: Whether to use the network namespace of the Kubernetes node.
        image: Container image.
        image_pull_policy: ``Always``, ``IfNotPresent`` or ``Never``.
        ingress_url: Refused: internal to Run:ai.
        labels: Labels of the pods.
        large_shm: Whether to mount a large /dev/shm, which uses memory of the Kubernetes node.
        memory: Guaranteed memory, such as ``"16Gi"`` or ``"20M"``. Required for scheduling.
        memory_limit: Maximum of memory; allocations beyond it fail.
        mig_profile: Profile of a MIG slice of a GPU, such as ``"1g.5gb"``. Excludes `gpu` and `gpu_memory`.
        mount_propagation: Whether mounts below the volumes are shared with other containers of the Kubernetes node
            (``mountPropagation: Bidirectional``).
        mpi: Whether to create an MPIJob.
        name: Name of the created job. Excludes `name_prefix`.
        name_prefix: Prefix of a generated name. Excludes `name`.
        nfs: NFS volumes to mount, by label; an item has ``path``, ``server``, ``mount_path`` and ``read_only``.
        node_pool: Deprecated by Run:ai; use `node_pools`.
        node_pools: Node pools in order of preference: a list, or one string separated by spaces.
        node_type: Value of the label with which administrators group nodes. It restricts the nodes of the project
            further.
        parallelism: Maximum number of pods that run at the same time, at most `completions`.
        pod_affinity: Whether to apply pod affinity.
        pod_affinity_scheduling_rule: ``hard`` (required) or ``soft`` (preferred). Requires `pod_affinity`.
        pod_affinity_topology: Node label that defines the topology domain. Requires `pod_affinity`.
        ports: Ports to expose, by label; an item has ``container``, ``external`` and ``service_type``.
        preemption_limit: Number of times that the workload can be preempted.
        processes: Number of processes of an MPIJob.
        pvcs: PersistentVolumeClaims to mount, by label; an item has ``path``, ``claim_name``, ``existing_pvc``,
            ``read_only``, ``size``, ``storage_class`` and ``ephemeral``.
        run_as_gid: Group id of the processes. Requires `run_as_user`.
        run_as_non_root: Whether the kubelet refuses to start a container that runs as root.
        run_as_uid: User id of the processes. Requires `run_as_user`.
        run_as_user: Whether to run as the user `run_as_uid`, or as the user in the directory that Run:ai uses (SAML).
        s3: S3 buckets to mount, by label; an item has ``bucket``, ``path``, ``url`` and references to a Secret.
        seccomp_profile_type: ``RuntimeDefault`` or ``Unconfined``. Run:ai does not support ``Localhost``.
        service_type: Default of the ``service_type`` of `ports`: ``LoadBalancer``, ``NodePort`` or ``ClusterIP``.
        slots_per_worker: Number of slots of each worker of an MPIJob.
        stdin: Whether to keep standard input open.
        supplemental_groups: Further group ids of the processes: a list, or one string separated by ``;``.
        terminate_after_preemption: Whether a preempted workload ends instead of being queued again. Run:ai's default is
            False.
        tolerations: Taints that the pods tolerate, by label; an item has ``key``, ``operator``, ``value``, ``effect``
            and ``seconds``.
        tty: Whether to allocate a terminal.
        usage: ``Submit`` (Run:ai's default), or ``Template`` for a workload that never runs and is the `base_workload`
            of others.
        user_id: Refused: Run:ai sets it to the user who submits.
        username: Display name of the owner.
        volumes: Folders of the Kubernetes node to mount, by label; an item has ``path``, ``mount_path`` and
            ``read_only``.
        working_dir: Working directory of the command.
        extra: Fields that this model does not have, by upstream name and in wire format:
            ``{"gpuDevices": {"value": 8}}``.

    Raises:
        ValueError: A field is unknown, a value is invalid, or fields contradict each other.

    Example:
        ```python
        from trainer_core import TrainingWorkloadSpec

        spec = TrainingWorkloadSpec(image="ghcr.io/team/train:1.0", gpu=0.5, node_pools=["a100", "default"])
        print(spec.to_wire()["gpu"])
        ```
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        defer_build=True,
        hide_input_in_errors=True,
    )

    active: StrictBool | None = None
    allow_privilege_escalation: StrictBool | None = None
    annotations: dict[str, Item[str]] | None = None
    arguments: str | None = None
    auto_deletion_time_after_completion_seconds: NonNegativeInt | None = None
    backoff_limit: NonNegativeInt | None = None
    base_workload: NonEmptyString | None = None
    capabilities: dict[str, Item[NonEmptyString]] | None = None
    command: str | None = None
    completions: NonNegativeInt | None = None
    cpu: Quantity | None = None
    cpu_limit: Quantity | None = None
    create_home_dir: StrictBool | None = None
    environment: dict[str, Annotated[EnvValue, BeforeValidator(_parse_env_value)]] | None = None
    exposed_urls: dict[str, Item[ExposedUrl]] | None = None
    extended_resources: dict[str, Item[Quantity]] | None = None
    git_sync: dict[str, Item[GitRepository]] | None = None
    gpu: Quantity | None = None
    gpu_limit: Quantity | None = None
    gpu_memory: Quantity | None = None
    host_ipc: StrictBool | None = None
    host_network: StrictBool | None = None
    image: NonEmptyString | None = None
    image_pull_policy: _PullPolicy | None = None
    ingress_url: str | None = None
    labels: dict[str, Item[str]] | None = None
    large_shm: StrictBool | None = None
    memory: Quantity | None = None
    memory_limit: Quantity | None = None
    mig_profile: NonEmptyString | None = None
    mount_propagation: StrictBool | None = None
    mpi: StrictBool | None = None
    name: NonEmptyString | None = None
    name_prefix: NonEmptyString | None = None
    nfs: dict[str, Item[Nfs]] | None = None
    node_pool: NonEmptyString | None = None
    node_pools: _SpaceSeparated | None = None
    node_type: NonEmptyString | None = None
    parallelism: NonNegativeInt | None = None
    pod_affinity: StrictBool | None = None
    pod_affinity_scheduling_rule: Literal["hard", "soft"] | None = None
    pod_affinity_topology: NonEmptyString | None = None
    ports: dict[str, Item[Port]] | None = None
    preemption_limit: NonNegativeInt | None = None
    processes: NonNegativeInt | None = None
    pvcs: dict[str, Item[VolumeClaim]] | None = None
    run_as_gid: NonNegativeInt | None = None
    run_as_non_root: StrictBool | None = None
    run_as_uid: NonNegativeInt | None = None
    run_as_user: StrictBool | None = None
    s3: dict[str, Item[S3Bucket]] | None = None
    seccomp_profile_type: Literal["RuntimeDefault", "Unconfined"] | None = None
    service_type: ServiceType | None = None
    slots_per_worker: NonNegativeInt | None = None
    stdin: StrictBool | None = None
    supplemental_groups: _SemicolonSeparated | None = None
    terminate_after_preemption: StrictBool | None = None
    tolerations: dict[str, Item[Toleration]] | None = None
    tty: StrictBool | None = None
    usage: Literal["Template", "Submit"] | None = None
    user_id: str | None = None
    username: NonEmptyString | None = None
    volumes: dict[str, Item[HostPath]] | None = None
    working_dir: NonEmptyString | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    # Hidden from type checkers, which would otherwise not see the fields as keywords.
    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            validation.check_size("TrainingWorkloadSpec", data)
            self._validate(data)

    def _validate(self, data: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> None:
        """Validate fields and set them on this object, because `__init__` cannot pass a validation context."""
        try:
            self.__pydantic_validator__.validate_python(dict(data), self_instance=self, context=context)
        except ValidationError as error:
            raise ValueError(shorten(f"TrainingWorkloadSpec: {validation.format_problems(error)}")) from error

    @classmethod
    def _build(cls, data: Mapping[str, Any], context: Mapping[str, Any]) -> TrainingWorkloadSpec:
        """Validate fields in a context: `_FROM_SERVER` or `_PARTIAL`."""
        spec = cls.__new__(cls)
        spec._validate(data, context)
        return spec

    @model_validator(mode="before")
    @classmethod
    def _check_field_names(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            _check_names(data)
        return data

    @model_validator(mode="after")
    def _check_combinations(self, info: ValidationInfo) -> TrainingWorkloadSpec:
        if info.context != _PARTIAL:
            problems = [*_list_conflicts(self), *([] if info.context == _FROM_SERVER else _list_internal_fields(self))]
            if problems:
                raise ValueError("; ".join(problems))
        if self.node_pool is not None:
            warnings.warn("TrainingWorkloadSpec: node_pool is deprecated; use node_pools", DeprecationWarning, 4)
        return self

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> TrainingWorkloadSpec:
        """Parse the ``spec`` of a workload on the server.

        Fields that this model does not have, or that are not wrapped as expected, become ``extra`` unchanged, so that
        `to_wire` returns them.

        Args:
            raw: The ``spec`` of the workload.

        Raises:
            ValueError: A value is invalid.
        """
        names = {str(field.alias): name for name, field in cls.model_fields.items() if name != "extra"}
        fields: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in raw.items():
            try:
                fields[names[key]] = value if key in _UNWRAPPED_FIELDS else _parse_items(names[key], unwrap(value))
            except (KeyError, ValueError):
                extra[key] = value
        return cls._build({**fields, "extra": extra}, _FROM_SERVER)

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that are set as the ``spec`` of a workload, in wire format."""
        fields: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name != "extra" and value is not None:
                fields[str(field.alias)] = value if field.alias in _UNWRAPPED_FIELDS else wrap(value)
        return {**fields, **self.extra}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set as JSON data, by their Python names."""
        fields: dict[str, Any] = _drop_empty_extra(self.model_dump(mode="json", exclude_none=True))
        return fields

    def merge_over(self, base: TrainingWorkloadSpec) -> TrainingWorkloadSpec:
        """Return these fields merged over those of `base`; fields with items are merged item by item.

        Args:
            base: The fields with the lower precedence.

        Raises:
            ValueError: The merged fields contradict each other.
        """
        merged = dict(base)
        for name, value in self:
            if isinstance(value, dict):
                merged[name] = {**(merged[name] or {}), **value}
            elif value is not None:
                merged[name] = value
        return type(self)(**merged)


def normalize_fields(fields: TrainingWorkloadSpec | Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as JSON data by their Python names. Values with templates are neither parsed nor checked.

    Args:
        fields: The fields, by Python or upstream names.

    Raises:
        ValueError: A field is unknown, or a value without a template is invalid.
    """
    if isinstance(fields, TrainingWorkloadSpec):
        return fields.to_dict()
    if not isinstance(fields, Mapping):
        raise ValueError(f"TrainingWorkloadSpec must be a dict of its fields, got {type(fields).__name__}")
    validation.check_size("TrainingWorkloadSpec", fields)
    templated = {str(name): value for name, value in fields.items() if _contains_placeholder(value)}
    if not templated:
        return TrainingWorkloadSpec(**{str(name): value for name, value in fields.items()}).to_dict()
    rest = {name: value for name, value in fields.items() if name not in templated}
    _check_names(templated)
    spec = TrainingWorkloadSpec._build(rest, _PARTIAL)
    names = {field.alias: name for name, field in TrainingWorkloadSpec.model_fields.items()}
    return {**spec.to_dict(), **{names.get(name, name): value for name, value in templated.items()}}


def _contains_placeholder(value: Any) -> bool:
    return any(validation.is_placeholder(leaf) for leaf in validation.iterate_leaves(value))


def _drop_empty_extra(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_empty_extra(item) for key, item in value.items() if key != "extra" or item}


def _parse_items(name: str, value: Any) -> Any:
    """Parse the unwrapped value of a field: references to Secrets, and members that the model does not have."""
    if not isinstance(value, Mapping):
        return value
    if name == "environment":
        return {label: parse_secret_text(item) for label, item in value.items()}
    return {label: _move_unknown_members(name, item) for label, item in value.items()}


def _move_unknown_members(name: str, item: Any) -> Any:
    """Move members that the model of a field's items does not have to the item's ``extra``."""
    if not isinstance(item, Mapping):
        return item
    known = {str(field.alias) for field in _ITEM_MODELS[name].model_fields.values()}
    extra = {key: value for key, value in item.items() if key not in known}
    return {**{key: value for key, value in item.items() if key in known}, "extra": extra}


def _check_names(data: Mapping[str, Any]) -> None:
    """Check that the names of fields are known and that no field is set twice.

    Raises:
        ValueError: A name is unknown, or a field is set by both of its names.
    """
    fields = TrainingWorkloadSpec.model_fields
    aliases = {str(field.alias): name for name, field in fields.items()}
    known = {*aliases, *fields}
    unknown = [str(name) for name in data if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 2)
        suggestion = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ValueError(
            f"unknown field {', '.join(unknown)}{suggestion}; pass a field of Run:ai that this model does not have in "
            f"wire format: extra={{{redact(unknown[0])}: {{'value': …}}}}"
        )
    twice = sorted(alias for alias, name in aliases.items() if alias != name and alias in data and name in data)
    if twice:
        raise ValueError(f"{', '.join(twice)} is also set by its Python name; keep one")


def _list_internal_fields(spec: TrainingWorkloadSpec) -> Iterator[str]:
    for name, reason in _INTERNAL_FIELDS.items():
        if getattr(spec, name) is not None:
            yield f"{name}: {reason}; remove it"


def _list_conflicts(spec: TrainingWorkloadSpec) -> Iterator[str]:
    yield from _list_resource_conflicts(spec)
    if spec.name is not None and spec.name_prefix is not None:
        yield "name and name_prefix exclude each other; keep one"
    yield from _list_missing_requirements(spec)
    if spec.run_as_non_root and spec.run_as_user and spec.run_as_uid == 0:
        yield "run_as_uid: 0 is root, which run_as_non_root refuses; change one of them"
    if spec.usage == "Template" and spec.base_workload is not None:
        yield "base_workload: a template cannot inherit; remove it, or set usage='Submit'"
    for name, field in type(spec).model_fields.items():
        if field.alias in spec.extra and getattr(spec, name) is not None:
            yield f"extra: {field.alias} is also set as the field {name}; keep one"


def _list_resource_conflicts(spec: TrainingWorkloadSpec) -> Iterator[str]:
    exclusive = [name for name in ("gpu", "gpu_memory", "mig_profile") if getattr(spec, name) is not None]
    if len(exclusive) > 1:
        yield f"{' and '.join(exclusive)} exclude each other; keep one"
    if spec.gpu is not None:
        count = resources.parse_quantity(spec.gpu)
        if count.denominator != 1 and count > 1:
            yield f"gpu: {spec.gpu} is neither a whole number nor a fraction of one GPU; use a number such as 2 or 0.5"
    for request_name, limit_name in (("cpu", "cpu_limit"), ("memory", "memory_limit")):
        request, limit = getattr(spec, request_name), getattr(spec, limit_name)
        if request is None or limit is None:
            continue
        if resources.parse_quantity(request) > resources.parse_quantity(limit):
            yield f"{request_name}: {request} is more than {limit_name}={limit}; change one of them"
    if None not in (spec.parallelism, spec.completions) and (spec.parallelism or 0) > (spec.completions or 0):
        yield f"parallelism: {spec.parallelism} is more than completions={spec.completions}; change one of them"


def _list_missing_requirements(spec: TrainingWorkloadSpec) -> Iterator[str]:
    for required, names in (
        ("pod_affinity", ("pod_affinity_scheduling_rule", "pod_affinity_topology")),
        ("run_as_user", ("run_as_uid", "run_as_gid")),
    ):
        # The base workload may set the required field.
        may_be_inherited = getattr(spec, required) is None and spec.base_workload is not None
        dependent = [name for name in names if getattr(spec, name) is not None]
        if dependent and not getattr(spec, required) and not may_be_inherited:
            yield f"{' and '.join(dependent)} requires {required}; set {required}=True"
