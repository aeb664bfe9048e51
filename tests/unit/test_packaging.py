"""What a function becomes when it is packaged, and what is refused before it travels."""

from __future__ import annotations

import datetime
import enum
import functools
import importlib.util
import inspect
import json
import linecache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, strategies as st
from node_process import module_of

from trainer_core.model.func_args import coerce
from trainer_core.packaging import serializer
from trainer_core.packaging.serializer import package

users = module_of(Path(__file__).parent / "data" / "users_functions.py")


def epochs_and_rate(epochs, lr=0.1):
    return epochs * lr


def refused(function, args=None, mode="source"):
    """The one line with which a function is refused."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        package(function, args, mode)
    line = str(caught.value)
    assert "\n" not in line
    return line


# ---- source --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [users.quotes, users.tabs, users.odd_whitespace, users.semicolons])
def test_the_text_of_a_function_is_its_source(function):
    assert package(function)["text"] == inspect.getsource(function)


def test_an_indented_function_is_not_dedented_because_that_would_change_its_strings():
    assert package(users.nested)["text"] == "if True:\n" + inspect.getsource(users.nested)


@pytest.mark.parametrize("function", users.WORKING, ids=lambda function: function.__name__)
def test_the_text_ends_with_the_source_below_the_decorators_byte_for_byte(function):
    source = inspect.getsource(function)

    assert package(function)["text"].endswith(source[source.index("def ") :])


def test_packaging_twice_gives_the_same():
    assert package(epochs_and_rate, {"epochs": 1}) == package(epochs_and_rate, {"epochs": 1})


def test_what_is_packaged_is_json():
    code = package(epochs_and_rate, {"epochs": 1})

    assert json.loads(json.dumps(code)) == code
    assert set(code) == {"kind", "text", "entry", "args", "types", "digest", "origin"}


def write_and_package(path, text):
    """Return the packaged function `train` of a file with this text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("a_users_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    linecache.checkcache()
    return package(module.train)


TRAIN = "def train(lr: float = 1.0):\n    return lr\n"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (TRAIN, "my-train.py:1"),
        ("\n\n" + TRAIN, "my-train.py:3"),
        ("def keep(function):\n    return function\n@keep\n@keep\n" + TRAIN, "my-train.py:5"),
        ("from pathlib import Path\n\n" + TRAIN.replace("float = 1.0", "Path = 1"), "my-train.py:2"),
        ("from pathlib import Path\nif Path:\n    def train(p: Path = 1):\n        return p\n", "my-train.py:1"),
        # No line is left for the one that is added.
        ("from __future__ import annotations; from pathlib import Path\n" + TRAIN, "my-train.py:1"),
    ],
    ids=["first line", "third line", "decorators", "an added line", "two added lines", "the added line is the first"],
)
def test_packaged_source_names_the_line_of_its_file(tmp_path, text, origin):
    code = write_and_package(tmp_path / "my-train.py", text)
    assert code["origin"] == origin
    line = int(origin.rpartition(":")[2])
    assert code["text"].splitlines()[-1] == text.splitlines()[line - 2 + len(code["text"].splitlines())]


@pytest.mark.parametrize("name", ["a.b.py", "3.py", "__main__.py", "a b.py"])
def test_a_file_whose_name_no_module_can_have_is_not_named(tmp_path, name):
    assert "origin" not in write_and_package(tmp_path / name, TRAIN)


def test_a_function_in_the_first_line_has_no_line_if_another_line_must_be_added(tmp_path):
    assert "origin" not in write_and_package(tmp_path / "train.py", "def train(p: list[int] = ()): return p\n")


def test_the_digest_changes_with_the_code_and_not_with_the_arguments():
    digest = package(epochs_and_rate, {"epochs": 1})["digest"]

    assert package(epochs_and_rate, {"epochs": 2})["digest"] == digest
    assert package(users.quotes)["digest"] != digest


def test_annotations_of_other_modules_are_not_evaluated_where_the_function_runs():
    assert package(users.type_hints)["text"].startswith("from __future__ import annotations\n")


