"""initialize-only request → a volume claim, and a Job that fetches into it; what is known of such a Job. Pure.

Controllers fetch only for a training of their own; what is fetched here lies in a volume that later jobs mount.
"""

from __future__ import annotations

from typing import Any

from trainer_core import naming
from trainer_core.cluster import jobfacts, kinds, marks, objects
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.pods import DATASET_INITIALIZER, MODEL_INITIALIZER
from trainer_core.cluster.raw import Raw
from trainer_core.configs import FetchingClusterConfig
from trainer_core.errors import UnsupportedError
from trainer_core.request import InitializerSource, TrainJobRequest, Workspace

__all__ = ["is_all", "manifests", "read"]

_VOLUME = "workspace"
_MOUNT = "/workspace"
#: Tries after the first; each is a pod of its own, whose log is kept.
_BACKOFF_LIMIT = 2
_SCHEMES = ("hf", "s3")
_WHY_NOT = {
    "file": "a cluster does not see this machine's files; give the data as s3://… or hf://…, or in a volume as pvc://…",
    "cache": "a cache lives only as long as the TrainJob that reads it; give it to that TrainJob",
    "pvc": "that lies in a volume already; give it to the TrainJob that reads it",
}


def is_all(request: TrainJobRequest) -> bool:
    """Say whether a request asks for nothing else; with a runtime it runs the runtime as it is."""
    return request.trainer is None and request.runtime is None and request.initializer is not None


def manifests(
    request: TrainJobRequest, config: FetchingClusterConfig, namespace: str, attempt: int = 0
) -> list[dict[str, Any]]:
    """Return the claim and the Job of a named request, in the order in which they are created.

    Args:
        request: The request; it has an initializer and no trainer.
        config: The images that fetch.
        namespace: Where it is to run.
        attempt: Which attempt of its owner it is.

    Raises:
        UnsupportedError: A Job cannot fetch that, or has no place for what is asked for.
        InvalidRequestError: A label or annotation is ours to write, or the request has no name.
    """
    objects.check_metadata(request)
    _check(request)
    return [_claim(request, namespace, attempt), _job(request, config, namespace, attempt)]


def _check(request: TrainJobRequest) -> None:
    if request.patches:
        raise UnsupportedError("RuntimePatch changes a runtime, and a job that only fetches has none; leave it out")
    if request.distributed is not None:
        raise UnsupportedError("DistributedConfig is about nodes, and a job that only fetches has none; leave it out")
    if request.pytorch_job is not None:
        raise UnsupportedError("PyTorchJobSpec is about nodes, and a job that only fetches has none; leave it out")
    for role, source in objects.sources(request):
        scheme = source.storage_uri.partition("://")[0]
        if scheme not in _SCHEMES:
            why = _WHY_NOT.get(scheme, "a job that only fetches reads hf:// and s3://")
            raise UnsupportedError(f"initializer.{role}: {scheme}:// cannot be fetched into a volume: {why}")


def _claim_name(request: TrainJobRequest, attempt: int) -> str:
    if request.workspace and request.workspace.claim:
        return request.workspace.claim
    # Attempts of one owner fetch into one volume. A long name of theirs is cut, for its number, to less than the first.
    name, owner = request.require_name(), request.owner
    if owner is not None and name == naming.job_name(owner.slug, owner.key, attempt):
        return naming.job_name(owner.slug, owner.key)
    return name.removesuffix(f"-{attempt}" if attempt else "")


def _claim(request: TrainJobRequest, namespace: str, attempt: int) -> dict[str, Any]:
    """Nobody owns it: what was fetched outlives the Job."""
    workspace = request.workspace or Workspace()
    spec = {
        "accessModes": [workspace.access_mode],
        "resources": {"requests": {"storage": workspace.size}},
        **({"storageClassName": workspace.storage_class} if workspace.storage_class is not None else {}),
    }
    return {
        "apiVersion": kinds.CLAIMS.api_version,
        "kind": kinds.CLAIMS.kind,
        "metadata": {
            "name": _claim_name(request, attempt),
            "namespace": namespace,
            "labels": {marks.MANAGED_BY: marks.MANAGER},
        },
        "spec": spec,
    }


def _job(request: TrainJobRequest, config: FetchingClusterConfig, namespace: str, attempt: int) -> dict[str, Any]:
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": _claim_name(request, attempt)}}
    pod = {
        # A pod that failed is kept with its log, and another one tries again.
        "restartPolicy": "Never",
        "containers": [_container(role, source, request, images[role]) for role, source in objects.sources(request)],
        "volumes": [volume],
    }
    return {
        "apiVersion": kinds.JOBS.api_version,
        "kind": kinds.JOBS.kind,
        "metadata": objects.metadata(request, namespace, attempt),
        "spec": {
            "backoffLimit": _BACKOFF_LIMIT,
            **objects.life(request),
            "template": {"metadata": {"labels": {marks.MANAGED_BY: marks.MANAGER}}, "spec": pod},
        },
    }


def _container(role: str, source: InitializerSource, request: TrainJobRequest, image: str) -> dict[str, Any]:
    uri = {"name": "STORAGE_URI", "value": source.storage_uri}
    return {
        "name": f"{role}-initializer",
        "image": image,
        "env": [uri, *objects.source_env(role, source, request)],
        "volumeMounts": [{"name": _VOLUME, "mountPath": _MOUNT}],
        # The images write no termination message; the end of the log says why they failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def read(raw: Raw, backend: str) -> JobFacts:
    """Return what is known of the Job of a request that only initializes.

    Args:
        raw: The Job as the server sends it.
        backend: The backend's name.
    """
    spec = raw.get("spec") or {}
    return jobfacts.of(
        raw,
        backend,
        kinds.JOBS,
        suspend=bool(spec.get("suspend")),
        conditions=jobfacts.conditions(raw),
        roles=(jobfacts.role({**(raw.get("status") or {}), "name": ""}),),
        num_nodes=0,
        initializers=_initializers(spec),
        fetched=_fetched(spec),
        deadline=spec.get("activeDeadlineSeconds"),
    )


def _pod_spec(spec: Raw) -> dict[str, Any]:
    return dict((spec.get("template") or {}).get("spec") or {})


def _initializers(spec: Raw) -> tuple[str, ...]:
    pod = _pod_spec(spec)
    names = {one["name"] for key in ("initContainers", "containers") for one in pod.get(key) or ()}
    return tuple(one for one in (DATASET_INITIALIZER, MODEL_INITIALIZER) if one in names)


def _fetched(spec: Raw) -> tuple[tuple[str, str], ...]:
    volumes = _pod_spec(spec).get("volumes") or ()
    claim = next((one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one), "")
    roles = (one.removesuffix("-initializer") for one in _initializers(spec))
    return tuple((role, f"pvc://{claim}/{role}") for role in roles) if claim else ()
