"""Logs of a step across restarts, replaced pods and interrupted streams."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest
from fake_cluster import Cluster
from hypothesis import given, settings, strategies as st
from k8s_objects import NAMESPACE, end, ended, pod, runs

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import logs, pod_state
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import (
    ForbiddenError,
    NotFoundError,
    RejectedError,
    ServerBusyError,
    StreamInterruptedError,
)
from trainer_core.k8s.pod_state import ContainerState, ContainerTermination, PodState
from trainer_core.model.config import KubernetesBackendConfig

START = 1_700_000_000
SECOND = 10**9
#: Number of requests of the reader between the end of a container and its second or a later restart.
BACKOFF_STEPS = 6


def stamp(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, SECOND)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z ".encode()


@dataclass
class Run:
    """One run of a container."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False

    def body(self, since: str | None) -> bytes:
        first = datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp() * SECOND if since else 0
        return b"".join(stamp(when) + line for when, line in self.lines if when >= first)


@dataclass
class Pod:
    name: str
    runs: list[Run] = field(default_factory=list)

    def get_state(self) -> PodState:
        last = self.runs[-1] if self.runs else None
        container = ContainerState(
            "node",
            running_since=datetime.now(timezone.utc) if last and not last.ended else None,
            terminated=ContainerTermination(1) if last and last.ended else None,
            last_terminated=ContainerTermination(1) if len(self.runs) > 1 else None,
            restart_count=max(0, len(self.runs) - 1),
        )
        return PodState(self.name, f"uid of {self.name}", "job", "node-0", "Running", None, container)


class PodSimulation:
    """Simulation of pods that advances by one step with each request and each sleep of the reader."""

    def __init__(self, script: Sequence[object] = (), interruptions: Sequence[tuple[int | None, bool]] = ()) -> None:
        self.pods: list[Pod] = []
        self.printed: list[str] = []
        self.waits: list[float] = []
        self.requests: list[object] = []
        self._script = list(script)
        self._interruptions = list(interruptions)
        self._now = START * SECOND
        self._rest = 0
        self._created = 0

    # Interface of the reader.

    def clock(self) -> float:
        return sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.step()

    def find_pods(self) -> list[PodState]:
        states = [pod.get_state() for pod in self.pods]
        self.step()
        return states

    def has_ended(self) -> bool:
        return not self._script

    def stream_pod_log(self, name, options):
        self.requests.append((name, options.previous))
        run = self._run(name, options.previous)
        limit, without_error = self._interruptions.pop(0) if self._interruptions else (None, False)
        sent = 0
        while True:
            data = run.body(options.since_time)[sent:]
            sent += len(data)
            if limit is not None and sent >= limit:
                yield data[: len(data) - (sent - limit)]
                if without_error and options.follow and not run.ended:
                    return
                raise StreamInterruptedError("the stream was interrupted")
            yield data
            if run.ended or not options.follow:
                return
            self.step()

    def _run(self, name: str, previous: bool) -> Run:
        found = [pod for pod in self.pods if pod.name == name]
        if not found:
            raise NotFoundError(f"no pod {name}")
        runs = found[0].runs[: -1 if previous else None]
        if not runs:
            raise RejectedError("waiting to start" if not previous else "previous terminated container not found")
        return runs[-1]

    def read(self, follow: bool = True):
        return logs.stream_lines(
            self.stream_pod_log, self.find_pods, "node", follow, self.has_ended, clock=self.clock, sleep=self.sleep
        )

    # Events.

    def step(self) -> None:
        if self._rest:
            self._rest -= 1
        elif self._script:
            self.do(self._script.pop(0))
        if not self._script and self.pods and self.pods[-1].runs:
            self.pods[-1].runs[-1].ended = True

    def do(self, event: object) -> None:
        if event == "pod":
            self._created += 1
            self.pods.append(Pod(f"pod-{self._created}"))
            self._end(*self.pods)
        elif event == "gone":
            self._end(*self.pods)
            self.pods.clear()
        elif not self.pods or event is None:
            return
        elif event == "start" and len(self.pods[-1].runs) > 1:
            # The kubelet restarts a container at once the first time, and after a delay from then on.
            self._end(*self.pods)
            self._rest = BACKOFF_STEPS
            self._script.insert(0, "start now")
        elif event in ("start", "start now"):
            self._end(*self.pods)
            self.pods[-1].runs.append(Run())
        elif self.pods[-1].runs and not self.pods[-1].runs[-1].ended:
            elapsed, line = event
            self._now += elapsed
            self.pods[-1].runs[-1].lines.append((self._now, line))
            self.printed.append(line.removesuffix(b"\n").decode())
            if not line.endswith(b"\n"):
                self._end(*self.pods)

    def _end(self, *pods: Pod) -> None:
        for run in (run for each in pods for run in each.runs):
            run.ended = True
        self._now += 1


