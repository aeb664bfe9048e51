"""Checkpoints in a folder that all ranks share.

<root>/
  step-000000001200/            complete: `manifest.json` was written last, then the folder got this name
  .part-000000001300-<nonce>-1/ being written; swept by the next start
  .gone-…                       being deleted
  .damaged-…                    has changed since it was complete; stays until the training is deleted
  start.json                    the processes that may write: nonce, tokens of the ranks, what they resume from
  result.json                   what the training returned: a node that starts later ends with it
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import checkpoint_tree, files
from .checkpoint_tree import MANIFEST, Tree, parse_tree

STEP, PART = "step-", ".part-"
#: Names of what says that a rank has written its files.
DONE = ".done-"
#: Names of what an earlier start left, besides its parts.
MARKS = (".due-", ".stop-", ".again-", ".failed-", ".returned-", ".over-")
#: What a complete training returned.
RESULT = "result.json"
_VERSION = 3
_GONE, _DAMAGED = ".gone-", ".damaged-"
#: Errors of disks and of file servers that a later attempt may not meet.
_MAY_PASS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}


class CheckpointError(Exception):
    """A checkpoint cannot be saved or loaded; the message is one line for the user."""

    __module__ = "trainjob"


class StorageError(CheckpointError):
    """The disk of the checkpoints is full or fails, or their server does not answer: a retry may succeed."""

    __module__ = "trainjob"


def build_error(what: str, error: OSError) -> CheckpointError:
    """Return the error of a training whose checkpoints cannot be read or written."""
    may_pass = getattr(error, "may_pass", error.errno in _MAY_PASS)  # Those of S3 have it.
    remedy = f"; let user {os.geteuid()} write there, or set uri in Checkpoints" if error.errno == errno.EACCES else ""
    return (StorageError if may_pass else CheckpointError)(f"{what}: {error}{remedy}")


class DamagedError(Exception):
    """A checkpoint is incomplete, or its files are not those that were written: it was read whole and differs."""


class Checkpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        step: The step it was saved at.
        path: Its folder, with the files that the function wrote. From ``s3://`` it is fetched when it is first read,
            once per node, and stays until the next save.
        metrics: Numbers that were passed to `save`.
        world_size: Number of processes that wrote it.
        job: Name of the TrainJob that wrote it.
        size: Bytes of its files.
        saved: When it was complete, in seconds since 1970.
        objective: What was reported of the objective of a search until then. None outside of a search.
    """

    step: int
    path: Path
    metrics: dict[str, float]
    world_size: int
    job: str
    size: int
    saved: float
    objective: dict[str, Any] | None = None

    @property
    def location(self) -> str:
        """Its folder as a path, or its URI where it is not on this machine."""
        return str(self.path)


class CheckpointFolder:
    """The checkpoints of one training in a folder."""

    #: Whether the ranks write into one folder.
    shares_parts = True
    #: Seconds between two reads of what another rank writes, between two exchanges of the ranks, and to wait for one.
    poll, interval, timeout = 0.005, 1.0, 600.0

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def prepare(self, rank: int) -> None:
        del rank
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self) -> None:
        """Raise an error if the folder can no longer be written: the other ranks wait for what this one writes."""
        if not os.access(self.root, os.W_OK):
            raise OSError(f"{self.root} can no longer be written")

    def sweep(self) -> None:
        """Delete what earlier starts left unfinished."""
        for name in os.listdir(self.root):
            if name.startswith((PART, DONE, _GONE, *MARKS)):
                checkpoint_tree.remove(self.root / name)

    def keep_alive(self) -> None:
        """Begin the time to live again."""
        os.utime(self.root / "start.json")

    def expire(self) -> None:
        """Delete the checkpoints of other trainings at the same place whose time to live is over."""
        with contextlib.suppress(OSError):
            remove_expired(self.root.parents[1], self.root)

    def read(self, name: str) -> dict[str, Any]:
        """Return what a rank has written under a name; empty if there is nothing."""
        return _read_json(self.root / name)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write what other ranks read, atomically."""
        files.replace(self.root / name, json.dumps(data).encode())

    def mark(self, name: str) -> None:
        """Write an empty file, for which a full disk has room."""
        (self.root / name).touch(mode=0o600)

    def list_names(self, prefix: str) -> list[str]:
        """Return what ranks have written under names with a prefix."""
        return [name for name in os.listdir(self.root) if name.startswith(prefix)]

    def create_part(self, part: str) -> Path:
        """Create the folder that this rank writes a checkpoint into."""
        path = self.root / part
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def discard_part(self, part: str) -> None:
        """Delete an unfinished checkpoint. One that rank 0 completes at the same moment stays."""
        with contextlib.suppress(OSError):
            _discard(self.root / part)

    def store_part(self, part: str) -> Tree:
        """Make the files of a rank other than 0 durable; rank 0 lists those of all ranks."""
        checkpoint_tree.sync_files(self.root / part)
        return {}

    def collect(self, part: str, wait_for_others: Callable[[], Tree]) -> Tree:
        """Make the files of rank 0 durable, wait for the other ranks, and return what all have written."""
        folder = self.root / part

        def list_all() -> Tree:
            wait_for_others()
            for name in self.list_names(f"{DONE}{part}-"):
                (self.root / name).unlink()
            return checkpoint_tree.list_tree(folder)

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            # The disk is busy with these while the processor computes the checksums.
            synced = thread.submit(checkpoint_tree.sync_files, folder)
            tree = list_all()
            synced.result()
        return tree

    def complete(self, part: str, step: int, manifest: dict[str, Any]) -> Checkpoint:
        """Write the manifest and give the folder its name."""
        folder, target = self.root / part, self._get_step_folder(step)
        with (folder / MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(seal(manifest), file)
            file.flush()
            os.fsync(file.fileno())
        checkpoint_tree.sync(folder)
        if _exists(target):
            _discard(target, _DAMAGED)
        folder.rename(target)
        checkpoint_tree.sync(self.root)
        self.keep_alive()
        return Checkpoint(*get_fields(manifest, target))

    def is_complete(self, step: int) -> bool:
        """Return whether there is a complete checkpoint of a step."""
        return _exists(self._get_step_folder(step) / MANIFEST)

    def get(self, step: int) -> Checkpoint | None:
        return self.open(str(self._get_step_folder(step)))

    def open(self, location: str) -> Checkpoint | None:
        with contextlib.suppress(DamagedError):
            return _read(Path(location), verify=False)
        return None

    def list_complete(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        return [found for path in _list_steps(self.root) if (found := self.open(str(path)))]

    def find_newest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint; damaged ones are set aside."""
        return _find_newest(self.root, own=True)

    def find_elsewhere(self, locations: list[str]) -> Checkpoint | None:
        """Return the newest undamaged checkpoint of other trainings: of the one that saved last."""
        trainings = [each for path in locations for each in (Path(path), *_list(Path(path), "g-"))]
        found = [each for training in trainings if (each := _find_newest(training))]
        return max(found, key=lambda each: (each.path / MANIFEST).stat().st_mtime, default=None)

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, complete or damaged, so that no half of it is ever taken for one."""
        _discard(self._get_step_folder(step))

    def delete(self) -> None:
        checkpoint_tree.remove(self.root)

    def forget_fetched(self) -> None:
        """Do nothing: nothing is fetched."""

    def close(self) -> None:
        """Do nothing: nothing is fetched."""

    def _get_step_folder(self, step: int) -> Path:
        return self.root / f"{STEP}{step:012d}"


def remove_expired(base: Path, own: Path | None = None) -> list[str]:
    """Delete the trainings below a folder, except one's own, whose time to live is over; return their paths."""
    if not base.is_dir():
        return []
    with tempfile.TemporaryFile(dir=base) as probe:
        # Files have the times of the file server, whose clock may differ.
        now = os.fstat(probe.fileno()).st_mtime
    removed = []
    for start in base.glob("*/*/start.json"):
        ttl = _read_json(start).get("ttl")
        with contextlib.suppress(OSError):
            if ttl and start.parent != own and now - start.stat().st_mtime > ttl:
                _discard(start.parent)
                removed.append(str(start.parent))
    return removed


