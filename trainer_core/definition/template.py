"""TrainJobTemplate: the arguments of `TrainerClient.train` as one object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from trainer_core.definition.initializers import Initializer
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.runtimes import Runtime


@dataclass
class TrainJobTemplate:
    """The arguments of `TrainerClient.train`, to reuse or to pass on.

    Example:
        ```python
        template = TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="torch-distributed")
        client.train(**template)
        ```

    Args:
        trainer: Function to run (``spec.trainer``).
        runtime: Runtime or name of a runtime (``spec.runtimeRef``). None (the default) for the backend's default.
        initializer: What to fetch first (``spec.initializer``). None (the default) fetches nothing.
    """

    trainer: CustomTrainer
    runtime: str | Runtime | None = None
    initializer: Initializer | None = None

    def keys(self) -> Iterator[str]:
        """Return the names of the arguments, for unpacking with ``**``."""
        return iter([item.name for item in fields(self)])

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(key)
        return getattr(self, key)
