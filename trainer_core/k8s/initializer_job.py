"""Jobs of initialize-only requests: a volume claim and a batch/v1 Job, as Trainer fetches only in a TrainJob. Pure."""

from __future__ import annotations

from typing import Any

from trainer_core.base import naming
from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import job_state, labels, manifest_common, resources
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER
from trainer_core.model.config import FetchingClusterConfig
from trainer_core.model.request import InitializerSource, TrainJobRequest, Workspace
from trainer_core.model.storage_schemes import check_scheme

_VOLUME = "workspace"
_MOUNT_PATH = "/workspace"
#: Retries of the Job; each runs in a new pod, so that the log of the failed one is kept.
_BACKOFF_LIMIT = 2
_SCHEMES = ("hf", "s3")
#: Why a scheme is not supported here.
_UNSUPPORTED_SCHEMES = {
    "cache": "a cache exists only as long as the TrainJob that reads it; use it in that TrainJob",
    "pvc": "the data is in a volume already; use it in the TrainJob that reads it",
}


def is_initialize_only(request: TrainJobRequest) -> bool:
    """Return whether a request has an initializer only. With a runtime and no trainer, the runtime runs unchanged."""
    return request.work.trainer is None and request.work.runtime is None and request.work.initializer is not None


def render_manifests(
    request: TrainJobRequest, config: FetchingClusterConfig, namespace: str, attempt: int = 0
) -> list[dict[str, Any]]:
    """Render the volume claim and the Job of a request, in the order in which they are created."""
    manifest_common.check_reserved_metadata(request)
    manifest_common.build_checkpoints_patch(request)
    _check_request(request)
    return [_render_claim(request, namespace, attempt), _render_job(request, config, namespace, attempt)]


def _check_request(request: TrainJobRequest) -> None:
    for option, is_set in (
        ("RuntimePatch", bool(request.work.patches)),
        ("DistributedConfig", request.work.distributed is not None),
        *((extension.option, True) for extension in request.work.extensions.values()),
    ):
        if is_set:
            raise UnsupportedError(
                f"{option} is not supported in an initialize-only request, which has no runtime and no nodes; remove it"
            )
    for role, source in request.initializer_sources():
        check_scheme(role, source.storage_uri, _SCHEMES, "in an initialize-only request", _UNSUPPORTED_SCHEMES)


def _get_claim_name(request: TrainJobRequest, attempt: int) -> str:
    if request.work.workspace and request.work.workspace.claim:
        return request.work.workspace.claim
    # All attempts of an owner share one volume. The name of a later attempt can be cut shorter than that of the first,
    # to make room for the number, so the claim is named after the first attempt.
    name, owner = request.require_name(), request.context.owner
    if owner is not None and name == naming.build_job_name(owner.slug, owner.key, attempt):
        return naming.build_job_name(owner.slug, owner.key)
    return name.removesuffix(f"-{attempt}" if attempt else "")


def _render_claim(request: TrainJobRequest, namespace: str, attempt: int) -> dict[str, Any]:
    # No ownerReference: the volume claim must outlive the Job.
    workspace = request.work.workspace or Workspace()
    spec = {
        "accessModes": [workspace.access_mode],
        "resources": {"requests": {"storage": workspace.size}},
        **({"storageClassName": workspace.storage_class} if workspace.storage_class is not None else {}),
    }
    return {
        "apiVersion": resources.VOLUME_CLAIMS.api_version,
        "kind": resources.VOLUME_CLAIMS.kind,
        "metadata": {
            "name": _get_claim_name(request, attempt),
            "namespace": namespace,
            "labels": {labels.MANAGED_BY: labels.MANAGER},
        },
        "spec": spec,
    }


def _render_job(
    request: TrainJobRequest, config: FetchingClusterConfig, namespace: str, attempt: int
) -> dict[str, Any]:
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": _get_claim_name(request, attempt)}}
    pod = {
        # The Job controller creates a new pod for a retry and keeps the failed one with its log.
        "restartPolicy": "Never",
        "containers": [
            _render_container(role, source, request, images[role]) for role, source in request.initializer_sources()
        ],
        "volumes": [volume],
    }
    return {
        "apiVersion": resources.JOBS.api_version,
        "kind": resources.JOBS.kind,
        "metadata": manifest_common.build_metadata(request, namespace, attempt),
        "spec": {
            "backoffLimit": _BACKOFF_LIMIT,
            **manifest_common.build_lifecycle_fields(request),
            "template": {"metadata": {"labels": {labels.MANAGED_BY: labels.MANAGER}}, "spec": pod},
        },
    }


def _render_container(role: str, source: InitializerSource, request: TrainJobRequest, image: str) -> dict[str, Any]:
    uri = {"name": "STORAGE_URI", "value": source.storage_uri}
    return {
        "name": f"{role}-initializer",
        "image": image,
        "env": [uri, *manifest_common.build_initializer_env(role, source, request)],
        "volumeMounts": [{"name": _VOLUME, "mountPath": _MOUNT_PATH}],
        # The images write no termination message; the end of the log has the error.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def parse_job(raw: RawObject, backend: str) -> JobState:
    """Parse the Job of an initialize-only request."""
    spec = raw.get("spec") or {}
    return job_state.build_job_state(
        raw,
        backend,
        resources.JOBS,
        suspend=bool(spec.get("suspend")),
        restart_limit=spec.get("backoffLimit"),
        conditions=job_state.parse_conditions(raw),
        replicated_jobs=(job_state.parse_replicated_job({**(raw.get("status") or {}), "name": ""}),),
        num_nodes=0,
        initializers=_parse_initializers(spec),
        fetched_uris=_parse_fetched_uris(spec),
        active_deadline_seconds=spec.get("activeDeadlineSeconds"),
    )


def _get_pod_spec(spec: RawObject) -> dict[str, Any]:
    return dict((spec.get("template") or {}).get("spec") or {})


def _parse_initializers(spec: RawObject) -> tuple[str, ...]:
    pod = _get_pod_spec(spec)
    names = {container["name"] for key in ("initContainers", "containers") for container in pod.get(key) or ()}
    return tuple(name for name in (DATASET_INITIALIZER, MODEL_INITIALIZER) if name in names)


def _parse_fetched_uris(spec: RawObject) -> tuple[tuple[str, str], ...]:
    volumes = _get_pod_spec(spec).get("volumes") or ()
    claims = (each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each)
    claim = next(claims, "")
    roles = (name.removesuffix("-initializer") for name in _parse_initializers(spec))
    return tuple((role, f"{manifest_common.PVC_SCHEME}{claim}/{role}") for role in roles) if claim else ()
