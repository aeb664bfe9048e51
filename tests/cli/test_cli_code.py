"""`trainjob submit --code`: a function of a project, with the files of the project."""

from __future__ import annotations

import json
import os

import pytest

from trainer_core import CustomTrainer, TrainerClient
from trainer_core.packaging import code_location, project_imports


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in a folder beside the working directory of the command."""
    folder = tmp_path / "project"
    (folder / "src/tides").mkdir(parents=True)
    (folder / "src/tides/train.py").write_text(
        "from tides.helpers import double\n\ndef main(x: int):\n    return double(x)\n"
    )
    (folder / "src/tides/helpers.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "requirements.txt").write_text("numpy==2.2.6\n")
    return folder


def test_the_folder_travels_and_its_size_is_printed(trainjob, project):
    done = trainjob("submit", "tides.train:main", "--code", str(project), "-a", "x=4", "--runtime", "python", "--wait")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["Complete", "8"])
    assert "trainjob: code: 3 files, 118 bytes" in done.stderr


def test_several_paths_travel_and_requirements_are_read(trainjob, project, monkeypatch):
    monkeypatch.chdir(project)
    arguments = ("tides.train:main", "--code", "src", "--code", "*.txt", "-r", "requirements.txt", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["packages"] == ["numpy==2.2.6"]


def test_the_code_of_a_definition_is_relative_to_its_file(trainjob, project):
    definition = {"runtime": "python", "trainer": {"func": "tides.train:main", "func_args": {"x": 3}, "code": "."}}
    (project / "job.yaml").write_text(json.dumps(definition))
    done = trainjob("submit", "-f", str(project / "job.yaml"), "--wait")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["Complete", "6"])


def test_a_large_project_travels_through_the_given_place(trainjob, project):
    (project / "noise.bin").write_bytes(os.urandom(310_000))
    arguments = ("tides.train:main", "--code", str(project), "--code-uri", "file:///place", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["code"].startswith("file:///place/")


def test_the_packages_of_a_file_and_further_ones_are_installed(trainjob, project):
    (project / "requirements.txt").write_text("scipy==1.15.3 --hash=sha256:00\n")
    arguments = ("tides.train:main", "--code", str(project), "-r", "requirements.txt", "-p", "numpy", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["packages"] == ["numpy", "scipy==1.15.3 --hash=sha256:00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tides.train:mian", "--code", "."), "defines no mian"),
        (("tides.train:main", "--code", ".", "-a", "y=1"), "main has no parameter y; its parameters are x"),
        (("tides.train:main", "--code", "missing"), "does not exist"),
        (("--image", "x:1", "--code", "."), "--code cannot be used without a training function"),
        (("tides.train:main", "--code", ".", "--code-uri", "/place"), "code_uri must be s3://"),
        (("tides.train:main", "--code-uri", "s3://place"), "there is no code"),
        (("tides.train:main", "-r", "uv.lcok"), "--requirements takes a .txt, pyproject.toml or uv.lock, got uv.lcok"),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_one_line(trainjob, project, monkeypatch, arguments, message):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project / "src")
    done = trainjob("submit", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dry_run_lists_what_travels_and_creates_nothing(trainjob, project):
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data/rows.csv").write_text("1\n")
    given = ("tides.train:main", "--code", str(project), "-a", "x=4", "--runtime", "python")
    done = trainjob("submit", *given, "--dry-run")

    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        ".gitignore",
        "requirements.txt",
        "src/tides/helpers.py",
        "src/tides/train.py",
    ]
    assert trainjob.json("list") == []


@pytest.mark.parametrize("opened", ["data/rows.csv", "/work/jobs/tides/project/data/rows.csv"])
def test_a_file_that_is_only_at_home_is_named_with_how_it_travels(trainjob, project, monkeypatch, opened):
    monkeypatch.chdir(project)
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data/rows.csv").write_text("7\n")
    (project / "read.py").write_text("def main(path: str):\n    return int(open(path).read())\n")
    submit = ("submit", "read:main", "--runtime", "python", "--wait", "--code", ".", "-a", f"path={opened}")
    failed = trainjob(*submit)

    assert failed.returncode == 1
    assert "data/rows.csv is here and did not travel" in failed.stderr
    assert "add --code . --code data/rows.csv" in failed.stderr
    assert "did not travel" not in trainjob(*submit[:-1], "path=nowhere.csv").stderr


def test_the_file_travels_as_the_message_says(trainjob, project, monkeypatch):
    monkeypatch.chdir(project)
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data/rows.csv").write_text("7\n")
    (project / "read.py").write_text("def main():\n    return int(open('data/rows.csv').read())\n")
    code = ("--code", ".", "--code", "data/rows.csv")
    assert trainjob("submit", "read:main", "--runtime", "python", "--wait", *code).stdout.split()[-1] == "7"


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_submit_warns_of_an_import_that_will_fail_after_the_last_epoch(trainjob, project, caplog, more):
    (project / "late.py").write_text("def main():\n    if True:\n        import absent_package\n")
    submit = ("submit", "late:main", "--code", str(project), "--runtime", "python", *more)
    warning = "code: late.py:3 imports absent_package, which does not travel and is neither installed here"

    assert trainjob(*submit).returncode == 0
    assert [warning in record.getMessage() for record in caplog.records] == [True]


def test_a_submit_does_not_warn_of_what_it_installs(trainjob, project, caplog):
    (project / "late.py").write_text("def main():\n    if True:\n        import absent_package\n")
    trainjob("submit", "late:main", "--code", str(project), "--dry-run", "-p", "absent_package")

    assert not caplog.records


def test_a_request_whose_files_are_already_at_a_place_is_submitted(trainjob, project, tmp_path):
    trainer = CustomTrainer("tides.train:main", {"x": 4}, code=str(project))
    request = TrainerClient().build_request(runtime="python", trainer=trainer)
    stored = code_location.store_project(request.project, (tmp_path / "place").as_uri())
    (tmp_path / "job.json").write_text(request.with_project(archive="", uri=stored.uri).to_json())

    listed = trainjob("submit", "-f", str(tmp_path / "job.json"), "--dry-run")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert f"3 files, which are already at {stored.uri}" in listed.stderr
    done = trainjob("submit", "-f", str(tmp_path / "job.json"), "--wait")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["Complete", "8"])


def test_a_submit_does_not_fail_by_the_check_of_its_imports(trainjob, project, monkeypatch):
    def fail(*_):
        raise OSError("no such folder")

    monkeypatch.setattr(project_imports, "find_import_problems", fail)
    assert trainjob("submit", "tides.train:main", "--code", str(project), "-a", "x=4", "--runtime", "python").stdout


def test_a_function_without_files_that_imports_its_neighbour_is_warned_of(trainjob, tmp_path):
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "alone.py").write_text("def main():\n    import neighbour\n")
    assert "imports neighbour, which does not travel" in trainjob("lint", "alone:main").stderr


@pytest.mark.parametrize(
    "linted", [("tides.train:main", "--code", ".", "-a", "x=4", "-r", "requirements.txt"), ("job.yaml",)]
)
def test_lint_takes_a_function_and_a_definition(trainjob, project, monkeypatch, linted):
    monkeypatch.chdir(project)
    trainer = {"func": "tides.train:main", "func_args": {"x": 4}, "code": "."}
    (project / "job.yaml").write_text(json.dumps({"runtime": "python", "trainer": trainer}))
    assert (trainjob("lint", *linted).returncode, trainjob("lint", *linted).stdout) == (0, "")

    (project / "src/tides/helpers.py").write_text("import absent_package\n")
    found = trainjob("lint", *linted)
    assert (found.returncode, len(found.stdout.splitlines())) == (2, 1)
    assert "src/tides/helpers.py:1 imports absent_package" in found.stdout


def test_lint_names_what_is_wrong_with_a_definition(trainjob, project):
    (project / "job.yaml").write_text("runtim: python\n")
    found = trainjob("lint", str(project / "job.yaml"))
    assert found.returncode == 2
    assert "job.yaml: definition has the unknown key runtim" in found.stdout


def test_extras_of_a_pyproject_are_installed(trainjob, project):
    (project / "pyproject.toml").write_text(
        '[project]\nname = "tides"\ndependencies = ["numpy==2.2.6"]\n'
        '[project.optional-dependencies]\nfast = ["numba==0.61"]\nslow = ["scipy==1.15.3"]\n'
    )
    given = ("render", "tides.train:main", "--code", str(project), "-a", "x=4", "--runtime", "python", "-o", "json")

    done = trainjob(*given, "-r", "pyproject.toml", "--extra", "fast")
    assert json.loads(done.stdout)["environment"]["packages"] == ["numba==0.61", "numpy==2.2.6"]
    unknown = trainjob(*given, "-r", "pyproject.toml", "--extra", "gpu")
    assert unknown.returncode == 2
    assert "pyproject.toml has no extra 'gpu'; it has fast, slow" in unknown.stderr
    assert "--extra needs a file with extras" in trainjob(*given, "--extra", "gpu").stderr
