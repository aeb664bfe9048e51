"""Secrets: references to them, and what a message may quote of a value that may contain one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.base import naming

_KEY = re.compile(r"(?!\.\.?\Z)[-._a-zA-Z0-9]{1,253}")
#: Fields whose values are not quoted in messages: they may be secrets, or were meant to be references to secrets.
_SECRET_FIELDS = frozenset({"env", "environment", "secrets"})
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
#: The user of an SSH URL, such as ``git+ssh://git@host``, is no secret.
_SSH_USER = re.compile(r"(?<=ssh://)[^/\s:@]+@")
#: Values of query parameters such as ``?token=…`` and those of signed URLs.
_URL_TOKEN = re.compile(r"(?i)(?<=[?&])([\w-]*(?:token|passw|secret|key|sig|auth|credential)[\w-]*=)[^&\s#'\"]+")
#: Names of arguments whose values are secrets; ``max_tokens`` and ``tokenizer`` are none.
_SECRET_NAME = re.compile(
    r"(?i)passw|passphrase|secret|credential|private_?key|api_?key|access_?key|authorization|keyfile"
    r"|(?:(?<![a-z])|(?-i:(?<=[a-z])(?=[A-Z])))token(?![a-z])"
)
_MAX_QUOTED = 100
#: Longer strings are not quoted: masking must read a password to its end, which is slow in a long string.
_MAX_MASKED = 10_000
#: Whole numbers with more digits are not quoted: Python refuses to convert very long ones.
_MAX_NUMBER = 10**_MAX_QUOTED


@dataclass(frozen=True)
class SecretRef:
    """Reference to an entry of a Kubernetes Secret (``secretKeyRef``). It can be logged, stored and compared.

    Example:
        ```python
        CustomTrainer(func=train, env={"HF_TOKEN": SecretRef("hub", "token")})
        ```

    Attributes:
        name: Name of the Secret: at most 253 lower-case letters, digits, ``-`` and ``.``.
        key: Key of the entry in the Secret.

    Raises:
        ValueError: The name or the key is invalid.
    """

    name: str
    key: str

    def __post_init__(self) -> None:
        # The values are not quoted: the user may have passed the secret itself.
        if not naming.is_object_name(self.name):
            raise ValueError(
                "SecretRef name must be the name of a Secret: at most 253 lower-case letters, digits, '-' and '.'"
            )
        if not _is_key(self.key):
            raise ValueError("SecretRef key must be a key of the Secret: at most 253 letters, digits, '-', '_' and '.'")


def _is_key(value: object) -> bool:
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def parse_secret(value: Any) -> Any:
    """Return the `SecretRef` for its plain data ``{"name": …, "key": …}``; return other values unchanged."""
    if not isinstance(value, Mapping):
        return value
    if value.keys() != {"name", "key"}:
        keys = ", ".join(redact(key) for key in [*value][:5]) or "an empty dict"
        raise ValueError(f"a secret must be a dict of name and key, got {keys}")
    return SecretRef(**value)


def redact(value: object, path: Sequence[str] = ()) -> str:
    """Return a value as a message may quote it. The only function that decides what a message shows.

    Values of secret fields give an empty string. Credentials in URLs are masked. Containers give their type.
    """
    if not _SECRET_FIELDS.isdisjoint(path):
        return ""
    if not isinstance(value, (str, int, float, type(None))):
        return type(value).__name__
    if isinstance(value, int) and abs(value) >= _MAX_NUMBER:
        return f"a number of more than {_MAX_QUOTED} digits"
    if isinstance(value, str) and len(value) > _MAX_MASKED:
        return f"a text of {len(value)} characters"
    text = mask_credentials(repr(value))
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 1]}…"


def is_secret_name(name: str) -> bool:
    """Return whether an argument of this name has a secret, such as ``hf_token``, ``db.password`` or ``apiKey``."""
    return _SECRET_NAME.search(name) is not None


def mask_credentials(text: str) -> str:
    """Return a text with ``***`` for the user, password and tokens of each URL in it."""
    return _URL_TOKEN.sub(r"\1***", _URL_CREDENTIALS.sub("***", text))


def has_credentials(text: str) -> bool:
    """Return whether a text has a URL with a user, a password or a token. A user alone may be a token."""
    return bool(_URL_CREDENTIALS.search(_SSH_USER.sub("", text)) or _URL_TOKEN.search(text))
