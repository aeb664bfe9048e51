"""Options that set single fields of a TrainJob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer_core.base import naming, validation
from trainer_core.base.secrets import redact
from trainer_core.definition.trainers import CustomTrainerContainer
from trainer_core.model.option import BaseOption, section

#: Limits of `spec.trainer.command` and of int64 fields in the TrainJob CRD.
_MAX_STRINGS = 128
_MAX_SECONDS = 2**63 - 1


@dataclass
class Name(BaseOption):
    """Set the name of the TrainJob. Every backend accepts it.

    Upstream field: ``metadata.name``. Without this option the name is derived from the owner of the job, or random.

    Args:
        name: A DNS-1035 label: lower-case letters, digits and ``-``, starting with a letter; short enough that the
            names of pods stay within 63 characters.

    Raises:
        ValueError: The name is invalid.

    Example:
        ```python
        client.train(trainer=trainer, options=[Name("nightly")])
        ```
    """

    name: str

    def __post_init__(self) -> None:
        naming.validate_name(self.name)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "metadata")["name"] = self.name


@dataclass
class Labels(BaseOption):
    """Add labels to the TrainJob.

    Upstream field: ``metadata.labels``. Several `Labels` options are merged; for equal keys the last one wins.

    Args:
        labels: Values by key, in the syntax of Kubernetes labels.

    Raises:
        ValueError: A key or value has an invalid syntax, or the backend does not accept labels.

    Example:
        ```python
        client.train(trainer=trainer, options=[Labels({"team": "vision"})])
        ```
    """

    labels: dict[str, str]

    def __post_init__(self) -> None:
        _check_given("labels", self.labels)
        validation.check_labels("labels", self.labels)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(section(job_spec, "metadata"), "labels").update(self.labels)


@dataclass
class Annotations(BaseOption):
    """Add annotations to the TrainJob.

    Upstream field: ``metadata.annotations``. Several `Annotations` options are merged; for equal keys the last one
    wins.

    Args:
        annotations: Strings by key, at most 256 KiB in total.

    Raises:
        ValueError: A key has an invalid syntax, a value is no string, or the backend does not accept annotations.

    Example:
        ```python
        client.train(trainer=trainer, options=[Annotations({"example.com/ticket": "ML-17"})])
        ```
    """

    annotations: dict[str, str]

    def __post_init__(self) -> None:
        _check_given("annotations", self.annotations)
        validation.check_annotations("annotations", self.annotations)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(section(job_spec, "metadata"), "annotations").update(self.annotations)


@dataclass
class TrainerCommand(BaseOption):
    """Replace the entry point of the training image.

    Upstream field: ``spec.trainer.command``. Requires a `CustomTrainerContainer`, or no trainer.

    Args:
        command: The program and its first arguments, one string each, at most 128. No shell interprets them.

    Raises:
        ValueError: Not a list of strings, another kind of trainer, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=CustomTrainerContainer(image=image), options=[TrainerCommand(["python", "train.py"])])
        ```
    """

    command: list[str]

    def __post_init__(self) -> None:
        _check_command("command", self.command, "python")

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        _check_container(self, trainer)
        section(section(job_spec, "spec"), "trainer")["command"] = list(self.command)


@dataclass
class TrainerArgs(BaseOption):
    """Replace the arguments of the training image.

    Upstream field: ``spec.trainer.args``. Requires a `CustomTrainerContainer`, or no trainer.

    Args:
        args: One string each, at most 128. No shell interprets them.

    Raises:
        ValueError: Not a list of strings, another kind of trainer, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=CustomTrainerContainer(image=image), options=[TrainerArgs(["--epochs=3"])])
        ```
    """

    args: list[str]

    def __post_init__(self) -> None:
        _check_command("args", self.args, "--epochs=3")

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        _check_container(self, trainer)
        section(section(job_spec, "spec"), "trainer")["args"] = list(self.args)


@dataclass
class ActiveDeadlineSeconds(BaseOption):
    """Fail the TrainJob when it has run for this long. Time in which it is suspended does not count.

    Upstream field: ``spec.activeDeadlineSeconds``. The default is no deadline.

    Args:
        seconds: At least 1.

    Raises:
        ValueError: Not a positive integer, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[ActiveDeadlineSeconds(6 * 3600)])
        ```
    """

    seconds: int

    def __post_init__(self) -> None:
        _check_seconds("activeDeadlineSeconds", self.seconds)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["activeDeadlineSeconds"] = self.seconds


@dataclass
class DeleteAfter(BaseOption):
    """Delete the TrainJob this long after its end. By default it is kept until it is deleted explicitly.

    Named after ``ttlSecondsAfterFinished`` of a Kubernetes Job; a TrainJob has no such field, so later submits of this
    project and ``trainjob reap`` delete expired jobs; other controllers delete them by themselves.

    Args:
        seconds: At least 1. Leave enough time for waiters to read the outcome.

    Raises:
        ValueError: Not a positive integer, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[DeleteAfter(7 * 24 * 3600)])
        ```
    """

    seconds: int

    def __post_init__(self) -> None:
        _check_seconds("DeleteAfter seconds", self.seconds)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        # The field name of a Kubernetes Job; a TrainJob has no such field.
        section(job_spec, "spec")["ttlSecondsAfterFinished"] = self.seconds


@dataclass
class Partition(BaseOption):
    """Name the partition of data that the TrainJob trains for, such as a region or a day. Every backend accepts it.

    In Airflow, the TrainJob of a run with a partition key has this partition without the option. The training function
    finds the key in the environment variable ``TRAINJOB_PARTITION``. TrainJobs are listed by it, each partition has a
    separate champion (`TrainerClient.promote`), and the run in MLflow has the tag ``trainjob.partition``. It is not
    part of the work: the same definition can be submitted with and without it. No upstream field; it becomes the label
    and the annotation ``trainjob-workflows/partition``.

    Args:
        key: 1 to 250 characters, as in Airflow.

    Raises:
        ValueError: The key is empty or too long.

    Example:
        ```python
        client.train(trainer=trainer, options=[Partition("emea")])
        ```
    """

    key: str

    def __post_init__(self) -> None:
        if not validation.is_placeholder(self.key):
            validation.check_partition(self.key)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["partition"] = self.key


@dataclass
class Suspend(BaseOption):
    """Create the TrainJob suspended: nothing starts until it is resumed.

    Upstream field: ``spec.suspend``.

    Example:
        ```python
        name = client.train(trainer=trainer, options=[Suspend()])
        client.resume(name)
        ```
    """

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["suspend"] = True


def _check_seconds(what: str, seconds: object) -> None:
    whole = isinstance(seconds, int) and not isinstance(seconds, bool) and 1 <= seconds <= _MAX_SECONDS
    if not whole and not validation.is_placeholder(seconds):
        raise ValueError(f"{what} must be a positive integer (minimum 1), got {redact(seconds)}")


def _check_given(what: str, value: object) -> None:
    if value is None:
        raise ValueError(f"{what} must be a dict, got None")


def _check_command(what: str, strings: object, example: str) -> None:
    if isinstance(strings, str) or not isinstance(strings, (list, tuple)):
        raise ValueError(f"{what} must be a list of strings such as [{example!r}], got {redact(strings)}")
    if len(strings) > _MAX_STRINGS:
        raise ValueError(f"{what} has {len(strings)} entries; use at most {_MAX_STRINGS}")
    for index, string in enumerate(strings):
        # An empty string is a valid argument of a program; a NUL character is not.
        if not isinstance(string, str) or "\0" in string:
            raise ValueError(f"{what}[{index}] must be a string without NUL characters, got {type(string).__name__}")


def _check_container(option: BaseOption, trainer: Any) -> None:
    if trainer is not None and not isinstance(trainer, CustomTrainerContainer):
        raise ValueError(
            f"{type(option).__name__} can only be used with CustomTrainerContainer. "
            f"{type(trainer).__name__} generates the command; remove the option"
        )
