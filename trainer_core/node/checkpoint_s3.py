"""Checkpoints in a bucket. Nothing is renamed: a checkpoint is complete when it has a manifest, which is written last.

    s3://<bucket>/<root>/
      step-000000001200/manifest.json
      step-000000001200/.part-<step>-<nonce>-1/…   the files; others than those of the manifest are swept
      step-000000001200/.damaged                   the manifest, if a file has changed since: nothing here is swept
      .done-.part-<step>-<nonce>-1-<rank>          a rank has uploaded its files
      start.json                                   as in a folder

Each rank writes into a separate folder on its node, whose files are uploaded when the block of `save` ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import checkpoint_tree, files, locks
from .checkpoint_folder import (
    DONE,
    MARKS,
    PART,
    STEP,
    Checkpoint,
    CheckpointError,
    DamagedError,
    build_error,
    get_fields,
    parse_manifest,
    say,
    seal,
)
from .checkpoint_tree import MANIFEST, Tree, merge, parse_tree
from .s3_client import Bucket, Entry, S3Error

_MANIFEST_KEY = re.compile(rf"(?P<folder>(?P<training>.*)/{STEP}(?P<step>\d{{12}}))/{re.escape(MANIFEST)}")
_TRAINING = re.compile(r"[^/]+/g-[^/]+/")
_DAMAGED = ".damaged"
_PART_NAME = re.compile(rf"{re.escape(PART)}[0-9a-f-]+")


class _StoredCheckpoint(Checkpoint):
    """A checkpoint in a bucket, fetched when its path is read."""

    bucket: Bucket
    key: str
    manifest: dict[str, Any]
    fetch: Callable[[_StoredCheckpoint], Path]

    @property
    def path(self) -> Path:
        return self.fetch(self)

    @property
    def location(self) -> str:
        return f"s3://{self.bucket.name}/{self.key}"


class CheckpointBucket:
    """The checkpoints of one training in a bucket."""

    shares_parts = False
    #: Requests cost time and money: ranks ask less often than in a folder, and wait longer.
    poll, interval, timeout = 0.25, 5.0, 3600.0

    def __init__(self, root: str) -> None:
        self.root = root
        bucket, self._prefix = _split(root)
        self._bucket = Bucket(bucket)
        self._rank = 0
        self._manifests: dict[tuple[str, float], dict[str, Any]] = {}
        #: Releases the lock that the ranks of this machine share while they may read what was fetched.
        self._stop_using: weakref.finalize[..., Any] | None = None

    def prepare(self, rank: int) -> None:
        """Delete what a killed attempt has left on this machine."""
        self._rank = rank
        for path in self._scratch.glob(f"{PART}*-rank-{rank}"):
            checkpoint_tree.remove(path)

    def check(self) -> None:
        """Do nothing: requests that fail raise errors."""

    def sweep(self) -> None:
        with contextlib.suppress(S3Error):  # Some storage cannot list uploads; the parts are no checkpoint.
            self._bucket.abort_uploads(f"{self._prefix}/")
        entries = self._list(f"{self._prefix}/")
        marks = [each.key for each in entries if self._relative(each.key).startswith((PART, DONE, *MARKS))]
        manifests = {match["folder"]: each for each in entries if (match := _MANIFEST_KEY.fullmatch(each.key))}
        steps: dict[str, list[str]] = {}
        for each in entries:
            name = self._relative(each.key)
            if name.startswith(STEP) and not name.endswith(f"/{MANIFEST}"):
                steps.setdefault(f"{self._prefix}/{name.partition('/')[0]}", []).append(each.key)
        for folder, keys in steps.items():
            if f"{folder}/{_DAMAGED}" in keys:
                continue
            entry = manifests.get(folder)
            if entry is None:
                marks += keys
                continue
            # Those of a damaged manifest stay until it is read again.
            with contextlib.suppress(DamagedError):
                part = self._read_manifest(self._bucket, entry)["part"]
                marks += [key for key in keys if not key.startswith(f"{folder}/{part}/")]
        self._bucket.delete(marks)

    def keep_alive(self) -> None:
        self.mark(".alive")

    def expire(self) -> None:
        """Delete nothing: to look for expired trainings, the whole bucket would have to be listed."""

    def read(self, name: str) -> dict[str, Any]:
        body = self._bucket.get(f"{self._prefix}/{name}")
        try:
            data = json.loads(body or b"{}")
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        self._bucket.put(f"{self._prefix}/{name}", json.dumps(data).encode())

    def mark(self, name: str) -> None:
        self._bucket.put(f"{self._prefix}/{name}", b"")

    def list_names(self, prefix: str) -> list[str]:
        return [self._relative(each.key) for each in self._list(f"{self._prefix}/{prefix}")]

    def create_part(self, part: str) -> Path:
        path = self._get_part_folder(part)
        path.mkdir(mode=0o700)
        return path

    def discard_part(self, part: str) -> None:
        """Delete the files of this rank; what it has uploaded is swept by the next start."""
        checkpoint_tree.remove(self._get_part_folder(part))

    def store_part(self, part: str) -> Tree:
        """Upload the files of this rank; return what it has written."""
        folder = self._get_part_folder(part)
        tree = checkpoint_tree.list_tree(folder)
        target = f"{self._get_step_key(_parse_step(part))}/{part}"
        self._bucket.upload({f"{target}/{name}": folder / name for name, each in tree.items() if each.is_file})
        checkpoint_tree.remove(folder)
        return tree

    def collect(self, part: str, wait_for_others: Callable[[], Tree]) -> Tree:
        """Upload the files of rank 0, wait for the other ranks, and return what all have written."""
        return merge(self.store_part(part), wait_for_others())

    def complete(self, part: str, step: int, manifest: dict[str, Any]) -> Checkpoint:
        """Write the manifest, and delete the marks of the ranks."""
        manifest = seal({**manifest, "part": part})
        self._bucket.create(f"{self._get_step_key(step)}/{MANIFEST}", json.dumps(manifest).encode())
        with contextlib.suppress(S3Error):
            self._bucket.delete([each.key for each in self._list(f"{self._prefix}/{DONE}{part}-")])
        return self._build(self._bucket, self._get_step_key(step), manifest)

    def is_complete(self, step: int) -> bool:
        return self._bucket.exists(f"{self._get_step_key(step)}/{MANIFEST}")

    def get(self, step: int) -> Checkpoint | None:
        return self.open(f"s3://{self._bucket.name}/{self._get_step_key(step)}")

    def open(self, location: str) -> Checkpoint | None:
        name, key = _split(location)
        bucket = self._bucket if name == self._bucket.name else Bucket(name)
        return next(self._find(bucket, bucket.list_objects(f"{key}/")), None)

    def list_complete(self) -> list[Checkpoint]:
        found: list[Checkpoint] = [*self._find(self._bucket, self._list(f"{self._prefix}/{STEP}"))]
        return found[::-1]

    def find_newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; damaged ones are set aside."""
        return next(self._find(self._bucket, self._list(f"{self._prefix}/{STEP}"), own=True), None)

    def find_elsewhere(self, locations: list[str]) -> Checkpoint | None:
        """Return the newest complete checkpoint of other trainings: of the one that saved last."""
        newest: list[tuple[float, _StoredCheckpoint]] = []
        for location in locations:
            name, prefix = _split(location)
            bucket = self._bucket if name == self._bucket.name else Bucket(name)
            trainings: dict[str, list[Entry]] = {}
            for each in bucket.list_objects(f"{prefix}/"):
                trainings.setdefault(each.key.partition(f"/{STEP}")[0], []).append(each)
            for entries in trainings.values():
                for found in self._find(bucket, entries):
                    times = [e.modified for e in entries if e.key == f"{found.key}/{MANIFEST}"]
                    newest.append((times[0], found))
                    break
        return max(newest, key=lambda each: each[0])[1] if newest else None

    def discard(self, step: int) -> None:
        """Delete the checkpoint of a step, its manifest first."""
        folder = self._get_step_key(step)
        self._bucket.delete([f"{folder}/{MANIFEST}"])
        keys = [each.key for each in self._list(f"{folder}/")]
        self._bucket.delete(keys if f"{folder}/{_DAMAGED}" not in keys else ())

    def set_aside(self, step: int) -> None:
        """Rename the manifest of a damaged checkpoint: the step can be saved again, and all its objects stay."""
        folder = self._get_step_key(step)
        self._bucket.put(f"{folder}/{_DAMAGED}", self._bucket.get(f"{folder}/{MANIFEST}") or b"")
        self._bucket.delete([f"{folder}/{MANIFEST}"])

    def delete(self) -> None:
        """Delete everything of this training, manifests first."""
        keys = [each.key for each in self._list(f"{self._prefix}/")]
        manifests = {key for key in keys if _MANIFEST_KEY.fullmatch(key)}
        self._bucket.delete(manifests)
        self._bucket.delete([key for key in keys if key not in manifests])

    def forget_fetched(self) -> None:
        """Delete what the ranks of this machine have fetched: all of them are saving a newer one."""
        for path in self._scratch.glob(f"{STEP}*"):
            checkpoint_tree.remove(path)

    def close(self) -> None:
        """Delete what was fetched to this machine, unless another rank may still read it."""
        if self._stop_using is not None:
            self._stop_using()
            with contextlib.suppress(BlockingIOError), locks.locked(self._scratch / "users", 0):
                self.forget_fetched()

    def _list(self, prefix: str) -> list[Entry]:
        return self._bucket.list_objects(prefix)

    def _relative(self, key: str) -> str:
        return key[len(self._prefix) + 1 :]

    def _get_step_key(self, step: int) -> str:
        return f"{self._prefix}/{STEP}{step:012d}"

    def _get_part_folder(self, part: str) -> Path:
        return self._scratch / f"{part}-rank-{self._rank}"

    @property
    def _scratch(self) -> Path:
        """The folder of this training on this machine, shared by the ranks of a node."""
        digest = hashlib.sha256(self.root.encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir(), f"trainjob-checkpoints-{os.geteuid()}-{digest}")
        if not files.make_private(path):
            raise OSError(f"{path} belongs to another user, or cannot be written; set TMPDIR")
        return path

    def _find(self, bucket: Bucket, entries: list[Entry], own: bool = False) -> Iterator[_StoredCheckpoint]:
        """Yield the complete checkpoints among the objects of a training, newest first."""
        matches = [(match, each) for each in entries if (match := _MANIFEST_KEY.fullmatch(each.key))]
        for match, entry in sorted(matches, key=lambda each: int(each[0]["step"]), reverse=True):
            folder = match["folder"]
            try:
                try:
                    yield self._open(bucket, entry, entries)
                except DamagedError:
                    # The storage is asked again before anything is set aside.
                    yield self._open(bucket, entry, bucket.list_objects(f"{folder}/"))
            except DamagedError as error:
                if own:
                    say(f"checkpoint s3://{bucket.name}/{folder} is damaged and passed over: {error}")
                    self.set_aside(int(match["step"]))

    def _open(self, bucket: Bucket, entry: Entry, entries: list[Entry]) -> _StoredCheckpoint:
        """Return the checkpoint of a manifest, if all objects that it names are among those of a listing."""
        manifest, folder = self._read_manifest(bucket, entry), entry.key.rpartition("/")[0]
        part, sizes = manifest.get("part", ""), {each.key: each.size for each in entries}
        if not (_PART_NAME.fullmatch(part) and all(map(_is_safe, manifest["files"]))):
            raise DamagedError(f"{MANIFEST} names files outside the checkpoint")
        for name, each in parse_tree(manifest["files"]).items():
            if each.is_file and sizes.get(f"{folder}/{part}/{name}") != each.size:
                raise DamagedError(f"{name} has changed")
        return self._build(bucket, folder, manifest)

    def _build(self, bucket: Bucket, key: str, manifest: dict[str, Any]) -> _StoredCheckpoint:
        found = _StoredCheckpoint(*get_fields(manifest, Path()))
        found.bucket, found.key, found.manifest, found.fetch = bucket, key, manifest, self._fetch
        return found

    def _read_manifest(self, bucket: Bucket, entry: Entry) -> dict[str, Any]:
        known = (f"{bucket.name}/{entry.key}", entry.modified)
        if known not in self._manifests:
            folder = entry.key.split("/")[-2]
            self._manifests[known] = parse_manifest(bucket.get(entry.key) or b"", folder)
        return self._manifests[known]

    def _fetch(self, found: _StoredCheckpoint) -> Path:
        """Return a folder with the files; of the ranks of a node, one fetches them and the others wait."""
        name, part = found.key.rpartition("/")[2], found.manifest["part"]
        target = self._scratch / f"{name}-{part.lstrip('.')}"
        try:
            with locks.locked(self._scratch / "lock"):
                if self._stop_using is None:
                    users = locks.acquire(self._scratch / "users", shared=True)
                    # A forked child may close it: the lock stays until the last process has closed it.
                    self._stop_using = weakref.finalize(self, os.close, users)
                if not target.is_dir():
                    # The network or the memory may have been wrong, and not the storage.
                    wrong = self._download(found, target) and self._download(found, target)
                    if wrong:
                        self._give_up(found)
                        raise CheckpointError(f"checkpoint {found.location} is damaged: {wrong} has changed; try again")
        except OSError as error:
            raise build_error(f"checkpoint {found.location} cannot be fetched", error) from error
        return target

    def _download(self, found: _StoredCheckpoint, target: Path) -> str | None:
        """Download a checkpoint into a folder, unless the content of a file differs; return its name."""
        prefix, tree = f"{found.key}/{found.manifest['part']}", parse_tree(found.manifest["files"])
        unfinished = self._scratch / f"{PART}fetched-rank-{self._rank}"
        checkpoint_tree.remove(unfinished)
        unfinished.mkdir(mode=0o700)
        files = {f"{prefix}/{name}": (unfinished / name, each.size) for name, each in tree.items() if each.is_file}
        actual = found.bucket.download(files)
        wrong = next((name for name, each in tree.items() if actual.get(f"{prefix}/{name}", 0) != each.crc), None)
        if wrong is None:
            _restore(unfinished, tree)
            unfinished.rename(target)
        else:
            checkpoint_tree.remove(unfinished)
        return wrong

    def _give_up(self, found: _StoredCheckpoint) -> None:
        """Set a damaged checkpoint of this training aside: the next attempt resumes from the one before."""
        if found.bucket is self._bucket and found.key == self._get_step_key(found.step):
            with contextlib.suppress(S3Error):
                self.set_aside(found.step)


