"""Checkpoints of a training function: complete or absent, found again by the next attempt. Standard library only.

    <root>/
      step-000000001200/            complete: `manifest.json` was written last, then the folder got this name
      .part-000000001300-<nonce>-1/ being written; swept by the next start
      .gone-…                       being deleted
      start.json                    the processes that may write: nonce, tokens of the ranks, what they resume from

All ranks share the folder. A rank takes only a start.json that contains the random token it has just written, so that
files of an earlier start, of which any rank may have been killed at any moment, are never taken for those of this one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from . import env, files, progress

__all__ = ["Checkpoint", "CheckpointError", "CheckpointStore", "Stopped", "checkpoint_path", "checkpoints", "finish"]

_MANIFEST = "manifest.json"
_STEP, _PART, _GONE = "step-", ".part-", ".gone-"
_MAX_FILES = 20_000
#: Seconds that a rank waits for the others, and between two looks at a file of another rank.
_TIMEOUT, _POLL = 600.0, 0.005
#: Seconds between two exchanges about saving and stopping among several ranks.
_EXCHANGE = 1.0
#: Seconds before SIGKILL at which a process that was told to stop ends without a checkpoint.
_RESERVE = 2.0
_BLOCK = 2**20


class CheckpointError(Exception):
    """A checkpoint cannot be saved or loaded; the message is one line for the user."""

    __module__ = "trainjob"


class Stopped(SystemExit):
    """The job was told to stop by SIGTERM, and its checkpoint is complete."""

    __module__ = "trainjob"

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step

    def __str__(self) -> str:
        return f"it was told to stop; the checkpoint of step {self.step} is complete"


class Checkpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        step: The step it was saved at.
        path: Its folder, with the files that the function wrote.
        metrics: Numbers that were passed to `save`.
        world_size: Number of processes that wrote it.
        job: Name of the TrainJob that wrote it.
    """

    step: int
    path: Path
    metrics: dict[str, float]
    world_size: int
    job: str


def checkpoints() -> CheckpointStore:
    """Return the checkpoints of this training: where the job was killed, preempted or suspended, it resumes.

    Every rank calls it, before its first step. It installs a handler for SIGTERM in the main thread. The folder is that
    of the option `Checkpoints`; without the option it lives as long as the output folder of this job.

    Raises:
        CheckpointError: The folder cannot be used, or the other ranks do not call it.

    Example:
        ```python
        from trainer_core import checkpoints

        store = checkpoints()
        last = store.latest()
        start = last.step if last else 0
        for step in range(start + 1, 101):
            if store.due(step):
                with store.save(step) as folder:
                    (folder / "state.txt").write_text("weights")
        ```
    """
    global _store
    key = (env.setting(env.CHECKPOINT_PATH), env.setting(env.TERMINATION_LOG))
    if _store is None or _store[0] != key:
        _store = (key, CheckpointStore())
    return _store[1]


def checkpoint_path() -> Path | None:
    """Return the folder of the newest complete checkpoint; None if there is none.

    For code that takes a path, such as ``resume_from_checkpoint`` of a library.

    Raises:
        CheckpointError: As in `checkpoints`.

    Example:
        ```python
        from trainer_core import checkpoint_path

        folder = checkpoint_path()
        weights = folder / "model.pt" if folder else None
        ```
    """
    last = checkpoints().latest()
    return last.path if last else None


def finish() -> None:
    """Delete what the option keeps no longer once the function has returned. Never raises: the training succeeded."""
    root, settings = env.setting(env.CHECKPOINT_PATH), _read_settings()
    if not root or env.rank() != 0 or not settings:
        return
    with contextlib.suppress(OSError, ValueError):
        if settings.get("after") == "none":
            shutil.rmtree(root, ignore_errors=True)
        elif settings.get("after") != "all":
            _prune(Path(root), 1, settings.get("keep_best"))


