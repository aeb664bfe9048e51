"""The lines of one step of a job: through restarts, replaced pods and broken connections, none lost, none twice.

What a cluster does not keep cannot be read: the log of a pod that is gone, of a container before its last restart but
one, and what the kubelet has rotated away (it serves the newest file of a log, 10 MiB unless it is set up otherwise).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from typing import Any, TypeAlias

from trainer_core import waiting
from trainer_core.cluster.answers import BrokenOffError, NotThereError, RejectedError
from trainer_core.cluster.api import LogPart
from trainer_core.cluster.logcursor import LogCursor, PlaceLostError
from trainer_core.cluster.pods import ContainerFacts, PodFacts
from trainer_core.errors import BackendUnavailableError

__all__ = ["lines", "tail"]

PodLog: TypeAlias = Callable[[str, LogPart], Generator[bytes, None, None]]

_FIRST_PAUSE = 0.2
_MAX_PAUSE = 5.0
_SLOWER = 1.5
#: Seconds for which to try to read what is left when the job has ended.
_MAX_SECONDS_AFTER = 30.0


def lines(
    pod_log: PodLog,
    find_pods: Callable[[], Sequence[PodFacts]],
    container: str,
    follow: bool,
    ended: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    r"""Yield the lines of a step, without line ends.

    Bytes that are no UTF-8 come as ``\xNN``. A line of more than 256 KiB comes in pieces. Memory does not grow with
    the log. Where a container was restarted, its log before the restart comes first.

    Args:
        pod_log: Returns the bytes of the log of a pod, however they are cut: `Api.pod_log`.
        find_pods: Returns the step's pods that there are, replaced ones too, oldest first.
        container: The container of these pods; empty for the one that does a pod's work.
        follow: Go on until the job has ended, wait for pods that are not there yet, bear it when the cluster is away.
        ended: Whether the job has ended or is gone; asked when there is nothing more to read.
        clock: Seconds that only grow.
        pause: Waits for so many seconds.

    Raises:
        BackendUnavailableError: Logs may not be read, or the cluster is away for too long.
    """
    step = _StepLog(pod_log, find_pods, container)
    delay = _FIRST_PAUSE
    away_since: float | None = None
    while True:
        step.came = False
        over = not follow
        try:
            # Asked before reading: what is written before the end is read after it was seen.
            over = over or ended()
            yield from step.read(follow)
        except BackendUnavailableError as error:
            # A stream that breaks off shows that the cluster is there.
            there = step.came or (isinstance(error, BrokenOffError) and not over)
            away_since = clock() if there or away_since is None else away_since
            patience = _MAX_SECONDS_AFTER if over else waiting.MAX_SECONDS_AWAY
            if not error.transient or clock() - away_since > patience:
                raise
        else:
            if over:
                break
            away_since = None
        delay = _FIRST_PAUSE if step.came else min(_MAX_PAUSE, delay * _SLOWER)
        pause(delay)
    yield from step.flush()


def tail(
    pod_log: PodLog, pods: Sequence[PodFacts], container: str, place: Mapping[str, Any], most: int, whole: bool
) -> tuple[list[str], dict[str, Any], bool]:
    """Return lines of a step from a place on, the place after them, and whether they are all. Nothing is waited for.

    Args:
        pod_log: As for `lines`.
        pods: The step's pods that there are, oldest first.
        container: The container of these pods.
        place: What was returned before; empty to begin at the beginning.
        most: How many lines at most, about.
        whole: A last line without an end counts: nothing can follow it.
    """
    found: list[str] = []
    reached: dict[str, Any] = {}
    complete = True
    for pod in pods:
        log = _PodLog(pod_log, pod.name, container, place.get(pod.uid))
        try:
            lines_, all_ = log.some(pod, most - len(found), whole) if len(found) < most else ([], False)
        except BackendUnavailableError:
            # Of the other pods it may be read; of this one the next time, from where it was.
            log, lines_, all_ = _PodLog(pod_log, pod.name, container, place.get(pod.uid)), [], False
        found += lines_
        complete = complete and all_
        if log.place:
            reached[pod.uid] = log.place
    return found, reached, complete


class _StepLog:
    """The logs of a step's pods, one after the other in the order in which the pods were created."""

    def __init__(self, pod_log: PodLog, find_pods: Callable[[], Sequence[PodFacts]], container: str) -> None:
        self.came = False
        self._pod_log = pod_log
        self._find_pods = find_pods
        self._container = container
        self._logs: dict[str, _PodLog] = {}

    def read(self, follow: bool) -> Iterator[str]:
        """Yield what is new of each pod; of one that runs, if followed, to its end.

        Raises:
            BackendUnavailableError: Of one of them it could not be read; of the others it was.
        """
        pods = self._find_pods()
        for uid in self._logs.keys() - {pod.uid for pod in pods}:
            yield from self._logs.pop(uid).flush()
        failure = None
        for pod in pods:
            log = self._logs.setdefault(pod.uid, _PodLog(self._pod_log, pod.name, self._container))
            try:
                for line in log.read(pod, follow):
                    self.came = True
                    yield line
            except BrokenOffError:
                # Its next lines come before those of the next pod.
                raise
            except BackendUnavailableError as error:
                # Not at once: where a machine is lost, the pod that replaces its pod runs on another.
                failure = error
        if failure is not None:
            raise failure

    def flush(self) -> Iterator[str]:
        """Yield last lines that have no end."""
        for log in self._logs.values():
            yield from log.flush()


