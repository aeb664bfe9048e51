"""The attendant of a node: notices that its ranks are silent, and collects the stacks of their threads.

On the local backend the supervisor is the attendant, in a container `launch`. Only with the option `Stalled`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """What a rank writes: see `beats.LAYOUT`."""

    time: int
    phase: int
    pid: int
    main_thread: int
    step: float


@dataclass
class _Rank:
    number: int
    record: _Record
    #: When its last beat was seen, on the clock of the attendant.
    seen: float
    #: Fields of ``/proc/<pid>/status``; none without such a file.
    status: Mapping[str, str] = field(default_factory=dict)


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
        after = settings["after"]
        self.pause, self.code, self.reason = min(_PAUSE, after / 8), STALLED, ""
        self._folder, self._write, self._clock, self._after = folder, write, clock, after
        self._limits = {
            beats.START: settings.get("startup"),
            beats.RUN: after,
            beats.SAVE: settings.get("save") or _SAVE_FACTOR * after,
            beats.RETURNED: after,
        }
        self._checked = self._begun = clock()
        #: Seconds in which the attendant itself ran: that nothing ran, it included, is no silence.
        self._time = 0.0
        self._longest = 0.0
        self._ranks: dict[int, _Rank] = {}
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
        alive = list(self._ranks.values())
        if has_returned := bool(alive) and all(rank.record.phase == beats.RETURNED for rank in alive):
            judged = alive
        else:
            judged = [r for r in alive if r.record.phase != beats.RETURNED and self._get_limit(r) is not None]
        self._report_silence(judged)
        self.code = 0 if has_returned and not self._has_lost else STALLED
        return bool(judged) and all(self._is_over(rank) for rank in judged)

    def is_silent(self) -> bool:
        """Return whether the stacks are worth printing when the node gets SIGTERM: no beat lately, or none ever."""
        self._read()
        ranks = [rank for rank in self._ranks.values() if rank.record.phase < beats.OVER]
        return bool(ranks) and all(not rank.record.phase or self._time - rank.seen >= self._after / 2 for rank in ranks)

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
        is_mute = all(rank.record.phase == beats.START for rank in self._ranks.values())
        if self._ranks and is_mute and self._time >= self._after and not self._has_warned:
            self._has_warned = True
            self._write("trainjob: no call of progress() yet: until the first one a hang cannot be noticed\n")

    def _report_silence(self, judged: Sequence[_Rank]) -> None:
        """Repeat the last report of the training with the silence since; without it once the silence is over.

        Only on the node of rank 0, whose log has the reports.
        """
        if 0 not in self._ranks:
            return
        limits = [(self._time - rank.seen, self._get_limit(rank) or 0.0) for rank in judged]
        silent, limit = min(limits, key=lambda each: each[0] - each[1], default=(0.0, 1.0))
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
        return sorted(self._ranks.values(), key=lambda rank: (rank.record.phase >= beats.OVER, rank.record.time))

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
        found: dict[int, _Rank] = {}
        records: dict[int, _Record] = {}
        with contextlib.suppress(OSError):  # The training has emptied its temporary folder: none is judged.
            for path in self._folder.iterdir():
                data = path.read_bytes() if path.name.isdecimal() else b""
                if len(data) >= beats.LAYOUT.size:
                    records[int(path.name)] = _Record(*beats.LAYOUT.unpack_from(data))
        self._has_lost = False
        for number, record in records.items():
            status = _read_status(record.pid)
            if status is None:
                self._has_lost |= record.phase < beats.OVER
                continue
            known = self._ranks.get(number)
            rank = found[number] = known or _Rank(number, record, self._time)
            if rank.record.time != record.time or status.get("TracerPid", "0") != "0":
                if rank.record.phase == record.phase == beats.RUN and rank.record.pid == record.pid:
                    self._longest = max(self._longest, self._time - rank.seen)
                step = record.step if record.step >= 0 else rank.record.step
                rank.record, rank.seen = record._replace(step=step), self._time
            rank.status = status
        self._ranks = found

    def _get_limit(self, rank: _Rank) -> float | None:
        limit: float | None = self._limits.get(rank.record.phase)
        return max(limit or 0.0, _PATIENCE * self._longest) if rank.record.phase == beats.RUN else limit

    def _is_over(self, rank: _Rank) -> bool:
        return self._time - rank.seen > (self._get_limit(rank) or 0)

    def _explain(self, rank: _Rank) -> str:
        seconds, phase = self._time - rank.seen, rank.record.phase
        silence = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        what = {
            beats.START: f"no progress in the first {silence}",
            beats.SAVE: f"a checkpoint is not saved after {silence}",
            beats.RETURNED: f"the function has returned, and the process does not end in {silence}",
        }
        after = f" after step {rank.record.step:g}" if rank.record.step >= 0 else ""
        return what.get(phase, f"no progress for {silence}{after}")

    def _ask_for_stacks(self, rank: _Rank) -> int | None:
        """Let a rank print its stacks; return the size of the file before, or None if it does not catch the signal."""
        size = self._get_size(rank)
        bit = 1 << (beats.DUMP_SIGNAL - 1)
        with contextlib.suppress(OSError):
            if _is_stopped(rank):
                os.kill(rank.record.pid, signal.SIGCONT)
            if int(rank.status.get("SigCgt", "0"), 16) & bit:
                os.kill(rank.record.pid, beats.DUMP_SIGNAL)
                return size
        return None

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
