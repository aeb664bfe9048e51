"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from blocks import PAGES, ROOT, blocks
from trainjob_command import Command

LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)#\s]*)(#[^)]*)?\)")
CODE = ("python", "console")
RUN = [
    page
    for page in PAGES
    if any(block.language in CODE and block.reason is None and not block.is_dag for block in blocks(page))
]


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


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=identity)
def test_every_snippet_of_the_page_runs(page, folder, typed):
    shown = [block for block in blocks(page) if block.reason is None]
    for block in shown:
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text)
    scripts = [block.file for block in shown if block.language == "python" and block.file and not block.is_dag]
    for script in scripts:
        done = typed(f"python -W ignore {script}")
        assert done.returncode == 0, f"{script}: {done.stderr}"
    commands = [command for block in shown if block.language == "console" for command in block.commands]
    assert scripts or commands
    for command in commands:
        done = typed(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_python_and_console_blocks_can_be_run_or_say_why_not():
    code = [(page, block) for page in PAGES for block in blocks(page) if block.language in CODE]
    silent = [
        (page.name, block.text[:60]) for page, block in code if not (block.file or block.commands or block.reason)
    ]
    assert code
    assert silent == []


def test_the_landing_page_links_every_guide():
    landing = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [file.name for file in (ROOT / "docs" / "guides").iterdir() if f"(guides/{file.name})" not in landing] == []


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_every_link_of_the_page_leads_somewhere(page):
    targets = [match["target"] for match in LINK.finditer(page.read_text(encoding="utf-8")) if match["target"]]
    relative = [target for target in targets if "://" not in target]

    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_the_readme_runs_by_line_20():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert lines.index("$ make demo") < 20


REFERENCE = ROOT / "docs" / "reference"


def test_the_reference_lists_the_exit_codes_of_the_command():
    from trainer_core.cli import exit_codes

    page = (REFERENCE / "command.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}

    assert documented == {
        0,
        exit_codes.FAILED,
        exit_codes.BAD_INPUT,
        *exit_codes._CODES.values(),
        exit_codes.ANOTHER_FAILURE,
        exit_codes.INTERRUPTED,
    }


def test_the_reference_lists_every_error():
    from trainer_core.base import errors

    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")

    # JobFailedError has an outcome, and is defined beside it.
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)} | {"JobFailedError"}
    assert set(re.findall(r"^\| `(\w+)` \(", page, re.M)) == classes - {"TrainerError"}


def documented_objects():
    """Every object for which a page of the reference has an entry."""
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.rglob("*.md")]
    return {name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, re.M)}


def test_the_reference_has_an_entry_for_every_public_name_of_the_core():
    import trainer_core
    from trainer_core.base import errors

    on_the_page_of_errors = set(errors.__all__)
    missing = {
        f"trainer_core.{name}" for name in set(trainer_core.__all__) - on_the_page_of_errors
    } - documented_objects()

    assert missing == set()
    assert "trainer_core.base.errors" in documented_objects()


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers", "decorators"])
def test_the_reference_has_an_entry_for_every_module_that_a_dag_imports(kind):
    modules = {
        f"airflow_provider.{kind}.{path.stem}"
        for path in (ROOT / "airflow_provider" / kind).glob("[a-z]*.py")
        if path.stem != "deferred_log"
    }
    assert modules - documented_objects() == set()