class _EnoughError(Exception):
    """As many lines were read as were wanted."""


class _PodLog:
    """The log of one container of one pod."""

    def __init__(self, pod_log: PodLog, pod: str, container: str, place: Sequence[int] | None = None) -> None:
        self._pod_log = pod_log
        self._pod = pod
        self._container = container
        # Number of the run (of the container) that was begun, and of the one that was read to its end.
        self._begun, self._done, *given = place or (-1, -1)
        self._cursor = LogCursor(place=given)
        self._room: float = inf

    @property
    def place(self) -> list[int]:
        """How far it was read, as plain numbers; empty where nothing was."""
        given = self._cursor.place
        return [self._begun, self._done, *given] if given or self._begun >= 0 else []

    def some(self, pod: PodFacts, most: int, whole: bool) -> tuple[list[str], bool]:
        """Return what is new, up to about so many lines, and whether that is all."""
        found: list[str] = []
        self._room = most
        try:
            for line in self.read(pod, False, whole):
                found.append(line)
        except _EnoughError:
            return found, False
        return found, True

    def read(self, pod: PodFacts, follow: bool, whole: bool = True) -> Generator[str, None, None]:
        """Yield what is new since the last time.

        Args:
            pod: The pod, as it is now.
            follow: Go on as long as the container runs.
            whole: Of one that runs and is not followed, a last line without an end counts.
        """
        facts = _facts(pod, self._container)
        self._container = facts.name if facts else self._container
        if facts is None or not (facts.running or facts.last_end) or facts.restarts == self._done:
            return
        live = follow and facts.running is not None
        again = facts.restarts == self._begun
        ends = whole or facts.running is None
        if not again:
            yield from self._earlier(facts)
        try:
            yield from self._stream(follow=live, strict=again, ends=ends)
        except PlaceLostError:
            # It was restarted just now, or the kubelet has begun another file.
            yield from self._earlier(facts)
            yield from self._stream(follow=live, ends=ends)
        self._begun = facts.restarts
        if facts.running is None:
            self._done = facts.restarts

    def flush(self) -> Iterator[str]:
        """Yield a last line that has no end."""
        yield from self._cursor.flush()

    def _earlier(self, facts: ContainerFacts) -> Iterator[str]:
        """Yield what is new of the run before this one."""
        # A container that runs may have been restarted since its pod was looked at.
        if facts.running or facts.restarts:
            yield from self._stream(previous=True)

    def _stream(
        self, *, follow: bool = False, previous: bool = False, strict: bool = False, ends: bool = True
    ) -> Iterator[str]:
        since = self._cursor.begin(strict)
        part = LogPart(self._container, follow=follow, previous=previous, timestamps=True, since=since)
        try:
            with closing(self._pod_log(self._pod, part)) as stream:
                for data in stream:
                    new = self._cursor.feed(data)
                    yield from new
                    self._room -= len(new)
                    # Only here does the place agree with what was given.
                    if self._room <= 0:
                        raise _EnoughError
            if ends and not follow:
                yield from self._cursor.finish()
        except (NotThereError, RejectedError):
            # The pod is gone; or there is no such run, not yet or no more.
            return


def _facts(pod: PodFacts, container: str) -> ContainerFacts | None:
    if not container:
        return pod.main
    return next((facts for facts in (pod.main, *pod.others) if facts.name == container), None)
