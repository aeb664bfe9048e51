"""A packaged function arrives in a real process byte for byte, runs there, and its end is reported once."""

from __future__ import annotations

import ast
import hashlib
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from node_process import BARE, FULL, Node, module_of, plain

from trainer_core.node import bootstrap
from trainer_core.packaging import serializer

users = module_of(Path(__file__).parent / "data" / "users_functions.py")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped files ü")
    serializer.ship(folder)
    return folder


@pytest.fixture
def node(tmp_path, shipped):
    return Node(tmp_path, shipped)


# ---- arriving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", [BARE, FULL], ids=["bare", "installed"])
@pytest.mark.parametrize("function", users.WORKING, ids=lambda function: function.__name__)
def test_a_function_returns_there_what_it_returns_here(node, function, python):
    ended = node.run(serializer.package(function), python)

    assert ended.result == plain(function())


def test_ninety_kilobytes_of_source_arrive(node, tmp_path):
    lines = "\n".join(f"    lines.append('line {i} \"$HOME\" `id` ü')" for i in range(2200))
    big = module_of(tmp_path / "big.py", f"def train():\n    lines = []\n{lines}\n    return [len(lines), lines[-1]]\n")
    code = serializer.package(big.train)

    assert len(code["text"]) > 90_000
    assert node.run(code).result == big.train()


def test_inspect_and_traceback_show_the_users_source(node, tmp_path):
    text = "def train():\n    import inspect, sys\n    me = sys._getframe().f_code\n    return inspect.getsource(me)\n"
    module = module_of(tmp_path / "shown.py", text)

    assert node.run(serializer.package(module.train)).result == text


@settings(max_examples=15, deadline=None)
@given(args=st.dictionaries(st.text(), JSON, max_size=4))
def test_any_json_arguments_arrive_equal_in_a_process(tmp_path_factory, shipped, args):
    def train(**given):
        return given

    node = Node(tmp_path_factory.mktemp("node"), shipped)
    whole = node.folder / "result.json"
    node.run(serializer.package(train, args), TRAINJOB_RESULT_URI=str(whole))

    assert json.loads(whole.read_bytes()) == args


