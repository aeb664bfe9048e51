"""What counts as a sign of life: real ranks report in each form, and the attendant has a clock of the test."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings, strategies as st

from trainer_core.node.attendant import Attendant

ROOT = Path(__file__).parents[2]
AFTER, STARTUP, TICK = 40.0, 300.0, 5.0
#: A process that is one rank after the other, each a fork of it: importing takes time.
RANKS = """
import io, json, os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from tqdm import tqdm

from trainer_core.node import beats, progress, trainer_status
from trainer_core.node.status_server import StatusServer

step, bars = 0, {}

def move_bar(name, **options):
    if name not in bars:
        bars[name] = tqdm(total=1000, file=io.StringIO(), **options)
    bars[name].update()
    beats.watch()

def report_as_a_library():
    body = {"trainerStatus": {"lastUpdatedTime": "2026-11-24T05:30:00Z", "progressPercentage": 5}}
    assert trainer_status.send(json.dumps(body).encode(), os.environ.__getitem__)

def fork():
    if not (child := os.fork()):
        progress.progress(step)
        os._exit(0)
    os.waitpid(child, 0)

def save():
    with beats.saving():
        pass

def return_():
    beats.enter(beats.OVER)
    beats.enter(beats.RETURNED)

FORMS = {
    "progress": lambda: progress.progress(step, 1000),
    "empty": progress.progress,
    "sdk": lambda: trainer_status.update_trainjob_status(step % 100),
    "library": report_as_a_library,
    "outer bar": lambda: move_bar("outer"),
    "inner bar": lambda: move_bar("inner"),
    "download": lambda: move_bar("download", unit="B"),
    "child": fork,
    "save": save,
    "return": return_,
}

def run(folder, rank):
    global step
    os.environ.update(TRAINJOB_BEATS=folder, TRAINJOB_STALLED="{}", RANK=rank)
    beats.begin()
    with StatusServer(Path(folder)):
        os.write(1, b"done\\n")
        while (name := sys.stdin.readline().strip()) != "exit":
            step += 1
            FORMS[name]()
            sys.stdout.flush()
            os.write(1, b"done\\n")
    return_()

while command := sys.stdin.readline().split():
    if not (pid := os.fork()):
        run(*command)
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(1, b"done\\n")
"""
FORMS = ["progress", "empty", "sdk", "outer bar", "inner bar", "child", "save"]


class Process:
    """A process that runs commands one after the other."""

    def __init__(self):
        command = [sys.executable, "-c", RANKS, str(ROOT)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        # The lines before are what the rank shows.
        assert "done\n" in iter(self.process.stdout.readline, "")


@pytest.fixture(scope="module")
def processes():
    made = [Process() for _ in range(3)]
    yield made
    for each in made:
        each.process.communicate(timeout=60)


@dataclass
class Model:
    """The last sign of each rank, and what follows from it."""

    startup: float | None
    last: dict[int, float] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    #: Those of them that have reported themselves, and not by a child.
    reported: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    #: The longest time between two steps, and whether the last sign was one.
    longest: float = 0.0
    was_step: bool = False

    def note(self, rank: int, form: str, now: float) -> None:
        """Note a sign, also one that is no step: a download, or the end of the function."""
        self.returned |= {rank} & {rank if form in ("return", "exit") else None}
        self.gone |= {rank} & {rank if form == "exit" else None}
        is_report = form in FORMS or form == "library"
        is_step = is_report or (form == "download" and rank in self.reported)
        gap = now - max(self.last.values())
        self.longest = max(self.longest, gap if is_step and self.was_step else 0.0)
        self.begun |= {rank} if is_report else set()
        self.reported |= {rank} if is_report and form != "child" else set()
        self.was_step, self.last[rank] = is_step, now

    def end(self) -> float:
        """Return the silence of the node after which it is ended."""
        running, alive = self.last.keys() - self.returned, self.last.keys() - self.gone
        step = max(AFTER, 3 * self.longest) if self.begun else (self.startup or math.inf)
        limit = step if running else AFTER
        return max(self.last.values()) + limit if alive else math.inf


@st.composite
def scenarios(draw):
    """Draw numbers of ranks, the option `startup`, and who reports when in which form."""
    ranks = draw(st.integers(1, 3))
    reports = st.tuples(st.integers(0, 6), st.integers(0, ranks - 1), st.sampled_from(FORMS))
    # Libraries report on rank 0 only.
    libraries = st.tuples(st.integers(0, 6), st.just(0), st.sampled_from(["library", "download"]))
    ends = st.tuples(st.integers(0, 6), st.integers(0, ranks - 1), st.sampled_from(["return", "exit"]))
    events = draw(st.lists(reports | libraries, max_size=8)) + draw(st.lists(ends, max_size=2))
    return ranks, draw(st.sampled_from([None, STARTUP])), events


@settings(max_examples=12, deadline=None, derandomize=True)
@given(scenarios())
@example((1, None, [(0, 0, "progress"), *[(6, 0, "library")] * 3, *[(6, 0, "inner bar")] * 3]))
@example((1, STARTUP, [(6, 0, "download"), (6, 0, "progress"), *[(6, 0, "child")] * 3]))
@example((2, STARTUP, [(6, 0, "library")]))
@example((2, None, [(6, 0, "library"), (1, 0, "exit")]))
@example((2, None, [(0, 1, "progress"), *[(6, 0, "progress")] * 3, (1, 0, "return")]))
def test_a_node_is_ended_when_no_process_of_any_rank_has_given_a_sign_for_the_limit_and_not_before(processes, scenario):
    ranks, startup, events = scenario
    now, model = 0.0, Model(startup)
    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        attendant = Attendant(Path(folder), {"after": AFTER, "startup": startup}, lambda text: None, clock=lambda: now)
        for rank in range(ranks):
            processes[rank].do(f"{folder} {rank}")
            model.last[rank] = now
        stack.callback(lambda: [processes[rank].do("exit") for rank in range(ranks) if rank not in model.gone])
        assert not attendant.check()
        for ticks, rank, form in events:
            if rank in model.returned:
                continue
            for _ in range(ticks):
                now += TICK
                assert attendant.check() is (now > model.end())
            processes[rank].do(form)
            model.note(rank, form, now)
            assert not attendant.check()
        until = model.end()
        while now < min(until, 1000.0):
            now += TICK
            assert attendant.check() is (now > until)
