"""Parts of manifests that the backends on Kubernetes share: metadata, environment, Secrets and volume claims. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainer_core.base import naming
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.secrets import SecretRef
from trainer_core.k8s import labels, resources, runtimes
from trainer_core.lifecycle.attempt_memory import get_attempt_memory
from trainer_core.lifecycle.restart_policy import get_attempt_restarts
from trainer_core.model import checkpoint_location
from trainer_core.model.request import Code, InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.node import env as node_env
from trainer_core.packaging import argv_payload

#: Mount path in the training containers, by initializer role.
INITIALIZER_PATHS = {
    "dataset": node_env.DEFAULTS[node_env.DATASET_PATH],
    "model": node_env.DEFAULTS[node_env.MODEL_PATH],
}
#: URI scheme of data in a PersistentVolumeClaim.
PVC_SCHEME = "pvc://"
_CHECKPOINT_SCHEMES = ("pvc",)
_CHECKPOINTS_VOLUME = "trainjob-checkpoints"
#: Kubernetes' limit for the total size of annotations, in bytes, and what a job's outcome and diagnosis need of it.
_MAX_ANNOTATIONS_BYTES = 262_144
_RESULT_ANNOTATIONS_BYTES = labels.MAX_OUTCOME_BYTES + labels.MAX_DIAGNOSIS_BYTES
#: etcd accepts requests of 1.5 MiB; the rest is for what servers and controllers add.
_MAX_OBJECT_BYTES = 1_400_000
#: Default of `spec.managedBy` of a TrainJob.
_TRAINER_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
_RESERVED_LABELS = (labels.MANAGED_BY, labels.OWNER, labels.DELETE_AFTER, labels.PARTITION)
_RESERVED_ANNOTATIONS = (
    *(labels.REQUEST, labels.FINGERPRINT, labels.ATTEMPT, labels.RUNTIME),
    *(labels.CANCELLED, labels.DIAGNOSIS, labels.OUTCOME, labels.RESTARTS, labels.START_WITHIN, labels.MEMORY),
    labels.RESTART_POLICY,
    labels.PROGRESS,
    labels.PARTITION,
)


def check_reserved_metadata(request: TrainJobRequest) -> None:
    """Check that a request sets no label or annotation that the backend writes."""
    metadata = request.policy.metadata
    for what, keys, reserved in (
        ("labels", metadata.labels, _RESERVED_LABELS),
        ("annotations", metadata.annotations, _RESERVED_ANNOTATIONS),
    ):
        conflicts = sorted(set(keys) & set(reserved))
        if conflicts:
            raise InvalidRequestError(f"metadata.{what}: {', '.join(conflicts)} is reserved by the backend; remove it")


def check_size(manifest: Mapping[str, Any]) -> None:
    """Check that etcd can store an object."""
    size = len(json.dumps(manifest, ensure_ascii=False).encode())
    if size > _MAX_OBJECT_BYTES:
        raise UnsupportedError(
            f"the manifest of {manifest['kind']} {manifest['metadata']['name']!r} has {size} bytes, and Kubernetes "
            f"stores {_MAX_OBJECT_BYTES}; master and workers each carry the function with its code: name what the "
            "training does not need in .trainjobignore, or install the code in the image"
        )


def build_metadata(
    request: TrainJobRequest, namespace: str, attempt: int, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    job_labels = {**request.job_metadata.labels, labels.MANAGED_BY: labels.MANAGER}
    if request.context.owner:
        job_labels[labels.OWNER] = naming.hash_owner_key(request.context.owner.key)
    if request.policy.delete_after_seconds is not None:
        job_labels[labels.DELETE_AFTER] = str(request.policy.delete_after_seconds)
    job_annotations = {
        **request.job_metadata.annotations,
        labels.REQUEST: request.to_record_json(),
        labels.FINGERPRINT: request.fingerprint(),
        labels.ATTEMPT: str(attempt),
        **(annotations or {}),
    }
    if request.policy.start_within is not None:
        job_annotations[labels.START_WITHIN] = f"{request.policy.start_within:g}"
    memory = get_attempt_memory(request)
    if memory is not None:
        job_annotations[labels.MEMORY] = json.dumps(asdict(memory))
    restarts = get_attempt_restarts(request)
    if restarts is not None:
        job_annotations[labels.RESTART_POLICY] = json.dumps(restarts.to_dict())
    size = sum(len(key.encode()) + len(value.encode()) for key, value in job_annotations.items())
    limit = _MAX_ANNOTATIONS_BYTES - _RESULT_ANNOTATIONS_BYTES
    if size > limit:
        raise UnsupportedError(
            f"the request and its annotations have {size} bytes, and a job on Kubernetes has room for {limit}, besides "
            "its outcome; pass large arguments as a path or URI, or use packaging='reference'"
        )
    return {
        "name": request.require_name(),
        "namespace": namespace,
        "labels": job_labels,
        "annotations": job_annotations,
    }


def build_secret(request: TrainJobRequest, job: Mapping[str, Any]) -> dict[str, Any]:
    """Build the Secret with the literal secrets of a request, which its created job owns."""
    metadata = job["metadata"]
    reference = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": resources.SECRETS.api_version,
        "kind": resources.SECRETS.kind,
        "metadata": {
            "name": get_secret_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": {labels.MANAGED_BY: labels.MANAGER},
            "ownerReferences": [reference],
        },
        "type": "Opaque",
        "stringData": {key: value.get_secret_value() for key, value in sorted(request.context.literal_secrets.items())},
    }


def get_secret_name(job: str) -> str:
    return f"{job}-initializer"


def build_lifecycle_fields(request: TrainJobRequest) -> dict[str, Any]:
    """Build `activeDeadlineSeconds`, `suspend` and `managedBy` of a TrainJob, Job or run policy."""
    fields = {
        "activeDeadlineSeconds": request.attempt_deadline_seconds,
        "suspend": request.policy.suspend or None,
        # The Trainer controller is the default for a TrainJob, and other kinds do not accept it.
        "managedBy": None if request.policy.managed_by == _TRAINER_CONTROLLER else request.policy.managed_by,
    }
    return {name: value for name, value in fields.items() if value is not None}


def render_function(
    request: TrainJobRequest,
    trainer: TrainerRequest,
    code: Code,
    launch: argv_payload.Launcher,
    exported: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Render `command` and `args` of the container that runs a training function."""
    argv = argv_payload.render_argv(
        code,
        trainer.packages,
        trainer.pip_index_urls,
        launch,
        exported=exported,
        processes=trainer.num_proc_per_node,
        s3="s3://" in f"{trainer.env} {request.policy.checkpoints}",
        is_trial=node_env.OBJECTIVE in trainer.env,
        is_attended=request.policy.stalled is not None,
    )
    command_length = argv.index(argv_payload.UNPACKER) + 1
    return argv[:command_length], argv[command_length:]