def say(text: str) -> None:
    """Print a line for the user."""
    with contextlib.suppress(OSError, ValueError):  # The function may have closed stdout.
        if sys.stdout is not None:
            print(f"trainjob: {text}", flush=True)


def _list(folder: Path, prefix: str) -> list[Path]:
    """Return what a folder has under names with a prefix. Unlike glob, this hides no error."""
    with contextlib.suppress(FileNotFoundError):
        return [folder / name for name in sorted(os.listdir(folder)) if name.startswith(prefix)]
    return []


def _exists(path: Path) -> bool:
    """Return whether a file exists. Unlike that of Path, it hides no other error."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()
        return True
    return False


def _list_steps(folder: Path) -> list[Path]:
    """Return the folders of checkpoints in a folder by step, or the folder itself if it is one."""
    return [folder] if _exists(folder / MANIFEST) else _list(folder, STEP)


def _find_newest(folder: Path, own: bool = False) -> Checkpoint | None:
    for path in reversed(_list_steps(folder)):
        try:
            try:
                return _read(path, verify=True)
            except DamagedError:
                # The memory or the network may have been wrong, and not the disk.
                return _read(path, verify=True)
        except DamagedError as error:
            say(f"checkpoint {path} is damaged and passed over: {error}")
        if own:
            _discard(path, _DAMAGED)
    return None


def _read(path: Path, verify: bool) -> Checkpoint:
    """Return the checkpoint in a folder."""
    try:
        manifest = parse_manifest((path / MANIFEST).read_bytes(), path.name)
        wrong = checkpoint_tree.find_change(path, parse_tree(manifest["files"]), verify)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        raise OSError(f"checkpoint {path} cannot be read, and stays: {error}") from error
    if wrong:
        raise DamagedError(f"{wrong} has changed")
    return Checkpoint(*get_fields(manifest, path))


def seal(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with its version and its checksum."""
    manifest = {**manifest, "version": _VERSION}
    return {**manifest, "crc": _checksum_manifest(manifest)}


def parse_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the manifest of the checkpoint in a folder with a name, if it is whole and of this release."""
    try:
        manifest = json.loads(data)
        is_whole = manifest.pop("crc") == _checksum_manifest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise DamagedError(f"{MANIFEST} has changed")
    if manifest["version"] not in (2, _VERSION):
        raise OSError(f"{MANIFEST} has version {manifest['version']}, and this release reads version 2 and {_VERSION}")
    if name.startswith(STEP) and name != f"{STEP}{manifest['step']:012d}":
        raise DamagedError(f"{MANIFEST} is that of step {manifest['step']}")
    return dict(manifest)


def get_fields(manifest: dict[str, Any], path: Path) -> tuple[Any, ...]:
    """Return the fields of a checkpoint by its manifest."""
    size = sum(each[0] for each in manifest["files"].values())
    fields = manifest["step"], path, manifest["metrics"], manifest["world_size"], manifest["job"], size
    return (*fields, manifest["time"], manifest.get("objective"))


def _checksum_manifest(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _discard(path: Path, prefix: str = _GONE) -> None:
    """Delete a folder, or give it a name under which nothing reads or deletes it."""
    gone = path.with_name(f"{prefix}{path.name}-{os.urandom(4).hex()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
        if prefix == _GONE:
            checkpoint_tree.remove(gone)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
