"""The attendant of a node: whom it ends, when, and what it prints; see also the part `stalls` of the contract."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainer_core import CustomTrainerContainer, Stalled
from trainer_core.backends.local.backend import LocalProcessBackend
from trainer_core.base.errors import UnsupportedError
from trainer_core.definition.request_builder import build_request
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, diagnose
from trainer_core.model.logs import parse_progress
from trainer_core.node import attendant, beats, progress
from trainer_core.node.attendant import Attendant

ROOT = Path(__file__).parents[2]
AFTER = 40.0
#: Attaches a debugger to a process without stopping it: see ptrace(2).
PTRACE_SEIZE = 0x4206
#: What a rank of a test runs; the tests end it.
RANK = """
import ctypes, os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from trainer_core.node import attendant, beats
beats.begin()
beats.beat(7)
print("begun", flush=True)
{hang}
"""
HANGS = {
    "in C with the lock of the interpreter": ("ctypes.PyDLL(None).sleep(600)", "is in <module> "),
    "a lock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "is in <module> "),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)", "was stopped by a signal and is in <module> "),
    "all signals blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(600)",
        "prints no stack (state S (sleeping)",
    ),
}

RANKS = 32
#: A training with many ranks, each 60 calls deep.
FORKS = f"""
def descend(depth):
    while depth == 60:
        signal.pause()
    descend(depth + 1)

for rank in range({RANKS}):
    if not os.fork():
        os.environ.update(RANK=str(rank), TRAINJOB_BEATS=sys.argv[2])
        beats.begin()
        beats.beat()
        open(f"{{sys.argv[2]}}/{{rank}}.ready", "w").close()
        descend(0)