prints = st.tuples(
    st.sampled_from([0, 0, 1, SECOND // 2, SECOND, 7 * SECOND]),
    st.sampled_from([b"\n", b"same\n", b"a line\n", b"last words"]),
)
scripts = st.lists(st.one_of(prints, prints, prints, st.just("start"), st.just("pod")), max_size=40).map(
    lambda script: ["pod", "start", *script]
)
#: Number of bytes after which a stream is interrupted (None: never), and whether without an error.
interruptions = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 200)), st.booleans()), max_size=10)


@settings(max_examples=300, deadline=None)
@given(scripts, interruptions)
def test_following_yields_each_line_once_across_faults(script, interruptions):
    simulation = PodSimulation(script, interruptions)
    assert list(simulation.read()) == simulation.printed


def test_a_run_that_was_cut_before_its_first_line_is_read_after_the_restart():
    script = ["pod", "start", (0, b"first run\n"), (0, b"and more\n"), "start", (0, b"second run\n")]
    simulation = PodSimulation(script, [(1, True)])
    assert list(simulation.read()) == ["first run", "and more", "second run"]


def read_in_chunks(simulation: PodSimulation, max_lines: int):
    """Yield the lines of consecutive chunks; the cursor passes through JSON, as between processes."""
    cursor, ended = {}, False
    while not ended:
        ended, complete = simulation.has_ended(), False
        while not complete:
            lines, cursor, complete = logs.read_chunk(
                simulation.stream_pod_log, simulation.find_pods(), "node", cursor, max_lines, ended
            )
            cursor = json.loads(json.dumps(cursor))
            yield from lines


@settings(max_examples=300, deadline=None)
@given(scripts, interruptions, st.sampled_from([1, 2, 1000]))
def test_chunks_have_each_line_once_across_faults(script, interruptions, max_lines):
    simulation = PodSimulation(script, interruptions)
    assert list(read_in_chunks(simulation, max_lines)) == simulation.printed


def test_a_chunk_without_new_lines_costs_one_request():
    simulation = simulate("pod", "start", *lines_of("a"))
    simulation._script = [None] * 50
    _, cursor, _ = logs.read_chunk(simulation.stream_pod_log, simulation.find_pods(), "node", {}, 1000, False)
    simulation.requests.clear()
    assert logs.read_chunk(simulation.stream_pod_log, simulation.find_pods(), "node", cursor, 1000, False) == (
        [],
        cursor,
        True,
    )
    assert simulation.requests == [("pod-1", False)]


def test_after_a_restart_the_rest_of_the_previous_run_comes_first():
    simulation = PodSimulation(
        ["pod", "start", *[None] * 4, *lines_of("a", "b"), "start", *lines_of("c")], [(None, False), (10, False)]
    )
    assert list(simulation.read()) == ["a", "b", "c"]


def simulate(*events: object) -> PodSimulation:
    """A simulation in which all this has happened."""
    simulation = PodSimulation()
    for event in events:
        simulation.do(event)
    return simulation


