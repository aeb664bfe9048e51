"""The log of a step, through whatever happens to its pods and to the connection."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest
from fake_cluster import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from k8s_objects import NAMESPACE, end, ended, pod, runs

from trainer_core.cluster import podlogs, pods
from trainer_core.cluster.answers import BrokenOffError, BusyError, ForbiddenError, NotThereError, RejectedError
from trainer_core.cluster.api import Api
from trainer_core.cluster.connect import connect
from trainer_core.cluster.pods import ContainerFacts, Ended, PodFacts
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError

START = 1_700_000_000
SECOND = 10**9
#: What has happened leaves the reader so many requests' time before a container is started once more.
BACKOFF = 6


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

    def facts(self) -> PodFacts:
        last = self.runs[-1] if self.runs else None
        container = ContainerFacts(
            "node",
            running=datetime.now(timezone.utc) if last and not last.ended else None,
            ended=Ended(1) if last and last.ended else None,
            last=Ended(1) if len(self.runs) > 1 else None,
            restarts=max(0, len(self.runs) - 1),
        )
        return PodFacts(self.name, f"uid of {self.name}", "job", "node-0", "Running", None, container)


class World:
    """Pods whose life goes on, step by step, whenever the reader asks or waits for something."""

    def __init__(self, script: Sequence[object] = (), breaks: Sequence[tuple[int | None, bool]] = ()) -> None:
        self.pods: list[Pod] = []
        self.printed: list[str] = []
        self.waits: list[float] = []
        self.asked: list[object] = []
        self._script = list(script)
        self._breaks = list(breaks)
        self._now = START * SECOND
        self._rest = 0
        self._created = 0

    # What the reader sees.

    def clock(self) -> float:
        return sum(self.waits)

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.step()

    def find_pods(self) -> list[PodFacts]:
        found = [pod.facts() for pod in self.pods]
        self.step()
        return found

    def ended(self) -> bool:
        return not self._script

    def pod_log(self, name, part):
        self.asked.append((name, part.previous))
        run = self._run(name, part.previous)
        broken, quietly = self._breaks.pop(0) if self._breaks else (None, False)
        sent = 0
        while True:
            data = run.body(part.since)[sent:]
            sent += len(data)
            if broken is not None and sent >= broken:
                yield data[: len(data) - (sent - broken)]
                if quietly and part.follow and not run.ended:
                    return
                raise BrokenOffError("the stream broke off")
            yield data
            if run.ended or not part.follow:
                return
            self.step()

    def _run(self, name: str, previous: bool) -> Run:
        found = [pod for pod in self.pods if pod.name == name]
        if not found:
            raise NotThereError(f"no pod {name}")
        runs = found[0].runs[: -1 if previous else None]
        if not runs:
            raise RejectedError("waiting to start" if not previous else "previous terminated container not found")
        return runs[-1]

    def read(self, follow: bool = True):
        return podlogs.lines(
            self.pod_log, self.find_pods, "node", follow, self.ended, clock=self.clock, pause=self.pause
        )

    # What happens.

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
        elif event == "start":
            self._end(*self.pods)
            self.pods[-1].runs.append(Run())
            self._rest = BACKOFF
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
#: After how many bytes a stream ends, and whether it looks like its end.
breaks = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 200)), st.booleans()), max_size=10)


@settings(max_examples=300, deadline=None)
@given(scripts, breaks)
def test_a_follower_gets_each_line_once_whatever_happens(script, breaks):
    world = World(script, breaks)
    assert list(world.read()) == world.printed


def looks(world: World, most: int):
    """What looks at the log give, each from the place that the one before has left, as another process knows it."""
    place, ended = {}, False
    while not ended:
        ended, complete = world.ended(), False
        while not complete:
            lines, place, complete = podlogs.tail(world.pod_log, world.find_pods(), "node", place, most, ended)
            place = json.loads(json.dumps(place))
            yield from lines


@settings(max_examples=300, deadline=None)
@given(scripts, breaks, st.sampled_from([1, 2, 1000]))
def test_looks_give_each_line_once_whatever_happens_between_them(script, breaks, most):
    world = World(script, breaks)
    assert list(looks(world, most)) == world.printed


def test_a_look_at_a_log_without_news_is_one_request():
    world = happened("pod", "start", *says("a"))
    world._script = [None] * 50
    _, place, _ = podlogs.tail(world.pod_log, world.find_pods(), "node", {}, 1000, False)
    world.asked.clear()
    assert podlogs.tail(world.pod_log, world.find_pods(), "node", place, 1000, False) == ([], place, True)
    assert world.asked == [("pod-1", False)]


def test_the_rest_of_a_run_comes_first_when_its_container_was_restarted_after_a_look_at_it():
    world = World(["pod", "start", *[None] * 4, *says("a", "b"), "start", *says("c")], [(None, False), (10, False)])
    assert list(world.read()) == ["a", "b", "c"]


def happened(*events: object) -> World:
    """A world in which all this has happened."""
    world = World()
    for event in events:
        world.do(event)
    return world


def says(*lines: str) -> list[tuple[int, bytes]]:
    return [(1, f"{line}\n".encode()) for line in lines]


def test_what_is_there_is_read_to_its_end():
    assert list(happened("pod", "start", *says("a", "", "b")).read(follow=False)) == ["a", "", "b"]


def test_the_log_before_a_restart_comes_first():
    world = happened("pod", "start", *says("crashes"), "start", *says("runs"))
    assert list(world.read(follow=False)) == ["crashes", "runs"]


def test_pods_come_in_the_order_in_which_they_were_created():
    world = happened("pod", "start", *says("first"), "pod", "start", *says("second"))
    assert list(world.read(follow=False)) == ["first", "second"]


def test_a_last_line_without_an_end_comes_last():
    world = happened("pod", "start", *says("a"), (1, b"the end"))
    assert list(world.read()) == ["a", "the end"]


def test_no_pod_is_no_line():
    assert list(World().read(follow=False)) == []
    assert list(World().read()) == []


def test_a_pod_that_is_gone_while_it_is_read_ends_quietly():
    world = happened("pod", "start", *says("a"))
    lines = world.read(follow=False)
    found = world.find_pods()
    world.pods.clear()
    world.find_pods = lambda: found
    assert list(lines) == []


def test_an_unfinished_line_of_a_pod_that_is_gone_comes_before_those_of_the_next():
    world = World(["pod", "start", (1, b"cut"), *[None] * BACKOFF, "gone", "pod", "start", *says("next")])
    assert list(world.read()) == ["cut", "next"]


def test_a_follower_waits_ever_longer_for_a_pod_that_does_not_come():
    world = World([(1, b"nothing is there to print this")] * 100)
    assert list(world.read()) == []
    assert world.waits == sorted(world.waits)
    assert max(world.waits) == 5.0
    assert world.asked == []


def test_a_container_that_waits_to_be_restarted_is_not_read_again_and_again():
    world = happened("pod", "start", *says("crashes"))
    world.pods[0].runs[-1].ended = True
    world._script = [None] * 50
    assert list(world.read()) == ["crashes"]
    assert len(world.asked) == 1


def refusing(error: Exception):
    def pod_log(name, part):
        raise error
        yield

    return pod_log


@pytest.mark.parametrize("follow", [True, False])
def test_a_log_that_may_not_be_read_is_said_so_at_once(follow):
    world = happened("pod", "start", *says("a"))
    world.pod_log = refusing(ForbiddenError("a role is missing"))
    with pytest.raises(ForbiddenError, match="a role is missing"):
        list(world.read(follow))
    assert world.waits == []


def test_a_cluster_that_is_away_is_borne_for_half_an_hour():
    world = happened("pod", "start", *says("a"))
    world.pod_log = refusing(BusyError("it is restarting"))
    world.ended = lambda: False
    with pytest.raises(BusyError, match="it is restarting"):
        list(world.read())
    assert 1800 < world.clock() < 1810


def test_when_the_job_has_ended_a_cluster_that_is_away_is_borne_for_half_a_minute():
    world = happened("pod", "start", *says("a"))
    world.pod_log = refusing(BusyError("the machine does not answer"))
    with pytest.raises(BusyError, match="the machine does not answer"):
        list(world.read())
    assert 30 < world.clock() < 40


def test_a_job_that_says_nothing_for_a_day_is_followed_though_its_stream_breaks_off_now_and_then():
    world = World(["pod", "start", *[None] * 1000, *says("done")], [(0, False)] * 100)
    pause = world.pause
    world.pause = lambda seconds: pause(seconds + 300)
    assert list(world.read()) == ["done"]


def test_a_pod_whose_machine_is_lost_does_not_keep_the_next_from_being_read():
    world = happened("pod", "start", *says("lost"), "pod", "start", *says("b"))
    pod_log = world.pod_log

    def half_lost(name, part):
        if name == "pod-1":
            raise BusyError("the machine does not answer")
        yield from pod_log(name, part)

    world.pod_log = half_lost
    lines = world.read()
    assert next(lines) == "b"
    with pytest.raises(BusyError):
        list(lines)


def megabytes(number: int):
    """A log that is made up as it is read."""
    block = b"".join(stamp(START * SECOND + n) + b"x" * 70 + b"\n" for n in range(10_000))
    for _ in range(number):
        yield block


def one_line(number: int):
    yield stamp(START * SECOND)
    for _ in range(16 * number):
        yield b"y" * 65_536


@pytest.mark.parametrize("stream", [megabytes, one_line])
def test_memory_does_not_grow_with_the_log(stream):
    world = happened("pod", "start")
    world.pods[0].runs[-1].ended = True
    world.pod_log = lambda name, part: stream(20)
    tracemalloc.start()
    length = sum(len(line) for line in world.read(follow=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert length >= 14_000_000
    assert peak < 8_000_000


class LongLog(Sequence):
    """A log of so many lines that are made up as they are read."""

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
    return Api(connect(configuration))


def raw_pod(name: str = "node-0", running: bool = True, restarts: int = 0):
    last = end(1) if restarts else None
    main = runs(restarts=restarts, last=last) if running else ended(0, restarts=restarts, last=last)
    return pod(name, main=main)


def seen(cluster):
    return [pods.read(raw) for raw in cluster.objects("pods", NAMESPACE)]


POD = raw_pod()["metadata"]["name"]


def read(cluster, api, follow=False, ended=lambda: True):
    return podlogs.lines(api.pod_log, lambda: seen(cluster), "node", follow, ended, pause=lambda _: None)


def test_a_long_log_that_breaks_off_at_random_comes_whole_from_a_server(cluster, api):
    cluster.start_log(POD, LongLog(20_000), namespace=NAMESPACE, ended=True)
    cluster.faults.next(truncate=True, path="/log", times=5)

    lines = list(read(cluster, api))

    assert cluster.faults.counts["truncate"] == 5
    assert lines == [f"{number:070d}" for number in range(20_000)]


def test_lines_are_seen_as_they_are_printed(cluster, api):
    cluster.write_log(POD, "first", namespace=NAMESPACE)
    lines = read(cluster, api, follow=True)
    assert next(lines) == "first"
    cluster.write_log(POD, "second", namespace=NAMESPACE)
    assert next(lines) == "second"
    cluster.end_log(POD, namespace=NAMESPACE)
    assert list(lines) == []


def test_a_role_that_may_not_read_logs_is_said_so_in_one_line(cluster, api):
    cluster.write_log(POD, "secret", namespace=NAMESPACE)
    cluster.forbid("get", "pods/log")
    with pytest.raises(BackendUnavailableError, match=r"may get pods/log") as refused:
        list(read(cluster, api))
    assert len(str(refused.value).splitlines()) == 1