os.wait()
"""


class Node:
    """A node whose ranks are this process, on a clock that only `run` moves."""

    def __init__(self, folder, **settings):
        self.folder, self.now, self.beats, self.printed = folder, 0.0, 0, []
        settings = {"after": AFTER, **settings}
        self.attendant = Attendant(folder, settings, self.printed.append, clock=lambda: self.now)

    def beat(self, rank=0, phase=beats.RUN, pid=None, step=-1.0, reports=True):
        self.beats += 1
        data = beats.LAYOUT.pack(self.beats, phase, pid or os.getpid(), 0, step, reports)
        (self.folder / str(rank)).write_bytes(data)

    def run(self, seconds):
        """Check every five seconds for some seconds; return whether a check has ended the node."""
        checks = []
        for _ in range(int(seconds // 5)):
            self.now += 5
            checks.append(self.attendant.check())
        return any(checks)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def ended():
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_rank_that_is_silent_for_longer_than_the_limit_is_ended(node):
    node.beat(rank=0, phase=beats.RETURNED)
    node.beat(rank=1)
    assert not node.run(5 + AFTER)
    assert node.run(5)
    assert node.attendant.code == 124


def test_a_node_is_checked_eight_times_in_its_limit_and_at_least_every_five_seconds(tmp_path):
    assert [Node(tmp_path, after=after).attendant.pause for after in (8, 40, 400)] == [1, 5, 5]


def test_a_rank_whose_beats_are_closer_than_the_limit_is_never_ended(node):
    for _ in range(50):
        node.beat()
        assert not node.run(AFTER - 5)


def test_time_in_which_nothing_ran_is_no_silence(node):
    """As after SIGSTOP of all processes, a frozen container, or a machine that slept."""
    node.beat()
    node.run(AFTER - 15)
    node.now += 100_000
    assert not node.attendant.check()
    assert node.run(15)


def test_a_training_with_irregular_steps_gets_three_times_its_longest_silence(node):
    node.beat()
    node.run(30)
    node.beat()
    assert not node.run(90)
    assert node.run(15)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has ptrace with PTRACE_SEIZE")
def test_a_process_under_a_debugger_is_not_ended(node):
    with subprocess.Popen(["sleep", "600"]) as rank:
        try:
            node.beat(pid=rank.pid)
            assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, rank.pid, None, None) == 0
            assert not node.run(10 * AFTER)
        finally:
            rank.kill()


def test_a_node_is_ended_only_when_all_its_ranks_are_silent(node):
    node.beat(rank=0)
    for _ in range(5):
        node.beat(rank=1)
        assert not node.run(20)
    assert node.run(2 * AFTER)


def test_before_the_first_sign_of_progress_there_is_no_limit_and_one_line_says_so(node):
    node.beat(reports=False)
    assert not node.run(AFTER - 5)
    assert node.printed == []
    assert not node.run(5)
    assert len(node.printed) == 1
    assert not node.run(10_000)
    assert node.printed == ["trainjob: no call of progress() yet: until the first one a hang cannot be noticed\n"]


def test_startup_limits_the_time_until_the_first_sign(tmp_path):
    node = Node(tmp_path, startup=100.0)
    node.beat(reports=False)
    assert not node.run(100)
    assert node.run(10)


def test_a_rank_without_a_sign_does_not_keep_a_silent_one_alive(node):
    node.beat(rank=1)
    node.beat(rank=2, reports=False)
    assert node.run(AFTER + 10)
    assert node.printed == []


def test_a_silence_is_reported_with_the_last_report_of_the_training_until_it_is_over(node):
    (node.folder / beats.REPORT).write_text('{"step": 7, "total": 9, "t": 5}')
    node.beat()
    node.run(30)
    node.beat()
    node.run(5)
    silent = [{"step": 7, "total": 9, "silent": [seconds, AFTER]} for seconds in (10, 15, 20, 25)]
    assert [parse_progress(text) for text in node.printed] == [*silent, {"step": 7, "total": 9}]


def test_the_silence_of_a_training_with_irregular_steps_is_reported_with_its_own_limit(node):
    node.beat()
    node.run(30)
    node.beat()
    node.run(5)
    node.printed.clear()
    node.run(30)
    assert [parse_progress(text)["silent"] for text in node.printed] == [[25, 90], [30, 90]]


def test_a_long_silence_is_reported_from_a_quarter_of_the_limit_on_at_each_32nd_part(tmp_path):
    node = Node(tmp_path, after=3200.0)
    node.beat()
    node.run(3200)
    seconds = [parse_progress(text)["silent"][0] for text in node.printed]
    assert seconds == list(range(800, 3200, 100))


@pytest.mark.parametrize("report", ["", "{", "[1]", "7", "[" * 9999])
def test_a_silence_is_reported_whatever_other_programs_have_written_as_the_last_report(node, report):
    (node.folder / beats.REPORT).write_text(report)
    node.beat()
    node.run(15)
    assert [parse_progress(text) for text in node.printed] == [{"silent": [10, AFTER]}]


def test_a_silence_is_reported_by_the_node_of_rank_0_only(node):
    node.beat(rank=1)
    node.run(AFTER)
    assert node.printed == []


@pytest.mark.parametrize(("settings", "limit"), [({}, 4 * AFTER), ({"save": 300.0}, 300)])
def test_a_save_has_its_own_limit(tmp_path, settings, limit):
    node = Node(tmp_path, **settings)
    node.beat(phase=beats.SAVE)
    assert not node.run(limit)
    assert node.run(10)


def test_a_rank_that_waits_for_others_after_its_function_has_no_limit(node):
    node.beat(phase=beats.OVER)
    assert not node.run(10_000)


def test_a_node_whose_ranks_have_returned_and_do_not_exit_is_complete(node):
    node.beat(phase=beats.RETURNED)
    assert node.run(AFTER + 10)
    assert node.attendant.code == 0


def test_a_node_whose_ranks_hang_after_others_have_returned_is_not_complete(node):
    """As after torchrun has started a rank again."""
    node.beat(phase=beats.RETURNED)
    node.run(5)
    node.beat(rank=0)
    assert node.run(AFTER + 10)
    assert node.attendant.code == 124


def test_a_node_that_has_lost_a_rank_is_not_complete(node, ended):
    node.beat(rank=0, phase=beats.RETURNED)
    node.beat(rank=1, pid=ended)
    assert node.run(AFTER + 10)
    assert node.attendant.code == 124


def test_a_node_one_of_whose_ranks_has_returned_and_ended_is_complete(node, ended):
    node.beat(rank=0, phase=beats.RETURNED)
    node.beat(rank=1, phase=beats.RETURNED, pid=ended)
    assert node.run(AFTER + 10)
    assert node.attendant.code == 0


def test_a_process_that_has_ended_is_not_judged(node, ended):
    """torchrun starts another one in its place, or ends the others."""
    node.beat(pid=ended)
    assert not node.run(10_000)


def test_a_process_whose_parent_has_not_waited_for_it_has_ended(node):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    node.beat(pid=ended.pid)
    assert not node.run(10_000)
    ended.wait()


def test_a_training_that_empties_its_temporary_folder_is_not_ended(node):
    node.beat()
    node.run(10)
    shutil.rmtree(node.folder)
    assert not node.run(10_000)


def test_what_the_ranks_of_another_start_have_written_is_not_seen(node, tmp_path_factory):
    node.beat()
    node.run(AFTER)
    other = Node(tmp_path_factory.mktemp("other"))
    assert not other.run(10_000)


@pytest.mark.parametrize(
    "before", [{"phase": beats.SAVE}, {"pid": os.getppid()}], ids=["a save", "the start of another process"]
)
def test_only_the_time_between_two_steps_of_one_process_is_the_length_of_a_step(node, before):
    node.beat(**before)
    node.run(35)
    node.beat()
    assert node.run(AFTER + 10)


@pytest.mark.parametrize(
    ("phase", "seconds", "is_silent"),
    [(None, 0, True), (beats.RUN, 15, False), (beats.RUN, 20, True), (beats.OVER, 600, False)],
)
def test_stacks_are_printed_at_sigterm_where_all_ranks_were_silent_lately_or_ever(node, phase, seconds, is_silent):
    assert not node.attendant.is_silent()
    node.beat(phase=phase or beats.RUN, reports=phase is not None)
    node.run(5 + seconds)
    assert node.attendant.is_silent() is is_silent
    node.beat(rank=1)
    assert not node.attendant.is_silent()


@pytest.mark.parametrize(
    ("beat", "seconds", "reason"),
    [
        ({}, 120, "no progress for 2 min; rank 1"),
        ({"step": 0.0}, 45, "no progress for 45 s after step 0; rank 1"),
        ({"phase": beats.SAVE, "step": 3.0}, 600, "a checkpoint is not saved after 10 min; rank 1"),
        ({"phase": beats.RETURNED}, 45, "the function has returned, and the process does not end in 45 s; rank 0"),
    ],
)
def test_the_reason_says_for_how_long_nothing_has_happened_on_a_rank_that_runs(node, beat, seconds, reason):
    node.beat(rank=0, phase=beats.RETURNED)
    node.beat(rank=1, **beat)
    (node.folder / "2").write_bytes(b"begins")
    node.run(5 + seconds)
    node.attendant.print_stacks()
    assert node.attendant.reason.startswith(f"{reason} prints no stack")


def test_the_reason_names_the_rank_that_fell_silent_and_not_one_that_never_reports(node):
    node.beat(rank=1, reports=False)
    node.beat(rank=0, step=7.0)
    assert node.run(5 + AFTER + 5)
    node.attendant.print_stacks()
    assert node.attendant.reason.startswith("no progress for 45 s after step 7; rank 0 prints no stack")


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_rank_that_never_reports_and_hangs_after_another_one_has_returned_is_named(node, ended, has_ended):
    node.beat(rank=1, reports=False)
    node.beat(rank=0, step=7.0)
    node.run(5)
    node.beat(rank=0, phase=beats.RETURNED, pid=ended if has_ended else None)
    assert not node.run(5 + AFTER)
    assert node.run(5)
    node.attendant.print_stacks()
    assert node.attendant.code == 124
    assert node.attendant.reason.startswith("no progress for 45 s after step 7; rank 1 prints no stack")


def test_a_node_without_rank_0_is_not_ended_because_its_ranks_never_report(tmp_path):
    node = Node(tmp_path, startup=100.0)
    node.beat(rank=1, reports=False)
    assert not node.run(10_000)


@pytest.mark.parametrize(("pid", "limit"), [(os.getpid(), 4 * AFTER), (None, AFTER)], ids=["runs", "has ended"])
def test_a_save_of_a_child_has_the_limit_of_a_save_while_the_child_runs(node, ended, pid, limit):
    node.beat(rank=0)
    record = beats.LAYOUT.pack(99, beats.SAVE, pid or ended, os.getpid(), 7.0, 1)
    (node.folder / f"0-{pid or ended}").write_bytes(record)
    assert not node.run(5 + limit)
    assert node.run(5)


def test_what_the_child_of_an_earlier_process_of_a_rank_reports_is_no_sign_of_the_rank(node, ended):
    """torchrun has started the rank again, whose first step takes long."""
    node.beat(reports=False)
    (node.folder / "0-1").write_bytes(beats.LAYOUT.pack(99, beats.RUN, os.getpid(), ended, 7.0, 1))
    assert not node.run(10_000)


def test_the_last_step_is_known_although_later_signs_have_none(node):
    node.beat(step=7.0)
    node.run(5)
    node.beat()
    node.run(50)
    node.attendant.print_stacks()
    assert node.attendant.reason.startswith("no progress for 45 s after step 7; ")


def test_stacks_are_those_of_the_training_since_the_signal_the_main_thread_first(node):
    node.beat()
    node.run(5)
    old = "Thread 0x00dd (most recent call first):\n"
    text = f"""{old}Thread 0x00aa (most recent call first):
  File "/x{attendant._SERVER}", line 1 in serve
