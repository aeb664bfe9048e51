"""Where the checkpoints of a request are, and the settings that its nodes get. Pure.

The folder of a training is ``<uri>/<slug>-<digest of the owner>/g-<generation>``: attempts of one generation share it,
and no other training has it. Without an owner the job's own nonce takes the place of the digest. With ``load="never"``
each attempt has its own folder, with its nonce.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from trainer_core.base import naming
from trainer_core.base.errors import UnsupportedError
from trainer_core.model.request import TrainJobRequest
from trainer_core.node import env

#: Mount path of the volume with the checkpoints in a container.
MOUNT_PATH = "/checkpoints"
_DEFAULT_GENERATION = "0"


def resolve_uri(request: TrainJobRequest, default: str | None) -> str | None:
    """Return the URI of the place of all checkpoints; None for a request without the option."""
    if request.policy.checkpoints is None:
        return None
    if request.work.trainer is None or request.work.trainer.kind == "builtin":
        raise UnsupportedError(
            "Checkpoints needs a function or an image as trainer; a torchtune recipe saves its checkpoints itself "
            "(checkpointer.output_dir)"
        )
    uri = request.policy.checkpoints.uri or default
    if uri is None:
        raise UnsupportedError(
            "Checkpoints: this backend has no default place; set uri='pvc://<claim>' or 's3://<bucket>/<path>', or "
            "checkpoints_uri in the configuration of the backend"
        )
    return uri.rstrip("/")


def is_bucket(uri: str | None) -> bool:
    """Return whether a place is a bucket, which the nodes of every backend reach by requests and without a mount."""
    return uri is not None and uri.startswith("s3://")


def split_uri(uri: str, schemes: tuple[str, ...], field: str = "uri") -> tuple[str, str]:
    """Return the volume and the path of a place that is no bucket; a ``file://`` place has no volume."""
    parts = urlsplit(uri)
    if parts.scheme not in schemes:
        supported = " or ".join(f"{scheme}://" for scheme in (*schemes, "s3"))
        raise UnsupportedError(
            f"Checkpoints {field}: {parts.scheme}:// is not supported on this backend; use {supported}"
        )
    return ("", unquote(parts.path)) if parts.scheme == "file" else (parts.netloc, parts.path.strip("/"))


def build_scope(request: TrainJobRequest) -> str:
    """Return the folder of a training at the place of all checkpoints."""
    nonce = request.policy.checkpoints.nonce if request.policy.checkpoints else None
    if request.context.owner is not None:
        slug, key, search = request.context.owner.slug, request.context.owner.key, request.context.search
        if search is not None and search.trial is not None:
            # The runs of a trial share its checkpoints.
            slug, key = f"trial-{search.trial}", f"{search.key}/trial-{search.trial}"
        owner = naming.build_job_name(slug, key)
        attempt = f"-{nonce}" if nonce else ""
        return f"{owner}/g-{_to_folder_name(request.context.owner.generation or _DEFAULT_GENERATION)}{attempt}"
    if request.policy.checkpoints is not None and request.policy.checkpoints.scope is not None:
        return request.policy.checkpoints.scope
    return f"{request.require_name()}-{nonce or 'new'}/g-{_DEFAULT_GENERATION}"


def get_folder(uri: str, field: str = "uri") -> str:
    """Return the path of a ``file://`` place."""
    return split_uri(uri, ("file",), field)[1]


def build_variables(
    request: TrainJobRequest,
    uri: str | None,
    to_path: Callable[[str, str], str] = get_folder,
    overlaps: bool = False,
) -> dict[str, str]:
    """Return the environment variables that tell the nodes where checkpoints are, and the settings of the option.

    ``Checkpoints(every_steps=100)`` of an owner at ``file:///data`` →
    ``{"TRAINJOB_CHECKPOINT_PATH": "/data/train-3f0c9ad1be/g-0", "TRAINJOB_CHECKPOINTS": '{"every_steps": 100, ...}'}``
    """
    option = request.policy.checkpoints
    if option is None or uri is None:
        return {}
    if "://" in option.load and is_bucket(option.load) != is_bucket(uri):
        raise UnsupportedError(f"Checkpoints load: {option.load} is at another kind of place than {uri}; copy it there")
    if is_bucket(uri):
        to_path = lambda uri, _: uri  # noqa: E731 -- nodes read the bucket by the same URI
    base, scope = to_path(uri, "uri").rstrip("/"), build_scope(request)
    settings = option.model_dump(mode="json", exclude={"uri", "nonce", "scope"}, exclude_none=True)
    if overlaps:
        settings["overlaps"] = True
    if option.load == "owner":
        settings["load_paths"] = [f"{base}/{scope.partition('/')[0]}"]
    elif "://" in option.load:
        settings["load_paths"] = [to_path(option.load.rstrip("/"), "load")]
    return {
        env.CHECKPOINT_PATH: f"{base}/{scope}",
        env.CHECKPOINTS: json.dumps(settings, sort_keys=True),
        # torchrun gives its processes 30 s by default; see PyTorch's elastic agent.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, option.grace - 1)),
    }


def _to_folder_name(generation: str) -> str:
    """Return a generation as the name of a folder: a number as it is, another text by its digest."""
    return generation if generation.isdecimal() else naming.hash_owner_key(generation)[:10]