def lines_of(*lines: str) -> list[tuple[int, bytes]]:
    return [(1, f"{line}\n".encode()) for line in lines]


def test_the_log_is_read_to_its_end():
    assert list(simulate("pod", "start", *lines_of("a", "", "b")).read(follow=False)) == ["a", "", "b"]


def test_the_log_before_a_restart_comes_first():
    simulation = simulate("pod", "start", *lines_of("crashes"), "start", *lines_of("runs"))
    assert list(simulation.read(follow=False)) == ["crashes", "runs"]


def test_pods_are_read_in_order_of_creation():
    simulation = simulate("pod", "start", *lines_of("first"), "pod", "start", *lines_of("second"))
    assert list(simulation.read(follow=False)) == ["first", "second"]


def test_a_last_line_without_a_line_ending_is_returned():
    simulation = simulate("pod", "start", *lines_of("a"), (1, b"the end"))
    assert list(simulation.read()) == ["a", "the end"]


def test_without_pods_there_are_no_lines():
    assert list(PodSimulation().read(follow=False)) == []
    assert list(PodSimulation().read()) == []


def test_a_pod_deleted_while_it_is_read_ends_without_an_error():
    simulation = simulate("pod", "start", *lines_of("a"))
    lines = simulation.read(follow=False)
    found = simulation.find_pods()
    simulation.pods.clear()
    simulation.find_pods = lambda: found
    assert list(lines) == []


def test_an_unfinished_line_of_a_deleted_pod_comes_before_the_next_pod():
    simulation = PodSimulation(
        ["pod", "start", (1, b"cut"), *[None] * BACKOFF_STEPS, "gone", "pod", "start", *lines_of("next")]
    )
    assert list(simulation.read()) == ["cut", "next"]


def test_polling_for_a_missing_pod_backs_off():
    simulation = PodSimulation([(1, b"printed without a pod")] * 100)
    assert list(simulation.read()) == []
    assert simulation.waits == sorted(simulation.waits)
    assert max(simulation.waits) == 5.0
    assert simulation.requests == []


def test_a_container_in_back_off_is_read_once():
    simulation = simulate("pod", "start", *lines_of("crashes"))
    simulation.pods[0].runs[-1].ended = True
    simulation._script = [None] * 50
    assert list(simulation.read()) == ["crashes"]
    assert len(simulation.requests) == 1


def failing_with(error: Exception):
    def stream_pod_log(name, options):
        raise error
        yield

    return stream_pod_log


@pytest.mark.parametrize("follow", [True, False])
def test_a_forbidden_log_is_reported_at_once(follow):
    simulation = simulate("pod", "start", *lines_of("a"))
    simulation.stream_pod_log = failing_with(ForbiddenError("permission is missing"))
    with pytest.raises(ForbiddenError, match="permission is missing"):
        list(simulation.read(follow))
    assert simulation.waits == []


def test_following_tolerates_30_minutes_of_unavailability():
    simulation = simulate("pod", "start", *lines_of("a"))
    simulation.stream_pod_log = failing_with(ServerBusyError("the server restarts"))
    simulation.has_ended = lambda: False
    with pytest.raises(ServerBusyError, match="the server restarts"):
        list(simulation.read())
    assert 1800 < simulation.clock() < 1810


def test_after_the_end_of_the_job_30_seconds_of_unavailability_are_tolerated():
    simulation = simulate("pod", "start", *lines_of("a"))
    simulation.stream_pod_log = failing_with(ServerBusyError("the node does not respond"))
    with pytest.raises(ServerBusyError, match="the node does not respond"):
        list(simulation.read())
    assert 30 < simulation.clock() < 40


def test_interrupted_streams_of_a_silent_job_do_not_count_as_unavailability():
    simulation = PodSimulation(["pod", "start", *[None] * 1000, *lines_of("done")], [(0, False)] * 100)
    sleep = simulation.sleep
    simulation.sleep = lambda seconds: sleep(seconds + 300)
    assert list(simulation.read()) == ["done"]


