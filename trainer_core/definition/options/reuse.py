"""Reuse: the option that takes the result of an earlier TrainJob which trained the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer_core.base import validation
from trainer_core.model.option import BaseOption, section


@dataclass
class Reuse(BaseOption):
    """Do not train again if nothing has changed: take the result of an earlier TrainJob that trained the same.

    The same are the function and its arguments, the files of its project, pinned packages, the Python version and the
    packages of this machine or the image by its digest, the content of the runtime, nodes, processes and devices,
    environment variables, the content of dataset and model, and the partition. Name, owner, labels, memory, time
    limits and secrets do not count. If one of these is unknown, such as an image by a tag, a package without ``==`` or
    a ``pvc://`` dataset, the TrainJob trains, and a warning names it.

    The earlier TrainJob is Complete, has the option, belongs to any owner in the same namespace or state folder, and
    its artifacts are those that it left, as far as this process can look (``file://`` on this machine, ``s3://``). It
    stays as it is: neither a cancel nor the end of a pipeline ends or deletes it. Nothing is looked up for a task that
    a person has cleared, for a further attempt, or for a trial of a search. Two submits at the same time both train.

    No upstream field: a label of the TrainJob holds a hash of all that counts.

    Args:
        within: Longest time since the end of the earlier TrainJob: seconds, or text such as ``"30d"``.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        name = client.train(trainer=CustomTrainer(func=train), options=[Reuse(within="30d")])
        print(client.wait(name).reused_from)
        ```
    """

    within: float | str

    def __post_init__(self) -> None:
        validation.check_duration("Reuse within:", self.within)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["reuse"] = {"within": self.within}
