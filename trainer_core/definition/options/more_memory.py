"""MoreMemory: the option that gives the next attempt more memory after one that ran out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.base import resources, validation
from trainer_core.base.secrets import redact
from trainer_core.model.option import BaseOption, section

_MAX_FACTOR = 16


@dataclass
class MoreMemory(BaseOption):
    """Ask for more memory in the next attempt after one that ran out of the memory of its node.

    Such a failure is then retryable: a retry of Airflow or KFP, ``trainjob retry``, ``trainjob submit --attempts`` or
    the next submit of the same owner creates an attempt with more memory, which continues from the last checkpoint. An
    attempt that the backend would restart with as much memory as before is ended instead. After any other failure, also
    of the memory of a GPU, the next attempt asks for the same. A task that a person clears begins with the memory of
    the request. Needs ``memory`` in ``resources_per_node`` of the trainer, or in a `DistributedConfig`.

    Upstream fields: those of ``resources_per_node``, such as ``spec.trainer.resourcesPerNode``; in a container, memory
    without swap.

    Args:
        limit: Most memory of a node that an attempt asks for, such as ``"32Gi"``. An attempt that ran out of it is not
            retryable.
        factor: How many times the memory of the attempt before, in whole Mi. Default 1.5; greater than 1, at most 16.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        trainer = CustomTrainer(func=train, resources_per_node={"cpu": 2, "memory": "8Gi"})
        client.train(trainer=trainer, options=[MoreMemory("32Gi")])
        ```
    """

    limit: str
    factor: float = 1.5

    def __post_init__(self) -> None:
        if not validation.is_placeholder(self.limit):
            try:
                resources.parse_memory(self.limit)
            except ValueError as error:
                raise ValueError(f"MoreMemory limit: {error}") from None
        factor: object = self.factor
        is_valid = isinstance(factor, (int, float)) and 1 < factor <= _MAX_FACTOR  # True is 1.
        if not is_valid and not validation.is_placeholder(factor):
            raise ValueError(
                f"MoreMemory factor must be a number greater than 1 and at most {_MAX_FACTOR}, got {redact(factor)}"
            )

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["moreMemory"] = asdict(self)