def test_decorators_that_are_no_part_of_the_function_stay_behind():
    assert package(users.in_a_registry)["text"].startswith("def in_a_registry")


def test_a_static_method_is_a_function():
    assert package(users.Trainer.static)["entry"] == "static"


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (users.uses_globals, "RATE, wrapping, math"),
        (users.misspelt, "prnt"),
        (users.class_from_outside, "Path"),
    ],
)
def test_names_from_outside_are_named(function, names):
    assert sorted(refused(function).split(" uses ")[1].split(", defined")[0].split(", ")) == sorted(names.split(", "))


def test_a_refusal_names_the_function_and_the_ways_out():
    line = refused(users.misspelt)

    assert line.startswith("misspelt uses prnt, defined outside it")
    assert "import or define it in the function" in line
    assert 'code="path/to/project"' in line
    assert 'packaging="reference"' in line
    assert 'packaging="cloudpickle"' in line


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (users.closure, "uses rate, unit of the enclosing function"),
        (users.hidden, "uses function of the enclosing function"),
        (users.a_lambda, "a lambda has no name"),
        (users.default_from_outside, "a default value of default_from_outside is RATE"),
        (users.keyword_default_from_outside, "a default value of keyword_default_from_outside is str(RATE)"),
        (users.decorated, "decorated is decorated with @wrapping"),
        (users.cached, "cached is decorated with @functools.lru_cache(maxsize=None)"),
        (users.wrapped_by_hand, "under is wrapped by another function"),
        (users.Trainer().method, "Trainer.method is a method"),
        (users.Trainer(), "func must be a function, got an object of Trainer"),
        (users.Trainer, "func must be a function, got a class"),
        (functools.partial(epochs_and_rate, 1), "func is a functools.partial"),
        (print, "print has no Python source"),
        (None, "func must be a function or 'module:function', got NoneType"),
    ],
)
def test_what_source_cannot_carry_is_refused(function, part):
    assert part in refused(function)


@pytest.mark.parametrize("mode", ["source", "reference", "cloudpickle"])
@pytest.mark.parametrize("name", ["asynchronous", "generator", "asynchronous_generator"])
def test_a_function_that_nothing_would_run_is_refused(name, mode):
    assert f"{name} is async or a generator" in refused(getattr(users, name), mode=mode)


def test_a_function_without_a_file_is_refused():
    names: dict[str, Any] = {}
    exec("def typed():\n    return 1\n", names)  # noqa: S102 -- what a prompt does

    assert "the source of typed cannot be found" in refused(names["typed"])


def test_a_function_in_a_file_that_is_not_utf_8_is_refused_with_the_file(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"def train():\n    return 1  # \xe9\n")
    names: dict[str, Any] = {}
    exec(compile("def train():\n    return 1\n", path, "exec"), names)  # noqa: S102 -- not each Python imports such a file

    assert f"{path} is no file, such as of exec or a prompt, or is not UTF-8" in refused(names["train"])


def test_a_file_that_has_changed_since_its_import_is_noticed(tmp_path):
    path = tmp_path / "changing.py"
    function = module_of(path, "def first():\n    return 1\n").first
    path.write_text("# One line more.\n\n\ndef other():\n    return 2\n")

    assert "has changed since it was imported" in refused(function)


@pytest.mark.parametrize(
    "edited",
    [
        "def train(a=1):\n    return [a, 2.0]\n",
        "def train(a=1):\n    return [a, True]\n",
        "def train(a=2):\n    return [a, 1]\n",
        "def train(b=1):\n    return [b, 1]\n",
        "def train(a=1):\n    def inner():\n        return a\n    return [inner(), 1]\n",
        "\ndef train(a=1):\n    return [a, 1]\n",
        "def train(a=1):\n    return [a, 1\n",
    ],
    ids=["constant", "type", "default", "parameter", "inner function", "moved", "half written"],
)
def test_a_function_whose_file_was_edited_after_its_import_is_refused(tmp_path, edited):
    path = tmp_path / "edited.py"
    train = module_of(path, "def train(a=1):\n    return [a, 1]\n").train
    path.write_text(edited)

    assert "changed" in refused(train) or "other default values" in refused(train) or "no file" in refused(train)


