"""Checkpoints: the option that keeps checkpoints where the next attempt of the job finds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer_core.base import validation
from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import KEPT_CHECKPOINTS


@dataclass
class Checkpoints(BaseOption):
    """Keep the checkpoints of the job, so that a retry, a preemption or a suspension does not lose its work.

    The training function saves and loads them with `checkpoints`. A program in an image finds the folder in the
    variable ``TRAINJOB_CHECKPOINT_PATH``. A retry resumes from the newest complete checkpoint; a task that a person
    clears starts from the beginning.

    Args:
        uri: Where they are kept: ``pvc://<claim>/<path>`` on a cluster, ``pvc://<volume>/<path>`` of a container
            engine, ``file:///<folder>`` on this machine, ``s3://<bucket>/<path>`` everywhere, with the
            credentials of the trainer's environment (``AWS_*``). Every job has its own folder in it. The default is
            ``checkpoints_uri`` of the backend's configuration, otherwise the backend's own place; a cluster has none.
            Airflow renders it.
        keep: Number of the newest checkpoints to keep while the job runs. Default 3.
        keep_best: Also keep the best one by a metric of `save`, such as ``"loss"``.
        mode: Whether the greatest (``"max"``) or the smallest (``"min"``) value of ``keep_best`` is the best, as in
            `promote`. The default is ``"min"``; for a metric that is known to grow, such as ``"accuracy"``, it must be
            set.
        every_steps: `due` is true at multiples of this number. The default is by time only.
        every_seconds: `due` is true after this many seconds. Default 600; 0 for by steps only.
        load: What to start from if this training has no checkpoint: ``"fresh"`` (the default) for nothing, ``"owner"``
            for the newest of earlier runs of the same task, or a URI of the same volume. ``"never"`` also ignores the
            checkpoints of earlier attempts; the attempt itself continues after a suspension or a restart. Airflow
            renders it.
        grace: Seconds from SIGTERM to SIGKILL, for the checkpoint of a job that is stopped. Default 30, the
            default of Kubernetes (``terminationGracePeriodSeconds``).
        after: What a complete job leaves: ``"last"`` (the default; and the best one), ``"none"`` or ``"all"``. A failed
            job leaves all, for its retry.
        ttl: Seconds after its last checkpoint when another job at the same place may delete them. Default 7 days; 0
            for never.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[Checkpoints(every_steps=1000, keep_best="loss")])
        ```
    """

    uri: str | None = None
    keep: int = 3
    keep_best: str | None = None
    mode: Literal["max", "min"] | None = None
    every_steps: int | None = None
    every_seconds: float = 600
    load: str = "fresh"
    grace: int = 30
    after: str = "last"
    ttl: int = 7 * 24 * 3600

    def __post_init__(self) -> None:
        if self.uri is not None and not validation.is_placeholder(self.uri):
            validation.check_place_uri("Checkpoints uri", self.uri)
        if not validation.is_placeholder(self.load):
            validation.check_load(self.load)
        for name, minimum in (("keep", 1), ("every_steps", 1), ("grace", 3), ("ttl", 0)):
            validation.check_count(f"Checkpoints {name}", getattr(self, name), minimum)
        validation.check_seconds("Checkpoints every_seconds", self.every_seconds)
        self._check_best()
        if not validation.is_placeholder(self.after):
            validation.check_one_of("Checkpoints after", self.after, KEPT_CHECKPOINTS)

    def _check_best(self) -> None:
        if self.mode is not None:
            validation.check_one_of("Checkpoints mode", self.mode, ("max", "min"))
            if self.keep_best is None:
                raise ValueError("Checkpoints mode is that of a metric; set keep_best to its name, or remove mode")
        if self.keep_best is None:
            return
        validation.check_string("Checkpoints keep_best", self.keep_best, "loss")
        if self.keep_best.startswith("-"):
            name = self.keep_best.lstrip("-")
            raise ValueError(
                f"Checkpoints keep_best must be the name of a metric; write keep_best={name!r}, mode='max'"
            )
        if self.mode is None and validation.is_growing(self.keep_best):
            raise ValueError(
                f"Checkpoints keep_best: {self.keep_best!r} usually grows as a model gets better; write "
                f"keep_best={self.keep_best!r}, mode='max' (or mode='min')"
            )

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        settings = {name: value for name, value in asdict(self).items() if value is not None}
        section(job_spec, "spec")["checkpoints"] = settings
