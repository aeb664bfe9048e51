"""Options: small callables that change a job before it is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_core import checks, naming
from trainer_core.options.base import BaseOption, section
from trainer_core.options.patches import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
)
from trainer_core.options.pytorch import PyTorchJobSpec
from trainer_core.options.runtime import RuntimePatch
from trainer_core.options.scheduling import GangScheduling, ManagedBy, PriorityClass, QueueName
from trainer_core.options.workspace import Workspace
from trainer_core.trainers import CustomTrainerContainer

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = [
    "ActiveDeadlineSeconds",
    "Annotations",
    "BaseOption",
    "ContainerPatch",
    "DeleteAfter",
    "GangScheduling",
    "JobSetSpecPatch",
    "JobSetTemplatePatch",
    "JobSpecPatch",
    "JobTemplatePatch",
    "Labels",
    "ManagedBy",
    "Name",
    "PodSpecPatch",
    "PodTemplatePatch",
    "PriorityClass",
    "PyTorchJobSpec",
    "QueueName",
    "ReplicatedJobPatch",
    "RuntimePatch",
    "Suspend",
    "TrainerArgs",
    "TrainerCommand",
    "TrainingRuntimeSpecPatch",
    "Workspace",
]

#: Limits of the TrainJob resource (specs.md A2).
_MAX_TEXTS = 128
_MAX_SECONDS = 2**63 - 1


@dataclass
class Name(BaseOption):
    """Name the job. Every backend accepts it.

    Args:
        name: Lower-case letters, digits and ``-``, starting with a letter.

    Raises:
        ValueError: It cannot be the name of a job.
    """

    name: str

    def __post_init__(self) -> None:
        naming.validate_name(self.name)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(job_spec, "metadata")["name"] = self.name


@dataclass
class Labels(BaseOption):
    """Put labels on the job, beside those of other `Labels` options; of one key the last value counts.

    Args:
        labels: Values by key.

    Raises:
        ValueError: A key or value breaks the syntax of labels, or the backend has none.
    """

    labels: dict[str, str]

    def __post_init__(self) -> None:
        _check_given("labels", self.labels)
        checks.check_labels("labels", self.labels)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(section(job_spec, "metadata"), "labels").update(self.labels)


@dataclass
class Annotations(BaseOption):
    """Put annotations on the job, beside those of other `Annotations` options; of one key the last value counts.

    Args:
        annotations: Texts by key, 256 KiB together at most.

    Raises:
        ValueError: A key breaks the syntax, a value is no text, or the backend has no annotations.
    """

    annotations: dict[str, str]

    def __post_init__(self) -> None:
        _check_given("annotations", self.annotations)
        checks.check_annotations("annotations", self.annotations)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(section(job_spec, "metadata"), "annotations").update(self.annotations)


@dataclass
class TrainerCommand(BaseOption):
    """Replace the entry point of the training image. Only with `CustomTrainerContainer`, or without a trainer.

    Args:
        command: The program and its first arguments, one text each; no shell reads it.

    Raises:
        ValueError: Not a list of texts, the backend does not accept it, or the trainer is of another kind.
    """

    command: list[str]

    def __post_init__(self) -> None:
        _check_command("command", self.command, "python")

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        _check_container(self, trainer)
        section(section(job_spec, "spec"), "trainer")["command"] = list(self.command)


@dataclass
class TrainerArgs(BaseOption):
    """Replace the arguments of the training image. Only with `CustomTrainerContainer`, or without a trainer.

    Args:
        args: One text each; no shell reads them.

    Raises:
        ValueError: Not a list of texts, the backend does not accept it, or the trainer is of another kind.
    """

    args: list[str]

    def __post_init__(self) -> None:
        _check_command("args", self.args, "--epochs=3")

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        _check_container(self, trainer)
        section(section(job_spec, "spec"), "trainer")["args"] = list(self.args)


@dataclass
class ActiveDeadlineSeconds(BaseOption):
    """End the job as failed when it has run that long; the time it is suspended does not count.

    Args:
        seconds: At least 1.

    Raises:
        ValueError: Not a positive whole number, or the backend does not accept it.
    """

    seconds: int

    def __post_init__(self) -> None:
        _check_seconds("activeDeadlineSeconds", self.seconds)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(job_spec, "spec")["activeDeadlineSeconds"] = self.seconds


@dataclass
class DeleteAfter(BaseOption):
    """Let the job be deleted that long after its end; else it is kept until somebody deletes it.

    Args:
        seconds: At least 1. Leave time enough for whoever waits to read the outcome.

    Raises:
        ValueError: Not a positive whole number, or the backend does not accept it.
    """

    seconds: int

    def __post_init__(self) -> None:
        _check_seconds("DeleteAfter seconds", self.seconds)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        # The word that Kubernetes has for it; a TrainJob has no such field (specs.md A2).
        section(job_spec, "spec")["ttlSecondsAfterFinished"] = self.seconds


@dataclass
class Suspend(BaseOption):
    """Create the job suspended: nothing starts until it is resumed."""

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(job_spec, "spec")["suspend"] = True


def _check_seconds(what: str, seconds: object) -> None:
    whole = isinstance(seconds, int) and not isinstance(seconds, bool) and 1 <= seconds <= _MAX_SECONDS
    if not whole and not checks.is_placeholder(seconds):
        raise ValueError(f"{what} must be a positive integer (minimum 1), got {seconds!r}")


def _check_given(what: str, value: object) -> None:
    if value is None:
        raise ValueError(f"{what} must be a dict, got None")


def _check_command(what: str, texts: object, example: str) -> None:
    if isinstance(texts, str) or not isinstance(texts, (list, tuple)):
        raise ValueError(f"{what} must be a list of texts such as [{example!r}], got {texts!r}")
    if len(texts) > _MAX_TEXTS:
        raise ValueError(f"{what} has {len(texts)} entries; use at most {_MAX_TEXTS}")
    for index, text in enumerate(texts):
        # An empty argument is one that programs can be given; a NUL character is not.
        if not isinstance(text, str) or "\0" in text:
            raise ValueError(f"{what}[{index}] must be a text without NUL characters, got {type(text).__name__}")


def _check_container(option: BaseOption, trainer: AnyTrainer) -> None:
    if trainer is not None and not isinstance(trainer, CustomTrainerContainer):
        raise ValueError(
            f"{type(option).__name__} can only be used with CustomTrainerContainer. "
            f"{type(trainer).__name__} makes its own command; leave the option out"
        )
