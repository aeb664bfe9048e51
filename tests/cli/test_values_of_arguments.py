"""What goes in through a front end comes out of a job with the value and type that the signature names."""

from __future__ import annotations

import importlib
import json
import random

import odd_values
import pytest
import yaml
from hypothesis import assume, given, strategies as st
from odd_values import ANNOTATIONS, REFUSED, TEXTS, VALUES

from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient
from trainer_core.base.yaml_documents import parse_yaml
from trainer_core.cli.options import parse_arguments
from trainer_core.frontend.definition_file import build_definition_request
from trainer_core.model.func_args import check_func_args, declared_types
from trainer_core.model.request import Code

PROJECT = {"func": "odd_training:train", "code": "."}


def is_plain(text: str) -> bool:
    """Whether a text can stand in YAML without quotes."""
    try:
        return yaml.load(f"k: {text}", yaml.BaseLoader) == {"k": text}  # noqa: S506  # It has texts only.
    except yaml.YAMLError:
        return False


PLAIN_TEXTS = tuple(text for text in TEXTS if is_plain(text) and text[:1] not in "'\"[{")
#: PyYAML writes a text without quotes that is a number in YAML 1.2, but not in YAML 1.1.
DUMPED = tuple(value for value in VALUES if value not in ("1E5", "1e-5", "1.5e5"))


