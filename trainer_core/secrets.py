"""SecretRef: where a secret lies, never what it says; and environments that may hold some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core import checks

__all__ = ["SecretRef", "check_env", "secret_from"]

_KEY = re.compile(r"(?!\.\.?\Z)[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True)
class SecretRef:
    """A secret by reference. It can be logged, stored and compared: the secret itself is not in it.

    Attributes:
        name: Name of the Secret, as Kubernetes names them: lower-case letters, digits, ``-`` and ``.``.
        key: The entry in it.

    Raises:
        ValueError: Name or key cannot be one of a Secret.
    """

    name: str
    key: str

    def __post_init__(self) -> None:
        # What was given is not shown: somebody may have put the secret itself there.
        if not checks.is_object_name(self.name):
            raise ValueError(
                "SecretRef name must be the name of a Secret: lower-case letters, digits, '-' and '.', 253 at most"
            )
        if not _is_entry(self.key):
            raise ValueError(
                "SecretRef key must be an entry of the Secret: letters, digits, '-', '_' and '.', 253 at most"
            )


def secret_from(value: Any) -> Any:
    """Return a reference for what stands for one in plain data, ``{"name": …, "key": …}``; all else as it is.

    Raises:
        ValueError: A dict that is no reference.
    """
    if not isinstance(value, Mapping):
        return value
    if value.keys() != {"name", "key"}:
        raise ValueError(f"a secret is given as name and key of its Secret, got {', '.join(map(str, value)) or 'none'}")
    return SecretRef(**value)


def check_env(what: str, env: object) -> None:
    """Refuse environment variables that no process could be given; a value may be a secret; None passes.

    Raises:
        ValueError: A name is not one, or a value is neither a text nor a secret.
    """
    if isinstance(env, Mapping):
        env = {name: "" if isinstance(value, SecretRef) else value for name, value in env.items()}
    checks.check_env(what, env)


def _is_entry(key: object) -> bool:
    return isinstance(key, str) and _KEY.fullmatch(key) is not None