def test_an_unreadable_pod_does_not_block_its_replacement():
    simulation = simulate("pod", "start", *lines_of("lost"), "pod", "start", *lines_of("b"))
    stream_pod_log = simulation.stream_pod_log

    def unavailable_for_one_pod(name, options):
        if name == "pod-1":
            raise ServerBusyError("the node does not respond")
        yield from stream_pod_log(name, options)

    simulation.stream_pod_log = unavailable_for_one_pod
    lines = simulation.read()
    assert next(lines) == "b"
    with pytest.raises(ServerBusyError):
        list(lines)


def megabytes(number: int):
    """Generate a log while it is read."""
    block = b"".join(stamp(START * SECOND + n) + b"x" * 70 + b"\n" for n in range(10_000))
    for _ in range(number):
        yield block


def one_line(number: int):
    yield stamp(START * SECOND)
    for _ in range(16 * number):
        yield b"y" * 65_536


@pytest.mark.parametrize("stream", [megabytes, one_line])
def test_memory_does_not_grow_with_the_log(stream):
    simulation = simulate("pod", "start")
    simulation.pods[0].runs[-1].ended = True
    simulation.stream_pod_log = lambda name, options: stream(12)
    tracemalloc.start()
    length = sum(len(line) for line in simulation.read(follow=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert length >= 8_400_000
    assert peak < 8_000_000


class LongLog(Sequence):
    """A log whose lines are generated when they are read."""

    def __init__(self, lines: int) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return self._lines

    def __getitem__(self, which):
        numbers = range(self._lines)[which]
        # Bursts of a thousand lines at one time.
        return [(START * SECOND + number // 1000 * 1000, f"{number:070d}".encode()) for number in numbers]


@pytest.fixture
def cluster():
    with Cluster(controllers=False) as cluster:
        cluster.add(raw_pod())
        yield cluster


@pytest.fixture
def api(cluster):
    configuration = KubernetesBackendConfig(client_configuration=cluster.configuration(), namespace=NAMESPACE)
    return ApiClient(Connection(configuration))


def raw_pod(name: str = "node-0", running: bool = True, restarts: int = 0):
    last = end(1) if restarts else None
    main = runs(restarts=restarts, last=last) if running else ended(0, restarts=restarts, last=last)
    return pod(name, main=main)


def list_pods(cluster):
    return [pod_state.parse_pod(raw) for raw in cluster.objects("pods", NAMESPACE)]


POD = raw_pod()["metadata"]["name"]


def read(cluster, api, follow=False, ended=lambda: True):
    return logs.stream_lines(
        api.stream_pod_log, lambda: list_pods(cluster), "node", follow, ended, sleep=lambda _: None
    )


def test_a_long_log_is_complete_despite_random_interruptions(cluster, api):
    cluster.start_log(POD, LongLog(20_000), namespace=NAMESPACE, ended=True)
    cluster.faults.next(truncate=True, path="/log", times=5)

    lines = list(read(cluster, api))

    assert cluster.faults.counts["truncate"] == 5
    assert lines == [f"{number:070d}" for number in range(20_000)]


def test_lines_are_streamed_as_they_are_printed(cluster, api):
    cluster.write_log(POD, "first", namespace=NAMESPACE)
    lines = read(cluster, api, follow=True)
    assert next(lines) == "first"
    cluster.write_log(POD, "second", namespace=NAMESPACE)
    assert next(lines) == "second"
    cluster.end_log(POD, namespace=NAMESPACE)
    assert list(lines) == []


def test_a_missing_permission_for_logs_is_reported_in_one_line(cluster, api):
    cluster.write_log(POD, "secret", namespace=NAMESPACE)
    cluster.forbid("get", "pods/log")
    with pytest.raises(BackendUnavailableError, match=r"may get pods/log") as raised:
        list(read(cluster, api))
    assert len(str(raised.value).splitlines()) == 1