class CheckpointStore:
    """The checkpoints of one training. `checkpoints` returns it.

    Attributes:
        rank: Global rank of this process.
        world_size: Number of processes.
        root: Folder of the checkpoints, shared by all ranks.
    """

    def __init__(self) -> None:
        settings = _read_settings()
        path = env.setting(env.CHECKPOINT_PATH)
        self.rank, self.world_size = env.rank(), env.world_size()
        self.root = Path(path) if path else Path(env.setting(env.OUTPUT_PATH)) / "checkpoints"
        self._settings = settings
        self._count = 0
        self._signalled = self._stop = False
        self._next = -math.inf
        self._saved = self._exchanged = time.monotonic()
        self._exchanged_step: float | None = None
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path:
                _say("checkpoints end with this job, as it has no option Checkpoints")
            self._nonce, self._latest = self._start() if self.rank == 0 else self._join()
        except OSError as error:
            raise CheckpointError(f"checkpoint folder {self.root} cannot be used: {error}") from error
        if self._latest is not None:
            progress.note(checkpoint=self._latest.step, resumed_from=self._latest.step)
            if self.rank == 0:
                _say(f"resumed from step {self._latest.step}, saved by TrainJob {self._latest.job or '(no name)'}")
        self._install_handler(float(settings.get("grace", 30)))

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop. Ranks may differ; `due` makes them agree."""
        return self._signalled or self._stop

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None at the start of a new training. Equal on all ranks."""
        return self._latest

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints of this training, oldest first."""
        return [found for path in _list_steps(self.root) if (found := _read(path, verify=False))]

    def due(self, step: int) -> bool:
        """Return whether to save now: it is time, or the job was told to stop. Equal on all ranks.

        Every rank calls it with the same steps.

        Args:
            step: Completed steps.

        Raises:
            Stopped: The job was told to stop, and the checkpoint of this step is complete.
        """
        every = self._settings.get("every_steps") or 0
        save = every > 0 and step % every == 0
        if step >= self._next:
            save = self._exchange(step) or save
        if not (save or self._stop):
            return False
        if self._is_complete(step):
            self._exit_if_stopping(step)
            return False
        return True

    @contextlib.contextmanager
    def save(self, step: int, metrics: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """Save a checkpoint: write its files into the folder of the ``with`` block.

        Every rank enters the block with the same step; files of different ranks need different names. At the end of
        the block the checkpoint is complete on disk, or there is none. A step that is complete is not saved again.

        Args:
            step: Completed steps.
            metrics: Numbers by name, for ``keep_best``.

        Raises:
            CheckpointError: It could not be completed, or another rank failed. Older checkpoints stay.
            Stopped: The job was told to stop; raised after the checkpoint is complete.
        """
        begun, complete = time.monotonic(), self._is_complete(step)
        self._count += 1
        name = f"{_PART}{step:012d}-{self._nonce}-{self._count}"
        part = self.root / (f"{name}-{self.rank}" if complete else name)
        try:
            part.mkdir(mode=0o700, exist_ok=True)
            yield part
            if not complete:
                self._commit(part, step, metrics, begun)
        except BaseException as error:
            with contextlib.suppress(OSError):
                (part / f".failed-{self.rank}").touch()
            if self.world_size == 1:
                shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, OSError):
                raise CheckpointError(f"checkpoint of step {step} was not saved in {self.root}: {error}") from error
            raise
        if complete:
            shutil.rmtree(part, ignore_errors=True)
        self._exit_if_stopping(step)

    def _start(self) -> tuple[str, Checkpoint | None]:
        """Sweep what earlier starts left, wait for all ranks, and publish what they resume from."""
        nonce, tokens = os.urandom(8).hex(), {}
        for path in self.root.iterdir():
            if path.name.startswith((_PART, _GONE, ".due-", ".stop-")):
                _remove(path)
        self._write("start.json", {"nonce": nonce})
        for rank in range(1, self.world_size):
            tokens[str(rank)] = self._wait(partial(self._read_hello, rank, nonce), f"rank {rank} to call checkpoints()")
        found = self._choose()
        start = {"nonce": nonce, "tokens": tokens, "resume": str(found.path) if found else None}
        ttl = self._settings.get("ttl")
        self._write("start.json", {**start, "ttl": ttl})
        if ttl:
            _remove_expired(self.root.parents[1])
        return nonce, found

    def _read_hello(self, rank: int, nonce: str) -> str | None:
        hello = _read_json(self.root / f".hello-{rank}")
        return hello.get("token") if hello.get("nonce") == nonce else None

    def _join(self) -> tuple[str, Checkpoint | None]:
        """Answer rank 0 until it has taken the token of this process."""
        token, hello = os.urandom(8).hex(), ""

        def answer() -> dict[str, Any] | None:
            nonlocal hello
            start = _read_json(self.root / "start.json")
            if start.get("tokens", {}).get(str(self.rank)) == token:
                return start
            if start.get("nonce", "") != hello:
                hello = start["nonce"]
                self._write(f".hello-{self.rank}", {"nonce": hello, "token": token})
            return None

        start = self._wait(answer, "rank 0 to call checkpoints()")
        return start["nonce"], _read(Path(start["resume"]), verify=False) if start.get("resume") else None

    def _choose(self) -> Checkpoint | None:
        """Return the checkpoint to resume from: the newest complete one of this training, else what `load` names."""
        load, folders = self._settings.get("load", "fresh"), self._settings.get("load_paths", [])
        if load == "never":
            for path in _list_steps(self.root):
                _discard(path)
            return None
        own = _find_newest(self.root, own=True)
        if own is not None or load == "fresh":
            return own
        trainings = [each for folder in folders for each in (Path(folder), *Path(folder).glob("g-*"))]
        found = [each for training in trainings if (each := _find_newest(training))]
        if not found and load != "owner":
            raise CheckpointError(f"load={load}: no complete checkpoint in {', '.join(folders)}; correct it")
        return max(found, key=lambda each: (each.path / _MANIFEST).stat().st_mtime, default=None)

    def _exchange(self, step: int) -> bool:
        """Agree with the other ranks whether to save at this step, whether to stop, and on the step to ask again."""
        if self.rank == 0:
            now, interval = time.monotonic(), self._settings.get("every_seconds") or math.inf
            self._stop = self._stop or self._signalled
            save = now - self._saved >= interval
            if self.world_size > 1:
                self._stop = self._stop or any(self.root.glob(f".stop-{self._nonce}-*"))
                done = 0 if self._exchanged_step is None else step - self._exchanged_step
                ahead = done * _EXCHANGE / max(now - self._exchanged, 1e-6)
                self._exchanged, self._exchanged_step = now, step
                # At most twice as far as the last time: the first steps may be faster than the others.
                self._next = step + max(1, int(min(ahead, 2 * done)))
                decision = {"step": step, "save": save, "stop": self._stop, "next": self._next}
                self._write(f".due-{self._nonce}", decision)
            return save
        if self._signalled:
            (self.root / f".stop-{self._nonce}-{self.rank}").touch()
        path = self.root / f".due-{self._nonce}"
        decision = self._wait(lambda: d if (d := _read_json(path)).get("step", -1) >= step else None, "due() of rank 0")
        self._stop, self._next = decision["stop"], decision["next"]
        return bool(decision["save"])

    def _is_complete(self, step: int) -> bool:
        return (self.root / f"{_STEP}{step:012d}" / _MANIFEST).is_file()

    def _exit_if_stopping(self, step: int) -> None:
        # Several ranks stop where `due` has told all of them to; a single one stops wherever it saves.
        if self._stop or (self._signalled and self.world_size == 1):
            progress.flush()
            raise Stopped(step)

    def _commit(self, part: Path, step: int, metrics: Mapping[str, Any] | None, begun: float) -> None:
        target = self.root / f"{_STEP}{step:012d}"
        if self.rank == 0:
            size = self._complete(part, target, step, metrics)
        else:
            _sync_files(part)
            (part / f".done-{self.rank}").touch()
            self._wait(partial(self._is_done, target, part, 0), f"rank 0 to complete step {step}")
        self._latest = _read(target, verify=False)
        self._saved = time.monotonic()
        progress.note(checkpoint=step)
        if self.rank == 0:
            _say(f"checkpoint of step {step} is complete ({self._saved - begun:.2f} s, {size / 1e6:.1f} MB)")
            os.utime(self.root / "start.json")  # The time to live counts from the last checkpoint.
            _prune(self.root, int(self._settings.get("keep", 3)), self._settings.get("keep_best"))

    def _complete(self, part: Path, target: Path, step: int, metrics: Mapping[str, Any] | None) -> int:
        """Wait for the other ranks, write the manifest, and give the folder its name."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            # The disk is busy with these while the processor computes the checksums.
            synced = thread.submit(_sync_files, part)
            sums = self._collect(part, step)
            synced.result()
        # The file system is asked again: a later start of the same training has taken over if the nonce is another.
        if _read_json(self.root / "start.json").get("nonce") != self._nonce:
            raise CheckpointError(f"checkpoint of step {step} was not saved: a newer attempt of this job has started")
        numbers = {str(k): n for k, v in (metrics or {}).items() if (n := progress.to_number(v)) is not None}
        manifest = {
            "version": 1,
            "step": step,
            "world_size": self.world_size,
            "job": env.setting(env.NAME),
            "metrics": numbers,
            "files": sums,
        }
        with (part / _MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        _sync(part)
        if target.exists():
            _discard(target)
        part.rename(target)
        _sync(self.root)
        return sum(size for size, _ in sums.values())

    def _collect(self, part: Path, step: int) -> dict[str, tuple[int, int]]:
        """Return size and checksum of the files of all ranks once they are written."""
        for rank in range(1, self.world_size):
            done = part / f".done-{rank}"
            self._wait(partial(self._is_done, done, part, rank), f"rank {rank} to save")
            done.unlink()
        written = {path.relative_to(part).as_posix(): path for path in sorted(part.rglob("*")) if path.is_file()}
        if len(written) > _MAX_FILES:
            raise CheckpointError(f"checkpoint of step {step} has {len(written)} files; write at most {_MAX_FILES}")
        return _checksum_all(written)

    def _is_done(self, sign: Path, part: Path, rank: int) -> bool:
        if (part / f".failed-{rank}").exists():
            raise CheckpointError(f"the checkpoint was not saved: rank {rank} failed; see its log")
        return sign.exists()

    def _wait(self, ask: Callable[[], Any], what: str) -> Any:
        """Ask until there is an answer.

        Raises:
            CheckpointError: There is none for ten minutes.
        """
        deadline = time.monotonic() + _TIMEOUT
        while not (answer := ask()):
            if time.monotonic() > deadline:
                raise CheckpointError(f"rank {self.rank} waited {_TIMEOUT:.0f} s for {what}")
            time.sleep(_POLL)
        return answer

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        files.replace(self.root / name, json.dumps(data).encode())

    def _install_handler(self, grace: float) -> None:
        """On SIGTERM set a flag, and end the process shortly before the grace is over. A grace of 0 has no handler."""
        if not grace or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        # A handler may interrupt any lock; writing to a pipe is safe.
        pipe, told = os.pipe()

        def on_signal(number: int, frame: Any) -> None:
            if not self._signalled:
                self._signalled = True
                os.write(told, b"1")
            if callable(previous) and getattr(previous, "__name__", "") != "exit_at_once":
                previous(number, frame)

        def end_late() -> None:
            os.read(pipe, 1)
            time.sleep(max(1.0, grace - _RESERVE))
            _say("no checkpoint within the grace period after SIGTERM")
            os._exit(128 + signal.SIGTERM)

        threading.Thread(target=end_late, name="trainjob-grace", daemon=True).start()
        signal.signal(signal.SIGTERM, on_signal)


def _read_settings() -> dict[str, Any]:
    return dict(json.loads(env.setting(env.CHECKPOINTS) or "{}"))


def _list_steps(folder: Path) -> list[Path]:
    """Return the folders of checkpoints in a folder by step, or the folder itself if it is one."""
    if (folder / _MANIFEST).is_file():
        return [folder]
    return sorted(folder.glob(f"{_STEP}*"))


def _find_newest(folder: Path, own: bool = False) -> Checkpoint | None:
    """Return the newest undamaged checkpoint; damaged ones of this training are deleted."""
    for path in reversed(_list_steps(folder)):
        found = _read(path, verify=True)
        if found is not None:
            return found
        if own:
            _discard(path)
    return None


def _read(path: Path, verify: bool) -> Checkpoint | None:
    """Return a checkpoint if its manifest can be read and all files are there as they were written."""
    try:
        data = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        sums = data["files"]
        found = Checkpoint(data["step"], path, data["metrics"], data["world_size"], data["job"])
        wrong = [name for name, (size, _) in sums.items() if (path / name).stat().st_size != size]
        if verify and not wrong:
            actual = _checksum_all({name: path / name for name in sums})
            wrong = [name for name in sums if list(actual[name]) != sums[name]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _say(f"checkpoint {path} is incomplete and passed over: {error}")
        return None
    if wrong:
        _say(f"checkpoint {path} is damaged and passed over: {wrong[0]} has changed")
        return None
    return found


def _prune(root: Path, keep: int, keep_best: str | None) -> None:
    """Delete the oldest complete checkpoints, except the newest ones and the best one by a metric."""
    complete = [found for path in _list_steps(root) if (found := _read(path, verify=False))]
    name, sign = (keep_best or "").lstrip("-"), -1 if (keep_best or "").startswith("-") else 1
    best = min((c for c in complete if name in c.metrics), key=lambda c: sign * c.metrics[name], default=None)
    for each in complete[: -max(1, keep)]:
        if each != best:
            _discard(each.path)


def _remove_expired(base: Path) -> None:
    """Delete the checkpoints of other trainings at the same place whose time to live is over."""
    for start in base.glob("*/*/start.json"):
        ttl = _read_json(start).get("ttl")
        with contextlib.suppress(OSError):
            if ttl and time.time() - start.stat().st_mtime > ttl:
                _discard(start.parent)


def _discard(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever taken for one."""
    gone = path.with_name(f"{_GONE}{path.name}-{os.urandom(4).hex()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _checksum_all(paths: Mapping[str, Path]) -> dict[str, tuple[int, int]]:
    """Return size and CRC-32 of files by name, computed in parallel: zlib releases the interpreter lock."""
    if len(paths) < 2:
        return {name: _checksum(path) for name, path in paths.items()}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(8, len(paths))) as threads:
        return dict(zip(paths, threads.map(_checksum, paths.values())))  # noqa: B905 -- images may have Python 3.9


def _checksum(path: Path) -> tuple[int, int]:
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


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # The function may have closed stdout.
        if sys.stdout is not None:
            print(f"trainjob: {text}", flush=True)


_store: tuple[tuple[str, str], CheckpointStore] | None = None
