"""Imports of a project that will fail where it trains, as `trainjob lint` finds them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer_core.frontend.lint import Definition, find_problems
from trainer_core.packaging import project_imports, serializer
from trainer_core.packaging.project import read_project
from trainer_core.packaging.project_imports import find_import_problems, find_missing_imports


@pytest.fixture
def missing(tmp_path):
    """Return what `find_missing_imports` says of these files, whose function is ``pkg.train:main``."""

    def find(files, packages=(), has_image=False, func="pkg.train:main"):
        for name, text in files.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        code = serializer.package(func, project=read_project(tmp_path / "project"))
        return list(find_missing_imports(code, packages, has_image))

    return find


MAIN = "\ndef main(): pass\n"


def test_what_travels_is_installed_or_in_the_standard_library_is_no_problem(missing):
    text = "import json, pydantic, pkg.a.b\nfrom . import c, __version__\nfrom .a import b\nimport trainer_core"
    files = {"pkg/__init__.py": "", "pkg/a/b.py": "from .. import c", "pkg/c.py": "", "pkg/train.py": text + MAIN}
    assert missing(files) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from .local import x", "pkg.local, which does not travel"),
        ("import pkg.local", "pkg.local, which does not travel"),
        ("from ..pkg import local", None),
        ("def f():\n    import absent_package", "absent_package, which does not travel and is neither installed here"),
        ("from absent_package.sub import x", "absent_package, which does not travel and is neither"),
        ("try:\n    import absent_package\nexcept ImportError:\n    pass", None),
        ("try:\n    import absent_package\nexcept:\n    pass", None),
        ("import contextlib\nwith contextlib.suppress(ImportError):\n    import absent_package", None),
        ("with suppress(OSError, ModuleNotFoundError):\n    import absent_package", None),
        ("with suppress(OSError):\n    import absent_package", "absent_package, which does not travel"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import absent_package", None),
    ],
)
def test_an_import_that_fails_where_it_trains_is_named(missing, text, problem):
    found = missing({".gitignore": "local.py\n", "pkg/local.py": "", "pkg/train.py": text + MAIN})
    assert len(found) == (problem is not None)
    assert all(problem in each and each.startswith("code: pkg/train.py:") for each in found)


def test_modules_that_the_function_imports_are_checked_and_others_are_not(missing):
    files = {
        "src/pkg/train.py": "from pkg import helpers" + MAIN,
        "src/pkg/helpers.py": "\nimport absent_package\n",
        "src/pkg/unused.py": "import another_absent_package\n",
    }
    assert [each.partition(",")[0] for each in missing(files)] == ["code: src/pkg/helpers.py:2 imports absent_package"]


@pytest.mark.parametrize(
    "packages",
    [["absent-package==1.0"], ["Absent.Package[extra]>=2"], ["other[absent_package]"], ["git+https://example.com/x"]],
)
def test_a_package_to_install_is_no_problem(missing, packages):
    assert missing({"pkg/train.py": "import absent_package" + MAIN}, packages) == []


def test_the_packages_of_an_image_are_unknown(missing):
    files = {
        ".gitignore": "local.py\n",
        "pkg/train.py": "import absent_package\nfrom . import x\nimport pkg.local" + MAIN,
    }
    assert missing(files, has_image=True) == [
        "code: pkg/train.py:3 imports pkg.local, which does not travel; check the ignore files"
    ]


def test_a_job_of_the_debug_backend_has_the_files_that_travel_and_the_modules_of_this_process(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / ".gitignore").write_text("local.py\n")
    (tmp_path / "pkg/train.py").write_text("import absent_package\nimport pkg.local" + MAIN)
    code = serializer.package("pkg.train:main", project=read_project(tmp_path))
    (problem,) = find_import_problems({"code": code}, "debug")
    assert "imports pkg.local, which does not travel" in problem


def test_a_definition_with_a_failing_import_is_a_problem(tmp_path):
    (tmp_path / "train.py").write_text("import absent_package" + MAIN)
    code = serializer.package("train:main", project=read_project(tmp_path))
    request = {"version": 1, "runtime": {"name": "python"}, "trainer": {"kind": "custom", "code": code}}
    problems = list(find_problems([Definition("dag.py", request=request)]))
    assert ["absent_package" in problem.message for problem in problems] == [True]


def test_a_project_that_is_installed_as_editable_is_installed(tmp_path, monkeypatch):
    (tmp_path / "src/tides").mkdir(parents=True)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/_tides.pth").write_text(f"import sys\n{tmp_path / 'src'}\n")
    code = {"kind": "source", "entry": "fit", "text": "def fit():\n    import tides, fathoms\n"}
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    project_imports._list_installed_modules.cache_clear()

    (problem,) = find_import_problems({"code": code})
    project_imports._list_installed_modules.cache_clear()
    assert problem.startswith("code: fit:2 imports fathoms, which does not travel and is neither installed here nor in")
    assert not list(find_import_problems({"code": code, "image": "trainer:1"}))


def test_a_folder_that_this_user_cannot_read_has_no_modules(tmp_path, monkeypatch):
    for name in ("secret/tides.py", "src/waves.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "site-packages").mkdir()
    lines = [tmp_path / "secret", tmp_path / "nowhere", "/\0", tmp_path / "src"]
    (tmp_path / "site-packages/_all.pth").write_text("\n".join(map(str, lines)))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    list_entries = Path.iterdir

    def refuse(path):
        if path == tmp_path / "secret":
            raise PermissionError(path)
        return list_entries(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    project_imports._list_installed_modules.cache_clear()

    code = {"kind": "source", "entry": "fit", "text": "def fit():\n    import tides, waves\n"}
    (problem,) = find_import_problems({"code": code})
    project_imports._list_installed_modules.cache_clear()
    assert "imports tides, which" in problem


def test_what_is_installed_is_not_read_for_a_package_to_install(monkeypatch):
    monkeypatch.setattr(project_imports, "_list_installed_modules", None)
    code = {"kind": "source", "entry": "fit", "text": "def fit():\n    import absent_package\n"}
    assert not list(find_import_problems({"code": code, "packages": ["absent-package"]}))


def test_what_is_missing_depends_on_the_backend(tmp_path, monkeypatch):
    for name in ("here/beside.py", "here/wandb_run/notes.txt", "path/inherited.py", "site-packages/installed.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "path", [*sys.path, *(str(tmp_path / name) for name in ("here", "path", "site-packages"))])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    text = "def fit():\n    import absent_package, beside, inherited, installed, wandb_run\n"
    trainer = {"code": {"kind": "source", "entry": "fit", "text": text}}

    def find(backend, **fields):
        problems = find_import_problems({**trainer, **fields}, backend)
        return [each.partition("imports ")[2].partition(",")[0] for each in problems]

    assert find("debug") == []
    assert find("local") == ["absent_package", "beside", "wandb_run"]
    assert find("local", env={"PYTHONPATH": str(tmp_path / "here")}) == ["absent_package", "inherited"]
    assert find("kubernetes") == find("container") == ["beside", "inherited"]
    assert find("kubernetes", packages=["beside", "inherited==1"]) == []
