"""Secrets for backends without Secrets: the environment of the submitting process has their values."""

from __future__ import annotations

import os

from trainer_core.errors import UnsupportedError
from trainer_core.request import TrainJobRequest

__all__ = ["read_secrets"]


def read_secrets(request: TrainJobRequest) -> dict[str, str]:
    """Return the secrets of a request by ``role.ENV``: those given as text, and those that its trainer refers to.

    Raises:
        UnsupportedError: The environment of this process does not have one that the trainer refers to.
    """
    secrets = {key: value.get_secret_value() for key, value in request.literal_secrets.items()}
    for name, ref in (request.trainer.secret_env if request.trainer else {}).items():
        if name not in os.environ:
            raise UnsupportedError(
                f"trainer.env.{name} refers to the Secret {ref.name!r}, and this backend has no Secrets; set {name} in "
                "the environment of the process that submits the job"
            )
        secrets[f"trainer.{name}"] = os.environ[name]
    return secrets
