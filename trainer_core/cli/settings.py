"""Which backend the command speaks to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from trainer_core.client import TrainerClient
from trainer_core.configs import BackendConfig, config_from_dict

__all__ = ["Settings"]


@dataclass
class Settings:
    """What was given before the subcommand.

    Attributes:
        backend: Name of the backend; None for the environment's, else local.
        home: State folder of the local backend.
        namespace: Namespace of a cluster's backend.
    """

    backend: str | None = None
    home: str | None = None
    namespace: str | None = None

    @cached_property
    def config(self) -> BackendConfig:
        """The configuration of the backend."""
        given = {"home": self.home, "namespace": self.namespace}
        name = self.backend or os.environ.get("TRAINJOB_BACKEND") or "local"
        return config_from_dict(name, {key: value for key, value in given.items() if value is not None})

    @cached_property
    def client(self) -> TrainerClient:
        """The client, made when it is first needed."""
        return TrainerClient(self.config)
