"""TrainingWorkloadSpec: the 64 fields of a Run:ai TrainingWorkload. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
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

from trainer_core import checks
from trainer_core.runai import rules, wire
from trainer_core.runai.parts import (
    Claim,
    ExposedUrl,
    GitRepository,
    HostPath,
    Item,
    Nfs,
    Part,
    Port,
    Quantity,
    S3Bucket,
    ServiceType,
    Setting,
    Text,
    Toleration,
    WholeNumber,
)

__all__ = ["ALONE", "ITEMS", "TrainingWorkloadSpec", "plain"]

Words = Annotated[str, BeforeValidator(rules.words(" "))]
Groups = Annotated[str, BeforeValidator(rules.words(";"))]
PullPolicy = Annotated[Literal["Always", "IfNotPresent", "Never"], BeforeValidator(rules.pull_policy)]
#: The kinds of items of the fields that have items of several members.
ITEMS: Mapping[str, type[Part]] = {
    "exposed_urls": ExposedUrl,
    "git_sync": GitRepository,
    "nfs": Nfs,
    "ports": Port,
    "pvcs": Claim,
    "s3": S3Bucket,
    "tolerations": Toleration,
    "volumes": HostPath,
}


#: Each field is judged by itself: others have yet to be filled in.
ALONE = {"alone": True}


class TrainingWorkloadSpec(BaseModel):
    """What a TrainingWorkload can be told, in Python's names and types; Run:ai's names (``gpuMemory``) serve as well.

    What is not set comes from the base workload, the policies of the project, or Run:ai itself. Itemized fields are
    dicts by a label of your own; an item of `Removed` (``{"deleted": True}``) drops one that is inherited.

    Attributes:
        active: Whether the workload runs; False suspends it. Run:ai's default is True.
        allow_privilege_escalation: Its processes may gain privileges after they have started.
        annotations: Annotations of its pods.
        arguments: Arguments behind the command, as one text that is split as a shell would.
        auto_deletion_time_after_completion_seconds: Seconds after its end when it may be deleted; 0 is at once, not set
            is never.
        backoff_limit: How often a pod that fails is tried again before the workload has failed. Run:ai's default is 6.
        base_workload: A workload or template whose values it inherits: of its own namespace, or of ``runai``.
        capabilities: Linux capabilities that are added, such as ``{"net": "NET_ADMIN"}``.
        command: Replaces the image's entry point; one text that is split as a shell would.
        completions: How many pods shall succeed, for hyperparameter optimization. Run:ai's default is 1.
        cpu: CPUs that are guaranteed, such as 2, 0.5 or ``"500m"``; it is not scheduled without them.
        cpu_limit: CPUs that it can use at most.
        create_home_dir: It gets a home directory that goes with it; by default where it runs as a user.
        environment: Environment variables by name; a `SecretRef` is an entry of a Secret (``SECRET:<name>,<key>``).
        exposed_urls: Ports that are reached by a URL.
        extended_resources: Quantities of devices that are not GPUs, by resource name, such as
            ``{"rdma/ib": 1, "hugepages-2Mi": "1Gi"}``.
        git_sync: Git repositories that are cloned into it.
        gpu: How many GPUs: a whole number, or a part of one between 0 and 1. Excludes `gpu_memory` and `mig_profile`.
        gpu_limit: How much GPU memory an opportunistic workload can use at most, such as ``"20M"`` or ``"1G"``.
        gpu_memory: GPU memory that is guaranteed, such as ``"8G"``: a part of one GPU.
        host_ipc: It uses the machine's IPC namespace.
        host_network: It uses the machine's network.
        image: The container image.
        image_pull_policy: When the image is pulled: ``Always``, ``IfNotPresent`` or ``Never``.
        ingress_url: Internal to Run:ai; refused.
        labels: Labels of its pods.
        large_shm: It gets a large /dev/shm, which is in memory.
        memory: Memory that is guaranteed, such as ``"16Gi"`` or ``"20M"``; it is not scheduled without it.
        memory_limit: Memory that it can use at most; a process that asks for more is refused or ended.
        mig_profile: The slice of a GPU in MIG mode, such as ``"1g.5gb"``.
        mount_propagation: What is mounted in its volumes is seen by others that mount them, and the other way round.
        mpi: It makes an MPIJob.
        name: Name of what is created. Excludes `name_prefix`.
        name_prefix: How a made-up name begins.
        nfs: Folders of NFS servers that are mounted.
        node_pool: Deprecated: use `node_pools`.
        node_pools: Node pools in the order of preference: one text with blanks between, or a list.
        node_type: Which group of machines, by the label that administrators give; narrows what the project may use.
        parallelism: How many pods may run at a time; `completions` at most.
        pod_affinity: Pods are placed by affinity to each other.
        pod_affinity_scheduling_rule: Whether affinity is ``hard`` (required) or ``soft`` (preferred); needs
            `pod_affinity`.
        pod_affinity_topology: The label of machines by which they count as one place; needs `pod_affinity`.
        ports: Ports that are exposed.
        preemption_limit: How often it may be preempted.
        processes: How many processes an MPIJob has.
        pvcs: Persistent volume claims that are mounted.
        run_as_gid: Group id of its processes; needs `run_as_user`.
        run_as_non_root: Refuse to start a container that would run as root.
        run_as_uid: User id of its processes; needs `run_as_user`.
        run_as_user: It runs as the user of `run_as_uid`, or as the one that the cluster's directory knows.
        s3: Buckets that are mounted.
        seccomp_profile_type: ``RuntimeDefault`` or ``Unconfined``; Run:ai has no Localhost.
        service_type: How ports that do not say are exposed: ``LoadBalancer``, ``NodePort`` or ``ClusterIP``.
        slots_per_worker: Slots that each worker of an MPIJob has.
        stdin: Standard input stays open though nothing is attached.
        supplemental_groups: Further group ids of its processes: one text with ``;`` between, or a list.
        terminate_after_preemption: It ends when it is preempted, instead of being queued again. By default False.
        tolerations: Taints of machines that its pods bear.
        tty: It gets a terminal.
        usage: ``Submit`` (Run:ai's default), or ``Template``: it never runs and serves as `base_workload` of others.
        user_id: Who owns it, as Run:ai knows; set by Run:ai, refused here.
        username: Who owns it, for display.
        volumes: Folders of the machine that are mounted.
        working_dir: Where its command starts.
        extra: Fields that this model does not know, as they are to be sent: ``{"gpuDevices": {"value": 8}}``.

    Raises:
        ValueError: A value cannot be right, or contradicts another.
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
    auto_deletion_time_after_completion_seconds: WholeNumber | None = None
    backoff_limit: WholeNumber | None = None
    base_workload: Text | None = None
    capabilities: dict[str, Item[Text]] | None = None
    command: str | None = None
    completions: WholeNumber | None = None
    cpu: Quantity | None = None
    cpu_limit: Quantity | None = None
    create_home_dir: StrictBool | None = None
    environment: dict[str, Annotated[Setting, BeforeValidator(rules.setting)]] | None = None
    exposed_urls: dict[str, Item[ExposedUrl]] | None = None
    extended_resources: dict[str, Item[Quantity]] | None = None
    git_sync: dict[str, Item[GitRepository]] | None = None
    gpu: Quantity | None = None
    gpu_limit: Quantity | None = None
    gpu_memory: Quantity | None = None
    host_ipc: StrictBool | None = None
    host_network: StrictBool | None = None
    image: Text | None = None
    image_pull_policy: PullPolicy | None = None
    ingress_url: str | None = None
    labels: dict[str, Item[str]] | None = None
    large_shm: StrictBool | None = None
    memory: Quantity | None = None
    memory_limit: Quantity | None = None
    mig_profile: Text | None = None
    mount_propagation: StrictBool | None = None
    mpi: StrictBool | None = None
    name: Text | None = None
    name_prefix: Text | None = None
    nfs: dict[str, Item[Nfs]] | None = None
    node_pool: Text | None = None
    node_pools: Words | None = None
    node_type: Text | None = None
    parallelism: WholeNumber | None = None
    pod_affinity: StrictBool | None = None
    pod_affinity_scheduling_rule: Literal["hard", "soft"] | None = None
    pod_affinity_topology: Text | None = None
    ports: dict[str, Item[Port]] | None = None
    preemption_limit: WholeNumber | None = None
    processes: WholeNumber | None = None
    pvcs: dict[str, Item[Claim]] | None = None
    run_as_gid: WholeNumber | None = None
    run_as_non_root: StrictBool | None = None
    run_as_uid: WholeNumber | None = None
    run_as_user: StrictBool | None = None
    s3: dict[str, Item[S3Bucket]] | None = None
    seccomp_profile_type: Literal["RuntimeDefault", "Unconfined"] | None = None
    service_type: ServiceType | None = None
    slots_per_worker: WholeNumber | None = None
    stdin: StrictBool | None = None
    supplemental_groups: Groups | None = None
    terminate_after_preemption: StrictBool | None = None
    tolerations: dict[str, Item[Toleration]] | None = None
    tty: StrictBool | None = None
    usage: Literal["Template", "Submit"] | None = None
    user_id: str | None = None
    username: Text | None = None
    volumes: dict[str, Item[HostPath]] | None = None
    working_dir: Text | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    # Hidden from type checkers, which go on seeing each field as a keyword.
    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            self._judge(data)

    def _judge(self, data: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> None:
        """Take fields over; `__init__` has no place for a context, and no other way passes one."""
        try:
            self.__pydantic_validator__.validate_python(dict(data), self_instance=self, context=context)
        except ValidationError as error:
            raise ValueError(f"TrainingWorkloadSpec: {checks.one_line(error)}") from error

    @classmethod
    def judged(cls, data: Mapping[str, Any], context: Mapping[str, Any]) -> TrainingWorkloadSpec:
        """Return fields that come from a server (`wire.READING`), or some of which are yet to come (`ALONE`).

        Raises:
            ValueError: A field is not known, or cannot be right.
        """
        made = cls.__new__(cls)
        made._judge(data, context)
        return made

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, data: Any) -> Any:
        return rules.check_names(data, cls.model_fields) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _it_is_one_that_runai_takes(self, info: ValidationInfo) -> TrainingWorkloadSpec:
        if info.context != ALONE:
            rules.check(self, reading=info.context == wire.READING)
        if self.node_pool is not None:
            warnings.warn("TrainingWorkloadSpec: node_pool is deprecated; use node_pools", DeprecationWarning, 4)
        return self

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> TrainingWorkloadSpec:
        """Return the fields of a workload as a server has them in its ``spec``.

        What this model does not know goes into ``extra`` as it is, so that `to_wire` returns it.

        Raises:
            ValueError: A value cannot be right.
        """
        return wire.from_wire(raw)

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that are set as the ``spec`` of a workload."""
        return wire.to_wire(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set as plain JSON data, by their Python names."""
        found: dict[str, Any] = _without_empty_extra(self.model_dump(mode="json", exclude_none=True))
        return found

    def over(self, other: TrainingWorkloadSpec) -> TrainingWorkloadSpec:
        """Return these fields laid over those of another: of one field these count, of itemized ones each item.

        Raises:
            ValueError: Together they contradict each other.
        """
        found = dict(other)
        for name, value in self:
            if isinstance(value, dict):
                found[name] = {**(found[name] or {}), **value}
            elif value is not None:
                found[name] = value
        return type(self)(**found)


def plain(fields: TrainingWorkloadSpec | Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as plain JSON data by their Python names; what an orchestrator has yet to fill in stays as it is.

    Raises:
        ValueError: A field is not known, or cannot be right.
    """
    if isinstance(fields, TrainingWorkloadSpec):
        return fields.to_dict()
    if not isinstance(fields, Mapping):
        raise ValueError(f"TrainingWorkloadSpec must be a dict of its fields, got {type(fields).__name__}")
    waiting = {str(name): value for name, value in fields.items() if _waits(value)}
    if not waiting:
        return TrainingWorkloadSpec(**fields).to_dict()
    rest = {name: value for name, value in fields.items() if name not in waiting}
    rules.check_names(waiting, TrainingWorkloadSpec.model_fields)
    judged = TrainingWorkloadSpec.judged(rest, ALONE)
    names = {field.alias: name for name, field in TrainingWorkloadSpec.model_fields.items()}
    return {**judged.to_dict(), **{names.get(name, name): value for name, value in waiting.items()}}


def _waits(value: Any) -> bool:
    """Say whether a value, or anything in it, has yet to be filled in."""
    if isinstance(value, Mapping):
        return any(map(_waits, value.values()))
    return any(map(_waits, value)) if isinstance(value, (list, tuple)) else checks.is_placeholder(value)


def _without_empty_extra(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_empty_extra(item) for key, item in value.items() if key != "extra" or item}
