"""Names and labels of the engine objects of a TrainJob, by which any process finds them. Pure.

A job is a volume that no container mounts, its claim: an engine has only one volume of a name, and never changes the
labels of a volume. Further volumes of this kind are the entries of the job's journal, numbered from 0.
"""

from __future__ import annotations

_PREFIX = "trainjob-workflows."
#: On every object; the namespace.
NAMESPACE_LABEL = _PREFIX + "namespace"
#: The job that an object belongs to.
UID_LABEL = _PREFIX + "uid"
NAME_LABEL = _PREFIX + "name"
#: The owner of a job, as `naming.hash_owner_key` returns it.
OWNER_LABEL = _PREFIX + "owner"
#: The search of a job, hashed in the same way.
SEARCH_LABEL = _PREFIX + "search"
#: The kind of a volume: `JOB_KIND`, `DATA_KIND`, or the kind of a journal entry.
KIND_LABEL = _PREFIX + "kind"
JOB_KIND = "job"
DATA_KIND = "data"
#: Content of a claim or journal entry, as JSON.
CONTENT_LABEL = _PREFIX + "text"
#: Random text by which the writer of a journal entry recognizes its own entry.
TOKEN_LABEL = _PREFIX + "token"
#: Random identity of an engine.
ENGINE_LABEL = _PREFIX + "engine"
#: Step of a container, and the number of its run: a job that is suspended and resumed runs again.
STEP_LABEL = _PREFIX + "step"
RUN_LABEL = _PREFIX + "run"
#: On every object, for `docker ps --filter label=…`.
MANAGED_LABEL = _PREFIX + "managed"

_DEFAULT_NAMESPACE = "default"


def job_labels(namespace: str, name: str, uid: str) -> dict[str, str]:
    return {MANAGED_LABEL: "true", NAMESPACE_LABEL: namespace, NAME_LABEL: name, UID_LABEL: uid}


def engine_volume(namespace: str) -> str:
    """Return the name of the volume by which a process recognizes the engine of the jobs of a namespace."""
    return f"trainjob.{namespace}"


def claim_volume(namespace: str, name: str) -> str:
    return f"trainjob.{namespace}.{name}"


def entry_volume(uid: str, number: int) -> str:
    return f"trainjob.{uid}.{number}"


def data_volume(uid: str) -> str:
    """Return the name of the volume that passes data from the initializers to the nodes of a job."""
    return f"trainjob.{uid}.data"


def fetched_volume(namespace: str, name: str) -> str:
    """Return the name of the volume that a job without a trainer fetches into. It outlives the job."""
    return name if namespace == _DEFAULT_NAMESPACE else f"{namespace}.{name}"


def cache_volume(namespace: str) -> str:
    """Return the name of the volume in which initializers cache data for all jobs of a namespace."""
    return fetched_volume(namespace, "trainjob-cache")


def kept_suffix(uid: str) -> str:
    """Return the suffix of the names of containers that are kept of a deleted job."""
    return f".{uid[:8]}"


def network_name(uid: str) -> str:
    return f"trainjob.{uid}"


def host_name(name: str, step: str) -> str:
    return f"{name}-{step}"


def container_name(namespace: str, name: str, step: str, run: int) -> str:
    """Return the name of the container of a step. Job names have no dot, so the names of two jobs never collide."""
    prefix = "" if namespace == _DEFAULT_NAMESPACE else f"{namespace}."
    return f"{prefix}{host_name(name, step)}" + (f".{run}" if run else "")
