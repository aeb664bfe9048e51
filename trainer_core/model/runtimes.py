"""Runtime: the template that a TrainJob refers to, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from trainer_core.base import validation
from trainer_core.base.secrets import redact

_E = TypeVar("_E", bound=Enum)


class RuntimeKind(Enum):
    """Scope of a runtime: one namespace or all."""

    CLUSTER_TRAINING_RUNTIME = "ClusterTrainingRuntime"
    TRAINING_RUNTIME = "TrainingRuntime"


class TrainerType(Enum):
    """Whether a runtime runs user code or contains a recipe."""

    CUSTOM_TRAINER = "CustomTrainer"
    BUILTIN_TRAINER = "BuiltinTrainer"


@dataclass
class RuntimeTrainer:
    """What a runtime trains with.

    Args:
        trainer_type: The kind of trainer for which it is made; a `TrainerType` or its value.
        framework: Label ``trainer.kubeflow.org/framework``: ``"torch"``, ``"torchtune"``, ``"deepspeed"``, ``"plain"``
            …
        image: Container image of its nodes; empty on backends without images.
        num_nodes: Number of nodes by default (``spec.mlPolicy.numNodes``).
        device: Device of a node: ``"gpu"``, ``"tpu"``, ``"npu"``, ``"mig-1g.5gb"``, ``"cpu"``, or ``"Unknown"``.
        device_count: Devices per node, as a string, or ``"Unknown"``.
        command: Program that starts the training code, such as ``("torchrun",)``; empty if unknown.

    Raises:
        ValueError: Unknown trainer type.
    """

    trainer_type: TrainerType
    framework: str
    image: str
    num_nodes: int = 1
    device: str = "Unknown"
    device_count: str = "Unknown"
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.trainer_type = _member(TrainerType, "trainer_type", self.trainer_type)
        self.set_command(self.command)

    def set_command(self, command: tuple[str, ...]) -> None:
        """Set the program that starts the training code.

        Raises:
            ValueError: Not a tuple of strings.
        """
        validation.check_strings("command", command, "torchrun")
        self.command = tuple(command)


@dataclass
class Runtime:
    """The template that a TrainJob refers to.

    Args:
        name: Its name (``spec.runtimeRef.name``).
        trainer: What it trains with.
        kind: Its scope (``spec.runtimeRef.kind``); a `RuntimeKind` or its value.
        pretrained_model: URI of the model that it contains, if any.

    Raises:
        ValueError: Unknown kind.
    """

    name: str
    trainer: RuntimeTrainer
    kind: RuntimeKind = RuntimeKind.CLUSTER_TRAINING_RUNTIME
    pretrained_model: str | None = None

    def __post_init__(self) -> None:
        self.kind = _member(RuntimeKind, "kind", self.kind)


def build_unknown_runtime(name: str | None, kind: RuntimeKind = RuntimeKind.CLUSTER_TRAINING_RUNTIME) -> Runtime:
    """Return a placeholder for the runtime of a job that was deleted or may not be read."""
    return Runtime(name or "unknown", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "unknown", "unknown"), kind)


def _member(kind: type[_E], what: str, value: object) -> _E:
    for member in kind:
        if value in (member, member.value):
            return member
    known = ", ".join(repr(member.value) for member in kind)
    raise ValueError(f"{what} must be one of {known}; got {redact(value)}")