@settings(max_examples=100, deadline=None)
@given(args=st.dictionaries(st.text(), JSON, max_size=4))
def test_any_json_arguments_arrive_equal(tmp_path_factory, args):
    def train(**given):
        return given

    payload = json.loads(serializer.payload(serializer.package(train, args)))

    assert bootstrap.call(payload, tmp_path_factory.mktemp("function")) == args


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\\r\0")))
def test_any_text_in_the_source_arrives_equal(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("literal")
    literal = "'''" + text.replace("'", "\\'") + "'''"
    module = module_of(folder / "literal.py", f"def train():\n    return [{literal}, {text!r}]\n")
    payload = json.loads(serializer.payload(serializer.package(module.train)))

    assert bootstrap.call(payload, folder / "function") == [text, text]


def test_code_that_was_changed_on_its_way_does_not_run(node):
    code = serializer.package(users.quotes)
    ended = node.run({**code, "text": code["text"] + "#"})

    assert ended.code == 1
    assert "digest" in ended.error["message"]


# ---- references and pickles ----------------------------------------------------------------------------------


def test_a_reference_is_imported_from_the_working_directory(node):
    (node.folder / "recipe.py").write_text(
        "class Recipe:\n    @staticmethod\n    def train(x):\n        return x + 1\n"
    )
    code = serializer.package("recipe:Recipe.train", {"x": 1}, mode="reference")

    assert node.run(code, FULL).result == 2


def test_a_module_that_is_missing_is_named(node):
    ended = node.run(serializer.package("no_such_module:train"))

    assert ended.code == 1
    assert ended.error["type"] == "ModuleNotFoundError"
    assert "no_such_module" in ended.error["message"]
    assert "importlib" not in ended.stderr


def test_a_pickled_closure_runs_with_what_it_closes_over(node):
    assert node.run(serializer.package(users.closure, mode="cloudpickle"), FULL).result == [0.1, "s"]


def test_a_pickled_function_brings_the_helpers_of_its_module(node):
    code = serializer.package(users.default_from_outside, mode="cloudpickle")

    assert node.run(code, FULL).result == 0.1


def test_a_pickle_without_cloudpickle_says_how_to_install_it(node):
    ended = node.run(serializer.package(users.closure, mode="cloudpickle"), BARE)

    assert ended.code == 1
    assert 'packages_to_install=["cloudpickle"]' in ended.error["message"]


def test_a_pickle_of_another_python_is_refused_before_it_is_read(node):
    code = serializer.package(users.closure, mode="cloudpickle")
    text = "2.7:" + code["text"].partition(":")[2]
    ended = node.run({**code, "text": text, "digest": ""}, FULL)

    assert "pickled by Python 2.7" in ended.error["message"]


# ---- surroundings --------------------------------------------------------------------------------------------


def test_nothing_of_ours_hides_a_module_of_the_same_name(node):
    def train():
        import importlib.util
        import sys

        names = ["result", "progress", "files", "function", "contract", "paths", "jsonable", "bootstrap"]
        return [[n for n in names if importlib.util.find_spec(n)], [p for p in sys.path if p.endswith("node")]]

    assert node.run(serializer.package(train)).result == [[], []]


def test_the_modules_beside_the_script_are_named_like_none_of_the_standard_library(shipped):
    names = {path.stem for path in (shipped / "trainer_core" / "node").glob("*.py")}

    assert not names & sys.stdlib_module_names


@pytest.mark.parametrize("python", [BARE, FULL], ids=["bare", "installed"])
def test_the_public_functions_can_be_imported(node, python):
    def train():
        from trainer_core.node.progress import progress

        progress(step=1, total=1)
        return progress.__name__

    ended = node.run(serializer.package(train), python)

    assert ended.result == "progress"
    assert ended.stdout.startswith('[trainjob:progress] {"step": 1, "total": 1, "t": ')


def test_without_trainer_core_the_shipped_one_is_imported(node):
    def train():
        from trainer_core import dataset_path, model_path, output_path, progress, update_trainjob_status

        progress(step=1)
        update_trainjob_status(100)
        return [str(dataset_path()), str(model_path()), output_path().is_dir()]

    ended = node.run(serializer.package(train), TRAINJOB_DATASET_PATH="/data set")

    assert ended.result == ["/data set", "/workspace/model", True]


def test_an_installed_trainer_core_comes_first(node):
    package = node.folder / "site" / "trainer_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("progress = 'installed'\n")

    def train():
        from trainer_core import progress

        return progress

    ended = node.run(serializer.package(train), (sys.executable, "-S"), PYTHONPATH=str(package.parent))

    assert ended.result == "installed"


def test_trainer_core_is_not_imported_unless_the_function_asks_for_it(node):
    def train():
        import sys

        return [name for name in sys.modules if name.split(".")[0] in ("trainer_core", "pydantic")]

    assert node.run(serializer.package(train), FULL).result == []


def test_it_runs_as_a_module_of_an_installed_trainer_core(node, monkeypatch):
    payload, log = node.folder / "payload.json", node.folder / "log.json"
    payload.write_text(serializer.payload(serializer.package(users.quotes)))
    monkeypatch.setenv("TRAINJOB_PAYLOAD", str(payload))
    monkeypatch.setenv("TRAINJOB_TERMINATION_LOG", str(log))

    assert subprocess.run([sys.executable, "-m", "trainer_core.node.bootstrap"], check=False).returncode == 0
    assert json.loads(log.read_bytes()) == {"result": users.quotes()}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_child_process_can_import_the_function_it_is_given(node, method):
    def train(method, inner=False):
        import multiprocessing

        context = multiprocessing.get_context(method)
        if inner:
            print("inner", flush=True)
            return None
        child = context.Process(target=train, args=(method, True))
        child.start()
        child.join()
        return child.exitcode

    ended = node.run(serializer.package(train, {"method": method}))

    assert ended.result == 0
    assert ended.stdout == "inner\n"


def test_a_read_only_payload_is_no_hindrance(node):
    (node.folder / "function").write_text("in the way")

    assert node.run(serializer.package(users.quotes)).result == users.quotes()


def test_code_is_written_only_where_no_other_user_can_write(node):
    folder = node.folder / "function"
    folder.mkdir()
    folder.chmod(0o777)

    assert node.run(serializer.package(users.quotes)).result == users.quotes()
    assert list(folder.iterdir()) == []


def test_what_is_written_is_readable_by_its_owner_only(node):
    node.run(serializer.package(users.quotes))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [node.log, *(node.folder / "function").glob("*.py")]}

    assert modes == {0o600}
    assert stat.S_IMODE((node.folder / "function").stat().st_mode) == 0o700


