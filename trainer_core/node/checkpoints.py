"""Checkpoints of a training function: complete or absent, found again by the next attempt. Standard library only.

What happens in the life of a training, and which class does it:

1. The ranks find each other and choose what to resume from: `checkpoint_ranks.Ranks`, `_start`.
2. At each call of `due` they agree whether to save, stop or pause: `checkpoint_ranks.Agreement`.
3. A save writes the files of all ranks, and is complete or absent: `checkpoint_saves.Saves`.
4. SIGTERM leads to a save within the grace period: `stop_signal.StopSignal`.
5. Older checkpoints are deleted after a save and at the end: `checkpoint_retention.Retention`.

`CheckpointStore` is what the function calls. A place stores checkpoints and the small files by which ranks agree:
`checkpoint_folder` in a folder that all ranks share, `checkpoint_s3` in a bucket.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import beats, env, progress
from .checkpoint_folder import RESULT, Checkpoint, CheckpointError, CheckpointFolder, build_error, say
from .checkpoint_ranks import Agreement, Ranks, Stopped, mark_launch, read_launch
from .checkpoint_retention import Retention
from .checkpoint_saves import Saves
from .stop_signal import StopSignal

if TYPE_CHECKING:
    from .checkpoint_ranks import Place


def checkpoints(folder: str | os.PathLike[str] | None = None) -> CheckpointStore:
    """Return the checkpoints of this training: where the job was killed, preempted or suspended, it resumes.

    Every rank calls it, before its first step. It installs a handler for SIGTERM in the main thread; in another thread,
    or where the function has replaced the handler, it says so, and so does `due`. The folder is that of the option
    `Checkpoints`; without the option it lives as long as the output folder of this job. Outside of a job nothing is
    kept or loaded, unless a folder is given, and `due` is never true: the same file runs in a shell, notebook or test.

    Args:
        folder: Where checkpoints are kept outside of a job, one every ten minutes. In a job it has no effect.

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
    path = "" if env.is_in_job() else str(folder or env.setting(env.CHECKPOINT_PATH))
    if not path and not env.is_in_job():
        return _NoStore()
    store = _find_store(path) or CheckpointStore(path)
    _store = (_get_key(path), store)
    store._signal.check()
    return store


