"""Names of TrainJobs, given or derived from an owner, and the syntax of Kubernetes names.

A TrainJob's name is given, derived from an owner that stays the same over retries, or random. Its length is limited so
that the longest name that a cluster derives from it, ``<name>-dataset-initializer-0-0-xxxxx``, is a label of at most
63 characters.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import Any

from trainer_core.base.text import shorten

#: Characters of a label and of the host name of a pod in Kubernetes.
MAX_LABEL_LENGTH = 63
#: Characters of the name of a TrainJob, which has the longest of its pods' suffixes behind it.
MAX_NAME_LENGTH = MAX_LABEL_LENGTH - len("-dataset-initializer-0-0-xxxxx")

_DIGEST_LENGTH = 10
#: With ``champion-`` before it, an alias of a model registry; by itself, the value of a label.
_PARTITION_LENGTH = 48
_PARTITION_HASH_LENGTH = 8
_OWNER_HASH_LENGTH = 40
#: A longer number at the end of a name is none of an attempt.
_MAX_ATTEMPT_DIGITS = 6
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def build_job_name(slug: str, owner_key: str, attempt: int = 0) -> str:
    """Return the name of an owner's TrainJob: ``<slug>-<10 hex digits of sha256(owner_key)>[-<attempt>]``."""
    if not owner_key:
        raise ValueError("owner key must not be empty: name what the TrainJob belongs to, such as dag/run/task")
    if attempt < 0:
        raise ValueError(f"attempt must not be negative, got {attempt}")
    digest = hashlib.sha256(owner_key.encode()).hexdigest()[:_DIGEST_LENGTH]
    suffix = f"-{digest}-{attempt}" if attempt else f"-{digest}"
    return _slugify(slug, MAX_NAME_LENGTH - len(suffix)) + suffix


def find_attempt(slug: str, owner_key: str, name: str) -> int | None:
    """Return the attempt in a name that `build_job_name` built, 0 for the first; None for another name."""
    if build_job_name(slug, owner_key, 0) == name:
        return 0
    suffix = name.rpartition("-")[2]
    if not suffix.isdecimal() or len(suffix) > _MAX_ATTEMPT_DIGITS:
        return None
    return int(suffix) if build_job_name(slug, owner_key, int(suffix)) == name else None


def build_attempt_name(name: str, attempt: int) -> str:
    """Return the name of a later attempt of a TrainJob with a given name: ``<name>-<attempt>``, shortened to fit."""
    suffix = f"-{attempt}"
    return name[: MAX_NAME_LENGTH - len(suffix)].rstrip("-") + suffix


def generate_name(function: str | None = None) -> str:
    """Return a random name: a function's and 10 hex digits; without one, a letter and 11, as in the Kubeflow SDK."""
    if function is None:
        return secrets.choice(string.ascii_lowercase) + secrets.token_hex(6)[:11]
    suffix = f"-{secrets.token_hex(_DIGEST_LENGTH // 2)}"
    return _slugify(function, MAX_NAME_LENGTH - len(suffix)) + suffix


def validate_name(name: Any) -> str:
    """Return the name if a TrainJob can have it on every backend."""
    shown = shorten(repr(name) if isinstance(name, str) else type(name).__name__, 80)
    if not isinstance(name, str) or not _LABEL.fullmatch(name):
        raise ValueError(
            f"job name {shown} is not a DNS label: use lower-case letters, digits and '-', starting with a letter "
            "and ending with a letter or digit"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"job name {shown} has {len(name)} characters; use at most {MAX_NAME_LENGTH}")
    return name


def hash_owner_key(key: str) -> str:
    """Return the value of an owner label: 40 hex digits, because a label cannot hold every key."""
    return hashlib.sha256(key.encode()).hexdigest()[:_OWNER_HASH_LENGTH]


def build_partition_slug(key: str) -> str:
    """Return a key as lower-case letters, digits and hyphens, with a hash unless it is one; different for each key."""
    slug = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-") or "partition"
    if slug == key and len(slug) <= _PARTITION_LENGTH and not re.search(r"-[0-9a-f]{8}\Z", slug):
        return slug
    digest = hashlib.sha256(key.encode()).hexdigest()[:_PARTITION_HASH_LENGTH]
    return f"{slug[: _PARTITION_LENGTH - len(digest) - 1].rstrip('-')}-{digest}"


def is_object_name(value: object) -> bool:
    """Return whether a value can name a Kubernetes object: a DNS-1123 subdomain of at most 253 characters."""
    return isinstance(value, str) and _OBJECT_NAME.fullmatch(value) is not None


def is_namespace(value: object) -> bool:
    """Return whether a value can name a namespace: a DNS-1123 label of at most 63 characters."""
    return isinstance(value, str) and _NAMESPACE.fullmatch(value) is not None


def _slugify(text: str, length: int) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")[:length].rstrip("-")
    return slug or "job"
