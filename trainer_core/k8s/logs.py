"""Logs of one step, without lost or repeated lines, as far as the cluster has them: not those of deleted pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from typing import Any, TypeAlias

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s.client import PodLogOptions
from trainer_core.k8s.errors import NotFoundError, RejectedError, StreamInterruptedError
from trainer_core.k8s.log_cursor import CursorLostError, LogCursor
from trainer_core.k8s.pod_state import ContainerState, PodState
from trainer_core.lifecycle import wait_state

#: Returns the bytes of a pod's log, in pieces of any size: `ApiClient.stream_pod_log`.
StreamPodLog: TypeAlias = Callable[[str, PodLogOptions], Generator[bytes, None, None]]

_MIN_POLL_SECONDS = 0.2
_MAX_POLL_SECONDS = 5.0
_BACKOFF_FACTOR = 1.5
#: Seconds to retry reading the rest of a log after the job has ended.
_MAX_SECONDS_AFTER_END = 30.0


def stream_lines(
    stream_pod_log: StreamPodLog,
    find_pods: Callable[[], Sequence[PodState]],
    container: str,
    follow: bool,
    has_ended: Callable[[], bool],
    *,
    wait_for_change: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the lines without ends, of the previous run first, in constant memory; escape bytes that are not UTF-8."""
    step_log = _StepLog(stream_pod_log, find_pods, container)
    delay = _MIN_POLL_SECONDS
    unavailable_since: float | None = None
    while True:
        step_log.has_new_lines = False
        is_last, pause = not follow, wait_for_change or sleep
        try:
            # Checked before reading, so that everything written before the end is read afterwards.
            is_last = is_last or has_ended()
            yield from step_log.read(follow)
        except BackendUnavailableError as error:
            pause = sleep
            # A stream that is interrupted shows that the cluster is available.
            available = step_log.has_new_lines or (isinstance(error, StreamInterruptedError) and not is_last)
            unavailable_since = clock() if available or unavailable_since is None else unavailable_since
            limit = _MAX_SECONDS_AFTER_END if is_last else wait_state.MAX_UNAVAILABLE_SECONDS
            if not error.transient or clock() - unavailable_since > limit:
                raise
        else:
            if is_last:
                break
            unavailable_since = None
        delay = _MIN_POLL_SECONDS if step_log.has_new_lines else min(_MAX_POLL_SECONDS, delay * _BACKOFF_FACTOR)
        pause(delay)
    yield from step_log.flush()


def read_chunk(
    stream_pod_log: StreamPodLog,
    pods: Sequence[PodState],
    container: str,
    cursor: Mapping[str, Any],
    max_lines: int,
    job_ended: bool,
) -> tuple[list[str], dict[str, Any], bool]:
    """Read the lines of a step after a cursor, without waiting."""
    lines: list[str] = []
    positions: dict[str, Any] = {}
    complete = True
    for pod in pods:
        log = _PodLog(stream_pod_log, pod.name, container, cursor.get(pod.uid))
        pod_lines: list[str] = []
        pod_complete = False
        if len(lines) < max_lines:
            try:
                pod_lines, pod_complete = log.read_up_to(pod, max_lines - len(lines), job_ended)
            except BackendUnavailableError:
                # The logs of other pods may be available; this one is read from the same position next time.
                log = _PodLog(stream_pod_log, pod.name, container, cursor.get(pod.uid))
        lines += pod_lines
        complete = complete and pod_complete
        if log.position:
            positions[pod.uid] = log.position
    return lines, positions, complete


class _StepLog:
    """Logs of the pods of a step, in the order in which the pods were created."""

    def __init__(
        self, stream_pod_log: StreamPodLog, find_pods: Callable[[], Sequence[PodState]], container: str
    ) -> None:
        self.has_new_lines = False
        self._stream_pod_log = stream_pod_log
        self._find_pods = find_pods
        self._container = container
        self._logs: dict[str, _PodLog] = {}

    def read(self, follow: bool) -> Iterator[str]:
        """Yield the new lines of each pod; with `follow`, stream the log of a running pod to its end."""
        pods = self._find_pods()
        for uid in self._logs.keys() - {pod.uid for pod in pods}:
            yield from self._logs.pop(uid).flush()
        failure = None
        for pod in pods:
            log = self._logs.setdefault(pod.uid, _PodLog(self._stream_pod_log, pod.name, self._container))
            try:
                for line in log.read(pod, follow):
                    self.has_new_lines = True
                    yield line
            except StreamInterruptedError:
                # The remaining lines of this pod come before those of the next pod.
                raise
            except BackendUnavailableError as error:
                # Raised after the loop: if a Kubernetes node is lost, the replacement pod runs on another one.
                failure = error
        if failure is not None:
            raise failure

    def flush(self) -> Iterator[str]:
        """Yield last lines without a line ending."""
        for log in self._logs.values():
            yield from log.flush()