def checkpoint_path(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of the newest complete checkpoint; None if there is none.

    For code that takes a path, such as ``resume_from_checkpoint`` of a library.

    Args:
        folder: As in `checkpoints`.

    Raises:
        CheckpointError: As in `checkpoints`.

    Example:
        ```python
        from trainer_core import checkpoint_path

        folder = checkpoint_path()
        weights = folder / "model.pt" if folder else None
        ```
    """
    last = checkpoints(folder).latest()
    return last.path if last else None


def flush() -> None:
    """Wait for a save in the background, at the end of the training function."""
    if store := _find_store():
        store.flush()


def finish(store: CheckpointStore | None = None) -> None:
    """Delete what the option keeps no longer, once the functions of all ranks have returned. Never raises.

    A job that was told to stop may begin again: its checkpoints stay.
    """
    store = store or _find_store()
    if store is None or not _read_settings():
        return
    with contextlib.suppress(OSError):
        store._finish()


def share_result(record: Mapping[str, Any]) -> None:
    """Keep the record of what a function returned with its checkpoints, once those of all ranks have returned."""
    store = _find_store()
    if store is None or not env.setting(env.CHECKPOINT_PATH):
        return
    try:
        store._ranks.share_result({"code": _read_code(), "record": record})
    except OSError as error:
        say(f"the result cannot be kept at {store.root}: {error}")


def find_result() -> dict[str, Any] | None:
    """Return the record that `share_result` has kept for this function and its arguments; None if there is none."""
    with contextlib.suppress(OSError):
        kept = open_place(env.setting(env.CHECKPOINT_PATH)).read(RESULT)
        if kept.get("code") == _read_code():
            return dict(kept["record"])
    return None


def _read_code() -> int:
    """Return a checksum of the function and its arguments, and of the rung at which a trial of a search pauses."""
    return zlib.crc32(Path(env.setting(env.PAYLOAD)).read_bytes() + env.setting(env.OBJECTIVE).encode())


def announce_launch() -> None:
    """Let ranks that wait for this node know that it is started: it may wait for them. Never raises."""
    with contextlib.suppress(OSError):
        mark_launch(open_place(env.setting(env.CHECKPOINT_PATH)), env.rank())


def remember_launch() -> None:
    """Note which node was launched last, before the function is called. Never raises."""
    with contextlib.suppress(OSError):
        os.environ[env.LAUNCH] = read_launch(open_place(env.setting(env.CHECKPOINT_PATH)))


def release() -> None:
    """Let this process live after the grace period of a job that was told to stop and has ended."""
    if store := _find_store():
        store._signal.ended.set()


def _find_store(path: str = "") -> CheckpointStore | None:
    """Return the store of this job. A process can run several jobs, one after the other."""
    return _store[1] if _store and _store[0] == _get_key(path) else None


def _get_key(path: str) -> tuple[str, str]:
    return path or env.setting(env.CHECKPOINT_PATH), env.setting(env.TERMINATION_LOG)


def open_place(root: str) -> Place:
    """Return the checkpoints of one training by their folder or their ``s3://`` URI; nothing is read."""
    if not root.startswith("s3://"):
        return CheckpointFolder(root)
    from .checkpoint_s3 import CheckpointBucket

    return CheckpointBucket(root)


class CheckpointStore:
    """The checkpoints of one training. `checkpoints` returns it.

    Attributes:
        rank: Global rank of this process.
        world_size: Number of processes.
        root: Where the checkpoints are: a folder that all ranks share, or an ``s3://`` URI.
    """

    def __init__(self, path: str = "") -> None:
        # The default of the option holds outside of a job, too.
        settings = _read_settings() or ({} if env.is_in_job() else {"every_seconds": 600})
        path = path or env.setting(env.CHECKPOINT_PATH)
        self.rank, self.world_size = env.rank(), env.world_size()
        self.root = path or os.path.join(env.setting(env.OUTPUT_PATH), "checkpoints")
        self._every_steps = settings.get("every_steps") or 0
        self._every_seconds = settings.get("every_seconds") or math.inf
        #: The step of the last call of `due`.
        self._step: int | None = None
        self._objective = progress.get_objective()
        grace = float(settings.get("grace", 30))
        try:
            self._place = open_place(self.root)
            self._place.prepare(self.rank)
            if not path:
                say("checkpoints end with this job, as it has no option Checkpoints")
            self._ranks = Ranks(self._place, self.rank, self.world_size, grace, bool(settings.get("overlaps")))
            newest, is_own = _start(self._place, self._ranks, settings)
        except OSError as error:
            raise build_error(f"checkpoints cannot be kept at {self.root}", error) from error
        self._retention = Retention(self._place, settings)
        self._saves = Saves(self._place, self._ranks, newest, is_own, self._retention.add)
        self._signal = StopSignal(grace, self._ranks.mark_stop)
        is_pausing = self._objective.is_reached if self._objective else bool
        self._agreement = Agreement(self._ranks, self._is_time, lambda: self._signal.received, is_pausing)
        if newest is not None:
            self._resume(newest)
        if self.rank == 0:
            self._retention.keep_alive(self._ranks, self._signal.ended)

    def _resume(self, newest: Checkpoint) -> None:
        self._saves.note(checkpoint=newest.step, resumed_from=newest.step)
        if self._objective:
            self._objective.resume(newest.step, newest.objective)
        if self.rank == 0:
            say(f"resumed from step {newest.step}" + (f", saved by TrainJob {newest.job}" if newest.job else ""))

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop. Ranks may differ; `due` makes them agree."""
        return self._signal.received or self._agreement.stop

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None at the start of a new training. Equal on all ranks.

        Waits for a save in the background, as `flush` does.
        """
        self._saves.flush()
        return self._saves.newest

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints of this training, oldest first.

        Raises:
            CheckpointError: They cannot be read.
        """
        with self._saves.one_error():
            return self._place.list_complete()

    def due(self, step: int) -> bool:
        """Return whether to save now: it is time, or the job was told to stop. Equal on all ranks.

        Every rank calls it equally often and with the same steps. The step may be the same for many calls, as in an
        evaluation; it is due once as a multiple of `every_steps`.

        Args:
            step: Completed steps.

        Raises:
            CheckpointError: The save before this one was in the background, and failed; or the ranks cannot agree.
            Stopped: The job was told to stop and the checkpoint of this step is complete, or a rank was started again.
        """
        step = operator.index(step)
        self._signal.check()
        beats.beat(step)
        is_multiple = self._every_steps > 0 and step % self._every_steps == 0 and step != self._step
        is_at_rung = self._objective is not None and self._objective.is_near(step)
        self._step = step
        with self._saves.one_error(shared=True):
            # Ranks exchange at multiples and rungs, and else about once a second: of the time and of signals.
            is_time = self._agreement.ask(is_multiple or is_at_rung)
            if not (is_multiple or is_time or self._agreement.pause or self._agreement.stop):
                return False
            self._saves.flush()
            if not self._place.is_complete(step):
                return True
            self._exit_if_stopping(step)
            return False

    @contextlib.contextmanager
    def save(self, step: int, metrics: Mapping[str, Any] | None = None, *, background: bool = False) -> Iterator[Path]:
        """Save a checkpoint: write its files into the folder of the ``with`` block.

        Every rank enters the block with the same step; files of different ranks need different names. At the end of
        the block the checkpoint is complete on disk, or there is none. A step that is complete is not saved again.

        Args:
            step: Completed steps.
            metrics: Numbers by name, for ``keep_best``.
            background: Whether a thread makes the files durable, computes their checksums and uploads them while
                training continues. The next save waits for it. A job that was told to stop always saves in the
                foreground. The same on all ranks.

        Raises:
            CheckpointError: It could not be completed, or another rank failed, or the step is before that of the
                newest checkpoint. Older checkpoints stay. Of a save in the background, the next call of `due`, `save`,
                `latest` or `flush` raises it, or the end of the function.
            Stopped: The job was told to stop, raised after the checkpoint is complete; or a rank was started again.
        """
        with beats.saving():
            part = self._saves.begin(operator.index(step))  # JSON has no integers of NumPy.
            with self._saves.write(part) as folder:
                yield folder
            if not part.is_complete:
                self._saves.run(partial(self._saves.commit, part, metrics), background and not self.stopping)
            self._exit_if_stopping(part.step)

    def save_in_background(
        self, step: int, write: Callable[[Path], object], metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Save a checkpoint in a thread, the writing of its files included, while training continues.

        The next save waits for it. A job that was told to stop saves in the foreground.

        Args:
            step: Completed steps.
            write: Is called in the thread with the folder for the files. What the training changes meanwhile must be
                copied before.
            metrics: Numbers by name, for ``keep_best``.

        Raises:
            CheckpointError: The save before this one failed. What goes wrong with this one is raised by the next call
                of `due`, `save`, `latest` or `flush`, or the end of the function.
            Stopped: As in `save`.

        Example:
            ```python
            from trainer_core import checkpoints

            store, weights = checkpoints(), bytearray(8)
            copy = bytes(weights)
            store.save_in_background(1, lambda folder: (folder / "weights").write_bytes(copy))
            weights[0] = 1
            ```
        """
        part = self._saves.begin(operator.index(step))

        def save() -> None:
            with self._saves.write(part) as folder:
                write(folder)
            self._saves.commit(part, metrics)

        with beats.saving():
            if not part.is_complete:
                self._saves.run(save, background=not self.stopping)
            self._exit_if_stopping(part.step)

    def flush(self) -> None:
        """Wait for a save in the background. It is called for a training function that returns.

        Raises:
            CheckpointError: That save failed. Older checkpoints stay.
        """
        self._saves.flush()

    def _is_time(self) -> bool:
        return not self._saves.is_running and time.monotonic() - self._saves.last >= self._every_seconds

    def _finish(self) -> None:
        """Delete what is kept no longer, where this is the last rank whose function returns."""
        if not self._agreement.pause and not self.stopping and self._ranks.mark_over() and not self.stopping:
            self._retention.finish()
        self._signal.ended.set()
        self._place.close()

    def _exit_if_stopping(self, step: int) -> None:
        # Several ranks stop where `due` has told all of them to; a single one stops wherever it saves.
        if self._agreement.stop or (self._signal.received and self.world_size == 1):
            self._saves.flush()
            progress.flush()
            if self.rank == 0:
                if self._signal.received:
                    self._signal.announced.wait()
                self._ranks.mark_stop(is_over=True)
            raise Stopped(f"it was told to stop; the checkpoint of step {step} is complete")
        if self._objective and self._agreement.pause:
            self._saves.flush()
            progress.flush()
            self._objective.pause(step)


class _NoStore(CheckpointStore):
    """Outside of a job, without a folder: nothing is kept or loaded, and SIGTERM ends the process as before."""

    @property
    def stopping(self) -> bool:
        return False

    def __init__(self) -> None:
        self.rank, self.world_size, self.root = env.rank(), env.world_size(), ""

    def latest(self) -> None:
        return None

    def all(self) -> list[Checkpoint]:
        return []

    def due(self, step: int) -> bool:
        operator.index(step)
        return False

    @contextlib.contextmanager
    def save(self, step: int, metrics: Mapping[str, Any] | None = None, *, background: bool = False) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    def save_in_background(
        self, step: int, write: Callable[[Path], object], metrics: Mapping[str, Any] | None = None
    ) -> None:
        with self.save(step) as folder:
            write(folder)

    def flush(self) -> None:
        pass


def _start(place: Place, ranks: Ranks, settings: Mapping[str, Any]) -> tuple[Checkpoint | None, bool]:
    """Start with the other ranks; return the checkpoint to resume from, and whether it is one of this training."""
    if ranks.rank == 0:
        found: Checkpoint | None = None

        def choose() -> dict[str, Any]:
            nonlocal found
            found, is_own = _choose(place, settings)
            return {"resume": found.location if found else None, "own": is_own}

        is_own = ranks.start(settings.get("ttl"), choose)["own"]
        if settings.get("ttl"):
            place.expire()
        return found, is_own
    start = ranks.join()
    location = start["resume"]
    found = place.open(location) if location else None
    if location and found is None:
        raise CheckpointError(f"rank {ranks.rank} does not find {location}, which rank 0 resumes from")
    return found, start["own"]


def _choose(place: Place, settings: Mapping[str, Any]) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint to resume from: the newest complete one of this training, else what `load` names."""
    load, locations = settings.get("load", "fresh"), settings.get("load_paths", [])
    own = place.find_newest()
    if own is not None or not locations:
        return own, True
    found = place.find_elsewhere(locations)
    if found is None and load != "owner":
        raise CheckpointError(f"load={load}: no complete checkpoint in {', '.join(locations)}; correct it")
    return found, False


def _read_settings() -> dict[str, Any]:
    return dict(json.loads(env.setting(env.CHECKPOINTS) or "{}"))


_store: tuple[tuple[str, str], CheckpointStore] | None = None