Thread 0x00bb [loader] (most recent call first):
  File "load.py", line 2 in load
Thread 0x00cc (most recent call first):
  File "c.py", line 3 in c

Current thread 0x0000 (most recent call first):
  File "/job/function/code-0123456789ab/src/model.py", line 4 in step
  File "/job/function/trainjob_0123456789ab/train.py", line 4 in fit
  File "/x{attendant._BOOTSTRAP}", line 5 in main
"""
    (node.folder / f"0{beats.STACKS}").write_text(text)
    assert node.attendant._read_stacks(node.attendant._ranks[0], len(old)) == [
        ("MainThread", ['  File "src/model.py", line 4 in step', '  File "train.py", line 4 in fit']),
        ("loader", ['  File "load.py", line 2 in load']),
        ("thread 0x00cc", ['  File "c.py", line 3 in c']),
    ]


def test_the_main_threads_of_all_ranks_are_printed_before_other_threads_and_at_most_200_lines(node, monkeypatch):
    threads = [("MainThread", ["main"]), ("loader", ["load"] * 300)]
    monkeypatch.setattr(node.attendant, "_read_stacks", lambda *_: threads)
    node.beat(rank=0)
    node.beat(rank=1)
    node.run(5)
    node.attendant.print_stacks()
    printed = node.printed[-1].replace("[trainjob:stack] ", "").splitlines()
    names = [line.removesuffix(" (most recent call first)") for line in printed]
    assert names[1:7] == ["rank 0 MainThread", "main", "rank 1 MainThread", "main", "rank 0 loader", "load"]
    assert len(names) == 201


LIBRARY = ['  File "/usr/lib/python3.12/threading.py", line 5 in wait']


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([*LIBRARY, '  File "/app/train.py", line 9 in fit'], "wait (train.py:9)"),
        (LIBRARY, "wait (threading.py:5)"),
        ([], "native code"),
    ],
)
def test_a_thread_is_in_the_innermost_function_at_the_innermost_line_of_the_user(frames, place):
    assert attendant._locate(frames) == place


def test_the_ranks_are_killed_and_a_node_that_is_complete_has_no_error(node, tmp_path):
    with subprocess.Popen(["sleep", "600"]) as rank:
        node.beat(pid=rank.pid, phase=beats.RETURNED)
        node.run(AFTER + 10)
        node.attendant.report(tmp_path / "record.json")
        node.attendant.kill()
        assert rank.wait(300) == -9
    assert not (tmp_path / "record.json").exists()


@pytest.fixture
def rank(monkeypatch):
    """This process as a rank; returns phase and step of its last beat."""
    memory = bytearray(beats.LAYOUT.pack(0, beats.RUN, os.getpid(), 0, -1.0, 0))
    state = {"_memory": memory, "_pid": os.getpid()}
    for name, value in state.items():
        monkeypatch.setattr(beats, name, value)
    return lambda: beats.LAYOUT.unpack(memory)[1:5:3]


def test_a_sign_in_a_save_belongs_to_the_save_after_which_the_phase_is_that_of_before(rank):
    with beats.saving():
        beats.beat(True)
        assert rank() == (beats.SAVE, -1.0)
    assert rank() == (beats.RUN, -1.0)
    beats.beat(3)
    beats.enter(beats.OVER)
    with beats.saving():
        assert rank() == (beats.SAVE, 3.0)
    assert rank() == (beats.OVER, 3.0)


def test_the_last_report_of_a_rank_is_kept_for_the_attendant(rank, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_BEATS", str(tmp_path / "0"))
    reporter = progress.Reporter()
    reporter.report(3, 10, {"loss": 0.3, "ä": float("nan")})
    report = parse_progress(progress.PREFIX + (tmp_path / beats.REPORT).read_text())
    assert report == {"step": 3, "total": 10, "metrics": {"loss": 0.3}}
    (tmp_path / beats.REPORT).unlink()
    tmp_path.rmdir()
    reporter.report(10, 10)


@pytest.mark.parametrize("hang", HANGS)
def test_the_stacks_of_a_rank_that_hangs_are_printed_and_the_reason_says_where(hang, tmp_path, monkeypatch):
    code, where = HANGS[hang]
    monkeypatch.setattr(attendant, "_STACK_SECONDS", 0.1 if where.startswith("prints no stack") else 300.0)
    settings = {"TRAINJOB_BEATS": str(tmp_path), "TRAINJOB_STALLED": "{}", "RANK": "3"}
    printed = []
    command = [sys.executable, "-c", RANK.format(hang=code), str(ROOT)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            while psutil.Process(process.pid).status() == psutil.STATUS_RUNNING:
                time.sleep(0.01)
            watch = Attendant(tmp_path, {"after": 0.5}, printed.append)
            while not watch.check():
                time.sleep(0.05)
            watch.print_stacks()
            record = tmp_path / "record.json"
            watch.report(record)
        finally:
            process.kill()
    assert "after step 7; rank 3 " + where in watch.reason
    assert printed[-1].startswith(f"trainjob: {watch.reason}\n[trainjob:stack] rank 3 ")
    assert '"type":"trainjob.Stalled"' in record.read_text()


def test_of_many_ranks_with_deep_stacks_each_is_in_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(attendant, "_STACK_SECONDS", 300.0)
    printed = []
    settings = {"TRAINJOB_BEATS": str(tmp_path), "TRAINJOB_STALLED": "{}"}
    command = [sys.executable, "-c", RANK.format(hang=FORKS), str(ROOT), str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, **settings}, start_new_session=True) as process:
        try:
            while len(list(tmp_path.glob("*.ready"))) < RANKS:
                assert process.poll() is None
                time.sleep(0.05)
            watch = Attendant(tmp_path, {"after": 60}, printed.append)
            watch.check()
            watch.print_stacks()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    lines = printed[-1].splitlines()[1:]
    assert len(lines) <= 200
    assert {int(line.split()[2]) for line in lines if " rank " in line} == set(range(RANKS))


CHILD = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from trainer_core import progress; progress(step=9)"


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "5", "WORLD_SIZE": "8"}], ids=["the rank of its parent", "a rank of its own"]
)
def test_a_report_of_a_program_that_the_function_starts_is_a_sign_of_life_of_the_rank(tmp_path, variables):
    code = f"""
