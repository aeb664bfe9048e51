"""What every backend writes into the objects of its jobs: metadata, variables, secrets, sources. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core import checks
from trainer_core.cluster import kinds, marks, runtimes
from trainer_core.cluster.kinds import Kind
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.initializers import DATASET_PATH, MODEL_PATH
from trainer_core.inside import contract
from trainer_core.request import InitializerSource, TrainJobRequest
from trainer_core.secrets import SecretRef

__all__ = [
    "PVC",
    "ROLES",
    "check_claim",
    "check_metadata",
    "claimed",
    "life",
    "literal",
    "metadata",
    "secret",
    "secret_name",
    "source_env",
    "sources",
    "trainer_env",
    "variables",
]

#: What can be fetched first, and where it lies in the training containers.
ROLES = {"dataset": DATASET_PATH, "model": MODEL_PATH}
#: A volume with what an earlier job has fetched.
PVC = "pvc://"
_MAX_ANNOTATIONS = 262_144
_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
_OUR_LABELS = (marks.MANAGED_BY, marks.OWNER, marks.DELETE_AFTER)
_OUR_ANNOTATIONS = (
    *(marks.REQUEST, marks.FINGERPRINT, marks.ATTEMPT, marks.RUNTIME),
    *(marks.CANCELLED, marks.DIAGNOSIS, marks.OUTCOME),
)


def check_metadata(request: TrainJobRequest) -> None:
    """Refuse labels and annotations by which we find our own jobs.

    Raises:
        InvalidRequestError: One of them is ours to write.
    """
    given = request.metadata
    for what, keys, ours in (
        ("labels", given.labels, _OUR_LABELS),
        ("annotations", given.annotations, _OUR_ANNOTATIONS),
    ):
        taken = sorted(set(keys) & set(ours))
        if taken:
            raise InvalidRequestError(f"metadata.{what}: {', '.join(taken)} is written by this backend; leave it out")


def metadata(
    request: TrainJobRequest, namespace: str, attempt: int, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the metadata of a job of ours.

    Raises:
        UnsupportedError: The request is larger than annotations can be.
        InvalidRequestError: The request has no name.
    """
    labels = {**request.metadata.labels, marks.MANAGED_BY: marks.MANAGER}
    if request.owner:
        labels[marks.OWNER] = marks.owner_value(request.owner.key)
    if request.delete_after_seconds is not None:
        labels[marks.DELETE_AFTER] = str(request.delete_after_seconds)
    annotations = {
        **request.metadata.annotations,
        marks.REQUEST: request.to_json(),
        marks.FINGERPRINT: request.fingerprint(),
        marks.ATTEMPT: str(attempt),
        **(more or {}),
    }
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        raise UnsupportedError(
            f"the request and its annotations are {size} bytes, and Kubernetes keeps {_MAX_ANNOTATIONS} with a job; "
            "pass large arguments as a path or URI, or give the function as packaging='reference'"
        )
    return {"name": request.require_name(), "namespace": namespace, "labels": labels, "annotations": annotations}


def secret(request: TrainJobRequest, job: str, namespace: str, owner_uid: str, owner: Kind) -> dict[str, Any] | None:
    """Return the Secret with what a request was given as literal text; None where there is nothing of the kind.

    Args:
        request: The request.
        job: Name of the job that it belongs to and goes with.
        namespace: Where the job runs.
        owner_uid: The job's uid.
        owner: The job's kind.
    """
    if not request.literal_secrets:
        return None
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": job, "uid": owner_uid}
    return {
        "apiVersion": kinds.SECRETS.api_version,
        "kind": kinds.SECRETS.kind,
        "metadata": {
            "name": secret_name(job),
            "namespace": namespace,
            "labels": {marks.MANAGED_BY: marks.MANAGER},
            "ownerReferences": [reference],
        },
        "type": "Opaque",
        "stringData": {key: value.get_secret_value() for key, value in sorted(request.literal_secrets.items())},
    }


def secret_name(job: str) -> str:
    """Return the name of the Secret with what a job was given as literal text."""
    return f"{job}-initializer"


def life(request: TrainJobRequest) -> dict[str, Any]:
    """Return what the specs of a TrainJob, a Job and a PyTorchJob say about how they live, in the same words."""
    said = {
        "activeDeadlineSeconds": request.active_deadline_seconds,
        "suspend": request.suspend or None,
        # Trainer's own controller is the default of a TrainJob, and others know nothing of it.
        "managedBy": None if request.managed_by == _CONTROLLER else request.managed_by,
    }
    return {name: value for name, value in said.items() if value is not None}


def sources(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    """Yield what a request fetches first, by ``dataset`` and ``model``."""
    for role in ROLES:
        source = getattr(request.initializer, role, None)
        if source is not None:
            yield role, source


def trainer_env(request: TrainJobRequest) -> dict[str, str | SecretRef]:
    """Return what training is told, but for what a runtime's policy adds; secrets by reference."""
    trainer, own = request.trainer, {contract.NAME: request.require_name()}
    if trainer is not None and trainer.result_uri:
        own[contract.RESULT_URI] = trainer.result_uri
    return {**(trainer.env if trainer else {}), **own, **_literals("trainer", request)}


def source_env(role: str, source: InitializerSource, request: TrainJobRequest) -> list[dict[str, Any]]:
    """Return what an initializer is told besides where to fetch from, sorted by name; secrets by reference."""
    env: dict[str, str | SecretRef] = {**source.env, **source.secrets}
    if source.ignore_patterns is not None:
        env["IGNORE_PATTERNS"] = ",".join(source.ignore_patterns)
    return variables({**env, **_literals(role, request)})


def claimed(role: str, uri: str) -> dict[str, Any]:
    """Return the pod spec that lets training read what lies in a claim.

    A volume of its own for each source: the server tells mounts apart by their volumes' names.
    """
    claim, _, path = uri.removeprefix(PVC).partition("/")
    volume, inner = f"trainjob-{role}", path.strip("/")
    mount = {"name": volume, "mountPath": ROLES[role], **({"subPath": inner} if inner else {}), "readOnly": True}
    return {
        "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }


def check_claim(role: str, uri: str) -> None:
    """Refuse a place in a claim that is none.

    Raises:
        InvalidRequestError: It is not the name of a claim and a path in it.
    """
    claim, _, path = uri.removeprefix(PVC).partition("/")
    if not checks.is_object_name(claim) or ".." in path.split("/"):
        raise InvalidRequestError(
            f"initializer.{role}: {uri!r} must be {PVC}<claim>/<path>, the name of a PersistentVolumeClaim and a path "
            "in it without '..'"
        )


def variables(values: Mapping[str, str | SecretRef]) -> list[dict[str, Any]]:
    """Return environment variables of a container, sorted by name; secrets by reference."""
    return [_entry(name, value) for name, value in sorted(values.items())]


def _entry(name: str, value: str | SecretRef) -> dict[str, Any]:
    if isinstance(value, SecretRef):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": literal(value)}


def literal(text: str) -> str:
    """Kubernetes reads ``$(NAME)`` and ``$$`` in the values of variables and in arguments; here nobody meant them."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _literals(role: str, request: TrainJobRequest) -> dict[str, SecretRef]:
    """Where that lies which a part of a request was given as literal text, by the names of its variables."""
    given = (key.partition(".") for key in request.literal_secrets)
    return {name: SecretRef(secret_name(request.require_name()), f"{of}.{name}") for of, _, name in given if of == role}
