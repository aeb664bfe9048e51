"""The attendant of a node: notices that its ranks are silent, and collects the stacks of their threads.

On the local backend the supervisor is the attendant, in a container `launch`. Only with the option `Stalled`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import beats, progress, termination

PREFIX = "[trainjob:stack] "
#: Exit code of a node that has stalled: that of `timeout`.
STALLED = 124
#: Seconds between two checks, and most seconds in which a few ranks print their stacks.
_PAUSE = 5.0
_STACK_SECONDS = 2.0
#: Seconds between two reads of what they have printed.
_STACK_PAUSE = 0.1
_MAX_LINES = 200
#: How many times the longest silence of this start is no stall.
_PATIENCE = 3
_SAVE_FACTOR = 4
#: A silence is reported at each of so many parts of the limit, from a quarter on.
_PARTS = 32
_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)(?: \[(.*)\])?")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
#: Folders into which the user's files are unpacked: those of `load_function.load`.
_UNPACKED = re.compile(r'(?<=  File ").*[/\\](?:code-|trainjob_)[0-9a-f]{12}[/\\]')
#: Files that are not the user's.
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*|trainer_core[/\\]node)[/\\]|^<frozen")

#: What is not the user's in the stacks of each rank.
_BOOTSTRAP, _SERVER = "/trainer_core/node/bootstrap.py", "/trainer_core/node/status_server.py"


class _Record(NamedTuple):
    """What a rank or a child of it writes: see `beats.LAYOUT`."""

    time: int = 0
    phase: int = beats.RUN
    pid: int = 0
    main_thread: int = 0
    step: float = -1.0
    has_reported: int = 0


class _Rank(NamedTuple):
    number: int
    record: _Record
    #: Fields of ``/proc/<pid>/status``; none without such a file.
    status: Mapping[str, str]


class Attendant:
    """Watches one start of a node by the files in a folder, which no other start has.

    Attributes:
        pause: Seconds between two checks.
        code: Exit code of the node, once `check` has returned True: 0 if all ranks have returned and do not exit.
        reason: Why the node is ended, once `print_stacks` has returned.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        write: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        after: float = settings["after"]
        self.pause, self.code, self.reason = min(_PAUSE, after / 8), STALLED, ""
        self._folder, self._write, self._clock, self._after = folder, write, clock, after
        self._startup: float | None = settings.get("startup")
        self._save: float = settings.get("save") or _SAVE_FACTOR * after
        self._checked = clock()
        #: Seconds in which the attendant itself ran: that nothing ran, it included, is no silence.
        self._time = 0.0
        #: Those of them at the last sign of any rank, and the longest time between two steps.
        self._last = self._longest = 0.0
        self._newest = _Record()
        self._step = -1.0
        #: The processes of the ranks, also of those that have ended, and the ranks that run.
        self._pids: dict[int, int] = {}
        self._ranks: dict[int, _Rank] = {}
        #: Whether a rank has reported progress. Libraries report on rank 0 only: that counts for the others.
        self._has_begun = False
        #: Whether a rank has ended before its function returned.
        self._has_lost = False
        self._stack = ""
        self._has_warned = False
        #: Parts of the limit in the last report; 0 if it was about no silence.
        self._reported = 0

    def check(self) -> bool:
        """Return whether the node is to be ended. Without any sign of life a line says so, once."""
        now = self._clock()
        self._time += min(now - self._checked, 2 * self.pause)
        self._checked = now
        self._read()
        self._warn()
        limit = self._get_limit()
        self._report_silence(limit)
        has_returned = all(rank.record.phase == beats.RETURNED for rank in self._ranks.values())
        self.code = 0 if has_returned and not self._has_lost else STALLED
        return self._time - self._last > limit

    def is_silent(self) -> bool:
        """Return whether the stacks are worth printing when the node gets SIGTERM: no beat lately, or none ever."""
        self._read()
        is_running = any(rank.record.phase < beats.OVER for rank in self._ranks.values())
        return is_running and (not self._has_begun or self._time - self._last >= self._after / 2)

    def print_stacks(self) -> None:
        """Print the stacks of all threads of the ranks, and set the reason.

        Ranks that are stopped continue, for only so can they print.
        """
        ranks = self._list_silent_first()
        offsets = {rank.number: self._ask_for_stacks(rank) for rank in ranks}
        self._wait_for_stacks([(rank, offset) for rank in ranks if (offset := offsets[rank.number]) is not None])
        main: list[str] = []
        others: list[str] = []
        share = max(2, _MAX_LINES // max(1, len(ranks)))
        for rank in ranks:
            threads = self._read_stacks(rank, offsets[rank.number])
            if not threads:
                main.append(f"rank {rank.number} prints no stack: {_describe(rank)}")
            for index, (name, frames) in enumerate(threads):
                lines = [f"rank {rank.number} {name} (most recent call first)", *frames]
                (others if index else main).extend(lines if index else lines[:share])
            if rank is ranks[0]:
                self._stack = "\n".join(threads[0][1]) if threads else _describe(rank)
                where = f"is in {_locate(threads[0][1])}" if threads else f"prints no stack ({_describe(rank)})"
                was = "was stopped by a signal and " * _is_stopped(rank)
                self.reason = f"{self._explain(rank)}; rank {rank.number} {was}{where}"
        shown = [f"{PREFIX}{line}\n" for line in [*main, *others][: max(_MAX_LINES, len(main))]]
        self._write("".join([f"trainjob: {self.reason}\n", *shown]))

    def report(self, path: Path) -> None:
        """Record why the node is ended, unless it is complete or a rank has failed before."""
        if not self.code:
            return
        number = self._list_silent_first()[0].number
        error = {"type": "trainjob.Stalled", "message": self.reason, "traceback": self._stack, "rank": number}
        termination.report_error_record({"error": error}, path)

    def kill(self) -> None:
        for rank in self._ranks.values():
            with contextlib.suppress(OSError):
                os.kill(rank.record.pid, signal.SIGKILL)

    def _warn(self) -> None:
        is_mute = not self._has_begun and any(rank.record.phase == beats.RUN for rank in self._ranks.values())
        if is_mute and self._time >= self._after and not self._has_warned:
            self._has_warned = True
            self._write("trainjob: no call of progress() yet: until the first one a hang cannot be noticed\n")

    def _report_silence(self, limit: float) -> None:
        """Repeat the last report of the training with the silence since; without it once the silence is over.

        Only on the node of rank 0, whose log has the reports.
        """
        if 0 not in self._pids:
            return
        silent = self._time - self._last
        part = min(_PARTS, int(_PARTS * silent / limit))
        if part < _PARTS / 4:
            part = 0
        if part == self._reported:
            return
        self._reported, report = part, {}
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # Any program may write it.
            report = dict(json.loads((self._folder / beats.REPORT).read_bytes()))
        silence = {"silent": [round(silent, 1), round(limit, 1)]} if part else {}
        self._write(progress.PREFIX + json.dumps({**report, **silence}) + "\n")

    def _list_silent_first(self) -> list[_Rank]:
        """Return the ranks: those that have fallen silent, those that never report, those that have returned."""

        def order(rank: _Rank) -> tuple[bool, bool, int]:
            return rank.record.phase >= beats.OVER, not rank.record.has_reported, rank.record.time

        return sorted(self._ranks.values(), key=order)

    def _wait_for_stacks(self, asked: Sequence[tuple[_Rank, int]]) -> None:
        """Wait until each rank has printed all."""
        end, before = time.monotonic() + _STACK_SECONDS * (1 + len(asked) / 16), [-1]
        while asked and time.monotonic() < end:
            sizes = [self._get_size(rank) for rank, _ in asked]
            if sizes == before and all(size > offset for size, (_, offset) in zip(sizes, asked, strict=True)):
                return
            before = sizes
            time.sleep(_STACK_PAUSE)

    def _read(self) -> None:
        """Note the last sign of any process of the ranks, and which ranks run."""
        own, children = self._read_records()
        self._ranks = {
            n: _Rank(n, each, status) for n, each in own.items() if (status := _read_status(each.pid)) is not None
        }
        lost = {n for n, each in own.items() if n not in self._ranks and each.phase < beats.OVER}
        numbers = {each.pid: n for n, each in own.items() if n not in lost}
        children = [child for child in children if child.main_thread in numbers]
        for child in children:
            rank = self._ranks.get(numbers[child.main_thread])
            if rank and child.phase > rank.record.phase and _read_status(child.pid) is not None:
                self._ranks[rank.number] = rank._replace(record=rank.record._replace(phase=child.phase))
        signs = [*(each for n, each in own.items() if n not in lost), *children]
        self._has_begun, self._has_lost = any(each.has_reported for each in signs), bool(lost)
        pids, newest = {n: each.pid for n, each in own.items()}, max([self._newest, *signs])
        is_traced = any(rank.status.get("TracerPid", "0") != "0" for rank in self._ranks.values())
        if newest.time > self._newest.time or is_traced:
            is_step = all(each.has_reported and each.phase == beats.RUN for each in (self._newest, newest))
            if is_step and pids == self._pids:
                self._longest = max(self._longest, self._time - self._last)
            self._last, self._step = self._time, newest.step if newest.step >= 0 else self._step
        self._pids, self._newest = pids, newest

    def _read_records(self) -> tuple[dict[int, _Record], list[_Record]]:
        """Return the records of the ranks and of their children."""
        ranks: dict[int, _Record] = {}
        children = []
        with contextlib.suppress(OSError):  # The training has emptied its temporary folder: none is judged.
            for path in self._folder.iterdir():
                number, _, child = path.name.partition("-")
                data = path.read_bytes() if number.isdecimal() else b""
                if len(data) < beats.LAYOUT.size:
                    continue
                record = _Record(*beats.LAYOUT.unpack_from(data))
                if child:
                    children.append(record)
                else:
                    ranks[int(number)] = record
        return ranks, children

    def _get_limit(self) -> float:
        """Return the longest silence that is no stall: that of the rank for which the others may wait."""
        startup = self._startup if 0 in self._pids else None  # Other nodes may never report.
        limits: dict[int, float | None] = {
            beats.RUN: max(self._after, _PATIENCE * self._longest) if self._has_begun else startup,
            beats.SAVE: self._save,
        }
        phases = {rank.record.phase for rank in self._ranks.values()}
        if phases == {beats.RETURNED}:
            return self._after
        return max((limit for phase in phases if (limit := limits.get(phase)) is not None), default=math.inf)

    def _explain(self, rank: _Rank) -> str:
        seconds, phase = self._time - self._last, rank.record.phase
        silence = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        what = {
            beats.SAVE: f"a checkpoint is not saved after {silence}",
            beats.RETURNED: f"the function has returned, and the process does not end in {silence}",
        }
        if phase == beats.RUN and not self._has_begun:
            return f"no progress in the first {silence}"
        after = f" after step {self._step:g}" if self._step >= 0 else ""
        return what.get(phase, f"no progress for {silence}{after}")

    def _ask_for_stacks(self, rank: _Rank) -> int | None:
        """Let a rank print its stacks; return the size of the file before, or None if it does not catch the signal."""
        size = self._get_size(rank)
        bit = 1 << (beats.DUMP_SIGNAL - 1)
        with contextlib.suppress(OSError):
            if _is_stopped(rank):
                os.kill(rank.record.pid, signal.SIGCONT)
            if int(rank.status.get("SigCgt", "0"), 16) & bit and self._has_open(rank, self._get_path(rank)):
                os.kill(rank.record.pid, beats.DUMP_SIGNAL)
                return size
        return None

    @staticmethod
    def _has_open(rank: _Rank, path: Path) -> bool:
        """Return whether a rank has a file open; else it would print into another one, which has its descriptor."""
        file = path.stat()
        return any(os.path.samestat(file, each.stat()) for each in Path(f"/proc/{rank.record.pid}/fd").iterdir())

    def _get_path(self, rank: _Rank) -> Path:
        return self._folder / f"{rank.number}{beats.STACKS}"

    def _get_size(self, rank: _Rank) -> int:
        path = self._get_path(rank)
        return path.stat().st_size if path.is_file() else 0

    def _read_stacks(self, rank: _Rank, offset: int | None) -> list[tuple[str, list[str]]]:
        """Return name and lines of each thread, the main thread first."""
        path = self._get_path(rank)
        if offset is None or not path.is_file():
            return []
        threads: list[tuple[str, list[str]]] = []
        for line in path.read_bytes()[offset:].decode("utf-8", "replace").splitlines():
            if match := _THREAD.match(line):
                is_main = int(match[1], 16) == rank.record.main_thread
                threads.append(("MainThread" if is_main else match[2] or f"thread 0x{match[1]}", []))
            elif threads and line.strip() and _BOOTSTRAP not in line:
                threads[-1][1].append(_UNPACKED.sub("", line))
        users = [thread for thread in threads if not any(_SERVER in line for line in thread[1])]
        return sorted(users, key=lambda thread: thread[0] != "MainThread")


def _read_status(pid: int) -> dict[str, str] | None:
    """Return the fields of ``/proc/<pid>/status``; none on a system without it, None for a process that has ended."""
    try:
        os.kill(pid, 0)
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except ProcessLookupError:
        return None
    except OSError:
        return {}
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return None if fields.get("State", "")[:1] in ("Z", "X") else fields


def _is_stopped(rank: _Rank) -> bool:
    return rank.status.get("State", "")[:1] == "T"


def _describe(rank: _Rank) -> str:
    """Return the state of a process that prints no stack."""
    parts = [f"state {rank.status.get('State', 'unknown')}"]
    for name in ("wchan", "syscall"):
        with contextlib.suppress(OSError):
            parts.append(f"{name} {Path(f'/proc/{rank.record.pid}/{name}').read_text('ascii').strip()}")
    return ", ".join(parts)


def _locate(frames: Sequence[str]) -> str:
    """Return what a thread does: the innermost function, and the innermost line that is the user's."""
    matches = [match for match in map(_FRAME.match, frames) if match]
    if not matches:
        return "native code"
    own = next((match for match in matches if not _LIBRARY.search(match[1])), matches[0])
    return f"{matches[0][3]} ({os.path.basename(own[1])}:{own[2]})"
