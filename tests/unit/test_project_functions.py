"""A function with code: which module of the project it is, found without importing anything."""

from __future__ import annotations

import importlib
import sys

import pytest
from node_process import Node, module_of

from trainer_core.packaging import serializer
from trainer_core.packaging.project import read_project


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "project"
    root.mkdir()

    def write(files):
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    serializer.ship(folder)
    return folder


@pytest.fixture
def node(tmp_path, shipped):
    (tmp_path / "node").mkdir()
    return Node(tmp_path / "node", shipped)


@pytest.fixture
def import_module(monkeypatch):
    """Import a module from a folder for the time of a test."""
    before = set(sys.modules)

    def load(name, folder):
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


def package(func, root, args=None, mode="source"):
    return serializer.package(func, args, mode, read_project(root))


MAIN = "def main(epochs: int, rate: float = 0.1):\n    return epochs\n"


# ---- a text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "func", "roots"),
    [
        ("train.py", "train:main", ("",)),
        ("pkg/train.py", "pkg.train:main", ("",)),
        ("pkg/__init__.py", "pkg:main", ("",)),
        ("src/pkg/train.py", "pkg.train:main", ("src", "")),
        ("jobs/nightly/train.py", "train:main", ("jobs/nightly", "")),
        ("jobs/nightly/train.py", "jobs.nightly.train:main", ("",)),
    ],
)
def test_a_text_is_the_module_of_that_name(tree, file, func, roots):
    code = package(func, tree({file: MAIN}), {"epochs": "3"})
    assert (code["kind"], code["text"], code["types"]) == ("reference", func, {"epochs": "int", "rate": "float"})
    assert tuple(code["project"]["roots"]) == roots


def test_the_folder_of_a_package_travels_under_the_names_of_its_packages(tree, node):
    root = tree(
        {"top/pkg/__init__.py": "", "top/pkg/other.py": "X = 2\n", "top/pkg/train.py": "from .other import X\n"}
    )
    (root / "top/pkg/train.py").write_text("from .other import X\ndef main():\n    return [X, __name__]\n")
    assert node.run(package("pkg.train:main", root / "top/pkg")).result == [2, "pkg.train"]
    assert node.run(package("top.pkg.train:main", root / "top/pkg")).result == [2, "top.pkg.train"]


@pytest.mark.parametrize(
    ("func", "args", "message"),
    [
        ("train:main", {}, "main requires epochs; add it to func_args"),
        ("train:main", {"epochs": 1, "epoch": 2}, "main has no parameter epoch"),
        ("train:mian", {}, "train.py defines no mian; it has the functions main"),
        ("tarin:main", {}, "module tarin is no file of code"),
        ("pkg.train:main", {}, "there is train.py"),
        ("broken:main", {}, "broken.py:1 is not valid Python"),
        ("inner:main", {}, "module inner is no file of code"),
        ("twice:main", {}, "twice is several files of code: a/twice.py, b/twice.py"),
        ("steps:steps", {}, "is async or a generator"),
    ],
)
def test_a_wrong_text_is_refused_before_anything_is_created(tree, func, args, message):
    root = tree(
        {
            "train.py": MAIN,
            "broken.py": "def main(:\n",
            "package/__init__.py": "",
            "package/inner.py": MAIN,
            "a/twice.py": MAIN,
            "b/twice.py": MAIN,
            "steps.py": "def steps():\n    yield 1\n",
        }
    )
    with pytest.raises(ValueError, match=message):
        package(func, root, args)


def test_no_code_of_the_project_runs_when_it_is_packaged(tree):
    text = "raise SystemExit\ndef main(x: open('y') = 1 / 0): pass\n"
    assert package("train:main", tree({"train.py": text}), {"x": 1})["args"] == {"x": 1}


@pytest.mark.parametrize(
    "text", ["@wrap\ndef main(a): pass\n", "from .x import main\n", "main = build()\n", "from x import *\n"]
)
def test_a_function_whose_parameters_the_file_does_not_show_is_found_where_it_trains(tree, text):
    code = package("train:main", tree({"train.py": text}), {"anything": "1"})
    assert (code["args"], code["types"]) == ({"anything": "1"}, {})


