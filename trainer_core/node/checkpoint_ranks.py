"""The ranks of one start of a training, which agree through small files at the place of its checkpoints.

A rank takes only a start.json that contains the random token it has just written, so that what an earlier start left,
of which any rank may have been killed at any moment, is never taken for this one.

A cluster restarts one rank without the others, and replaces a pod while its process still saves. A rank that was
started alone leaves a mark, and the others end to start with it; a rank 0 waits for the one before it. So does the
launcher of a node, before torchrun waits for the others: they would wait for it, in a step or for the first one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import env
from .checkpoint_folder import MARKS, RESULT, CheckpointError

if TYPE_CHECKING:
    from typing import TypeAlias

    from .checkpoint_folder import CheckpointFolder
    from .checkpoint_s3 import CheckpointBucket

    Place: TypeAlias = "CheckpointFolder | CheckpointBucket"

_DUE, _STOP, _AGAIN, _FAILED, _RETURNED, _OVER = MARKS
#: Number of decisions of rank 0 that ranks which are behind can still read.
_KEPT = 32
#: Polls between two checks whether another rank has failed or was started again.
_POLLS_PER_CHECK = 20


class Stopped(SystemExit):
    """The job was told to stop by SIGTERM and its checkpoint is complete, or another rank was started again."""

    __module__ = "trainjob"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.code = 128 + signal.SIGTERM


def mark_launch(place: Place, node: int) -> None:
    """Leave a mark for the ranks of the last start, and for those that wait for the first one of the next."""
    start = place.read("start.json")
    if start.get("tokens") or not node:
        place.prepare(node)
        place.write(f"{_AGAIN}{start.get('nonce', '')}", {"rank": node, "launch": os.urandom(8).hex()})


def read_launch(place: Place) -> str:
    """Return the nonce of the last start and its last launch; the node of a later launch waits for others."""
    nonce = place.read("start.json").get("nonce", "")
    return f"{nonce} {place.read(f'{_AGAIN}{nonce}').get('launch')}"


class Ranks:
    """The ranks of one start."""

    def __init__(self, place: Place, rank: int, size: int, grace: float = 0, overlaps: bool = False) -> None:
        self.place, self.rank, self.size = place, rank, size
        self.nonce = ""
        self._grace, self._overlaps = grace, overlaps
        self._again_since: float | None = None

    def start(self, ttl: int | None, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """As rank 0, sweep what earlier starts left, wait for all ranks, and publish what they resume from."""
        nonce, tokens, since = os.urandom(8).hex(), {}, time.monotonic()
        while self._is_ending(self.place.read("start.json").get("nonce", ""), 0, since):
            time.sleep(self.place.poll)
        self.place.sweep()
        self.place.write("start.json", {"nonce": nonce, "ttl": ttl})
        for rank in range(1, self.size):
            tokens[str(rank)] = self.wait(partial(self._read_hello, rank, nonce), f"rank {rank} to call checkpoints()")
        chosen = choose()
        self.place.write("start.json", {"nonce": nonce, "tokens": tokens, "ttl": ttl, **chosen})
        self.nonce = nonce
        return chosen

    def _read_hello(self, rank: int, nonce: str) -> str | None:
        hello = self.place.read(f".hello-{rank}")
        return hello.get("token") if hello.get("nonce") == nonce else None

    def join(self) -> dict[str, Any]:
        """As another rank, answer rank 0 until it has taken the token of this process; return what it published."""
        token = os.urandom(8).hex()
        seen: Any = None
        # As it was before the function, whose imports may take minutes.
        nonce, _, launch = env.setting(env.LAUNCH).partition(" ")

        def answer() -> dict[str, Any] | None:
            nonlocal seen, nonce, launch
            start = self.place.read("start.json")
            found = start.get("nonce", ""), start.get("tokens", {}).get(str(self.rank))
            if found[1] == token:
                return start
            newest = self.place.read(f"{_AGAIN}{found[0]}").get("launch")
            if found[0] != nonce or not launch:
                nonce, launch = found[0], str(newest)
            if str(newest) not in ("None", launch):
                raise Stopped("another node was started again, and waits for this one")
            if found != seen:
                seen = found
                self.place.write(f".hello-{self.rank}", {"nonce": found[0], "token": token})
                if found[1]:
                    # A start that this process is no part of: the other ranks may be waiting for it.
                    self.place.write(f"{_AGAIN}{found[0]}", {"rank": self.rank})
            return None

        start: dict[str, Any] = self.wait(answer, "rank 0 to call checkpoints()")
        self.nonce = start["nonce"]
        return start

    def is_current(self) -> bool:
        """Return whether no later start of the same training has taken over."""
        return self.place.read("start.json").get("nonce") == self.nonce

    def wait(self, ask: Callable[[], Any], what: str, task: str = "") -> Any:
        """Ask until there is an answer, as a part of a task that other ranks may fail in."""
        deadline, polls = time.monotonic() + self.place.timeout, 0
        while not (answer := ask()):
            if time.monotonic() > deadline:
                raise CheckpointError(f"rank {self.rank} waited {self.place.timeout:.0f} s for {what}")
            polls += 1
            if polls % _POLLS_PER_CHECK == 0:
                self.check(task)
            time.sleep(self.place.poll)
        return answer

    def check(self, task: str | None = None) -> None:
        """Raise an error if this rank would wait for the others in vain."""
        if self.size == 1 or not self.nonce:
            return
        self.place.check()
        if self.rank and self.place.read("start.json").get("nonce", self.nonce) != self.nonce:
            raise Stopped("rank 0 was started again, and all ranks resume with it")
        if (again := self.place.read(f"{_AGAIN}{self.nonce}").get("rank")) is not None:
            self._again_since = since = self._again_since or time.monotonic()
            told = (int(name.rpartition("-")[2]) for name in self.place.list_names(f"{_STOP}{self.nonce}-"))
            if not any(self._is_ending(self.nonce, rank, since) for rank in told):
                raise Stopped(f"rank {again} was started again, and all ranks resume with it")
        for name in self.place.list_names(f"{_FAILED}{self.nonce}-") if task is not None else ():
            failed, rank = name.split("-")[2:]
            if failed in ("", task) and int(rank) != self.rank:
                raise CheckpointError(f"the checkpoint was not saved: rank {rank} failed; see its log")

    def mark_failed(self, task: str = "") -> bool:
        """Let the other ranks know that this one has failed in a task; return whether all have."""
        return self._mark(f"{_FAILED}{self.nonce}-{task}-")

    def share_result(self, result: dict[str, Any]) -> None:
        """Wait until the functions of all ranks have returned, and rank 0 has written the result.

        A rank that ended before would not be there for one that is started again.
        """
        mark, pause = f"{_RETURNED}{self.nonce}-", self.place.poll
        all_returned = self._mark(mark)
        while not (all_returned if self.rank == 0 else self.place.read(RESULT).get("nonce") == self.nonce):
            self.check()
            time.sleep(pause)
            pause = min(1.2 * pause, self.place.interval)
            all_returned = len(self.place.list_names(mark)) >= self.size
        if self.rank == 0:
            self.place.write(RESULT, {"nonce": self.nonce, **result})

    def mark_over(self) -> bool:
        """Let the other ranks know that this one needs nothing more; return whether none does."""
        return self._mark(f"{_OVER}{self.nonce}-")

    def _mark(self, prefix: str) -> bool:
        if self.size == 1:
            return True
        self.place.mark(f"{prefix}{self.rank}")
        return len(self.place.list_names(prefix)) >= self.size

    def mark_stop(self, is_over: bool = False) -> None:
        """Let the other ranks, and a start that waits for this process, know that it was told to stop, or has saved."""
        with contextlib.suppress(OSError):
            until = 0 if is_over else time.time() + self._grace
            self.place.write(f"{_STOP}{self.nonce}-{self.rank}", {"until": until})

    def is_one_told_to_stop(self) -> bool:
        """Return whether a rank has let the others know that it was told to stop."""
        return self.size > 1 and bool(self.place.list_names(f"{_STOP}{self.nonce}-"))

    def _is_ending(self, nonce: str, rank: int, since: float) -> bool:
        """Return whether a process of another start, or of this one, was told to stop and may still save.

        Only a cluster starts a process before the one in its place has ended.
        """
        mark = self.place.read(f"{_STOP}{nonce}-{rank}") if self._overlaps else {}
        return bool(min(mark.get("until", 0) - time.time(), since + self._grace - time.monotonic()) > 0)


class Agreement:
    """What all ranks do at the same call: save, stop, pause, and the call at which they ask again. Rank 0 decides.

    Decisions are kept by the number of the call, as a training may ask at one step several times.
    """

    def __init__(
        self,
        ranks: Ranks,
        is_time: Callable[[], bool],
        is_stopping: Callable[[], bool],
        is_pausing: Callable[[], bool] = bool,
    ) -> None:
        self._ranks, self._is_time, self._is_stopping, self._is_pausing = ranks, is_time, is_stopping, is_pausing
        self._call = self._next = 0
        self._exchanged = time.monotonic()
        #: Of rank 0: the call, whether to save, whether to stop, whether to pause, and the call to ask again.
        self._decisions: list[tuple[int, bool, bool, bool, int]] = []
        #: Whether the ranks have agreed to stop, and to pause.
        self.stop = self.pause = False

    def ask(self, saves: bool) -> bool:
        """Return whether all ranks save now, because it is time."""
        self._call += 1
        if not saves and self._call < self._next:
            return False
        self._ranks.check()
        return self._decide() if self._ranks.rank == 0 else self._follow()

    def _decide(self) -> bool:
        place, now = self._ranks.place, time.monotonic()
        save, self.stop = self._is_time(), self.stop or self._is_stopping() or self._ranks.is_one_told_to_stop()
        self.pause = self._is_pausing()
        if self._ranks.size > 1:
            done = self._call - self._decisions[-1][0] if self._decisions else 0
            ahead = done * place.interval / max(now - self._exchanged, 1e-6)
            self._exchanged = now
            # At most twice as far as the last time: the first steps may be faster than the others.
            self._next = self._call + max(1, int(min(ahead, 2 * done)))
            *older, last = *self._decisions, (self._call, save, self.stop, self.pause, self._next)
            # Rank 0 may be far ahead of a save in the background, which a rank that is behind takes part in.
            saves = [each for each in older[: 1 - _KEPT] if each[1]][-1:]
            self._decisions = [*saves, *older[1 - _KEPT :], last]
            place.write(f"{_DUE}{self._ranks.nonce}", {"calls": self._decisions})
        return save

    def _follow(self) -> bool:
        if self._is_stopping() and not self.stop:
            self._ranks.mark_stop()
        save, self.stop, self.pause, self._next = self._ranks.wait(self._read_decision, "due() of rank 0")
        return bool(save)

    def _read_decision(self) -> Any:
        for call, *decision in self._ranks.place.read(f"{_DUE}{self._ranks.nonce}").get("calls", ()):
            if call == self._call:
                return decision
            if call > self._call:
                # Decisions that are no longer kept were to continue: rank 0 would wait for this rank.
                return False, False, False, call
        return None