def build_trainer_env(request: TrainJobRequest) -> dict[str, str | SecretRef]:
    """Return the environment of the training container, without the variables of the runtime's policy."""
    trainer, own = request.work.trainer, {node_env.NAME: request.require_name()}
    if trainer is not None and trainer.result_uri:
        own[node_env.RESULT_URI] = trainer.result_uri
    uri = _get_checkpoints_uri(request) or ""
    own |= checkpoint_location.build_variables(request, uri, _to_mounted_path(request), overlaps=True)
    own |= request.stalled_env
    env = {**request.job_env, **(trainer.env if trainer else {})}
    return {**env, **own, **_reference_literal_secrets("trainer", request)}


def build_checkpoints_patch(request: TrainJobRequest) -> dict[str, Any]:
    """Mount the claim of checkpoints, if any: without a subPath, whose folder the kubelet would create for root."""
    uri = _get_checkpoints_uri(request)
    if uri is None or checkpoint_location.is_bucket(uri):
        return {}
    claim, _ = checkpoint_location.split_uri(uri, _CHECKPOINT_SCHEMES)
    if not naming.is_object_name(claim):
        raise InvalidRequestError(f"Checkpoints uri: {claim!r} is not the name of a PersistentVolumeClaim")
    mount = {"name": _CHECKPOINTS_VOLUME, "mountPath": checkpoint_location.MOUNT_PATH}
    return {
        "volumes": [{"name": _CHECKPOINTS_VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }


def _get_checkpoints_uri(request: TrainJobRequest) -> str | None:
    return checkpoint_location.resolve_uri(request, None)


def _to_mounted_path(request: TrainJobRequest) -> Callable[[str, str], str]:
    def to_path(uri: str, field: str) -> str:
        claim, path = checkpoint_location.split_uri(uri, _CHECKPOINT_SCHEMES, field)
        own, _ = checkpoint_location.split_uri(_get_checkpoints_uri(request) or "", _CHECKPOINT_SCHEMES)
        if claim != own:
            raise UnsupportedError(
                f"Checkpoints {field}: {uri} is in another claim than {own!r}, which the job mounts; copy it there"
            )
        return f"{checkpoint_location.MOUNT_PATH}/{path}"

    return to_path


def build_initializer_env(role: str, source: InitializerSource, request: TrainJobRequest) -> list[dict[str, Any]]:
    """Build the environment of an initializer container besides its storage URI, sorted by name."""
    env: dict[str, str | SecretRef] = {**source.env, **source.secrets}
    if source.ignore_patterns is not None:
        env["IGNORE_PATTERNS"] = ",".join(source.ignore_patterns)
    return build_env({**env, **_reference_literal_secrets(role, request)})


def build_pvc_patch(role: str, uri: str) -> dict[str, Any]:
    """Mount data of claims, each as a separate volume: the server merges mounts by the name of their volume."""
    claim, _, path = uri.removeprefix(PVC_SCHEME).partition("/")
    volume, sub_path = f"trainjob-{role}", path.strip("/")
    mount = {
        "name": volume,
        "mountPath": INITIALIZER_PATHS[role],
        **({"subPath": sub_path} if sub_path else {}),
        "readOnly": True,
    }
    return {
        "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }


def check_pvc_uri(role: str, uri: str) -> None:
    """Check that a ``pvc://`` URI consists of the name of a claim and a path inside it."""
    claim, _, path = uri.removeprefix(PVC_SCHEME).partition("/")
    if not naming.is_object_name(claim) or ".." in path.split("/"):
        raise InvalidRequestError(
            f"initializer.{role}: {uri!r} must be {PVC_SCHEME}<claim>/<path>: the name of a PersistentVolumeClaim and "
            "a path in it without '..'"
        )


def build_env(variables: Mapping[str, str | SecretRef]) -> list[dict[str, Any]]:
    """Build the `env` of a container, sorted by name; a `SecretRef` becomes a `secretKeyRef`."""
    return [_build_env_var(name, value) for name, value in sorted(variables.items())]


def _build_env_var(name: str, value: str | SecretRef) -> dict[str, Any]:
    if isinstance(value, SecretRef):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    return {"name": name, "value": escape_variable_references(value)}


def escape_variable_references(text: str) -> str:
    """Escape ``$(NAME)`` and ``$$``, which Kubernetes expands in environment values and arguments."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _reference_literal_secrets(role: str, request: TrainJobRequest) -> dict[str, SecretRef]:
    """Return references to the literal secrets of a part of a request, by environment variable."""
    keys = (key.partition(".") for key in request.context.literal_secrets)
    return {
        name: SecretRef(get_secret_name(request.require_name()), f"{part}.{name}")
        for part, _, name in keys
        if part == role
    }