# ---- a function object -------------------------------------------------------------------------------------------


def test_a_function_of_the_project_is_imported_with_its_globals_and_helpers(tree, node, import_module):
    text = "from pkg.helpers import double\nSCALE = 3\n\ndef main(x: int):\n    return double(x) * SCALE\n"
    root = tree({"pkg/helpers.py": "def double(x):\n    return 2 * x\n", "pkg/train.py": text})
    code = package(import_module("pkg.train", root).main, root, {"x": 5})
    assert (code["kind"], code["text"]) == ("reference", "pkg.train:main")
    assert node.run(code).result == 30


def test_a_function_defined_elsewhere_travels_as_source_and_imports_from_the_project(tree, node):
    def main():
        import helpers

        return helpers.VALUE

    code = package(main, tree({"helpers.py": "VALUE = 7\n"}))
    assert code["kind"] == "source"
    assert node.run(code).result == 7


def test_a_function_of_a_dag_file_in_the_folder_travels_as_source(tree, monkeypatch):
    root = tree({"dag.py": "import nothing_like_airflow\n", "helpers.py": ""})
    (root / "dag.py").write_text("def main():\n    import helpers\n    return 1\n")
    module = module_of(root / "dag.py")
    name = "unusual_prefix_0123456789_dag"
    monkeypatch.setitem(sys.modules, name, module)
    module.main.__module__ = name
    assert package(module.main, root)["kind"] == "source"


def test_a_function_of_a_script_is_imported_by_the_name_of_its_file(tree, monkeypatch):
    root = tree({"jobs/script.py": "LIMIT = 1\ndef main():\n    return LIMIT\n"})
    module = module_of(root / "jobs/script.py")
    module.main.__module__ = "__main__"
    monkeypatch.setitem(sys.modules, "__main__", module)
    code = package(module.main, root)
    assert (code["text"], tuple(code["project"]["roots"])) == ("script:main", ("jobs", ""))


def test_a_function_whose_file_is_ignored_is_refused(tree, import_module):
    root = tree({".gitignore": "local.py\n", "local.py": MAIN, "train.py": MAIN})
    with pytest.raises(ValueError, match=r"local\.py defines main and does not travel"):
        package(import_module("local", root).main, root, {"epochs": 1})


# ---- where it trains ---------------------------------------------------------------------------------------------


def test_the_files_come_before_what_the_image_has_installed(tree, node):
    root = tree({"wave.py": "def main():\n    return 'of the project'\n"})
    assert node.run(package("wave:main", root)).result == "of the project"


def test_a_missing_module_is_named_without_our_frames(tree, node):
    root = tree({"pkg/train.py": "def main():\n    from pkg import absent_module\n"})
    ended = node.run(package("pkg.train:main", root))
    assert "absent_module" in ended.error["message"]
    assert str(node.folder) not in ended.error["traceback"] + ended.error["message"] + ended.stderr
    assert 'File "pkg/train.py", line 2, in main' in ended.stderr


def test_a_relative_result_uri_stays_where_the_process_was_started(tree, node):
    root = tree({"train.py": "def main():\n    return 5\n"})
    assert node.run(package("train:main", root), TRAINJOB_RESULT_URI="result.json").result == 5
    assert (node.folder / "result.json").read_text() == "5"


FOLDERS = {"": "top", "src/": "src", "other/": "other"}


@pytest.mark.parametrize(("imported_from", "answer"), [("", "top"), ("src", "src"), ("other", "other")])
def test_of_two_modules_with_one_name_the_job_imports_the_one_that_was_imported_here(
    tree, node, import_module, imported_from, answer
):
    files = {f"{folder}twice.py": f"def fit():\n    return {name!r}\n" for folder, name in FOLDERS.items()}
    root = tree(files)
    fit = import_module("twice", root / imported_from).fit

    assert fit() == answer
    assert node.run(package(fit, root)).result == answer