def test_a_comment_that_was_edited_after_the_import_changes_no_answer(tmp_path):
    path = tmp_path / "commented.py"
    train = module_of(path, "def train():  # a\n    return 1\n").train
    path.write_text("def train():  # a comment\n    return 1\n")

    assert package(train)["text"].startswith("def train():  # a comment")


def test_an_assert_that_pytest_rewrites_is_packaged():
    def train(a=1):
        assert a == 1, a
        return a

    assert package(train)["entry"] == "train"


def test_a_function_can_be_packaged_after_it_was_called(tmp_path):
    text = "def train():\n    for i in 'ab':\n        i\n    global model\n    model = [1]\n    return len(model)\n"
    train = module_of(tmp_path / "called.py", text).train
    train()

    assert package(train)["entry"] == "train"


def test_the_open_of_a_notebook_is_the_builtin(tmp_path):
    names: dict[str, Any] = {"__name__": "IPython.core.interactiveshell"}
    exec("def _modified_open(file):\n    return open(file)\n", names)  # noqa: S102 -- as IPython defines it
    module = module_of(tmp_path / "cell.py", "def train():\n    return open('x').read()\n")
    module.open = names["_modified_open"]

    assert package(module.train)["entry"] == "train"


def test_a_decorator_packages_a_function_before_its_name_is_set(tmp_path):
    text = (
        "from trainer_core.packaging.serializer import package\n@package\ndef train(n=2):\n"
        "    return n and train(n - 1)\n"
    )

    assert module_of(tmp_path / "decorating.py", text).train["entry"] == "train"


def test_names_that_only_a_notebook_has_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.display", print, raising=False)
    module = module_of(tmp_path / "notebook.py", "def train():\n    display(1)\n")

    assert "train uses display" in refused(module.train)


def test_an_annotation_inside_a_class_is_carried(tmp_path):
    assert package(users.annotated_class_inside)["text"].startswith("from __future__")


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("__name__", "__name__"),
        ("__file__", "__file__"),
        ("__doc__", "__doc__"),
        ("globals()", "globals"),
        ("vars(sys.modules[__name__])", "__name__"),
        ("sys._getframe().f_globals", "f_globals"),
        ("eval('RATE * 2')", "RATE"),
    ],
)
def test_a_function_that_asks_for_its_module_is_refused_because_the_job_has_another(tmp_path, use, name):
    text = f"RATE = 2\ndef train():\n    import sys\n    return repr({use})\n"

    assert f"train uses {name}, defined outside it" in refused(module_of(tmp_path / "own.py", text).train)


def test_the_name_of_a_logger_is_no_part_of_an_answer(tmp_path):
    text = "def train():\n    import logging\n    return logging.getLogger(__name__).info('begin')\n"

    assert package(module_of(tmp_path / "own.py", text).train)["entry"] == "train"


def test_an_invalid_escape_warns_only_when_its_file_is_imported(tmp_path):
    with pytest.warns((SyntaxWarning, DeprecationWarning)):
        module = module_of(tmp_path / "escape.py", 'def train():\n    return "\\d"\n')

    assert package(module.train)["entry"] == "train"


# ---- references ----------------------------------------------------------------------------------------------


def test_a_text_is_a_reference_and_nothing_is_imported_for_it():
    code = package("not_installed_here.train:Recipe.main", {"epochs": 3})

    assert (code["kind"], code["text"], code["entry"]) == (
        "reference",
        "not_installed_here.train:Recipe.main",
        "Recipe.main",
    )
    assert (code["args"], code["types"]) == ({"epochs": 3}, {})


def test_a_function_becomes_a_reference_to_where_it_is_defined():
    code = package(json.dumps, {"obj": 1}, mode="reference")

    assert code["text"] == "json:dumps"


@pytest.mark.parametrize("text", ["train", "a:b:c", "a.b", ":f", "m:", "my-module:f", "m:f()", "m:class", "m: f", ""])
def test_a_text_that_is_no_reference_is_refused(text):
    assert "'module:function'" in refused(text)


