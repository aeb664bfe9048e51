"""Saves of a training: each step is complete on disk afterwards, or absent.

A save in the order in which it happens, on every rank: a folder for its files is made, the training writes them, and
they are made durable. A rank other than 0 then leaves a mark. Rank 0 waits for the marks and writes the manifest, with
which the checkpoint is complete. The last two of these may happen in a thread, while the training continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import beats, env, progress, termination
from .checkpoint_folder import DONE, PART, Checkpoint, CheckpointError, build_error, say
from .checkpoint_ranks import Ranks, Stopped
from .checkpoint_tree import Tree, check_closed, merge, parse_tree
from .jsonable import to_text

if TYPE_CHECKING:
    from .checkpoint_ranks import Place

_MAX_FILES = 20_000


class Part(NamedTuple):
    """A checkpoint that is being written."""

    step: int
    #: Number of the save, by which ranks let each other know that it failed.
    task: str
    #: Name of its folder.
    name: str
    #: Whether the step was complete before: nothing is saved again.
    is_complete: bool
    #: When it began, in seconds of the monotonic clock.
    begun: float


class Saves:
    """Writes the checkpoints of one rank."""

    def __init__(
        self, place: Place, ranks: Ranks, newest: Checkpoint | None, is_own: bool, keep: Callable[[Checkpoint], None]
    ) -> None:
        #: The newest complete checkpoint, at first perhaps of another training; and whether it is of this one.
        self.newest, self.is_own = newest, is_own
        #: When the last save began, or ended if it was in the foreground; in seconds of the monotonic clock.
        self.last = time.monotonic()
        self._place, self._ranks, self._keep = place, ranks, keep
        self._count = 0
        #: Where the last save writes its files.
        self._folder = Path()
        self._background: _BackgroundSave | None = None

    @property
    def is_running(self) -> bool:
        """Whether a save in the background has not ended."""
        return self._background is not None and not self._background.is_over()

    def begin(self, step: int) -> Part:
        """Begin to save a step once the save before is complete."""
        self.flush()
        with self.one_error(shared=True):
            self._ranks.check()
            is_complete = self._place.is_complete(step)
        if not is_complete and self.is_own and self.newest and step < self.newest.step:
            raise CheckpointError(
                f"step {step} is before the newest checkpoint, of step {self.newest.step}; begin at latest().step, or "
                "set load='never' in Checkpoints"
            )
        self._count += 1
        # A save in the background is not due again while it runs.
        self.last = time.monotonic()
        name = f"{PART}{step:012d}-{self._ranks.nonce}-{self._count}"
        return Part(step, str(self._count), name, is_complete, self.last)

    @contextlib.contextmanager
    def write(self, part: Part) -> Iterator[Path]:
        """Give the training a folder for its files, which is deleted again if the block raises an exception."""
        # What is written for a complete step is not kept, and each rank writes into another folder.
        name = f"{part.name}-{self._ranks.rank}" if part.is_complete else part.name
        with self._discard_after_error(part._replace(name=name)):
            self._folder = self._place.create_part(name)
            yield self._folder
            check_closed(self._folder)
        if part.is_complete:
            self._place.discard_part(name)

    def run(self, save: Callable[[], None], background: bool) -> None:
        """Complete a save, in a thread if `background` is set."""
        if background:
            self._background = _BackgroundSave(save)
        else:
            save()
            self.last = time.monotonic()

    def flush(self) -> None:
        """Wait for a save in the background, and raise what went wrong with it."""
        if self._background is not None:
            with beats.saving():
                error = self._background.wait()
            self._background = None
            if error is not None:
                raise error

    def commit(self, part: Part, metrics: Mapping[str, Any] | None) -> None:
        """Complete the checkpoint of a part that all ranks have written."""
        with self._discard_after_error(part):
            saved: Checkpoint | None
            if self._ranks.rank == 0:
                saved = self._write_manifest(part, metrics)
            else:
                tree = self._place.store_part(part.name)
                self._place.write(f"{DONE}{part.name}-{self._ranks.rank}", {"files": tree})
                is_complete = partial(self._place.is_complete, part.step)
                self._ranks.wait(is_complete, f"rank 0 to complete step {part.step}", part.task)
                saved = self._place.get(part.step)
        self.newest, self.is_own = saved, True
        self.note(checkpoint=part.step)
        self._place.forget_fetched()
        if self._ranks.rank == 0 and saved is not None:
            took = time.monotonic() - part.begun
            say(f"checkpoint of step {part.step} is complete ({took:.2f} s, {saved.size / 1e6:.1f} MB)")
            self._keep(saved)

    def note(self, **steps: int) -> None:
        """Add steps to further lines of progress, and to the record of this node, which survives its log."""
        progress.note(**steps)
        if self._ranks.rank == 0 and env.setting(env.NAME):
            termination.report_values(Path(env.setting(env.TERMINATION_LOG)), **steps)

    @contextlib.contextmanager
    def one_error(self, shared: bool = False) -> Iterator[None]:
        """Raise an OSError as a CheckpointError of one line; let the other ranks know if they wait for this one."""
        try:
            yield
        except OSError as error:
            if shared:
                with contextlib.suppress(OSError):
                    self._ranks.mark_failed()
            raise build_error(f"checkpoints cannot be kept at {self._place.root}", error) from error

    @contextlib.contextmanager
    def _discard_after_error(self, part: Part) -> Iterator[None]:
        """Delete an unfinished checkpoint and let the other ranks know, if the block raises an exception."""
        try:
            yield
        except BaseException as error:
            reason, is_last = self._find_reason(error, part), self._ranks.size == 1
            if isinstance(reason, Stopped):
                # After a restart of rank 0 nothing sweeps what a rank of the start before writes.
                is_last = is_last or self._ranks.rank > 0
            else:
                with contextlib.suppress(OSError):
                    is_last = self._ranks.mark_failed(part.task)
            # The last rank deletes what others may still write into.
            if is_last or not self._place.shares_parts:
                self._place.discard_part(part.name)
            if reason is error:
                raise
            raise reason from error

    def _find_reason(self, error: BaseException, part: Part) -> BaseException:
        """Return what is raised for an error: an OSError may follow from what another rank did."""
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            # torch raises a RuntimeError about positions on a full disk, and other libraries what they like. Some FUSE
            # file systems report no blocks at all.
            if isinstance(error, Exception) and disk.f_blocks and disk.f_bavail * disk.f_frsize < 2**16:
                error = OSError(errno.ENOSPC, f"the disk is full: {error!r}")
        if not isinstance(error, OSError):
            return error
        try:
            self._ranks.check(part.task)
        except (CheckpointError, Stopped) as other:
            return other
        except OSError:
            pass  # The same one.
        return build_error(f"checkpoint of step {part.step} was not saved in {self._place.root}", error)

    def _write_manifest(self, part: Part, metrics: Mapping[str, Any] | None) -> Checkpoint:
        """Collect the files of all ranks, and write the manifest."""
        step = part.step
        tree = self._place.collect(part.name, partial(self._wait_for_others, part))
        if len(tree) > _MAX_FILES:
            raise CheckpointError(f"checkpoint of step {step} has {len(tree)} files; write at most {_MAX_FILES}")
        if not self._ranks.is_current():
            raise CheckpointError(f"checkpoint of step {step} was not saved: a newer attempt of this job has started")
        numbers = {to_text(str(k)): n for k, v in (metrics or {}).items() if (n := progress.to_number(v)) is not None}
        manifest = {
            "step": step,
            "world_size": self._ranks.size,
            "job": env.setting(env.NAME),
            "time": time.time(),
            "metrics": numbers,
            "files": tree,
        }
        if objective := progress.get_objective():
            manifest["objective"] = objective.copy_values()
        return self._place.complete(part.name, step, manifest)

    def _wait_for_others(self, part: Part) -> Tree:
        """Wait until all other ranks have written; return what they have stored."""
        tree: Tree = {}
        for rank in range(1, self._ranks.size):
            read = partial(self._place.read, f"{DONE}{part.name}-{rank}")
            done = self._ranks.wait(read, f"rank {rank} to save", part.task)
            tree = merge(tree, parse_tree(done["files"]))
        return tree


class _BackgroundSave:
    """A thread that completes a checkpoint."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=env.SAVE_THREAD)
        self._thread.start()

    def wait(self) -> BaseException | None:
        self._thread.join()
        return self._error

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._save()
        except (Exception, Stopped) as error:  # noqa: BLE001 -- raised in the thread of the training
            self._error = error
            say(f"save in the background: {error!r}")