class _LineLimitError(Exception):
    """Raised to stop reading when the maximum number of lines is reached."""


class _PodLog:
    """Log of one container of one pod."""

    def __init__(
        self, stream_pod_log: StreamPodLog, pod: str, container: str, position: Sequence[int] | None = None
    ) -> None:
        self._stream_pod_log = stream_pod_log
        self._pod = pod
        self._container = container
        # Restart counts: of the run whose log was started, and of the run whose log was read to its end.
        self._started_run, self._finished_run, *cursor_position = position or (-1, -1)
        self._cursor = LogCursor(position=cursor_position)
        self._remaining_lines: float = inf

    @property
    def position(self) -> list[int]:
        """How far the log was read, as plain numbers; empty if nothing was read."""
        position = self._cursor.position
        return [self._started_run, self._finished_run, *position] if position or self._started_run >= 0 else []

    def read_up_to(self, pod: PodState, max_lines: int, job_ended: bool) -> tuple[list[str], bool]:
        """Return the new lines, up to about `max_lines`, and whether these are all."""
        lines: list[str] = []
        self._remaining_lines = max_lines
        try:
            for line in self.read(pod, False, job_ended):
                lines.append(line)
        except _LineLimitError:
            return lines, False
        return lines, True

    def read(self, pod: PodState, follow: bool, job_ended: bool = True) -> Generator[str, None, None]:
        """Yield the lines since the last call."""
        container = _find_container(pod, self._container)
        self._container = container.name if container else self._container
        if container is None or not (container.running_since or container.latest_termination):
            return
        if container.restart_count == self._finished_run:
            return
        is_running = container.running_since is not None
        follow = follow and is_running
        same_run = container.restart_count == self._started_run
        flush_last = job_ended or not is_running
        if not same_run:
            yield from self._read_previous_run(container)
        try:
            yield from self._read_stream(follow=follow, strict=same_run, flush_last=flush_last)
        except CursorLostError:
            # The container was restarted since the pod was read, or the kubelet has rotated the log.
            yield from self._read_previous_run(container)
            yield from self._read_stream(follow=follow, flush_last=flush_last)
        self._started_run = container.restart_count
        if not is_running:
            self._finished_run = container.restart_count

    def flush(self) -> Iterator[str]:
        """Yield a last line without a line ending."""
        yield from self._cursor.flush()

    def _read_previous_run(self, container: ContainerState) -> Iterator[str]:
        """Yield the remaining lines of the run before the current one."""
        # A running container may have been restarted since the pod was read.
        if container.running_since or container.restart_count:
            yield from self._read_stream(previous=True)

    def _read_stream(
        self, *, follow: bool = False, previous: bool = False, strict: bool = False, flush_last: bool = True
    ) -> Iterator[str]:
        since_time = self._cursor.start_stream(strict)
        options = PodLogOptions(
            self._container, follow=follow, previous=previous, timestamps=True, since_time=since_time
        )
        try:
            with closing(self._stream_pod_log(self._pod, options)) as stream:
                for data in stream:
                    lines = self._cursor.feed(data)
                    yield from lines
                    self._remaining_lines -= len(lines)
                    # Only between two pieces does the position match the lines that were yielded.
                    if self._remaining_lines <= 0:
                        raise _LineLimitError
            if flush_last and not follow:
                yield from self._cursor.finish_stream()
        except (NotFoundError, RejectedError):
            # The pod was deleted, or the requested run of the container has no log.
            return


def _find_container(pod: PodState, name: str) -> ContainerState | None:
    if not name:
        return pod.main_container
    return next((each for each in (pod.main_container, *pod.other_containers) if each.name == name), None)
