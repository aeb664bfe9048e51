"""What a TrainJob's objects on the engine are called, and the labels by which any process finds them again. Pure.

A job is a volume that nothing mounts: the engine makes one volume of a name, whoever asks, and its labels are never
changed. Further volumes of that kind are the entries of the job's book, numbered from 0.
"""

from __future__ import annotations

import hashlib

__all__ = [
    "DATA",
    "JOB",
    "KIND",
    "MANAGED",
    "NAME",
    "NAMESPACE",
    "OWNER",
    "RUN",
    "STEP",
    "TEXT",
    "TOKEN",
    "UID",
    "cache_volume",
    "claim",
    "container",
    "data_volume",
    "entry",
    "fetched_volume",
    "host",
    "network",
    "owner_value",
]

_PREFIX = "trainjob-workflows."
#: On everything of ours; its value is the namespace.
NAMESPACE = _PREFIX + "namespace"
#: The job that an object belongs to, by identity and by name.
UID = _PREFIX + "uid"
NAME = _PREFIX + "name"
#: Whose job it is, as `owner_value` writes it.
OWNER = _PREFIX + "owner"
#: What a volume stands for: `JOB`, an entry's kind, or `DATA`.
KIND = _PREFIX + "kind"
JOB = "job"
DATA = "data"
#: What was written down with it, as JSON; and who wrote it, so that the writer knows its own.
TEXT = _PREFIX + "text"
TOKEN = _PREFIX + "token"
#: Which step a container is, and which run of it: a job that was suspended and resumed runs again.
STEP = _PREFIX + "step"
RUN = _PREFIX + "run"
#: So that `docker ps --filter label=…` finds everything.
MANAGED = _PREFIX + "managed"

_DEFAULT_NAMESPACE = "default"
_DIGITS = 40


def claim(namespace: str, name: str) -> str:
    """Return the volume that is the job of a name: there can be one."""
    return f"trainjob.{namespace}.{name}"


def entry(uid: str, number: int) -> str:
    """Return the volume that is an entry of a job's book: there can be one of each number."""
    return f"trainjob.{uid}.{number}"


def data_volume(uid: str) -> str:
    """Return the volume between a job's initializers and its nodes."""
    return f"trainjob.{uid}.data"


def fetched_volume(namespace: str, name: str) -> str:
    """Return the volume into which a job that only initializes fetches; it outlives the job."""
    return name if namespace == _DEFAULT_NAMESPACE else f"{namespace}.{name}"


def cache_volume(namespace: str) -> str:
    """Return the volume in which initializers keep what they fetched, for all jobs of a namespace."""
    return fetched_volume(namespace, "trainjob-cache")


def network(uid: str) -> str:
    """Return the network of a job's nodes."""
    return f"trainjob.{uid}"


def host(name: str, step: str) -> str:
    """Return the name by which the steps of a job reach one of them."""
    return f"{name}-{step}"


def container(namespace: str, name: str, step: str, run: int) -> str:
    """Return the container of a step; a job's name has no dot, so that no two jobs meet."""
    place = "" if namespace == _DEFAULT_NAMESPACE else f"{namespace}."
    return f"{place}{host(name, step)}" + (f".{run}" if run else "")


def owner_value(key: str) -> str:
    """Return the label value of an owner: the same for the same key, whatever characters it has."""
    return hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
