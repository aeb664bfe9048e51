"""Where a TrainJob fetches an artifact of the pipeline, or a URI: the source of its dataset or model initializer.

An artifact of KFP has two places. Its URI is in KFP's object store, and the launcher downloads its content into this
step. `metadata["uri"]`, which our components write, is where the data was produced: a volume claim of the cluster,
a bucket, the Hub. A job on a cluster reads it there, so nothing passes through this step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from kfp_components.step.executor_input import Artifact, get_local_path
from trainer_core.base.errors import InvalidRequestError

#: Backends whose jobs see this machine's files.
LOCAL_BACKENDS = ("local", "debug")

#: Folders of this step that are in a volume claim: path → ``claim/path in the claim``.
ClaimMounts = Mapping[str, str]

KFP_STORE_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - the name of a Secret
#: Entries of a Secret with the keys of an S3-compatible store, by variable; named as in KFP's own.
STORE_ENTRIES = {"ACCESS_KEY_ID": "accesskey", "SECRET_ACCESS_KEY": "secretkey"}
#: Variables of the step of `look` with KFP's keys. Only minio:// reads them: they are wrong for any other store.
KFP_STORE_KEYS = {name: f"KFP_STORE_{name}" for name in STORE_ENTRIES}
#: Schemes of object stores that an initializer reads with the S3 protocol.
_OBJECT_STORES = ("gs", "minio", "s3")


def build_store_secrets(secret: str) -> dict[str, dict[str, str]]:
    """Return the secret settings of an initializer whose keys are in one Secret, with entries named as in KFP's own."""
    return {variable: {"name": secret, "key": entry} for variable, entry in STORE_ENTRIES.items()}


#: What KFP's launcher uses for minio:// where the ConfigMap kfp-launcher configures no provider.
_KFP_STORE: dict[str, dict[str, Any]] = {
    "env": {"ENDPOINT": "http://seaweedfs.kubeflow:9000", "REGION": "minio"},
    "secrets": build_store_secrets(KFP_STORE_SECRET),
}


def set_initializer_source(
    data: dict[str, Any],
    role: str,
    artifact: Artifact | None,
    uri: str | None,
    backend: str,
    mounts: ClaimMounts,
) -> None:
    """Replace the source of an initializer by an artifact of the pipeline or by a URI.

    The other settings of the request's own initializer, such as its endpoint, secrets and `ignore_patterns`, stay where
    the old and the new URI are of one kind.
    """
    if artifact is not None and uri:
        raise InvalidRequestError(f"{role} and {role}_uri are both given; give one of them")
    if artifact is None and not uri:
        return
    initializer = data.get("initializer") or {}
    own = initializer.get(role) or {}
    if backend in LOCAL_BACKENDS:
        source = _build_local_source(role, artifact, uri)
    else:
        source = _build_cluster_source(role, artifact, uri, backend, mounts)
    data["initializer"] = {**initializer, role: convert_to_s3(role, _merge_settings(source, own))}


def convert_to_s3(role: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source whose URI an initializer can read: gs:// and minio:// become s3:// with an endpoint.

    For minio:// the endpoint and the secret are those of KFP's own store, unless the source has its own.
    """
    scheme, _, rest = str(source["storage_uri"]).partition("://")
    if scheme == "minio":
        found = {**source, "storage_uri": f"s3://{rest}"}
        for part, defaults in _KFP_STORE.items():
            found[part] = {**defaults, **(source.get(part) or {})}
        return found
    if scheme != "gs":
        return dict(source)
    if "ENDPOINT" not in (source.get("env") or {}):
        raise InvalidRequestError(
            f"{role}: initializers cannot read {source['storage_uri']} with Google's credentials; give the request an "
            "S3 initializer with endpoint='https://storage.googleapis.com' and HMAC keys, or fetch it into a volume"
        )
    return {**source, "storage_uri": f"s3://{rest}"}


def _merge_settings(source: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the settings of the request's own initializer for a URI of the same kind."""
    if _get_protocol(str(own.get("storage_uri") or "")) != _get_protocol(source["storage_uri"]):
        return dict(source)
    return {**own, **source}


def _get_protocol(uri: str) -> str:
    scheme = uri.partition("://")[0]
    return "s3" if scheme in _OBJECT_STORES else scheme


def _build_local_source(role: str, artifact: Artifact | None, uri: str | None) -> dict[str, Any]:
    if artifact is None:
        path = PurePosixPath(uri or "")
        # A path is in a volume that this step mounts, such as KFP's workspace: link, do not copy it.
        return {"storage_uri": path.as_uri(), "link": True} if path.is_absolute() else {"storage_uri": uri}
    path_here = artifact.path
    if path_here is not None and path_here.exists():
        # The launcher has downloaded it: link, do not copy it again.
        return {"storage_uri": path_here.absolute().as_uri(), "link": True}
    metadata_uri = _get_metadata_uri(artifact)
    if metadata_uri is None:
        return {"storage_uri": artifact.require_path().absolute().as_uri(), "link": True}
    return {"storage_uri": metadata_uri}


def _build_cluster_source(
    role: str, artifact: Artifact | None, uri: str | None, backend: str, mounts: ClaimMounts
) -> dict[str, Any]:
    """Prefer the claim that holds the data, then the recorded URI, then KFP's object store."""
    if artifact is None:
        claim = _build_claim_uri(uri or "", mounts)
        if claim is None and "://" not in (uri or ""):
            raise InvalidRequestError(
                f"{role}_uri: no volume claim is mounted at {uri} in the pods that train; mount one on the task of "
                "train_task with kubernetes.mount_pvc, or pass a URI such as pvc://claim/path"
            )
        return {"storage_uri": claim or uri}
    metadata_uri = _get_metadata_uri(artifact)
    if metadata_uri is not None and not metadata_uri.startswith("file://"):
        return {"storage_uri": metadata_uri}
    for place in (metadata_uri, str(artifact.path)):
        claim = _build_claim_uri(place or "", mounts)
        if claim is not None:
            return {"storage_uri": claim}
    if artifact.uri.partition("://")[0] not in _OBJECT_STORES:
        raise InvalidRequestError(
            f"{role}: the {backend} backend cannot read {artifact.uri} of this machine; pass {role}_uri, or run the "
            "pipeline where artifacts are in an object store"
        )
    return {"storage_uri": artifact.uri}


def _get_metadata_uri(artifact: Artifact) -> str | None:
    metadata_uri = artifact.metadata.get("uri")
    return metadata_uri if isinstance(metadata_uri, str) and "://" in metadata_uri else None


def _build_claim_uri(place: str, mounts: ClaimMounts) -> str | None:
    """Return the pvc:// URI of a path, or of a file:// URI, below a mounted claim; None if no claim holds it."""
    path = get_local_path(place) if place.startswith(("/", "file://")) else None
    if path is None:
        return None
    for folder in sorted(mounts, key=len, reverse=True):
        if path.is_relative_to(folder):
            return f"pvc://{PurePosixPath(mounts[folder], path.relative_to(folder))}"
    return None
