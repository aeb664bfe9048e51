"""Checkpoints of a training function: complete or absent, found again by the next attempt. Standard library only.

A place stores and finds them: `checkpoint_folder` in a folder that all ranks share, `checkpoint_s3` in a bucket. All
ranks use the same place. A rank takes only a start.json that contains the random token it has just written,
so that what an earlier start left, of which any rank may have been killed at any moment, is never taken for this one.

A cluster restarts one rank without the others, and replaces a pod while its process still saves. A rank that was
started alone leaves a mark, and the others end to start with it; a rank 0 waits for the one before it.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import env, progress
from .checkpoint_folder import MARKS, PART, Checkpoint, CheckpointError, CheckpointFolder, Sums, merge, say

if TYPE_CHECKING:
    from .checkpoint_s3 import CheckpointBucket

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "Stopped",
    "checkpoint_path",
    "checkpoints",
    "finish",
    "release",
]

_MAX_FILES = 20_000
#: Seconds before SIGKILL at which a process that was told to stop ends without a checkpoint.
_RESERVE = 2.0
_DUE, _STOP, _AGAIN = MARKS
#: Number of decisions of rank 0 that ranks which are behind can still read.
_KEPT = 32
#: Polls between two checks whether a rank was started again.
_POLLS_PER_CHECK = 20


class Stopped(SystemExit):
    """The job was told to stop by SIGTERM and its checkpoint is complete, or another rank was started again."""

    __module__ = "trainjob"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.code = 128 + signal.SIGTERM


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
        place = open_place(root)
        if settings.get("after") == "none":
            place.delete()
        elif settings.get("after") != "all":
            prune(place, place.list_complete(), 1, settings.get("keep_best"))
        place.close()


def release() -> None:
    """Let this process live after the grace period of a job that was told to stop and has ended."""
    if _store is not None:
        _store[1].over.set()


def open_place(root: str) -> CheckpointFolder | CheckpointBucket:
    """Return the checkpoints of one training by their folder or their ``s3://`` URI; nothing is read.

    Raises:
        OSError: The credentials of the bucket cannot be used.
    """
    if not root.startswith("s3://"):
        return CheckpointFolder(root)
    from .checkpoint_s3 import CheckpointBucket

    return CheckpointBucket(root)


def prune(
    place: CheckpointFolder | CheckpointBucket, complete: list[Checkpoint], keep: int, keep_best: str | None
) -> list[Checkpoint]:
    """Delete complete checkpoints except the newest ones and the best one; return those that stay, oldest first."""
    best, newest = find_best(complete, keep_best), complete[-max(1, keep) :]
    kept = [each for each in complete if each is best or each in newest]
    for each in complete:
        if each not in kept:
            place.discard(each.step)
    return kept


def find_best(complete: list[Checkpoint], keep_best: str | None) -> Checkpoint | None:
    """Return the best checkpoint by a metric, as the option `Checkpoints` names it; None if none has the metric."""
    name, sign = (keep_best or "").lstrip("-"), -1 if (keep_best or "").startswith("-") else 1
    return min((c for c in complete if name in c.metrics), key=lambda c: sign * c.metrics[name], default=None)


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
        self._signalled = self._stop = False
        self._next = -math.inf
        self._saved = self._exchanged = time.monotonic()
        #: The last ones of rank 0: the step, whether to save, whether to stop, and the step to ask again.
        self._decisions: list[tuple[float, bool, bool, float]] = []
        self._background: _BackgroundSave | None = None
        self._grace = float(settings.get("grace", 30))
        self._nonce = ""
        self._again_since: float | None = None
        self._has_stop_mark = threading.Event()
        #: Set in a process that continues after its job: its grace does not end it.
        self.over = threading.Event()
        #: What rank 0 deletes from; nothing is read for that after a save.
        self._complete: list[Checkpoint] = []
        try:
            self._place = open_place(self.root)
            self._place.prepare(self.rank)
            if not path:
                say("checkpoints end with this job, as it has no option Checkpoints")
            self._nonce, self._latest = self._start() if self.rank == 0 else self._join()
        except OSError as error:
            raise CheckpointError(f"checkpoints cannot be kept at {self.root}: {error}") from error
        if self._latest is not None:
            progress.note(checkpoint=self._latest.step, resumed_from=self._latest.step)
            if self.rank == 0:
                say(f"resumed from step {self._latest.step}, saved by TrainJob {self._latest.job or '(no name)'}")
        self._install_handler(self._grace)

    @property
    def stopping(self) -> bool:
        """Whether this process was told to stop. Ranks may differ; `due` makes them agree."""
        return self._signalled or self._stop

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; None at the start of a new training. Equal on all ranks.

        Waits for a save in the background, as `flush` does.
        """
        self.flush()
        return self._latest

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints of this training, oldest first."""
        return self._place.list_complete()

    def due(self, step: int) -> bool:
        """Return whether to save now: it is time, or the job was told to stop. Equal on all ranks.

        Every rank calls it with the same steps.

        Args:
            step: Completed steps.

        Raises:
            CheckpointError: The save before this one was in the background, and failed.
            Stopped: The job was told to stop and the checkpoint of this step is complete, or a rank was started again.
        """
        step, every = operator.index(step), self._settings.get("every_steps") or 0
        save = every > 0 and step % every == 0
        # At a save the ranks wait for each other anyway, so a stop is never later than the next one.
        if save or step >= self._next:
            save = self._exchange(step) or save
        if not (save or self._stop):
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
            CheckpointError: It could not be completed, or another rank failed. Older checkpoints stay. Of a save in
                the background, the next call of `due`, `save`, `latest` or `flush` raises it.
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
                of `due`, `save`, `latest` or `flush`.
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
        self._check_peers()
        self._count += 1
        part = f"{PART}{step:012d}-{self._nonce}-{self._count}"
        return time.monotonic(), part, self._place.is_complete(step)

    def _run(self, save: Callable[[], None], background: bool) -> None:
        if background and not self.stopping:
            self._background = _BackgroundSave(save)
        else:
            save()

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
    def _discard_after_error(self, part: str, step: int) -> Iterator[None]:
        """Delete an unfinished checkpoint and tell the other ranks, if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            # After a restart of rank 0 nothing sweeps what a rank of the start before writes.
            is_over = isinstance(error, Stopped) and self.rank > 0
            if self.world_size == 1 or is_over or not self._place.shares_parts:
                self._place.discard_part(part)
            if self.world_size > 1 and not isinstance(error, Stopped):
                with contextlib.suppress(OSError):
                    self._place.write(f"{part}/.done-{self.rank}", {"failed": True})
            if isinstance(error, OSError):
                self._check_peers()
                raise CheckpointError(f"checkpoint of step {step} was not saved in {self.root}: {error}") from error
            raise

    def _start(self) -> tuple[str, Checkpoint | None]:
        """Sweep what earlier starts left, wait for all ranks, and publish what they resume from."""
        nonce, tokens, since = os.urandom(8).hex(), {}, time.monotonic()
        while self._is_ending(self._place.read("start.json").get("nonce", ""), 0, since):
            time.sleep(self._place.poll)
        self._place.sweep()
        self._place.write("start.json", {"nonce": nonce})
        for rank in range(1, self.world_size):
            tokens[str(rank)] = self._wait(partial(self._read_hello, rank, nonce), f"rank {rank} to call checkpoints()")
        found, ttl = self._choose(), self._settings.get("ttl")
        self._complete = self._place.list_complete()
        resume = found.location if found else None
        self._place.write("start.json", {"nonce": nonce, "tokens": tokens, "resume": resume, "ttl": ttl})
        if ttl:
            self._place.expire()
        return nonce, found

    def _read_hello(self, rank: int, nonce: str) -> str | None:
        hello = self._place.read(f".hello-{rank}")
        return hello.get("token") if hello.get("nonce") == nonce else None

    def _join(self) -> tuple[str, Checkpoint | None]:
        """Answer rank 0 until it has taken the token of this process."""
        token, seen = os.urandom(8).hex(), ("", None)

        def answer() -> dict[str, Any] | None:
            nonlocal seen
            start = self._place.read("start.json")
            found = start.get("nonce", ""), start.get("tokens", {}).get(str(self.rank))
            if found[1] == token:
                return start
            if found != seen:
                seen = found
                self._place.write(f".hello-{self.rank}", {"nonce": found[0], "token": token})
                if found[1]:
                    # A start that this process is no part of: the other ranks may be waiting for it.
                    self._place.write(f"{_AGAIN}{found[0]}", {"rank": self.rank})
            return None

        start = self._wait(answer, "rank 0 to call checkpoints()")
        return start["nonce"], self._place.open(start["resume"]) if start.get("resume") else None

    def _choose(self) -> Checkpoint | None:
        """Return the checkpoint to resume from: the newest complete one of this training, else what `load` names."""
        load, locations = self._settings.get("load", "fresh"), self._settings.get("load_paths", [])
        if load == "never":
            self._place.delete_steps()
            return None
        own = self._place.find_newest()
        if own is not None or load == "fresh":
            return own
        found = self._place.find_elsewhere(locations)
        if found is None and load != "owner":
            raise CheckpointError(f"load={load}: no complete checkpoint in {', '.join(locations)}; correct it")
        return found

    def _exchange(self, step: int) -> bool:
        """Agree with the other ranks whether to save at this step, whether to stop, and on the step to ask again."""
        self._check_peers()
        name = f"{_DUE}{self._nonce}"
        if self.rank == 0:
            now, interval = time.monotonic(), self._settings.get("every_seconds") or math.inf
            self._stop = self._stop or self._signalled
            save = now - self._saved >= interval
            if self.world_size > 1:
                self._stop = self._stop or self._place.has_any(f"{_STOP}{self._nonce}-")
                done = step - self._decisions[-1][0] if self._decisions else 0
                ahead = done * self._place.interval / max(now - self._exchanged, 1e-6)
                self._exchanged = now
                # At most twice as far as the last time: the first steps may be faster than the others.
                self._next = step + max(1, int(min(ahead, 2 * done)))
                self._decisions = [*self._decisions, (step, save, self._stop, self._next)][-_KEPT:]
                self._place.write(name, {"steps": self._decisions})
            return save
        if self._signalled and not self._stop:
            self._write_stop_mark()

        def read_decision() -> Any:
            for at, *decision in self._place.read(name).get("steps", ()):
                if at == step:
                    return decision
                if at > step:
                    # Of decisions that are no longer kept, none was to stop: then rank 0 would wait for this rank.
                    return False, False, at
            return None

        save, self._stop, self._next = self._wait(read_decision, "due() of rank 0")
        return bool(save)

    def _exit_if_stopping(self, step: int) -> None:
        # Several ranks stop where `due` has told all of them to; a single one stops wherever it saves.
        if self._stop or (self._signalled and self.world_size == 1):
            self.flush()
            progress.flush()
            if self.rank == 0:
                if self._signalled:
                    self._has_stop_mark.wait()
                with contextlib.suppress(OSError):
                    self._place.write(f"{_STOP}{self._nonce}-0", {})
            raise Stopped(f"it was told to stop; the checkpoint of step {step} is complete")

    def _write_stop_mark(self) -> None:
        """Tell the other ranks, and a start that comes after this one, that this process was told to stop."""
        with contextlib.suppress(OSError):
            self._place.write(f"{_STOP}{self._nonce}-{self.rank}", {"until": time.time() + self._grace})
        self._has_stop_mark.set()

    def _is_ending(self, nonce: str, rank: int, since: float) -> bool:
        """Return whether a process of another start, or of this one, was told to stop and may still save.

        Only a cluster starts a process before the one in its place has ended.
        """
        mark = self._place.read(f"{_STOP}{nonce}-{rank}") if self._settings.get("overlaps") else {}
        return bool(min(mark.get("until", 0) - time.time(), since + self._grace - time.monotonic()) > 0)

    def _check_peers(self) -> None:
        """End this process if another rank was started again: ranks that wait for each other must be of one start.

        Raises:
            Stopped: One was.
        """
        if self.world_size == 1 or not self._nonce:
            return
        if self.rank:
            again = 0 if self._place.read("start.json").get("nonce", self._nonce) != self._nonce else None
        else:
            again = self._place.read(f"{_AGAIN}{self._nonce}").get("rank")
        if again is None:
            return
        self._again_since = self._again_since or time.monotonic()
        if self.rank or not self._is_ending(self._nonce, again, self._again_since):
            raise Stopped(f"rank {again} was started again, and all ranks resume with it")

    def _commit(self, part: str, step: int, metrics: Mapping[str, Any] | None, begun: float) -> None:
        with self._discard_after_error(part, step):
            if self.rank == 0:
                self._latest = self._write_manifest(part, step, metrics)
            else:
                sums = self._place.hand_in(part)
                self._place.write(f"{part}/.done-{self.rank}", {"files": sums})
                self._wait(
                    lambda: self._place.is_complete(step) or self._read_done(part, 0), f"rank 0 to complete step {step}"
                )
                self._latest = self._place.get(step)
            self._saved = time.monotonic()
            progress.note(checkpoint=step)
            if self.rank == 0 and self._latest is not None:
                took, size = self._saved - begun, self._latest.size / 1e6
                say(f"checkpoint of step {step} is complete ({took:.2f} s, {size:.1f} MB)")
                complete = sorted([*self._complete, self._latest], key=lambda each: each.step)
                keep, keep_best = int(self._settings.get("keep", 3)), self._settings.get("keep_best")
                self._complete = prune(self._place, complete, keep, keep_best)

    def _write_manifest(self, part: str, step: int, metrics: Mapping[str, Any] | None) -> Checkpoint:
        """Collect the files of all ranks, and write the manifest."""
        sums = self._place.collect(part, partial(self._wait_for_others, part))
        if len(sums) > _MAX_FILES:
            raise CheckpointError(f"checkpoint of step {step} has {len(sums)} files; write at most {_MAX_FILES}")
        # The place is asked again: a later start of the same training has taken over if the nonce is another.
        if self._place.read("start.json").get("nonce") != self._nonce:
            raise CheckpointError(f"checkpoint of step {step} was not saved: a newer attempt of this job has started")
        numbers = {str(k): n for k, v in (metrics or {}).items() if (n := progress.to_number(v)) is not None}
        manifest = {
            "version": 1,
            "step": step,
            "world_size": self.world_size,
            "job": env.setting(env.NAME),
            "time": time.time(),
            "metrics": numbers,
            "files": sums,
        }
        return self._place.complete(part, step, manifest)

    def _wait_for_others(self, part: str) -> Sums:
        """Wait until all other ranks have written; return the checksums that they know."""
        sums: Sums = {}
        for rank in range(1, self.world_size):
            done = self._wait(partial(self._read_done, part, rank), f"rank {rank} to save")
            sums = merge(sums, done["files"])
        return sums

    def _read_done(self, part: str, rank: int) -> dict[str, Any]:
        done = self._place.read(f"{part}/.done-{rank}")
        if done.get("failed"):
            raise CheckpointError(f"the checkpoint was not saved: rank {rank} failed; see its log")
        return done

    def _wait(self, ask: Callable[[], Any], what: str) -> Any:
        """Ask until there is an answer.

        Raises:
            CheckpointError: There is none in time.
            Stopped: A rank was started again.
        """
        deadline, polls = time.monotonic() + self._place.timeout, 0
        while not (answer := ask()):
            if time.monotonic() > deadline:
                raise CheckpointError(f"rank {self.rank} waited {self._place.timeout:.0f} s for {what}")
            polls += 1
            if polls % _POLLS_PER_CHECK == 0:
                self._check_peers()
            time.sleep(self._place.poll)
        return answer

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
            threading.Thread(target=self._write_stop_mark, daemon=True).start()
            if self.over.wait(max(1.0, grace - _RESERVE)):
                return
            say("no checkpoint within the grace period after SIGTERM")
            os._exit(128 + signal.SIGTERM)

        threading.Thread(target=end_late, name="trainjob-grace", daemon=True).start()
        signal.signal(signal.SIGTERM, on_signal)

        def restore() -> None:
            """Let SIGTERM end a worker that the training has forked: it does not stop the training."""
            if signal.getsignal(signal.SIGTERM) is on_signal:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            unblock()

        block, unblock = (
            partial(signal.pthread_sigmask, how, [signal.SIGTERM]) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
        )
        # Python forgets a signal for its handlers that reaches a child before the fork has returned in it.
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


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

    def _run(self) -> None:
        try:
            self._commit()
        except (Exception, Stopped) as error:  # noqa: BLE001 -- raised in the thread of the training
            self._error = error
            say(f"save in the background: {error!r}")


def _read_settings() -> dict[str, Any]:
    return dict(json.loads(env.setting(env.CHECKPOINTS) or "{}"))


_store: tuple[tuple[str, str], CheckpointStore] | None = None