def remove_expired(uri: str, now: float | None = None) -> list[str]:
    """Delete the trainings below a URI whose time to live is over; return their URIs."""
    name, prefix = _split(uri)
    bucket = Bucket(name)
    trainings: dict[str, list[Entry]] = {}
    for each in bucket.list_objects(f"{prefix}/" if prefix else ""):
        if match := _TRAINING.match(each.key, len(prefix) and len(prefix) + 1):
            trainings.setdefault(each.key[: match.end() - 1], []).append(each)
    removed = []
    # Objects have the times of the storage, whose clock may differ.
    now = bucket.read_clock() if now is None else now
    for training, entries in trainings.items():
        place = CheckpointBucket(f"s3://{name}/{training}")
        ttl = place.read("start.json").get("ttl")
        if ttl and now - max(each.modified for each in entries) > ttl:
            place.delete()
            removed.append(place.root)
    return removed


def _restore(folder: Path, tree: Tree) -> None:
    """Add the folders, links and modes of a tree to its files in a folder."""
    # What is in a folder comes before the folder, whose mode may forbid to write.
    for name, each in sorted(tree.items(), reverse=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if each.target:
            path.symlink_to(each.target)
        elif each.mode:
            if not each.is_file:
                path.mkdir(exist_ok=True)
            path.chmod(stat.S_IMODE(each.mode))


def _split(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri[len("s3://") :].partition("/")
    return bucket, prefix.strip("/")


def _parse_step(part: str) -> int:
    return int(part[len(PART) :].partition("-")[0])


def _is_safe(name: str) -> bool:
    """Return whether a path of a manifest stays in its folder."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name