def test_a_reference_cannot_be_pickled():
    assert "pass the function itself" in refused("m:f", mode="cloudpickle")


def test_a_function_of_main_cannot_be_referred_to():
    def train():
        return 1

    train.__module__ = "__main__"

    assert "__main__" in refused(train, mode="reference")


def test_a_function_inside_another_cannot_be_referred_to():
    def train():
        return 1

    assert "is another object than the given function" in refused(train, mode="reference")


def test_a_function_of_a_file_without_a_module_name_cannot_be_referred_to():
    assert "cannot be imported by name" in refused(users.quotes, mode="reference")


# ---- cloudpickle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [users.closure, users.a_lambda, users.uses_globals, users.Trainer().method])
def test_a_pickle_carries_what_source_cannot(function):
    code = package(function, mode="cloudpickle")

    assert (code["kind"], code["text"].isascii()) == ("cloudpickle", True)


def test_what_cannot_be_pickled_is_refused(tmp_path):
    with (tmp_path / "open").open("w") as file:
        assert "cannot be pickled" in refused(lambda: file, mode="cloudpickle")


def test_an_unknown_packaging_is_answered_with_the_known_ones():
    assert "source, reference, cloudpickle" in refused(epochs_and_rate, mode="pickle")


# ---- arguments -----------------------------------------------------------------------------------------------


def test_texts_pass_because_they_may_be_templates():
    assert package(epochs_and_rate, {"epochs": "{{ params.epochs }}"})["args"] == {"epochs": "{{ params.epochs }}"}


def test_the_callers_arguments_are_copied():
    given = {"epochs": [1]}
    code = package(epochs_and_rate, given)
    given["epochs"].append(2)

    assert code["args"] == {"epochs": [1]}


def test_tuples_become_lists_and_subclasses_plain():
    class Kind(str, enum.Enum):
        fast = "f"

    args = package(epochs_and_rate, {"epochs": (Kind.fast, np.float64(0.5)), "lr": enum.IntEnum("N", "one").one})[
        "args"
    ]

    assert args == {"epochs": ["f", 0.5], "lr": 1}
    assert [type(value) for value in args["epochs"]] == [str, float]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({}, "epochs_and_rate requires epochs; add it to func_args"),
        ({"epochs": 1, "rate": 2}, "has no parameter rate; its parameters are epochs, lr"),
        ({"epocs": 1}, "has no parameter epocs; its parameters are epochs, lr"),
        ({"epochs": Path("/x")}, "func_args['epochs'] is a PosixPath"),
        ({"epochs": [{"day": datetime.date(2026, 1, 1)}]}, "func_args['epochs'][0]['day'] is a date"),
        ({"epochs": float("nan")}, "func_args['epochs'] is nan"),
        ({"epochs": [float("-inf")]}, "func_args['epochs'][0] is -inf"),
        ({"epochs": np.int64(1)}, "func_args['epochs'] is a int64, which is not JSON; pass its tolist()"),
        ({"epochs": {1, 2}}, "pass a sorted list"),
        ({"epochs": {1: 2}}, "func_args['epochs'] has the key 1"),
        ({"epochs": "\ud800"}, "a lone surrogate"),
        ({"epochs": b"x"}, "func_args['epochs'] is a bytes"),
        ([1], "func_args must be a dict"),
    ],
)
def test_arguments_that_cannot_be_passed_are_named(args, part):
    assert part in refused(epochs_and_rate, args)


def test_data_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)

    assert "contains itself" in refused(epochs_and_rate, {"epochs": loop})


def test_a_parameter_by_position_only_cannot_be_given_by_name():
    def train(a, /):
        return a

    assert "remove the /" in refused(train, {"a": 1})


def test_a_function_with_keywords_takes_any_name():
    def train(**settings):
        return settings

    assert package(train, {"any": 1})["args"] == {"any": 1}


def test_a_reference_takes_json_only_too():
    assert "func_args['x'] is a bytes" in refused("m:f", {"x": b""})


# ---- types ---------------------------------------------------------------------------------------------------


