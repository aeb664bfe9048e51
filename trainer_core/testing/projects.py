"""Code: the files of a project that travel with its training function."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trainer_core.base.errors import UnsupportedError
from trainer_core.client import TrainerClient
from trainer_core.testing.case import BuildRequest, Contract, Run, Submit, applies_to

_FILES = {
    "digits/__init__.py": "",
    "digits/model/__init__.py": "SCALE = 3\n",
    "digits/model/layers.py": """\
from .. import workers
from . import SCALE

def scaled(values):
    return workers.square_in_spawned_process([value * SCALE for value in values])

def fail():
    raise RuntimeError("no convergence")
""",
    "digits/workers.py": """\
import multiprocessing

def square(value):
    return value * value

def square_in_spawned_process(values):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(square, values)
""",
    "digits/labels.txt": "zero ü\n",
    "digits/train.py": """\
import subprocess
import sys
from pathlib import Path

from .model import layers

def train(values: list, broken: bool = False):
    if broken:
        layers.fail()
    child = subprocess.run([sys.executable, "-m", "digits.report"], stdout=subprocess.PIPE, check=True)
    return {
        "scaled": layers.scaled(values),
        "data": Path(__file__).with_name("labels.txt").read_text(encoding="utf-8"),
        "working directory": Path("digits/labels.txt").is_file(),
        "child": child.stdout.decode().strip(),
    }
""",
    "digits/report.py": "from digits.model import SCALE\n\nprint('scale', SCALE)\n",
    "digits/size.py": "from pathlib import Path\n\ndef measure():\n    return len(Path('noise.bin').read_bytes())\n",
}


class Projects(Contract):
    """The function is imported from files that travel with the job."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """A folder with a package of several modules and a data file."""
        for name, text in _FILES.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path / "project"

    def test_the_modules_and_data_files_of_a_project_travel_with_its_function(self, project: Path, run: Run) -> None:
        outcome = run("digits.train:train", {"values": "[1, 2]"}, code=project)
        assert (outcome.status, outcome.result) == (
            "Complete",
            {"scaled": [9, 36], "data": "zero ü\n", "working directory": True, "child": "scale 3"},
        )

    def test_the_traceback_of_a_project_has_the_paths_of_its_files(self, project: Path, run: Run) -> None:
        outcome = run("digits.train:train", {"values": [], "broken": True}, code=project)
        assert outcome.diagnosis is not None
        assert outcome.diagnosis.reason == "RuntimeError: no convergence"
        files = [line.split('"')[1] for line in str(outcome.diagnosis.traceback).splitlines() if '  File "' in line]
        assert files == ["digits/train.py", "digits/model/layers.py"]

    @applies_to(reads_local_files=True)
    def test_a_large_project_travels_through_a_folder(
        self, client: TrainerClient, build_request: BuildRequest, project: Path, tmp_path: Path
    ) -> None:
        _write_noise(project, 1_000_000)
        for name, place in (("own", None), ("named", (tmp_path / "a place").as_uri())):
            request = build_request("digits.size:measure", code=project, code_uri=place, name=name)
            outcome = client.wait(client.submit(request))
            assert (outcome.status, outcome.result) == ("Complete", 1_000_000)

    @applies_to(reads_local_files=False)
    def test_a_project_near_the_size_limit_travels_in_the_arguments(self, project: Path, run: Run) -> None:
        _write_noise(project, 640_000)
        outcome = run("digits.size:measure", code=project)
        assert (outcome.status, outcome.result) == ("Complete", 640_000)

    @applies_to(reads_local_files=False)
    def test_a_large_project_is_refused_without_a_place_that_submitter_and_nodes_reach(
        self, client: TrainerClient, project: Path, tmp_path: Path, submit: Submit
    ) -> None:
        _write_noise(project, 1_000_000)
        with pytest.raises(UnsupportedError, match=r"the largest are noise.bin \(1 MB\), .*give code_uri='s3://"):
            submit("digits.size:measure", code=project)
        for uri, reason in (("pvc://claim/code", "reached by the nodes only"), (tmp_path.as_uri(), "do not reach")):
            with pytest.raises(UnsupportedError, match=f"code_uri: .*{reason}.*; use s3://"):
                submit("digits.size:measure", code=project, code_uri=uri)
        assert client.list_jobs() == []


def _write_noise(project: Path, size: int) -> None:
    """Write a file that cannot be compressed."""
    (project / "noise.bin").write_bytes(random.Random(size).randbytes(size))  # noqa: S311
