"""Secrets for backends without Secrets: the environment of the submitting process has their values."""

from __future__ import annotations

import os

from trainer_core.base.errors import UnsupportedError
from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.model.request import TrainJobRequest


def read_secrets(request: TrainJobRequest) -> dict[str, str]:
    """Return the secrets of a request by ``role.ENV``: those given as text, and those that it refers to."""
    secrets = {key: value.get_secret_value() for key, value in request.context.literal_secrets.items()}
    # By the name of the secret: where it is in the request, the reference, and the variable that has the value here.
    references = {
        f"trainer.{name}": (f"trainer.env.{name}", ref, name)
        for name, ref in (request.work.trainer.secret_env if request.work.trainer else {}).items()
    }
    for role, source in request.initializer_sources():
        for name, ref in source.secrets.items():
            # No supervisor and no training inherits variables with this prefix.
            variable = f"{ENV_PREFIX}{role.upper()}_{name}"
            references[f"{role}.{name}"] = (f"initializer.{role}.{name.lower()}", ref, variable)
    for key, (field, ref, variable) in references.items():
        if variable not in os.environ:
            raise UnsupportedError(
                f"{field} refers to the Secret {ref.name!r}, and this backend has no Secrets; set {variable} in "
                "the environment of the process that submits the job"
            )
        secrets[key] = os.environ[variable]
    return secrets
