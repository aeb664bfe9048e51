"""Checkpoints in a folder that all ranks share.

<root>/
  step-000000001200/            complete: `manifest.json` was written last, then the folder got this name
  .part-000000001300-<nonce>-1/ being written; swept by the next start
  .gone-…                       being deleted
  start.json                    the processes that may write: nonce, tokens of the ranks, what they resume from
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import files

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointFolder",
    "Sums",
    "checksum_all",
    "merge",
    "remove_expired",
    "say",
]

#: Size and CRC-32 of files by relative path.
Sums: TypeAlias = "dict[str, tuple[int, int]]"

MANIFEST = "manifest.json"
STEP, PART = "step-", ".part-"
#: Names of what an earlier start left, besides its parts.
MARKS = (".due-", ".stop-", ".again-")
_GONE = ".gone-"
_BLOCK = 2**20


class CheckpointError(Exception):
    """A checkpoint cannot be saved or loaded; the message is one line for the user."""

    __module__ = "trainjob"


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
    """

    step: int
    path: Path
    metrics: dict[str, float]
    world_size: int
    job: str
    size: int
    saved: float

    @property
    def location(self) -> str:
        """Its folder as a path, or its URI where it is not on this machine."""
        return str(self.path)


class CheckpointFolder:
    """The checkpoints of one training in a folder.

    Args:
        root: Path of the folder.
    """

    #: Whether the ranks write into one folder.
    shares_parts = True
    #: Seconds between two reads of what another rank writes, between two exchanges of the ranks, and to wait for one.
    poll, interval, timeout = 0.005, 1.0, 600.0

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def prepare(self, rank: int) -> None:
        """Create the folder."""
        del rank
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def sweep(self) -> None:
        """Delete what earlier starts left unfinished."""
        for path in self.root.iterdir():
            if path.name.startswith((PART, _GONE, *MARKS)):
                _remove(path)

    def expire(self) -> None:
        """Delete the checkpoints of other trainings at the same place whose time to live is over."""
        remove_expired(self.root.parents[1])

    def read(self, name: str) -> dict[str, Any]:
        """Return what a rank has written under a name; empty if there is nothing."""
        return _read_json(self.root / name)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write what other ranks read, atomically."""
        files.replace(self.root / name, json.dumps(data).encode())

    def has_any(self, prefix: str) -> bool:
        """Return whether a rank has written something under a name with a prefix."""
        return any(self.root.glob(f"{prefix}*"))

    def create_part(self, part: str) -> Path:
        """Create the folder that this rank writes a checkpoint into."""
        path = self.root / part
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def discard_part(self, part: str) -> None:
        """Delete an unfinished checkpoint."""
        shutil.rmtree(self.root / part, ignore_errors=True)

    def hand_in(self, part: str) -> Sums:
        """Make the files of a rank other than 0 durable; rank 0 computes the checksums of all ranks."""
        _sync_files(self.root / part)
        return {}

    def collect(self, part: str, wait_for_others: Callable[[], Sums]) -> Sums:
        """Make the files of rank 0 durable, wait for the other ranks, and return the checksums of all files."""
        folder = self.root / part

        def compute() -> Sums:
            wait_for_others()
            for mark in folder.glob(".done-*"):
                mark.unlink()
            return checksum_all(folder)

        if _measure(folder) <= _BLOCK:
            # To start a thread would take longer.
            sums = compute()
            _sync_files(folder)
            return sums
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            # The disk is busy with these while the processor computes the checksums.
            synced = thread.submit(_sync_files, folder)
            sums = compute()
            synced.result()
        return sums

    def complete(self, part: str, step: int, manifest: dict[str, Any]) -> Checkpoint:
        """Write the manifest and give the folder its name."""
        folder, target = self.root / part, self._get_step_folder(step)
        with (folder / MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        _sync(folder)
        if target.exists():
            _discard(target)
        folder.rename(target)
        _sync(self.root)
        os.utime(self.root / "start.json")  # The time to live counts from the last checkpoint.
        return Checkpoint(*read_manifest(manifest, target))

    def is_complete(self, step: int) -> bool:
        """Return whether there is a complete checkpoint of a step."""
        return (self._get_step_folder(step) / MANIFEST).is_file()

    def get(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of a step."""
        return self.open(str(self._get_step_folder(step)))

    def open(self, location: str) -> Checkpoint | None:
        """Return the checkpoint at a location."""
        with contextlib.suppress(ValueError):
            return _read(Path(location), verify=False)
        return None

    def list_complete(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        return [found for path in _list_steps(self.root) if (found := self.open(str(path)))]

    def find_newest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint; damaged ones are deleted."""
        return _find_newest(self.root, own=True)

    def find_elsewhere(self, locations: list[str]) -> Checkpoint | None:
        """Return the newest undamaged checkpoint of other trainings: of the one that saved last."""
        trainings = [each for path in locations for each in (Path(path), *Path(path).glob("g-*"))]
        found = [each for training in trainings if (each := _find_newest(training))]
        return max(found, key=lambda each: (each.path / MANIFEST).stat().st_mtime, default=None)

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, complete or damaged, so that no half of it is ever taken for one."""
        _discard(self._get_step_folder(step))

    def delete_steps(self) -> None:
        """Delete all checkpoints of this training."""
        for path in _list_steps(self.root):
            _discard(path)

    def delete(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def close(self) -> None:
        """Delete what only this process needs: nothing."""

    def _get_step_folder(self, step: int) -> Path:
        return self.root / f"{STEP}{step:012d}"


def remove_expired(base: Path) -> list[str]:
    """Delete the trainings below a folder whose time to live is over; return their paths."""
    removed = []
    for start in base.glob("*/*/start.json"):
        ttl = _read_json(start).get("ttl")
        with contextlib.suppress(OSError):
            if ttl and time.time() - start.stat().st_mtime > ttl:
                _discard(start.parent)
                removed.append(str(start.parent))
    return removed


def checksum_all(folder: Path) -> Sums:
    """Return size and CRC-32 of the files in a folder, computed in parallel: zlib releases the interpreter lock."""
    return _checksum_paths(_list_files(folder))


def merge(sums: Sums, more: Sums) -> Sums:
    """Return the checksums of the files of several ranks.

    Raises:
        CheckpointError: Two ranks have written different files of one name.
    """
    for name in sums.keys() & more.keys():
        if tuple(sums[name]) != tuple(more[name]):
            raise CheckpointError(f"two ranks wrote different files named {name}; put store.rank into the name")
    return {**sums, **more}


def say(text: str) -> None:
    """Print a line for the user."""
    with contextlib.suppress(OSError, ValueError):  # The function may have closed stdout.
        if sys.stdout is not None:
            print(f"trainjob: {text}", flush=True)


def _list_steps(folder: Path) -> list[Path]:
    """Return the folders of checkpoints in a folder by step, or the folder itself if it is one."""
    if (folder / MANIFEST).is_file():
        return [folder]
    return sorted(folder.glob(f"{STEP}*"))


def _find_newest(folder: Path, own: bool = False) -> Checkpoint | None:
    for path in reversed(_list_steps(folder)):
        try:
            return _read(path, verify=True)
        except ValueError as error:
            say(str(error))
        if own:
            _discard(path)
    return None


def _read(path: Path, verify: bool) -> Checkpoint:
    """Return the checkpoint in a folder.

    Raises:
        ValueError: Its manifest cannot be read, or not all files are there as they were written.
    """
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        sums = data["files"]
        found = Checkpoint(*read_manifest(data, path))
        wrong = [name for name, (size, _) in sums.items() if (path / name).stat().st_size != size]
        if verify and not wrong:
            actual = _checksum_paths({name: path / name for name in sums})
            wrong = [name for name in sums if list(actual[name]) != sums[name]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"checkpoint {path} is incomplete and passed over: {error}") from error
    if wrong:
        raise ValueError(f"checkpoint {path} is damaged and passed over: {wrong[0]} has changed")
    return found


def read_manifest(data: dict[str, Any], path: Path) -> tuple[int, Path, dict[str, float], int, str, int, float]:
    """Return the fields of a checkpoint.

    Raises:
        KeyError, TypeError, ValueError: The manifest is damaged.
    """
    size = sum(size for size, _ in data["files"].values())
    return data["step"], path, data["metrics"], data["world_size"], data["job"], size, data["time"]


def _discard(path: Path) -> None:
    gone = path.with_name(f"{_GONE}{path.name}-{os.urandom(4).hex()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _list_files(folder: Path) -> dict[str, Path]:
    found = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return {os.path.relpath(path, folder).replace(os.sep, "/"): Path(path) for path in sorted(found)}


def _measure(folder: Path) -> int:
    """Return the bytes of the files in a folder. Another rank may rename its temporary file meanwhile."""
    size = 0
    for path in _list_files(folder).values():
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _checksum_paths(paths: Mapping[str, Path]) -> Sums:
    if len(paths) < 2:
        return {name: checksum(path) for name, path in paths.items()}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(8, len(paths))) as threads:
        return dict(zip(paths, threads.map(checksum, paths.values())))  # noqa: B905 -- images may have Python 3.9


def checksum(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def _sync_files(part: Path) -> None:
    """Write the files in a folder to the disk, and its subfolders; the folder itself follows with the manifest."""
    for folder, _, names in os.walk(part):
        for name in names:
            _sync(os.path.join(folder, name))
        if folder != str(part):
            _sync(folder)


def _sync(path: str | Path) -> None:
    """Write a file or a folder to the disk. Another rank may have renamed its temporary file meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
