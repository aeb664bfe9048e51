"""What the documentation shows is what happens."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess

import pytest
from blocks import PAGES, ROOT, blocks
from trainjob_command import Command

LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)#\s]*)(#[^)]*)?\)")
RUN = [page for page in PAGES if any(block.language in ("python", "console") for block in blocks(page))]


def identity(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def typed(folder, capsys):
    """Run a command line that the reader of a page types."""
    trainjob = Command(folder, capsys)

    def run(line):
        program, *arguments = shlex.split(line)
        if program == "trainjob":
            return trainjob(*arguments)
        return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN, ids=identity)
def test_every_snippet_of_the_page_runs(page, folder, typed):
    shown = [block for block in blocks(page) if block.reason is None]
    for block in shown:
        if block.file:
            (folder / block.file).write_text(block.text)
    scripts = [block.file for block in shown if block.language == "python" and block.file and not block.is_dag]
    for script in scripts:
        done = typed(f"python -W ignore {script}")
        assert done.returncode == 0, f"{script}: {done.stderr}"
    for command in (command for block in shown if block.language == "console" for command in block.commands):
        done = typed(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_python_and_console_blocks_can_be_run_or_say_why_not(page):
    for block in blocks(page):
        if block.language == "python":
            assert block.file or block.reason, f"no file name: {block.text[:60]}"
        if block.language == "console":
            assert block.commands or block.reason


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_every_link_of_the_page_leads_somewhere(page):
    targets = [match["target"] for match in LINK.finditer(page.read_text(encoding="utf-8")) if match["target"]]
    relative = [target for target in targets if "://" not in target]

    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_the_readme_runs_by_line_20():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert lines.index("$ make demo") < 20


def test_the_exit_codes_of_the_reference_are_those_of_the_command():
    from trainer_core.cli import exits

    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}

    assert documented == {0, exits.FAILED, exits.BAD_INPUT, *exits._CODES.values(), exits.INTERRUPTED}


def test_the_errors_of_the_reference_are_those_there_are():
    from trainer_core import errors

    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(\w+)` \(", page, re.M)) == set(errors.__all__) - {"TrainerError"}


def test_the_api_reference_has_every_public_name_with_its_docstring(monkeypatch):
    import trainer_core

    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = importlib.import_module("reference").page()

    assert re.findall(r"^## (\w+)$", page, re.M) == trainer_core.__all__
    assert "### train" in page
    assert "- `func_args`: Passed to it as keyword arguments." in page
