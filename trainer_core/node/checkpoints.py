"""Checkpoints of a training function: complete or absent, found again by the next attempt. Standard library only.

A place stores and finds them: `checkpoint_folder` in a folder that all ranks share, `checkpoint_s3` in a bucket. All
ranks use the same place, through which they agree: `checkpoint_ranks`.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import env, progress, termination
from .checkpoint_folder import PART, RESULT, Checkpoint, CheckpointError, CheckpointFolder, Checksums, merge, say
from .checkpoint_ranks import Agreement, Ranks, Stopped, mark_launch, read_launch
from .stop_signal import StopSignal

if TYPE_CHECKING:
    from .checkpoint_ranks import Place

_MAX_FILES = 20_000


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
    store = _find_store() or CheckpointStore()
    _store = (_get_key(), store)
    return store


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


def flush() -> None:
    """Wait for a save in the background, at the end of the training function.

    Raises:
        CheckpointError: That save failed.
    """
    if store := _find_store():
        store.flush()


def finish(store: CheckpointStore | None = None) -> None:
    """Delete what the option keeps no longer, once the functions of all ranks have returned. Never raises.

    A job that was told to stop may begin again: its checkpoints stay.
    """
    store, settings = store or _find_store(), _read_settings()
    if store is None or not settings:
        return
    with contextlib.suppress(OSError):
        store._finish(settings.get("after", "last"))


def share_result(record: Mapping[str, Any]) -> None:
    """Keep the record of what a function returned with its checkpoints, once those of all ranks have returned.

    Raises:
        Stopped: A rank was started again before.
    """
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


def _find_store() -> CheckpointStore | None:
    """Return the store of this job. A process can run several jobs, one after the other."""
    return _store[1] if _store and _store[0] == _get_key() else None


def _get_key() -> tuple[str, str]:
    return env.setting(env.CHECKPOINT_PATH), env.setting(env.TERMINATION_LOG)


def open_place(root: str) -> Place:
    """Return the checkpoints of one training by their folder or their ``s3://`` URI; nothing is read.

    Raises:
        OSError: The credentials of the bucket cannot be used.
    """
    if not root.startswith("s3://"):
        return CheckpointFolder(root)
    from .checkpoint_s3 import CheckpointBucket

    return CheckpointBucket(root)


def prune(place: Place, complete: list[Checkpoint], keep: int, settings: Mapping[str, Any]) -> list[Checkpoint]:
    """Delete complete checkpoints except the newest ones and the best one; return those that stay, oldest first."""
    best, newest = find_best(complete, settings), complete[-max(1, keep) :]
    kept = [each for each in complete if each is best or each in newest]
    for each in complete:
        if each not in kept:
            place.discard(each.step)
    return kept


def find_best(complete: list[Checkpoint], settings: Mapping[str, Any]) -> Checkpoint | None:
    """Return the best checkpoint by ``keep_best`` and ``mode`` of the option; None if none has the metric."""
    name, choose = settings.get("keep_best") or "", max if settings.get("mode") == "max" else min
    return choose((c for c in complete if name in c.metrics), key=lambda c: c.metrics[name], default=None)


class CheckpointStore:
    """The checkpoints of one training. `checkpoints` returns it.

    Attributes:
        rank: Global rank of this process.
        world_size: Number of processes.
        root: Where the checkpoints are: a folder that all ranks share, or an ``s3://`` URI.
    """

    def __init__(self) -> None:
        settings = _read_settings()
        path = env.setting(env.CHECKPOINT_PATH)
        self.rank, self.world_size = env.rank(), env.world_size()
        self.root = path or os.path.join(env.setting(env.OUTPUT_PATH), "checkpoints")
        self._settings = settings
        self._count = 0
        self._step: int | None = None
        self._saved = time.monotonic()
        self._background: _BackgroundSave | None = None
        grace = float(settings.get("grace", 30))
        try:
            self._place = open_place(self.root)
            self._place.prepare(self.rank)
            if not path:
                say("checkpoints end with this job, as it has no option Checkpoints")
            self._ranks = Ranks(self._place, self.rank, self.world_size, grace, bool(settings.get("overlaps")))
            self._latest, self._is_own = self._start()
        except OSError as error:
            raise CheckpointError(f"checkpoints cannot be kept at {self.root}: {error}") from error
        self._retention = _Retention(self._place, settings)
        self._signal = StopSignal(grace, self._ranks.mark_stop)
        self._objective = progress.get_objective()
        is_pausing = self._objective.is_reached if self._objective else bool
        self._agreement = Agreement(self._ranks, self._is_time, lambda: self._signal.received, is_pausing)
        if self._latest is not None:
            self._note(checkpoint=self._latest.step, resumed_from=self._latest.step)
            if self._objective:
                self._objective.resume(self._latest.step, self._latest.objective)
            if self.rank == 0:
                say(f"resumed from step {self._latest.step}, saved by TrainJob {self._latest.job or '(no name)'}")
        if self.rank == 0 and settings.get("ttl"):
            threading.Thread(target=self._keep_alive, args=(settings["ttl"] / 4,), daemon=True).start()

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop. Ranks may differ; `due` makes them agree."""
        return self._signal.received or self._agreement.stop

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None at the start of a new training. Equal on all ranks.

        Waits for a save in the background, as `flush` does.
        """
        self.flush()
        return self._latest

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints of this training, oldest first.

        Raises:
            CheckpointError: They cannot be read.
        """
        with self._one_error():
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
        step, every = operator.index(step), self._settings.get("every_steps") or 0
        save, self._step = every > 0 and step % every == 0 and step != self._step, step
        with self._one_error(shared=True):
            is_near = self._objective is not None and self._objective.is_near(step)
            save = self._agreement.ask(save or is_near) or save or self._agreement.pause
            if not (save or self._agreement.stop):
                return False
            self.flush()
            if self._place.is_complete(step):
                self._exit_if_stopping(step)
                return False
            return True

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
        step = operator.index(step)  # JSON has no integers of NumPy.
        begun, part, complete = self._begin_part(step)
        if complete:
            part = f"{part}-{self.rank}"
        with self._discard_after_error(part, step):
            yield self._place.create_part(part)
        if complete:
            self._place.discard_part(part)
        else:
            self._run(partial(self._commit, part, step, metrics, begun), background)
        self._exit_if_stopping(step)

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
        step = operator.index(step)
        begun, part, complete = self._begin_part(step)

        def save() -> None:
            with self._discard_after_error(part, step):
                write(self._place.create_part(part))
            self._commit(part, step, metrics, begun)

        if not complete:
            self._run(save, background=True)
        self._exit_if_stopping(step)

    def _begin_part(self, step: int) -> tuple[float, str, bool]:
        """Return the time, the name of the folder to write, and whether the step is complete already."""
        self.flush()
        with self._one_error(shared=True):
            self._ranks.check()
            complete = self._place.is_complete(step)
        if not complete and self._is_own and self._latest and step < self._latest.step:
            raise CheckpointError(
                f"step {step} is before the newest checkpoint, of step {self._latest.step}; begin at latest().step, or "
                "set load='never' in Checkpoints"
            )
        self._count += 1
        # A save in the background is not due again while it runs.
        self._saved = time.monotonic()
        return self._saved, f"{PART}{step:012d}-{self._ranks.nonce}-{self._count}", complete

    def _run(self, save: Callable[[], None], background: bool) -> None:
        if background and not self.stopping:
            self._background = _BackgroundSave(save)
        else:
            save()
            self._saved = time.monotonic()

    def flush(self) -> None:
        """Wait for a save in the background. It is called for a training function that returns.

        Raises:
            CheckpointError: That save failed. Older checkpoints stay.
        """
        if self._background is not None:
            error = self._background.wait()
            self._background = None
            if error is not None:
                raise error

    @contextlib.contextmanager
    def _one_error(self, shared: bool = False) -> Iterator[None]:
        """Raise an OSError as a CheckpointError of one line; let the other ranks know if they wait for this one."""
        try:
            yield
        except OSError as error:
            if shared:
                with contextlib.suppress(OSError):
                    self._ranks.mark_failed()
            raise CheckpointError(f"checkpoints cannot be kept at {self.root}: {error}") from error

    @contextlib.contextmanager
    def _discard_after_error(self, part: str, step: int) -> Iterator[None]:
        """Delete an unfinished checkpoint and tell the other ranks, if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            reason, task, is_last = error, part.rpartition("-")[2], self.world_size == 1
            if isinstance(error, OSError):
                reason = CheckpointError(f"checkpoint of step {step} was not saved in {self.root}: {error}")
                try:
                    self._ranks.check(task)
                except (CheckpointError, Stopped) as other:
                    reason = other
                except OSError:
                    pass  # The same one.
            if isinstance(reason, Stopped):
                # After a restart of rank 0 nothing sweeps what a rank of the start before writes.
                is_last = is_last or self.rank > 0
            else:
                with contextlib.suppress(OSError):
                    is_last = self._ranks.mark_failed(task)
            # The last rank deletes what others may still write into.
            if is_last or not self._place.shares_parts:
                self._place.discard_part(part)
            if reason is error:
                raise
            raise reason from error

    def _start(self) -> tuple[Checkpoint | None, bool]:
        """Start with the other ranks; return the checkpoint to resume from, and whether it is one of this training."""
        if self.rank == 0:
            ttl, found = self._settings.get("ttl"), None

            def choose() -> dict[str, Any]:
                nonlocal found
                found, is_own = self._choose()
                return {"resume": found.location if found else None, "own": is_own}

            is_own = self._ranks.start(ttl, choose)["own"]
            if ttl:
                self._place.expire()
            return found, is_own
        start = self._ranks.join()
        location = start["resume"]
        found = self._place.open(location) if location else None
        if location and found is None:
            raise CheckpointError(f"rank {self.rank} does not find {location}, which rank 0 resumes from")
        return found, start["own"]

    def _choose(self) -> tuple[Checkpoint | None, bool]:
        """Return the checkpoint to resume from: the newest complete one of this training, else what `load` names."""
        load, locations = self._settings.get("load", "fresh"), self._settings.get("load_paths", [])
        own = self._place.find_newest()
        if own is not None or not locations:
            return own, True
        found = self._place.find_elsewhere(locations)
        if found is None and load != "owner":
            raise CheckpointError(f"load={load}: no complete checkpoint in {', '.join(locations)}; correct it")
        return found, False

    def _keep_alive(self, pause: float) -> None:
        """Begin the time to live again and again while this process runs, however long a step takes."""
        while not self._signal.ended.wait(pause):
            with contextlib.suppress(OSError):
                if self._ranks.is_current():
                    self._place.keep_alive()

    def _is_time(self) -> bool:
        interval = self._settings.get("every_seconds") or math.inf
        is_saving = self._background is not None and not self._background.is_over()
        return not is_saving and time.monotonic() - self._saved >= interval

    def _finish(self, after: str) -> None:
        """Delete what is kept no longer, where this is the last rank whose function returns."""
        if not self._agreement.pause and not self.stopping and self._ranks.mark_over() and not self.stopping:
            if after == "none":
                self._place.delete()
            elif after != "all":
                prune(self._place, self._place.list_complete(), 1, self._settings)
        self._signal.ended.set()
        self._place.close()

    def _exit_if_stopping(self, step: int) -> None:
        # Several ranks stop where `due` has told all of them to; a single one stops wherever it saves.
        if self._agreement.stop or (self._signal.received and self.world_size == 1):
            self.flush()
            progress.flush()
            if self.rank == 0:
                if self._signal.received:
                    self._signal.announced.wait()
                self._ranks.mark_stop(is_over=True)
            raise Stopped(f"it was told to stop; the checkpoint of step {step} is complete")
        if self._objective and self._agreement.pause:
            self.flush()
            self._objective.pause(step)

    def _commit(self, part: str, step: int, metrics: Mapping[str, Any] | None, begun: float) -> None:
        with self._discard_after_error(part, step):
            saved: Checkpoint | None
            if self.rank == 0:
                saved = self._write_manifest(part, step, metrics)
            else:
                self._place.write(f"{part}/.done-{self.rank}", {"files": self._place.store_part(part)})
                self._wait(part, partial(self._place.is_complete, step), f"rank 0 to complete step {step}")
                saved = self._place.get(step)
        self._latest, self._is_own = saved, True
        self._note(checkpoint=step)
        self._place.forget_fetched()
        if self.rank == 0 and saved is not None:
            took = time.monotonic() - begun
            say(f"checkpoint of step {step} is complete ({took:.2f} s, {saved.size / 1e6:.1f} MB)")
            self._retention.add(saved)

    def _note(self, **steps: int) -> None:
        """Say it in further lines of progress, and in the record of this node, which survives its log."""
        progress.note(**steps)
        if self.rank == 0 and env.setting(env.NAME):
            termination.report_values(Path(env.setting(env.TERMINATION_LOG)), **steps)

    def _write_manifest(self, part: str, step: int, metrics: Mapping[str, Any] | None) -> Checkpoint:
        """Collect the files of all ranks, and write the manifest."""
        sums = self._place.collect(part, partial(self._wait_for_others, part))
        if len(sums) > _MAX_FILES:
            raise CheckpointError(f"checkpoint of step {step} has {len(sums)} files; write at most {_MAX_FILES}")
        if not self._ranks.is_current():
            raise CheckpointError(f"checkpoint of step {step} was not saved: a newer attempt of this job has started")
        numbers = {str(k): n for k, v in (metrics or {}).items() if (n := progress.to_number(v)) is not None}
        manifest = {
            "step": step,
            "world_size": self.world_size,
            "job": env.setting(env.NAME),
            "time": time.time(),
            "metrics": numbers,
            "files": sums,
        }
        if self._objective:
            manifest["objective"] = self._objective.copy_values()
        return self._place.complete(part, step, manifest)

    def _wait_for_others(self, part: str) -> Checksums:
        """Wait until all other ranks have written; return the checksums that they know."""
        sums: Checksums = {}
        for rank in range(1, self.world_size):
            done = self._wait(part, partial(self._place.read, f"{part}/.done-{rank}"), f"rank {rank} to save")
            sums = merge(sums, done["files"])
        return sums

    def _wait(self, part: str, ask: Callable[[], Any], what: str) -> Any:
        return self._ranks.wait(ask, what, part.rpartition("-")[2])


class _Retention:
    """The complete checkpoints of a training, of which the newest and the best are kept."""

    def __init__(self, place: Place, settings: Mapping[str, Any]) -> None:
        self._place, self._settings = place, settings
        self._complete: list[Checkpoint] | None = None

    def add(self, saved: Checkpoint) -> None:
        """Delete what is kept no longer after a save. What cannot be deleted stays until the next one."""
        try:
            # Listed once; nothing is read for this after later saves.
            complete = self._place.list_complete() if self._complete is None else self._complete
            self._complete = None
            complete = [*(each for each in complete if each.step != saved.step), saved]
            self._complete = prune(self._place, complete, int(self._settings.get("keep", 3)), self._settings)
        except OSError as error:
            say(f"checkpoints that are kept no longer cannot be deleted: {error}")


class _BackgroundSave:
    """A thread that completes a checkpoint."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=env.SAVE_THREAD)
        self._thread.start()

    def wait(self) -> BaseException | None:
        """Return what went wrong once the thread has ended."""
        self._thread.join()
        return self._error

    def is_over(self) -> bool:
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._commit()
        except (Exception, Stopped) as error:  # noqa: BLE001 -- raised in the thread of the training
            self._error = error
            say(f"save in the background: {error!r}")


def _read_settings() -> dict[str, Any]:
    return dict(json.loads(env.setting(env.CHECKPOINTS) or "{}"))


_store: tuple[tuple[str, str], CheckpointStore] | None = None
