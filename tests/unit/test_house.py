"""Packaging metadata, the cost of imports, and the scripts of the repository."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainer_core", "airflow_provider", "kfp_components")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
#: What a line tells pip or uv to install.
INSTALLED = re.compile(r"(?:pip install|uv add|uvx)(?: -\S+)* '?([^\s'`]+)")
HEAVY = {"airflow", "asyncio", "boto3", "docker", "httpx", "huggingface_hub", "kfp", "kubernetes", "kubernetes_asyncio"}
HEAVY |= {"obstore", "psutil", "rich", "sklearn", "torch", "typer", "yaml"}


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in distribution("trainjob-workflows").requires or ()]


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def extra(name: str) -> set[str]:
    """Names of what an extra brings, its own extras followed."""
    brought = [each for each in requirements() if each.marker and each.marker.evaluate({"extra": name})]
    inner = [extra(more) for each in brought if each.name == "trainjob-workflows" for more in each.extras]
    return {each.name for each in brought}.union(*inner)


def imports(path: Path) -> set[str]:
    """First names of all modules that a file imports, at its top or later."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    direct = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in direct | parts}


def test_airflow_finds_the_provider_by_its_entry_point():
    (point,) = [each for each in entry_points(group="apache_airflow_provider") if each.value.startswith("airflow_prov")]
    assert point.load()()["package-name"] == "trainjob-workflows"


def test_the_command_is_declared():
    (point,) = entry_points(group="console_scripts", name="trainjob")
    assert point.value == "trainer_core.cli:main"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_py_typed_marker(package):
    assert (ROOT / package / "py.typed").is_file()


def test_the_demo_needs_nothing_of_kubernetes_docker_or_kfp():
    assert extra("demo").isdisjoint({"docker", "kfp", "kfp-kubernetes", "kubernetes", "kubernetes-asyncio"})


def test_the_core_has_few_dependencies():
    assert {each.name for each in requirements() if not each.marker} == {
        "lazy-loader",
        "psutil",
        "pydantic",
        "pyyaml",
    }


def test_importing_the_core_loads_no_heavy_module():
    program = "import sys, trainer_core; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_the_node_package_imports_the_standard_library_only():
    allowed = {*sys.stdlib_module_names, "trainer_core", "__future__"}
    files = [path for path in SOURCES if path.is_relative_to(ROOT / "trainer_core/node")]
    assert files
    assert {f"{path.name}: {name}" for path in files for name in imports(path) if name not in allowed} == set()


def test_the_lock_names_no_index():
    assert not re.search(r"://|^-|file:", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_lock_pins_each_name_to_one_version():
    assert [str(pin) for pin in pins() if not str(pin.specifier).startswith("==")] == []


def test_the_lock_contains_no_cuda_package():
    assert [pin.name for pin in pins() if pin.name.startswith(("cuda", "nvidia", "triton"))] == []


def test_every_requirement_is_locked_within_its_range():
    wanted = [each for each in requirements() if each.name != "trainjob-workflows"]
    locked = {pin.name: pin for pin in pins()}
    out_of_range = [
        each.name
        for each in wanted
        if not each.specifier.contains(str(locked[each.name].specifier).removeprefix("=="), prereleases=True)
    ]
    assert out_of_range == []


def test_make_help_lists_every_task():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tasks = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split()
    listed = subprocess.run(["make", "help"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert re.findall(r"^  make ([\w-]+)", listed, re.MULTILINE) == tasks


@pytest.mark.parametrize(
    "script", ["tools/install", "tools/test-resources", "tools/container-engine", "tools/lock-constraints", ".ci/run"]
)
def test_a_script_is_valid_shell_and_executable(script):
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", path], check=True)


def test_installing_an_unknown_target_lists_the_known_ones():
    done = subprocess.run(["sh", ROOT / "tools/install", "all"], capture_output=True, text=True, check=False)
    names = "demo, dev, docs, airflow31, celery, libraries, trl, newest or newest-kubernetes"
    advice = f"install: name what to install: tools/install {names}\n"
    assert (done.returncode, done.stderr) == (1, advice)


def test_a_python_that_is_not_supported_is_refused_in_one_line(tmp_path):
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9\n", encoding="utf-8")
    old.chmod(0o755)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/install").write_bytes((ROOT / "tools/install").read_bytes())
    program = ["sh", tmp_path / "tools/install", "demo"]
    done = subprocess.run(
        program, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)}
    )
    assert (done.returncode, done.stderr) == (1, f"install: PYTHON={old} is Python '3.9'; give one of 3.10 to 3.13\n")


SKIPPED = """
import pytest


@pytest.mark.parametrize("number", range(13))
def test_a(number):
    pytest.skip(f"needs thing {number}")


@pytest.mark.skip(reason="needs\\na cluster")
@pytest.mark.parametrize("number", range(40))
def test_b(number):
    pass
"""


def test_skipped_tests_are_summed_up_by_reason_in_ten_lines(tmp_path):
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    (tmp_path / "test_it.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n1", tmp_path]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    _, *lines, end = ran.stdout[ran.stdout.index(" skipped =") :].splitlines()
    assert "53 skipped in" in end
    assert (len(lines), lines[0], lines[-1]) == (
        10,
        "   40  needs a cluster",
        "    5  5 other reasons, see `pytest -rs`",
    )
    assert "SKIPPED" not in ran.stdout


@pytest.fixture
def find_resources(tmp_path):
    """Run tools/test-resources as a user who is not root, on a machine with these commands and nothing else."""
    for command in ("bash", "cat", "dirname", "rm", "sh"):
        (tmp_path / command).symlink_to(shutil.which(command))

    def run(**scripts):
        for name, script in {"id": "echo 1000", "chromium": "exit", **scripts}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1000"}
        ran = subprocess.run([ROOT / "tools" / "test-resources"], env=env, capture_output=True, text=True, check=True)
        return ran.stdout, ran.stderr

    return run


def test_the_tests_get_the_first_engine_that_answers(find_resources):
    socket = "/run/user/1000/podman/podman.sock"
    docker = f'case "$*" in *"{socket} version" | *"image inspect localhost/trainjob-base:test") ;; *) exit 1 ;; esac'
    assert find_resources(docker=docker) == (f"export DOCKER_HOST=unix://{socket}\n", "")


def test_an_engine_without_the_image_of_the_tests_builds_it(find_resources):
    docker = 'case "$*" in *inspect*) exit 1 ;; *build*) echo "$@"; cat >&2 ;; esac'
    exported, said = find_resources(docker=docker)
    assert exported == "export DOCKER_HOST=unix:///var/run/docker.sock\n"
    assert "build --tag localhost/trainjob-base:test -\nFROM debian:bookworm-slim\nRUN apt-get" in said


def test_without_an_engine_one_line_states_how_to_get_one(find_resources):
    exported, said = find_resources()
    assert exported == ""
    (line,) = said.splitlines()
    assert line.startswith("test-resources: no container engine: tests in containers are skipped; start Docker or ")


def test_every_install_line_takes_the_package_from_a_clone_with_extras_that_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "trainer_core/base/errors.py"]
    named = {word for page in pages for word in INSTALLED.findall(page.read_text(encoding="utf-8"))}
    extras = {extra for word in named if word.startswith(".") for extra in re.findall(r"[a-z]\w+(?=[],])", word)}
    assert [word for word in named if "trainjob" in word] == []
    assert extras <= set(distribution("trainjob-workflows").metadata.get_all("Provides-Extra"))
    assert {"airflow", "kfp", "kubernetes"} <= extras