def test_a_print_shows_at_once_and_whatever_it_holds(node):
    def train():
        print("half a pair \ud800")
        import os

        os._exit(0)  # Skips the flush at exit.

    assert node.run(serializer.package(train)).stdout == "half a pair \\ud800\n"


# ---- ending --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("text", "line"), [("...", "...\n"), ("\r  5%\r 10%", "\r  5%\r 10%\n")])
def test_a_follower_sees_a_line_that_does_not_end(node, text, line):
    def train(text, gate):
        import time
        from pathlib import Path

        print(text, end="", flush=True)
        while not Path(gate).exists():
            time.sleep(0.01)

    gate = node.folder / "gate"
    process = node.start(serializer.package(train, {"text": text, "gate": str(gate)}))
    assert process.stdout is not None
    process.stdout.reconfigure(newline="\n")

    assert process.stdout.readline() == line
    gate.touch()
    assert node.end(process).code == 0


def test_an_exception_is_reported_with_the_users_frames_only(node):
    def train():
        def step():
            raise ValueError("loss is NaN")

        step()

    ended = node.run(serializer.package(train))

    assert ended.code == 1
    assert (ended.error["type"], ended.error["message"], ended.error["rank"]) == ("ValueError", "loss is NaN", 0)
    assert ended.error["traceback"] == ended.stderr.rstrip()
    assert ended.stderr.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("loss is NaN")' in ended.stderr
    assert "node/bootstrap.py" not in ended.stderr
    line = train.__code__.co_firstlineno
    assert f'  File "test_bootstrap.py", line {line + 4}, in train\n' in ended.stderr
    assert f'  File "test_bootstrap.py", line {line + 2}, in step\n' in ended.stderr


def test_a_payload_of_an_earlier_release_has_the_lines_of_its_text(node):
    def train():
        raise ValueError("loss is NaN")

    code = serializer.package(train)
    del code["origin"]
    ended = node.run(code)
    assert f'trainjob_{hashlib.sha256(code["text"].encode()).hexdigest()[:12]}.py", line 4, in train' in ended.stderr


def test_arguments_that_the_function_does_not_take_are_an_error_of_one_line(node):
    code = serializer.package(users.quotes)
    ended = node.run({**code, "args": {"epochs": 3}})

    assert ended.code == 1
    assert ended.stderr.count("\n") == 1
    assert "epochs" in ended.error["message"]


def test_an_exception_that_cannot_be_shown_is_still_reported(node):
    def train():
        class Odd(BaseException):
            def __str__(self):
                raise RuntimeError("no text")

        raise Odd

    ended = node.run(serializer.package(train))

    assert ended.code == 1
    assert ended.error["type"].endswith("Odd")


@pytest.mark.parametrize(("given", "code"), [(None, 0), (0, 0), (3, 3), ("stopped", 1)])
def test_sys_exit_ends_the_process_as_everywhere(node, given, code):
    def train(given):
        import sys

        sys.exit(given)

    ended = node.run(serializer.package(train, {"given": given}))
    kind = (ended.record or {}).get("error", {}).get("type", "result")

    assert ended.code == code
    assert kind == {0: "result"}.get(code, "SystemExit")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_signal_ends_the_process_as_everywhere_and_reports_nothing(node, name):
    def train():
        import time

        print("ready", flush=True)
        time.sleep(600)

    process = node.start(serializer.package(train))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(getattr(signal, name))
    ended = node.end(process)

    assert ended.code == -getattr(signal, name)
    assert ended.record is None


def test_a_coroutine_that_was_not_awaited_is_an_error(node):
    (node.folder / "recipe.py").write_text("async def train():\n    return 1\n")
    ended = node.run(serializer.package("recipe:train"), FULL)

    assert ended.code == 1
    assert "not async and not a generator" in ended.error["message"]