@pytest.fixture
def client(trainjob, tmp_path, monkeypatch):
    """A client of the local backend, in a folder with the training function of `odd_values`."""
    (tmp_path / "odd_training.py").write_text(odd_values.SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield TrainerClient(LocalProcessBackendConfig())
    trainjob.forget_modules()


def definition(args, trainer, out):
    return {"name": "odd", "runtime": "python", "trainer": {**trainer, "func_args": {**args, "out": str(out)}}}


def by_python(client, trainjob, out, args, trainer):
    function = importlib.import_module("odd_training").train
    client.wait_for_job_status(
        client.train(runtime="python", trainer=CustomTrainer(function, {**args, "out": str(out)}))
    )


def by_project(client, trainjob, out, args, trainer):
    project = CustomTrainer("odd_training:train", {**args, "out": str(out)}, code=".")
    client.wait_for_job_status(client.train(runtime="python", trainer=project))


def by_file(write):
    def submit(client, trainjob, out, args, trainer):
        (out.parent / "odd.yaml").write_text(write(args, trainer, out), encoding="utf-8")
        done = trainjob("submit", "-f", "odd.yaml", "--wait")
        assert done.returncode == 0, done.stderr[-2000:]

    return submit


def write_by_hand(args, trainer, out):
    lines = [f"    {name}: {value}" for name, value in {**args, "out": out}.items()]
    head = ["name: odd", "runtime: python", "trainer:", *(f"  {key}: {value}" for key, value in trainer.items())]
    return "\n".join([*head, "  func_args:", *lines, ""])


def write_yaml(args, trainer, out):
    return yaml.safe_dump(definition(args, trainer, out))


def write_json(args, trainer, out):
    return json.dumps(definition(args, trainer, out), indent="\t")


def by_command(client, trainjob, out, args, trainer):
    given = [word for name, value in {**args, "out": out}.items() for word in ("--arg", f"{name}={value}")]
    code = ("--code", trainer["code"]) if "code" in trainer else ()
    done = trainjob("submit", trainer["func"], "--runtime", "python", *code, *given, "--wait")
    assert done.returncode == 0, done.stderr[-2000:]


WRITTEN = {
    "by hand": (by_file(write_by_hand), odd_values.read_written, PLAIN_TEXTS),
    "dumped YAML": (by_file(write_yaml), odd_values.convert, DUMPED),
    "dumped JSON": (by_file(write_json), odd_values.convert, VALUES),
    "--arg": (by_command, odd_values.read_argument, TEXTS),
}


@pytest.mark.parametrize(
    ("submit", "model", "values", "trainer"),
    [
        pytest.param(by_python, odd_values.convert, VALUES, {}, id="Python"),
        pytest.param(by_project, odd_values.convert, VALUES, {}, id="project"),
        *(pytest.param(*way, {"func": "odd_training:train"}, id=name) for name, way in WRITTEN.items()),
        *(pytest.param(*way, PROJECT, id=f"{name}, project") for name, way in WRITTEN.items()),
    ],
)
def test_a_job_gets_the_value_and_type_of_a_plain_call(client, trainjob, tmp_path, submit, model, values, trainer):
    cases = list(odd_values.each_case(model, values))

    submit(client, trainjob, tmp_path / "out", odd_values.accepted(cases), trainer)

    assert odd_values.written(tmp_path / "out", cases) == odd_values.answers(cases)


@pytest.mark.parametrize(
    ("read", "model", "values"),
    [
        pytest.param(lambda value: {"x": value}, odd_values.convert, VALUES, id="Python"),
        pytest.param(
            lambda value: parse_yaml(f"func_args:\n  x: {value}")[0]["func_args"], *WRITTEN["by hand"][1:], id="by hand"
        ),
        pytest.param(
            lambda value: parse_yaml(yaml.safe_dump({"x": value}))[0], *WRITTEN["dumped YAML"][1:], id="dumped YAML"
        ),
        pytest.param(
            lambda value: parse_yaml(json.dumps({"x": value}))[0], *WRITTEN["dumped JSON"][1:], id="dumped JSON"
        ),
        pytest.param(lambda value: parse_arguments([f"x={value}"]), *WRITTEN["--arg"][1:], id="--arg"),
    ],
)
def test_a_value_that_the_signature_does_not_take_is_refused_before_anything_is_created(client, read, model, values):
    module = importlib.import_module("odd_training")

    cases = list(odd_values.refused(list(odd_values.each_case(model, values))))
    for function, value in random.Random(1).sample(cases, 60):  # noqa: S311
        trainer = {"func": getattr(module, function), "func_args": read(value)}
        with pytest.raises(ValueError, match=r"^(func_args\.)?x: .* is not an? \w+ \(one_\d+\(x: "):
            build_definition_request(client, {"runtime": "python", "trainer": trainer})


@pytest.fixture(scope="module")
def functions():
    names = {}
    exec(odd_values.SOURCE, names)  # noqa: S102  # Only signatures are read.
    return names


def get_argument(function, args):
    """What the job gets of an argument; a refusal as `REFUSED`."""
    try:
        plain = check_func_args(function, args)
        return repr(Code(kind="reference", entry="f", args=plain, types=declared_types(function)).args["x"])
    except ValueError:
        return repr(REFUSED)


@given(text=st.text("0123456789+-._eExXoOnNyYtTfFaluse:~", min_size=1), annotation=st.integers(0, len(ANNOTATIONS) - 1))
def test_any_text_without_quotes_is_read_by_the_declared_type(functions, text, annotation):
    assume(is_plain(text))
    function = functions[f"one_{annotation}"]

    by_command = get_argument(function, parse_arguments([f"x={text}"]))
    by_file = get_argument(function, parse_yaml(f"func_args:\n  x: {text}")[0]["func_args"])

    assert by_command == repr(odd_values.read_argument(text, annotation))
    assert by_file == repr(odd_values.read_written(text, annotation))


def test_a_search_reads_its_file_as_a_job_does(trainjob, tmp_path):
    (tmp_path / "tuning.py").write_text(
        "def train(lr, version: str, flag: str):\n"
        "    assert (type(lr), version, flag) == (float, '1.10', 'true'), (lr, version, flag)\n"
        "    return {'loss': lr}\n"
    )
    trial = "{runtime: python, trainer: {func: 'tuning:train', func_args: {version: 1.10, flag: true}}}"
    (tmp_path / "tune.yaml").write_text(
        f"trial: {trial}\nsearch_space: {{lr: [1e-3, 1e-4]}}\nalgorithm: GridSearch\ntrial_config: {{num_trials: 2}}\n"
    )

    found = trainjob.json("search", "tune.yaml", "--wait")

    assert [trial["parameters"] for trial in found["trials"]] == [{"lr": 0.001}, {"lr": 0.0001}]
    assert found["best"]["value"] == 0.0001
