"""Global options of the command, and parsing of ``name=value`` options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trainer_core.client import TrainerClient
from trainer_core.config import BackendConfig, config_from_dict
from trainer_core.errors import InvalidRequestError

__all__ = ["GlobalOptions", "parse_key_values"]


@dataclass
class GlobalOptions:
    """Options before the subcommand.

    Attributes:
        backend: Name of the backend; None for ``TRAINJOB_BACKEND``, or ``local`` if it is not set.
        home: State folder of the local backend.
        namespace: Namespace of a cluster backend.
    """

    backend: str | None = None
    home: str | None = None
    namespace: str | None = None

    @cached_property
    def config(self) -> BackendConfig:
        """Configuration of the backend."""
        options = {"home": self.home, "namespace": self.namespace}
        name = self.backend or os.environ.get("TRAINJOB_BACKEND") or "local"
        return config_from_dict(name, {key: value for key, value in options.items() if value is not None})

    @cached_property
    def client(self) -> TrainerClient:
        """Client of the backend, created on first use."""
        return TrainerClient(self.config)


def parse_key_values(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of an option, each ``name=value``.

    Args:
        option: Name of the option, for the error message.
        values: Its values; None if the option is not used.

    Raises:
        InvalidRequestError: A value has no ``=`` or no name.
    """
    for value in values or ():
        if "=" not in value.lstrip("="):
            raise InvalidRequestError(f"{option} must be name=value, got {value!r}")
    return dict(value.split("=", 1) for value in values or ())