@pytest.mark.parametrize("payload", ["", "[]", '{"kind": "source"', '{"kind": "shell", "text": "", "entry": ""}'])
def test_a_payload_that_is_none_is_refused_in_one_line(node, payload):
    ended = node.run(payload)

    assert ended.code == 1
    assert ended.error["type"] == "trainjob.PayloadError"
    assert ended.stderr.count("\n") == 1


def test_a_payload_that_is_missing_is_refused_in_one_line(node):
    ended = node.run("", TRAINJOB_PAYLOAD="")

    assert "TRAINJOB_PAYLOAD is not set" in ended.error["message"]


# ---- ranks ---------------------------------------------------------------------------------------------------


def by_rank(fails=()):
    """A job whose function returns its rank, or raises on some."""

    def train(fails):
        import os

        rank = int(os.environ["RANK"])
        if rank in fails:
            raise ValueError(f"rank {rank} fails")
        return rank

    return serializer.package(train, {"fails": list(fails)})


def test_of_three_ranks_only_the_first_reports(node):
    processes = [node.start(by_rank(), RANK=str(rank)) for rank in (2, 1, 0)]
    ended = [node.end(process) for process in processes]

    assert [e.code for e in ended] == [0, 0, 0]
    assert ended[-1].result == 0


def test_without_the_first_rank_a_node_reports_nothing(node):
    assert node.run(by_rank(), RANK="1").record is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_an_error_of_any_rank_wins_over_the_result(node, order):
    ended = [node.run(by_rank([1]), RANK=str(rank)) for rank in order][-1]

    assert (ended.error["rank"], ended.error["message"]) == (1, "rank 1 fails")


def test_the_first_error_of_a_node_is_kept(node):
    node.run(by_rank([1, 2]), RANK="2")

    assert node.run(by_rank([1, 2]), RANK="1").error["rank"] == 2


def test_ranks_that_fail_at_the_same_time_leave_one_whole_error(node):
    processes = [node.start(by_rank([1, 2, 3]), RANK=str(rank)) for rank in range(4)]
    ended = [node.end(process) for process in processes]

    assert [e.code for e in ended] == [0, 1, 1, 1]
    assert ended[-1].error["message"] == f"rank {ended[-1].error['rank']} fails"


def test_after_a_restart_by_torchrun_the_earlier_error_no_longer_counts(node):
    node.run(by_rank([0]), RANK="0")

    assert node.run(by_rank(), RANK="0", TORCHELASTIC_RESTART_COUNT="1").result == 0


# ---- what is shipped -----------------------------------------------------------------------------------------


def test_what_is_shipped_parses_on_python_3_8():
    trees = [ast.parse(text, path, feature_version=(3, 8)) for path, text in serializer.shipped_files().items()]
    assert trees


def test_what_is_shipped_imports_the_standard_library_only():
    trees = [ast.parse(text) for text in serializer.shipped_files().values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}

    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names | {"trainer_core"}


# ---- torchrun ------------------------------------------------------------------------------------------------

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def test_under_torchrun_the_error_of_another_rank_is_the_one_reported(node):
    def train():
        import os
        import time

        if os.environ["RANK"] == "1":
            raise ValueError("rank 1 fails")
        time.sleep(600)  # torchrun ends this one.

    ended = node.run(serializer.package(train), TORCHRUN, OMP_NUM_THREADS="1")

    assert ended.code == 1
    # Both ranks write to one log.
    assert "[rank 1] ValueError: rank 1 fails\n" in ended.stderr
    assert (ended.error["rank"], ended.error["message"]) == (1, "rank 1 fails")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("size", [86, 136])
def test_a_manager_of_multiprocessing_starts_whatever_the_length_of_the_temporary_folder(node, size, method):
    def train(method):
        import multiprocessing
        import os
        import tempfile

        with multiprocessing.get_context(method).Manager() as manager:
            return [list(manager.list([1])), tempfile.gettempdir() == os.environ["TMPDIR"]]

    folder = node.folder / ("x" * max(40, size - len(f"{node.folder}/")))
    folder.mkdir()
    ended = node.run(serializer.package(train, {"method": method}), TMPDIR=str(folder))

    assert ended.result == [[1], True]
    assert not list(folder.iterdir())
