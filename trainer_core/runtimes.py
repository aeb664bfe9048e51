"""Runtime: the blueprint a TrainJob refers to, and what it offers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from trainer_core import checks

__all__ = ["Runtime", "RuntimeKind", "RuntimeTrainer", "TrainerType"]

_E = TypeVar("_E", bound=Enum)


class RuntimeKind(Enum):
    """Whether a runtime serves one namespace or all of them."""

    CLUSTER_TRAINING_RUNTIME = "ClusterTrainingRuntime"
    TRAINING_RUNTIME = "TrainingRuntime"


class TrainerType(Enum):
    """Whether a runtime runs the user's own code or brings a recipe of its own."""

    CUSTOM_TRAINER = "CustomTrainer"
    BUILTIN_TRAINER = "BuiltinTrainer"


@dataclass
class RuntimeTrainer:
    """What a runtime trains with.

    Args:
        trainer_type: The kind of trainer it is made for; a `TrainerType` or its value.
        framework: Such as ``"torch"``, ``"torchtune"``, ``"deepspeed"``, ``"plain"``.
        image: Container image of its nodes; empty where it runs without one.
        num_nodes: Nodes it starts unless a trainer asks for another number.
        device: What a node computes on: ``"gpu"``, ``"tpu"``, ``"npu"``, ``"mig-1g.5gb"``, ``"cpu"``, or ``"Unknown"``.
        device_count: How many of it, as text, or ``"Unknown"``.
        command: How the training code is started, such as ``("torchrun",)``; empty where not known.

    Raises:
        ValueError: The type of trainer is not known.
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
        """Set how the training code is started.

        Raises:
            ValueError: Not a tuple of texts.
        """
        checks.check_texts("command", command, "torchrun")
        self.command = tuple(command)


@dataclass
class Runtime:
    """The blueprint a TrainJob refers to.

    Args:
        name: Its name, by which a TrainJob refers to it.
        trainer: What it trains with.
        kind: Its scope; a `RuntimeKind` or its value.
        pretrained_model: URI of the model it brings, where it brings one.

    Raises:
        ValueError: The kind is not known.
    """

    name: str
    trainer: RuntimeTrainer
    kind: RuntimeKind = RuntimeKind.CLUSTER_TRAINING_RUNTIME
    pretrained_model: str | None = None

    def __post_init__(self) -> None:
        self.kind = _member(RuntimeKind, "kind", self.kind)


def _member(kind: type[_E], what: str, value: object) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{what} must be one of {known}; got {value!r}") from None
