"""Decides whether an earlier TrainJob has trained the same. Pure.

The key of a training is a hash of all that decides its result: the work of its request without what only organizes it,
the versions of what runs it, and the content of its data. It is known, or there is no key and a reason for each part
that is unknown. A TrainJob has its key in a label; an earlier one with the same key has trained the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainer_core.model.jobs import COMPLETE, TrainJob
from trainer_core.model.request import TrainJobRequest
from trainer_core.node import env
from trainer_core.node.requirement import HASH, strip_options

#: Checkpoints from which a first attempt can begin only if it wrote them itself.
_OWN_CHECKPOINTS = ("fresh", "never")
#: ``torch==2.9.0``, ``torch[extra]==2.9.0; python_version > "3.9"``.
_PINNED = re.compile(r"[\w.-]+\s*(\[[^]]*\])?\s*===?\s*[^*,;\s]+\s*(;.*)?", re.DOTALL)
_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
#: Fields of pods, options and workloads whose content no version describes.
_OUTSIDE = frozenset(
    {
        *("persistentVolumeClaim", "hostPath", "nfs", "csi", "configMap", "configMapKeyRef", "envFrom", "env_from"),
        *("pvcs", "hostPaths", "gits", "gitSync", "dataVolumes", "configMaps", "s3", "baseWorkload"),
    }
)
#: Fields of an entry of ``volumes`` with a content that is empty, of the pod itself, or secret.
_KNOWN_VOLUMES = frozenset({"name", "emptyDir", "downwardAPI", "secret"})
_KEY_LENGTH = 40


@dataclass(frozen=True)
class Versions:
    """What a backend knows of the versions of a training beside its request."""

    #: Such as the version of Python and its packages, or the image and the content of the runtime; JSON data.
    parts: Mapping[str, Any] = field(default_factory=dict)
    #: What is not known, each as ``subject: reason``.
    unknown: tuple[str, ...] = ()


def list_unknown(request: TrainJobRequest) -> list[str]:
    """Return what the request leaves open about the training, each as ``subject: reason``."""
    trainer, checkpoints = request.work.trainer, request.policy.checkpoints
    if trainer is None:
        return ["trainer: the TrainJob has none, and runs what its runtime runs or fetches data"]
    named = [strip_options(each).strip() for each in trainer.packages if not HASH.search(each)]
    unknown = [f"package {each}: no version (==)" for each in named if not _PINNED.fullmatch(each)]
    if trainer.kind == "builtin":
        unknown.append("trainer: a recipe is not described by versions")
    if checkpoints is not None and checkpoints.load not in _OWN_CHECKPOINTS:
        unknown.append(f"Checkpoints load={checkpoints.load}: begins with what others trained")
    if request.work.workspace is not None and request.work.workspace.claim is not None:
        unknown.append(f"Workspace claim={request.work.workspace.claim}: content without a version")
    parts = (request.work.patches, request.work.distributed, *request.work.extensions.values())
    outside = {name for part in parts for name in _list_outside(_to_data(part))}
    return [*unknown, *(f"{name} of the pods: content without a version" for name in sorted(outside))]


def check_images(request: TrainJobRequest, *images: str | None) -> list[str]:
    """Return which of these images and of those in pod fields of the request have no digest."""
    parts = (request.work.patches, *request.work.extensions.values())
    named = [value for part in parts for name, value in _walk(_to_data(part)) if name == "image"]
    texts = [each if isinstance(each, str) else "" for each in (*images, *named)]
    return [f"image {each or 'of the runtime'}: no digest (@sha256:…)" for each in texts if not _DIGEST.fullmatch(each)]


def check_runtime(runtime: object) -> list[str]:
    """Return what a runtime mounts whose content has no version."""
    return [f"{name} of the runtime: content without a version" for name in sorted(_list_outside(runtime))]


def build_key(request: TrainJobRequest, versions: Mapping[str, Any], data: Mapping[str, str]) -> str:
    """Return the key of a training whose parts are all known; `data` has the digest of each initializer's content."""
    work = request.get_work()
    trainer = work.get("trainer", {})
    if request.work.trainer is not None:
        trainer["env"] = {k: v for k, v in request.work.trainer.literal_env.items() if k != env.RESOURCE_INTERVAL}
        asked = request.work.trainer.resources_per_node or {}
        trainer["resources_per_node"] = {name: amount for name, amount in asked.items() if name != "memory"}
    trainer.get("code", {}).pop("text", None)  # Its digest stands for it.
    for source in work.get("initializer", {}).values():
        source.pop("secrets", None)
        source.pop("storage_uri", None)  # Its digest stands for it.
    parts = {"work": work, "partition": request.context.partition, "versions": versions, "data": data}
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_LENGTH]


def is_recent(job: TrainJob, within: float, now: datetime) -> bool:
    """Return whether a TrainJob is complete and has ended at most so many seconds ago."""
    return job.status == COMPLETE and job.finished is not None and now - job.finished <= timedelta(seconds=within)


def _list_outside(data: object) -> set[str]:
    """Return the names of fields in nested data whose content no version describes."""
    found: set[str] = set()
    for name, value in _walk(data):
        if name in _OUTSIDE and value:
            found.add(name)
        elif name == "volumes" and value:
            for volume in value if isinstance(value, (list, tuple)) else [None]:
                fields = volume.keys() - _KNOWN_VOLUMES if isinstance(volume, Mapping) else ["volumes"]
                found.update(map(str, fields))
    return found


def _to_data(part: Any) -> Any:
    return part.model_dump() if hasattr(part, "model_dump") else part


def _walk(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of nested data with its value."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield str(name), value
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for value in data:
            yield from _walk(value)
