"""However a training ends, the exit code of its node and its record say whether the function returned."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st
from node_process import Ended

from trainer_core.model.request import Code
from trainer_core.node import exit_code, return_value, termination
from trainer_core.packaging import argv_payload, serializer

NO_RECORD = "without a record that its function returned"
ODD_CODES = (None, 0, False, True, 1, 3, 255, 256, 512, 257, -1, -256, 0.0, "0", "stopped")
#: What happens after the function, when Python ends.
AFTER = (None, ["exit", 0], ["exit", 3], ["signal", "SIGSEGV"], ["signal", "SIGKILL"])
#: What a child does that the function has forked.
CHILDREN = (None, "return", "exit", "raise")


def end(way, value, after, child, thread):  # noqa: C901 -- packaged alone
    """End in a way, after a child has, with a thread that runs on."""
    import atexit
    import os
    import signal
    import sys
    import threading

    def do(deed, what):
        if deed == "exit":
            os._exit(what)
        os.kill(os.getpid(), getattr(signal, what))

    if thread:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if child is not None:
        pid = os.fork()
        if pid == 0:
            if child == "raise":
                raise KeyError("of the child")
            if child == "exit":
                sys.exit(5)
            return "of the child"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {"return": 0, "exit": 5, "raise": 1}[child]
    if after is not None:
        atexit.register(do, *after)
    if way == "raise":
        raise ValueError(value)
    if way == "sys.exit":
        sys.exit(value)
    if way == "exec":
        os.execvp("true", ["true"])  # noqa: S606
    if way in ("exit", "signal"):
        do(way, value)
    return {"value": value}


WAYS = st.one_of(
    st.tuples(st.just("return"), st.integers(0, 3)),
    st.tuples(st.just("sys.exit"), st.sampled_from(ODD_CODES)),
    st.tuples(st.just("exit"), st.integers(0, 255)),
    st.tuples(st.just("signal"), st.sampled_from(["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV"])),
    st.tuples(st.just("exec"), st.none()),
    st.tuples(st.just("raise"), st.just("no luck")),
)


def expect(way, value, after):
    """The model: whether the node ends with 0, and the result that its record has."""
    if way == "return":
        return True, {"value": value}
    is_zero = value is None or (isinstance(value, int) and value == 0)
    return way == "sys.exit" and is_zero and after in (None, ["exit", 0]), None


def run(folder: Path, func, args=None, launch="python", **env) -> Ended:
    argv = argv_payload.render_argv(Code(**serializer.package(func, args)), launch=launch)
    log = folder / "termination-log"
    settings = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "TMPDIR": str(folder),
        "TRAINJOB_TERMINATION_LOG": str(log),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        argv, env={**settings, **env}, cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    record = termination.parse_record(log.read_bytes()) if log.exists() else None
    return Ended(done.returncode, done.stdout, done.stderr, record)


@settings(max_examples=30)
@example(("exit", 0), None, None, False)
@example(("exec", None), None, None, False)
@example(("sys.exit", 256), None, None, False)
@example(("raise", "no luck"), ["exit", 0], None, False)
@example(("return", 1), ["signal", "SIGSEGV"], "return", True)
@given(way=WAYS, after=st.sampled_from(AFTER), child=st.sampled_from(CHILDREN), thread=st.booleans())
def test_a_node_ends_with_0_only_if_its_function_returned(tmp_path_factory, way, after, child, thread):
    args = dict(zip(("way", "value"), way, strict=True), after=after, child=child, thread=thread)
    ended = run(tmp_path_factory.mktemp("node"), end, args)
    is_complete, result = expect(*way, after)

    assert (ended.code == 0, (ended.record or {}).get("result")) == (is_complete, result)
    assert ended.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["0", "1"])
def test_under_torchrun_a_rank_that_ends_before_its_function_returns_fails_the_node(tmp_path, failing):
    def train(failing):
        import os

        if os.environ["RANK"] == failing:
            os._exit(0)
        return 1

    ended = run(tmp_path, train, {"failing": failing}, "torchrun", PET_NPROC_PER_NODE="2")

    assert ended.code == 1
    assert NO_RECORD in ended.error["message"]


@pytest.mark.slow
def test_under_torchrun_a_crash_of_a_rank_after_all_functions_have_returned_is_a_note(tmp_path):
    def train(folder):
        import atexit
        import os
        import signal
        import time
        from pathlib import Path

        def crash():
            # The other rank has returned as well.
            while not Path(folder, "ended").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGSEGV)

        def end():
            Path(folder, "ended").touch()
            time.sleep(600)

        atexit.register(end if os.environ["RANK"] == "1" else crash)
        return 1

    ended = run(tmp_path, train, {"folder": str(tmp_path)}, "torchrun", PET_NPROC_PER_NODE="2")

    assert ended.result == 1
    assert ended.record["note"] == "the process ended with exit code 1 after the function had returned"


def closes_its_files():
    import os
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    os.environ.clear()
    return 1


def writes_no_file():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return 1


def removes_the_folder():
    import os
    import shutil

    shutil.rmtree(os.path.dirname(os.environ["TRAINJOB_TERMINATION_LOG"]))  # noqa: PTH120 -- as users write it
    return 1


@pytest.mark.parametrize("func", [closes_its_files, writes_no_file, removes_the_folder])
def test_a_result_that_cannot_be_written_fails_the_node_and_its_log_says_so(tmp_path, func):
    record = tmp_path / "record"
    record.mkdir()
    ended = run(tmp_path, func, TRAINJOB_TERMINATION_LOG=str(record / "log"))

    assert ended.code == 1
    assert "trainjob: the result could not be written to TRAINJOB_TERMINATION_LOG=" in ended.stderr
    assert f"trainjob: it ended with exit code 0 and {NO_RECORD}" in ended.stderr


def test_a_function_that_changes_its_environment_and_its_folder_keeps_its_result(tmp_path):
    def train():
        import os
        import tempfile
        from pathlib import Path

        os.chdir(tempfile.mkdtemp())
        Path.cwd().rmdir()
        os.environ.clear()
        os.environ["RANK"] = "1"
        return 1

    assert run(tmp_path, train).result == 1


def test_a_function_that_empties_its_temporary_folder_keeps_its_result(tmp_path):
    def train():
        import shutil
        import tempfile
        from pathlib import Path

        shutil.rmtree(tempfile.gettempdir())
        Path(tempfile.gettempdir()).mkdir()
        return 1

    assert run(tmp_path, train, TRAINJOB_STATUS_SERVER="0").result == 1


def undone(kind):
    import functools
    import itertools
    from concurrent.futures import Future

    def train():
        return 0.5

    values = {
        "map": map(abs, [1]),
        "filter": filter(None, [1]),
        "zip": zip([1], [2], strict=True),
        "chain": itertools.chain([1], [2]),
        "generator": (each for each in [1]),
        "partial": functools.partial(train),
        "function": lambda: train(),
        "builtin_function_or_method": [1].count,
        "Future": Future(),
    }
    return values[kind]


KINDS = st.sampled_from(
    [
        *("map", "filter", "zip", "chain", "generator", "partial", "function", "builtin_function_or_method"),
        "Future",
    ]
)
PLAIN = st.sampled_from([None, 0, 0.5, "text", True, {}, [], sys.stdout])


@settings(max_examples=100)
@given(data=st.data(), around=st.lists(st.sampled_from(["dict", "list", "tuple"]), max_size=3))
def test_a_value_is_undone_if_all_of_it_is(data, around):
    kind = data.draw(KINDS)
    value, wrap = undone(kind), {"dict": lambda each: {"a": each}, "list": lambda each: [each], "tuple": lambda e: (e,)}
    plain = data.draw(PLAIN)
    for name in around:
        value, plain = wrap[name](value), wrap[name](plain)

    assert return_value.find_undone(value) == " of ".join([*reversed(around), kind])
    assert return_value.find_undone(plain) is None
    assert return_value.find_undone([value, plain]) is None


@given(st.lists(st.one_of(st.integers(), st.just("future"), st.just("error")), max_size=4))
def test_the_results_of_futures_are_taken_and_their_exceptions_raised(values):
    from concurrent.futures import Future

    def build(value):
        future = Future()
        future.set_exception(KeyError()) if value == "error" else future.set_result(value)
        return value if isinstance(value, int) else future

    outcomes = []
    for given_value in ([build(each) for each in values], {n: build(each) for n, each in enumerate(values)}):
        try:
            outcomes.append(return_value.unwrap(given_value))
        except KeyError:
            outcomes.append("error")

    assert outcomes == (["error", "error"] if "error" in values else [values, dict(enumerate(values))])


def test_a_value_that_contains_itself_has_been_done():
    value = []
    value.append(value)
    assert return_value.find_undone(value) is None


def test_a_training_that_exits_with_0_because_of_sigterm_has_not_returned(tmp_path):
    def train():
        import os
        import signal
        import sys

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()

    assert run(tmp_path, train).code == 128 + signal.SIGTERM


def test_a_training_that_returns_because_of_sigterm_has_returned(tmp_path):
    def train():
        import os
        import signal
        import time

        told = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        os.kill(os.getppid(), signal.SIGTERM)
        while not told:
            time.sleep(0.01)
        return told

    assert run(tmp_path, train).result == [1]


def test_the_second_start_of_torchrun_is_judged_and_not_the_first(tmp_path):
    prefix, log = f"{tmp_path}/mark-", tmp_path / "log"
    for name in ("0-0", "0-1", "1-0"):
        Path(f"{prefix}{name}").symlink_to("returned 2")
    written = []

    assert exit_code.decide(0, prefix, log, False, written.append) == 1
    assert NO_RECORD in written[0]


@pytest.mark.parametrize(("record", "code"), [({}, 143), ({"error": {"type": "E"}}, 1), ({"exits": {"0": 3}}, 1)])
def test_a_launcher_that_ends_with_1_because_of_sigterm_was_told_to_stop_unless_a_process_has_failed(
    tmp_path, record, code
):
    log = tmp_path / "record"
    log.write_text(json.dumps(record))
    assert exit_code.decide(1, str(tmp_path / "ended-"), log, True, print) == code
