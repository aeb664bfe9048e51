"""SecretRef: where a secret lies, never what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SecretRef"]

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
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
        _check("name", self.name, _NAME, "the name of a Secret: lower-case letters, digits, '-' and '.'")
        _check("key", self.key, _KEY, "an entry of the Secret: letters, digits, '-', '_' and '.'")


def _check(what: str, value: object, form: re.Pattern[str], described: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"SecretRef {what} must be {described}, 253 at most")