import subprocess
subprocess.run([sys.executable, "-c", {CHILD!r}], env={{**os.environ, **{variables}}}, check=True)
print("reported", flush=True)
time.sleep(600)
"""
    settings = {"TRAINJOB_BEATS": str(tmp_path), "TRAINJOB_STALLED": "{}", "RANK": "3"}
    now = 0.0
    watch = Attendant(tmp_path, {"after": AFTER}, lambda text: None, clock=lambda: now)
    command = [sys.executable, "-c", RANK.format(hang=code), str(ROOT)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            watch.check()
            assert process.stdout.readline().startswith((b"[trainjob:progress]", b"reported"))
            watch.check()
            reason = watch._explain(watch._ranks[3])
        finally:
            process.kill()
    assert reason.endswith("after step 9")


TAKE_DESCRIPTORS = """
os.closerange(3, 1000)
files = [open(f"{os.environ['TRAINJOB_BEATS']}-{number}", "w") for number in range(20)]
"""


@pytest.mark.parametrize(
    ("look", "where"), [("beats.watch()", "is in <module> "), ("", "prints no stack (state S (sleeping)")]
)
def test_stacks_are_never_written_into_a_file_that_the_training_opens_at_a_descriptor_it_has_closed(
    tmp_path, monkeypatch, look, where
):
    """A rank calls `beats.watch` every second, unless code in C holds the lock of the interpreter."""
    monkeypatch.setattr(attendant, "_STACK_SECONDS", 300.0 if look else 0.1)
    settings = {"TRAINJOB_BEATS": str(tmp_path), "TRAINJOB_STALLED": "{}", "RANK": "3"}
    code = f"{TAKE_DESCRIPTORS}{look}\nprint('ready', flush=True)\ntime.sleep(600)"
    now = 0.0
    watch = Attendant(tmp_path, {"after": AFTER}, lambda text: None, clock=lambda: now)
    command = [sys.executable, "-c", RANK.format(hang=code), str(ROOT)]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.PIPE) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == [b"begun\n", b"ready\n"]
            while psutil.Process(process.pid).status() == psutil.STATUS_RUNNING:
                time.sleep(0.01)
            watch.check()
            watch.print_stacks()
        finally:
            process.kill()
    assert f"rank 3 {where}" in watch.reason
    assert [path.read_text() for path in tmp_path.glob("3-*")] == [""] * 20


@pytest.mark.parametrize(("settings", "is_sign"), [('{"output": true}', True), ("{}", False)])
def test_a_line_of_output_is_a_sign_of_life_where_the_option_says_so(settings, is_sign, tmp_path):
    code = f"before = beats._memory[:8]; print(1); assert (beats._memory[:8] != before) is {is_sign}"
    variables = {"TRAINJOB_BEATS": str(tmp_path), "TRAINJOB_STALLED": settings, "RANK": "0"}
    command = [sys.executable, "-c", RANK.format(hang=code), str(ROOT)]
    assert subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True).stdout


def test_the_category_is_stalled_and_retryable_unless_a_rank_has_failed_first():
    stalled = StepFacts("node-1", exit_code=124, error_type="trainjob.Stalled", error_message="no progress for 9 s")
    failed = StepFacts("node-0", exit_code=1, error_type="ValueError", error_message="no data")
    diagnosis = diagnose(Facts(steps=[stalled]))
    assert (diagnosis.category.value, diagnosis.reason, diagnosis.retryable) == ("Stalled", "no progress for 9 s", True)
    assert diagnose(Facts(steps=[failed, stalled])).category.value == "UserCode"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"after": None}, "Stalled after: must be a number of seconds"),
        ({"after": 0}, "Stalled after: must be a number of seconds"),
        ({"after": "20 minutes"}, "Stalled after: must be a number of seconds"),
        ({"after": "20m", "save": -1}, "Stalled save: must be a number of seconds"),
        ({"after": "20m", "output": "yes"}, "Stalled output must be True or False"),
    ],
)
def test_an_invalid_value_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Stalled(**values)


def test_only_the_settings_that_are_given_are_stored():
    job_spec = {}
    Stalled("20m")(job_spec, None, None)
    assert job_spec == {"spec": {"stalled": {"after": "20m"}}}


def test_the_option_is_refused_for_a_program_that_gives_no_signs():
    request = build_request(
        backend=LocalProcessBackend, trainer=CustomTrainerContainer(image="custom:1"), options=[Stalled("20m")]
    )
    with pytest.raises(UnsupportedError, match=r"^Stalled needs a function as trainer"):
        _ = request.stalled_env
