"""A job gives the answer of a plain call in the module, or the function is refused before anything is created.

`oracle.py` composes modules at random and compares. ``python tests/oracle/oracle.py SEED COUNT`` plays others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def play(seed: int, count: int, root: Path = ROOT, *ways: str) -> dict:
    """Return what `oracle.py` prints, with the package of a folder."""
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, str(HERE / "oracle.py"), str(seed), str(count), *ways]
    ended = subprocess.run(program, env=env, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    found = json.loads(ended.stdout)
    assert found["package"] == str(root / "trainer_core")
    return found


def assert_right(found: dict) -> None:
    assert not found["faults"], json.dumps(found["faults"][:3], indent=1) + f"\nseed {found['seed']}"


def test_a_job_gives_the_answer_of_a_plain_call_or_its_function_is_refused():
    found = play(1, 110)

    assert_right(found)
    assert min(found["ends"][f"{way} returned"] for way in ("source", "project", "cloudpickle")) > 30


@pytest.mark.deep
def test_jobs_of_many_modules_give_the_answers_of_plain_calls():
    assert_right(play(2, 350))


#: One-line mistakes: the file, the line, and what becomes of it.
MISTAKES = {
    "a default is dropped": ("packaging/source_extraction.py", " or _defaults(raw) != _defaults(plain):", ":"),
    "a shadowed name is resolved as the builtin": (
        "packaging/source_extraction.py",
        "| (_BUILTINS - _overridden(module))",
        "| _BUILTINS",
    ),
    "a changed wrapper is not seen": (
        "packaging/source_extraction.py",
        "if list(map(_facts, given)) != list(map(_facts, built)) or",
        "if",
    ),
    "the attributes of a function are dropped": (
        "packaging/source_extraction.py",
        'return is_found and not vars(func).keys() - {"__wrapped__"}',
        "return is_found",
    ),
    "another function of the name is called": (
        "packaging/source_extraction.py",
        'return is_found and not vars(func).keys() - {"__wrapped__"}',
        'return not vars(func).keys() - {"__wrapped__"}',
    ),
    "a global that is set in a branch counts as set": (
        "packaging/source_extraction.py",
        " and not any(a <= each.offset < b for a, b in jumps)",
        "",
    ),
    "annotations become texts": ("packaging/source_extraction.py", "if unknown and is_read:", "if False:"),
    "the names in the text of eval are not seen": (
        "packaging/source_extraction.py",
        'if used & {"eval", "exec"}:',
        "if False:",
    ),
    "cloudpickle loses the names of a class body": (
        "packaging/serializer.py",
        "left_out = source_extraction.find_unpickled_names(func)",
        "left_out = None",
    ),
    "an inner decorator is left out": (
        "packaging/source_extraction.py",
        "return node.decorator_list[len(node.decorator_list) - depth :]",
        "return node.decorator_list[len(node.decorator_list) - depth + 1 :]",
    ),
    "an indented text is dedented": (
        "packaging/source_extraction.py",
        "return _BLOCK + text if text[0].isspace() else text",
        "return __import__('textwrap').dedent(text)",
    ),
    "a file is written in another encoding": (
        "node/load_function.py",
        'data = text.encode("utf-8")',
        'data = text.encode("latin-1", "replace")',
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_oracle_notices_a_mistake_of_one_line(tmp_path, mistake):
    file, line, becomes = MISTAKES[mistake]
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "trainer_core", tmp_path / "trainer_core", ignore=skipped)
    path = tmp_path / "trainer_core" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1
    path.write_text(text.replace(line, becomes), encoding="utf-8")

    assert play(1, 110, tmp_path, "--first")["faults"]


#: Mistakes in the values of a job, and the tests of values that notice them.
VALUE_MISTAKES = {
    "None becomes a text": (
        "model/func_args.py",
        "known in _NULLS)):\n        return None\n",
        "known in _NULLS)):\n        return str(known)\n",
        "cli/test_values_of_arguments.py",
    ),
    "an earlier metric is taken": (
        "model/jobs.py",
        "found = {**(reported or {}), **jsonable.extract_metrics(result)}",
        "found = {**jsonable.extract_metrics(result), **(reported or {})}",
        "unit/test_result_values.py",
    ),
    "a metric that is no number is filled from a report": (
        "model/jobs.py",
        "found = {**(reported or {}), **jsonable.extract_metrics(result)}",
        "found = {**(reported or {}), **{k: v for k, v in jsonable.extract_metrics(result).items() if v}}",
        "unit/test_result_values.py",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("mistake", VALUE_MISTAKES)
def test_the_tests_of_values_notice_a_mistake_of_one_line(tmp_path, mistake):
    file, line, becomes, tests = VALUE_MISTAKES[mistake]
    shutil.copytree(ROOT / "trainer_core", tmp_path / "trainer_core", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "trainer_core" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1
    path.write_text(text.replace(line, becomes), encoding="utf-8")

    # The copy is imported, because it lies in the working directory of `python -m`.
    options = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    program = [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / tests)]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout[-3000:]
