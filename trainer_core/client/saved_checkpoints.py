"""Saved checkpoints as seen from outside of the training: listed, pruned, and deleted when they have expired.

Folders of this machine and buckets can be read from here; claims and volumes of container engines only by their nodes.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, UnsupportedError
from trainer_core.model import checkpoint_location
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import TrainJobRequest
from trainer_core.node import checkpoint_folder, checkpoint_retention, checkpoint_tree, checkpoints

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint of a TrainJob.

    Attributes:
        step: The step it was saved at.
        uri: Its ``file://`` or ``s3://`` URI, which `load` of the option `Checkpoints` accepts.
        size: Bytes of its files.
        saved: When it was complete.
        metrics: Numbers that were passed to `save`.
        world_size: Number of processes that wrote it.
        job: Name of the TrainJob that wrote it.
        newest: Whether the next attempt resumes from it.
        best: Whether it is the best one by ``keep_best`` of the option `Checkpoints`.
        loaded: Whether the last attempt resumed from it.
    """

    step: int
    uri: str
    size: int
    saved: datetime
    metrics: dict[str, float]
    world_size: int
    job: str
    newest: bool
    best: bool
    loaded: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint as JSON data."""
        return {**vars(self), "saved": self.saved.isoformat()}


def list_saved(request: TrainJobRequest, uri: str) -> list[SavedCheckpoint]:
    """Return the complete checkpoints of a request's training, oldest first."""
    root, settings = (
        _build_root(request, uri),
        request.policy.checkpoints.model_dump() if request.policy.checkpoints else {},
    )
    with _one_line_errors(uri):
        place = checkpoints.open_place(root)
        found = place.list_complete()
        resumed_from = place.read("start.json").get("resume")
    best = checkpoint_retention.find_best(found, settings)
    return [
        SavedCheckpoint(
            step=each.step,
            uri=each.location if checkpoint_location.is_bucket(uri) else Path(each.location).as_uri(),
            size=each.size,
            saved=datetime.fromtimestamp(each.saved, timezone.utc),
            metrics=each.metrics,
            world_size=each.world_size,
            job=each.job,
            newest=each is found[-1],
            best=each is best,
            loaded=each.location == resumed_from,
        )
        for each in found
    ]


def list_of_job(backend: Backend, ref: TrainJobRef) -> list[SavedCheckpoint]:
    """Return the complete checkpoints of a job and of the earlier attempts that share them, oldest first."""
    return list_saved(*_locate(backend, ref))


def copy_of_job(backend: Backend, ref: TrainJobRef, step: int | None, folder: Path) -> int:
    """Copy a complete checkpoint of a job into a folder of checkpoints and return its step; None for the newest."""
    request, uri = _locate(backend, ref)
    with _one_line_errors(uri):
        place = checkpoints.open_place(_build_root(request, uri))
        found = {each.step: each for each in place.list_complete()}
        chosen = found.get(max(found, default=0) if step is None else step)
        if chosen is None:
            known = ", ".join(map(str, sorted(found)))
            what = f"of step {step}; it has those of {known}" if found and step is not None else "that is complete"
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no checkpoint {what}")
        target = folder / f"{checkpoint_folder.STEP}{chosen.step:012d}"
        try:
            shutil.copytree(chosen.path, target, symlinks=True)
        except checkpoint_folder.CheckpointError as error:
            raise BackendUnavailableError(str(error)) from error
        manifest = getattr(chosen, "manifest", None)
        if manifest is not None:  # What is fetched from a bucket are the files without it.
            text = json.dumps(checkpoint_folder.seal(manifest))
            (target / checkpoint_tree.MANIFEST).write_text(text, encoding="utf-8")
        place.close()
        if checkpoint_folder.CheckpointFolder(str(folder)).find_newest() is None:
            raise BackendUnavailableError(f"the checkpoint of step {chosen.step} changed during the copy; try again")
    return chosen.step


def prune_of_job(backend: Backend, ref: TrainJobRef) -> list[SavedCheckpoint]:
    """Delete the checkpoints of an ended job except the newest and the best one, and return the deleted ones."""
    request, uri = _locate(backend, ref)
    if backend.observe(ref).outcome is None:
        raise InvalidRequestError(f"TrainJob {ref.name!r} has not ended and prunes its checkpoints itself; wait for it")
    deleted = [each for each in list_saved(request, uri) if not (each.newest or each.best)]
    with _one_line_errors(uri):
        place = checkpoints.open_place(_build_root(request, uri))
        for each in deleted:
            place.discard(each.step)
    return deleted


def remove_expired(uri: str) -> list[str]:
    """Delete the checkpoints of all trainings at a place whose time to live is over; return their folders or URIs."""
    with _one_line_errors(uri):
        if checkpoint_location.is_bucket(uri):
            from trainer_core.node import checkpoint_s3

            return checkpoint_s3.remove_expired(uri.rstrip("/"))
        return checkpoint_folder.remove_expired(Path(_get_folder(uri)))


def try_bucket(uri: str) -> None:
    """Write, list and delete a small object at a place in a bucket, as the nodes do. Leaves nothing behind."""
    from trainer_core.node.s3_client import Bucket  # Only for buckets.

    parts = urlsplit(uri)
    key = f"{parts.path.strip('/')}/.trainjob-doctor-{uuid.uuid4().hex}".lstrip("/")
    bucket = Bucket(parts.netloc)
    bucket.list_objects(key)
    try:
        bucket.put(key, b"0")
    except OSError:
        with suppress(OSError):  # The object can exist although the answer to its request was lost.
            bucket.delete([key])
        raise
    bucket.delete([key])


def _locate(backend: Backend, ref: TrainJobRef) -> tuple[TrainJobRequest, str]:
    request = backend.get_request(ref)
    uri = backend.get_checkpoints_uri(request)
    if uri is None:
        raise InvalidRequestError(
            f"TrainJob {ref.name!r} has no option Checkpoints; submit it with the option to have one"
        )
    return request, uri


def _build_root(request: TrainJobRequest, uri: str) -> str:
    base = uri if checkpoint_location.is_bucket(uri) else _get_folder(uri)
    return f"{base}/{checkpoint_location.build_scope(request)}"


def _get_folder(uri: str) -> str:
    if not uri.startswith("file://"):
        raise UnsupportedError(
            f"checkpoints in {uri} can only be read by nodes that mount it; a node lists them with checkpoints().all()"
        )
    return checkpoint_location.get_folder(uri)


@contextmanager
def _one_line_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendUnavailableError(f"checkpoints in {uri} cannot be read: {error}") from error
