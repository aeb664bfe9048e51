"""owner → DNS label: the names of TrainJobs.

A name is either given, or derived from an owner that is stable over retries, or random. It is short
enough that the longest child name a cluster derives from it, ``<name>-dataset-initializer-0-0-xxxxx``,
stays a label of 63 characters (specs.md A6).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import Any

__all__ = ["MAX_NAME_LENGTH", "job_name", "numbered", "random_name", "validate_name"]

#: 63 less ``-dataset-initializer-0-0-xxxxx`` (30 characters).
MAX_NAME_LENGTH = 33

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DIGEST_LENGTH = 10


def job_name(slug: str, owner_key: str, attempt: int = 0) -> str:
    """Name the TrainJob of an owner: ``<slug>-<10 hex of sha256(owner)>[-<attempt>]``.

    Args:
        slug: Something readable, such as a task id; whatever does not fit a DNS label is dropped.
        owner_key: What the job belongs to; equal keys give equal names.
        attempt: 0 for the first job of the owner, which carries no suffix.

    Raises:
        ValueError: The owner is empty or the attempt negative.
    """
    if not owner_key:
        raise ValueError("the owner of a TrainJob must not be empty: name what it belongs to, such as dag/run/task")
    if attempt < 0:
        raise ValueError(f"the attempt of a TrainJob must not be negative, got {attempt}")
    digest = hashlib.sha256(owner_key.encode()).hexdigest()[:_DIGEST_LENGTH]
    suffix = f"-{digest}-{attempt}" if attempt else f"-{digest}"
    return _slug(slug, MAX_NAME_LENGTH - len(suffix)) + suffix


def numbered(name: str, attempt: int) -> str:
    """Name a later attempt at a job that was given its name: ``<name>-<attempt>``, cut to what a name can hold."""
    suffix = f"-{attempt}"
    return name[: MAX_NAME_LENGTH - len(suffix)].rstrip("-") + suffix


def random_name() -> str:
    """Return one random letter and 11 hex digits, as the reference SDK names its jobs."""
    return secrets.choice(string.ascii_lowercase) + secrets.token_hex(6)[:11]


def validate_name(name: Any) -> str:
    """Return the name if it is one a TrainJob can have on every backend.

    Raises:
        ValueError: Not a DNS-1035 label, or too long.
    """
    if not isinstance(name, str) or not _LABEL.fullmatch(name):
        raise ValueError(
            f"job name {name!r} is not a DNS label: use lower-case letters, digits and '-', starting with a letter "
            "and ending with a letter or digit"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"job name {name!r} has {len(name)} characters; use at most {MAX_NAME_LENGTH}")
    return name


def _slug(text: str, length: int) -> str:
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")[:length].rstrip("-")
    return cleaned or "job"
