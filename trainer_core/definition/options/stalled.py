"""Stalled: the option that ends a training that makes no progress."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.model.option import BaseOption, section


@dataclass
class Stalled(BaseOption):
    """End a training that hangs, and say where: the stacks of all threads of all ranks are in the log.

    A sign of progress is a call of `progress` on any rank, of `due` or `save` of `checkpoints`, or a report of
    transformers, Lightning or tqdm, shown or not. A node whose ranks gave no sign for `after` ends with code 124; the
    category is ``Stalled``, which is retryable, and the next attempt continues from the newest checkpoint. Downloads,
    the installation of packages and the time until the first sign do not count, unless `startup` is set. Time in which
    the whole machine or container did not run does not count either, nor does a process under a debugger. A training
    with irregular steps gets three times its longest step so far.

    Args:
        after: Longest time between two signs of progress: seconds, or text such as ``"20m"``. More than the longest
            step, evaluation and compilation together.
        startup: Longest time from the start of the function until the first sign on the node of rank 0. Default: no
            limit.
        save: Longest time that saving a checkpoint takes, with waiting for the other ranks. Default: four times
            `after`.
        output: Whether each line that a rank prints from Python is a sign of progress, too. Default: False.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[Checkpoints(), Stalled(after="20m", startup="2h")])
        ```
    """

    after: float | str
    startup: float | str | None = None
    save: float | str | None = None
    output: bool = False

    def __post_init__(self) -> None:
        for name in ("after", "startup", "save"):
            if name == "after" or getattr(self, name) is not None:
                validation.check_duration(f"Stalled {name}:", getattr(self, name))
        if not isinstance(self.output, bool):
            raise ValueError(f"Stalled output must be True or False, got {redact(self.output)}")

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        settings = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        section(job_spec, "spec")["stalled"] = settings
