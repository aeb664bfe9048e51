"""Blueprint: the parameters a runtime is built from. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_core import checks, resources, secrets
from trainer_core.secrets import SecretRef

__all__ = ["Blueprint", "Coscheduling", "Gang", "Initializer", "Mpi", "Pod", "Storage", "Volcano"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany")


@dataclass(frozen=True)
class Coscheduling:
    """Start the pods of a job together, with the coscheduling plug-in.

    Args:
        timeout_seconds: How long the plug-in may look for places for all of them.

    Raises:
        ValueError: Not a positive number.
    """

    timeout_seconds: int = 60

    def __post_init__(self) -> None:
        checks.check_count("timeout_seconds", self.timeout_seconds)


@dataclass(frozen=True)
class Volcano:
    """Start the pods of a job together, with Volcano.

    Args:
        queue: Volcano queue; None for its default.
        topology: ``hard`` or ``soft``: keep the pods near each other in the network; None for no wish.
        highest_tier: How far apart they may be, with `topology`.

    Raises:
        ValueError: A value cannot be right.
    """

    queue: str | None = None
    topology: str | None = None
    highest_tier: int = 1

    def __post_init__(self) -> None:
        if self.queue is not None:
            checks.check_text("queue", self.queue, "research")
        if self.topology is not None:
            checks.check_one_of("topology", self.topology, ("hard", "soft"))
        checks.check_count("highest_tier", self.highest_tier)


Gang = Coscheduling | Volcano


@dataclass(frozen=True)
class Pod:
    """What the pods of the training nodes have, spelled as in a pod.

    Args:
        node_selector: Labels of the machines they may run on.
        tolerations: Taints they tolerate.
        service_account: Whom they run as.
        volumes: Volumes of the pod.
        mounts: Where the trainer's container sees them: ``{"name": …, "mountPath": …}``.

    Raises:
        ValueError: A value cannot be right.
    """

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    service_account: str | None = None
    volumes: Sequence[Mapping[str, Any]] = ()
    mounts: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        checks.check_labels("node_selector", self.node_selector)
        if self.service_account is not None and not checks.is_object_name(self.service_account):
            raise ValueError(f"service_account must be the name of one, got {self.service_account!r}")
        unknown = {mount.get("name") for mount in self.mounts} - {volume.get("name") for volume in self.volumes}
        if unknown:
            raise ValueError(f"mounts name {', '.join(map(repr, unknown))}, which is not among the volumes")


@dataclass(frozen=True)
class Blueprint:
    """A runtime in few words.

    Args:
        name: Its name.
        image: Image of the training nodes; None for the one that Trainer's own runtime of the kind uses.
        num_nodes: Nodes of a TrainJob that does not say.
        namespace: Makes it a TrainingRuntime of this namespace; None for a ClusterTrainingRuntime.
        labels: Further labels of the runtime.
        command: What the container starts; usually left to the TrainJob.
        args: Arguments of the command.
        env: Environment: texts, or secrets by reference.
        resources: Of each node, such as ``{"gpu": 2, "memory": "64Gi"}``; they are limits, and requests alike.
        pod: What its pods have.
        gang: Start all pods together, or none.

    Raises:
        ValueError: A value cannot be right.
    """

    name: str
    image: str | None = None
    num_nodes: int = 1
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    resources: Mapping[str, str | int | float] = field(default_factory=dict)
    pod: Pod = field(default_factory=Pod)
    gang: Gang | None = None

    def __post_init__(self) -> None:
        if not checks.is_object_name(self.name):
            raise ValueError(f"runtime name {self.name!r} must be lower-case letters, digits, '-' and '.', 253 at most")
        if self.namespace is not None and not checks.is_namespace(self.namespace):
            raise ValueError(f"namespace {self.namespace!r} must be at most 63 lower-case letters, digits and '-'")
        if self.image is not None:
            checks.check_text("image", self.image, "pytorch/pytorch:2.13.0")
        checks.check_count("num_nodes", self.num_nodes)
        checks.check_labels("labels", self.labels)
        checks.check_texts("command", self.command, "torchrun")
        checks.check_texts("args", self.args, "train.py")
        secrets.check_env("env", self.env)
        resources.check_resources("resources", self.resources)

    @property
    def limits(self) -> dict[str, str]:
        """Its resources by their full names."""
        return resources.validate(self.resources)


@dataclass(frozen=True)
class Mpi:
    """How the nodes of an MPI runtime find each other.

    Args:
        procs_per_node: Processes on each node, unless a TrainJob says.
        ssh_path: Where the image's user looks for its SSH keys.
        user: Number of the image's user.
        launcher_as_node: The launcher trains, too.

    Raises:
        ValueError: A value cannot be right.
    """

    procs_per_node: int = 1
    ssh_path: str = "/home/mpiuser/.ssh"
    user: int = 1000
    launcher_as_node: bool = True

    def __post_init__(self) -> None:
        checks.check_count("procs_per_node", self.procs_per_node)
        checks.check_count("user", self.user, minimum=0)
        if not self.ssh_path.startswith("/"):
            raise ValueError(f"ssh_path must be an absolute path such as '/home/mpiuser/.ssh', got {self.ssh_path!r}")


@dataclass(frozen=True)
class Initializer:
    """A step that fetches a dataset or a model before the training.

    Args:
        uri: What it fetches for a TrainJob that does not say.
        image: Image that fetches; None for Trainer's own.
        secret: A Secret whose entries it gets as environment, such as ``ACCESS_TOKEN``.
        service_account: Whom it runs as.

    Raises:
        ValueError: A value cannot be right.
    """

    uri: str | None = None
    image: str | None = None
    secret: str | None = None
    service_account: str | None = None

    def __post_init__(self) -> None:
        if self.uri is not None and not _URI.fullmatch(self.uri):
            raise ValueError(f"uri must be a URI such as 'hf://tatsu-lab/alpaca', got {self.uri!r}")
        for what in ("secret", "service_account"):
            value = getattr(self, what)
            if value is not None and not checks.is_object_name(value):
                raise ValueError(f"{what} must be the name of one, got {value!r}")


@dataclass(frozen=True)
class Storage:
    """The volume that initializers fill and training nodes read.

    Args:
        claim: A PersistentVolumeClaim that exists; None for a new one with each TrainJob.
        size: Of a new one.
        access_mode: Of a new one. ``ReadWriteMany`` is what several nodes need.
        storage_class: Of a new one; None for the cluster's default.

    Raises:
        ValueError: A value cannot be right.
    """

    claim: str | None = None
    size: str = "20Gi"
    access_mode: str = "ReadWriteOnce"
    storage_class: str | None = None

    def __post_init__(self) -> None:
        resources.parse_quantity(self.size)
        checks.check_one_of("access_mode", self.access_mode, _ACCESS_MODES)
        if self.claim is not None and not checks.is_object_name(self.claim):
            raise ValueError(f"claim must be the name of a PersistentVolumeClaim, got {self.claim!r}")