def test_simple_types_are_recorded_however_they_are_written(tmp_path):
    text = """
import typing
from typing import Dict, List, Optional, Union
class Config: pass
def train(a: int, b: "float", c: Optional[bool], d: "str | None", e: list[int], f: Dict[str, int],
          g: "typing.List[int]", h: Union[int, None], i: "Optional['int']", j: Union[int, str], k: Config,
          l: "Config", m, n: List = (), o: dict = {}, p: "not an expression" = 1, *q: int, **r: int):
    return 1
"""
    types = package(module_of(tmp_path / "typed.py", text).train, dict.fromkeys("abcdefghijklm", 1))["types"]

    simple = {"a": "int", "b": "float", "c": "bool", "d": "str", "e": "list", "f": "dict", "g": "list"}
    optional = {"c": "Optional[bool]", "d": "str | None", "h": "Optional[int]", "i": "Optional['int']"}
    written = {"e": "list[int]", "f": "Dict[str, int]", "g": "typing.List[int]", "n": "List"}
    assert types == {**simple, "o": "dict", **optional, **written}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("int", "10", 10),
        ("int", " 10 ", 10),
        ("int", 10.0, 10),
        ("int", "10.0", 10),
        ("int", "1e3", 1000),
        ("int", True, True),
        ("float", "0.1", 0.1),
        ("float", 3, 3.0),
        ("bool", "true", True),
        ("bool", "False", False),
        ("bool", 1.0, True),
        ("bool", "0", False),
        ("str", "10", "10"),
        ("str", 10, "10"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "['a', None]", ["a", None]),
        ("list", (1, 2), [1, 2]),
        ("dict", '{"a": true}', {"a": True}),
        ("dict", "{'a': True}", {"a": True}),
        ("int", None, None),
    ],
)
def test_a_value_becomes_what_the_function_declares(kind, given, expected):
    found = coerce({"x": given}, {"x": kind})["x"]

    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", "ten"),
        ("int", "10.5"),
        ("int", 10.5),
        ("int", "inf"),
        ("int", ""),
        ("int", [1]),
        ("float", "nan"),
        ("float", "fast"),
        ("float", True),
        ("float", 10**400),
        ("bool", "yes please"),
        ("bool", 2),
        ("str", 1.10),
        ("str", True),
        ("list", "a, b"),
        ("list", '{"a": 1}'),
        ("list", "[b'x']"),
        ("dict", "[1]"),
        ("dict", 1),
        ("dict", "f()"),
    ],
)
def test_a_value_that_does_not_convert_is_named_with_its_parameter_and_type(kind, given):
    with pytest.raises(
        ValueError,
        match=rf"^func_args.epochs: .* is not an? {kind} \(the function\(epochs: {kind}\)\)(; put it in quotes)?$",
    ) as error:
        coerce({"epochs": given}, {"epochs": kind})

    assert (repr(given)[:70] if given != 10**400 else "a number of more than 100 digits") in str(error.value)


def test_what_has_no_declared_type_stays_as_it_is():
    assert coerce({"x": "10", "y": [1]}, {}) == {"x": "10", "y": [1]}


@given(
    value=st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.booleans(), st.none()),
    kind=st.sampled_from(["int", "float", "bool", "str", "list", "dict"]),
)
def test_converting_twice_changes_nothing(value, kind):
    try:
        once = coerce({"x": value}, {"x": kind})
    except ValueError:
        reject()
    assert coerce(once, {"x": kind}) == once


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_the_text_of_a_value_converts_back_to_it(value):
    kind = type(value).__name__

    assert coerce({"x": str(value)}, {"x": kind}) == {"x": value}


# ---- the payload ---------------------------------------------------------------------------------------------


def test_the_payload_is_what_the_bootstrap_reads():
    code = package(epochs_and_rate, {"epochs": "ü"})

    assert json.loads(serializer.payload(code)) == {key: code[key] for key in code if key != "types"}


def test_the_shipped_files_hold_the_bootstrap_and_the_public_functions():
    shipped = serializer.shipped_files()

    assert serializer.BOOTSTRAP in shipped
    assert "progress" in shipped["trainer_core/__init__.py"]
    assert importlib.util.find_spec("trainer_core.node.bootstrap") is not None
