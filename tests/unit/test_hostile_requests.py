"""Whatever a user gives, the answer is a request or a documented error: one line, short, quick, nothing created."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import yaml
from hostile_values import BOMB, HOSTILE, SELF_CONTAINING, build_plain_data
from hypothesis import given, strategies as st
from pydantic import BaseModel

import trainer_core
from trainer_core import CustomTrainer, DebugBackendConfig, LocalProcessBackendConfig, Name, TrainerClient
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError, TrainerError, UnsupportedError
from trainer_core.base.text import MAX_MESSAGE
from trainer_core.base.yaml_documents import parse_yaml
from trainer_core.cli.app import run
from trainer_core.cli.search import open_search
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.definition.request_builder import build_request_data, parse_options
from trainer_core.frontend.definition_file import build_definition_request, read_definition
from trainer_core.model import jobs, request
from trainer_core.model.backend_names import OWN_BACKENDS, OWN_EXTENSIONS
from trainer_core.model.config import config_class, config_from_dict
from trainer_core.model.option import BaseOption
from trainer_core.model.request import PART_OF_FIELD, InitializerSource, Owner, TrainerRequest, TrainJobRequest

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *("", " ", "\0", "\x1b[31m", "a\nb", "\ud800", "../x", "-", "{", "{{ x }}", "x" * 2000, "é" * 500, "1e999"),
            *("hf://a/b", "cache://a/b", "s3://a/b", "file:///a", "pvc://a/b", "http://u:p@h/x", "a:b", "json:loads"),
            *("local", "kubernetes", "torch-distributed", "python", "9" * 5000, "nan", "1Gi", "true", "2020-13-45"),
        ]
    ),
)
KEYS = st.one_of(TEXTS, st.sampled_from(["storage_uri", "name", "key", "func", "image", "config", "env", "version"]))
PLAIN = build_plain_data(TEXTS, KEYS)
VALUES = st.one_of(
    PLAIN,
    st.sampled_from([SELF_CONTAINING, BOMB, {1: 2}, {None: 1}, {"a": SELF_CONTAINING}, b"x", object(), {"x"}, (1, 2)]),
)


def assert_is_one_short_line(text: str) -> None:
    assert text.strip(), "the message is empty"
    assert len(text) <= MAX_MESSAGE, text
    assert text.isprintable(), repr(text)


def call(function: Any, *args: Any, **fields: Any) -> Any:
    """Return what a function returns, or None after a documented error."""
    try:
        return function(*args, **fields)
    except (ValueError, TrainerError) as error:
        assert_is_one_short_line(str(error))
        return None


def list_constructors() -> dict[str, Any]:
    """Return the public classes that users construct."""
    public = {name: getattr(trainer_core, name) for name in dir(trainer_core) if not name.startswith("_")}
    kinds = {
        name: kind
        for name, kind in public.items()
        if inspect.isclass(kind)
        and not issubclass(kind, (BaseException, TrainerClient))
        # Users receive these; they do not make them.
        and kind.__module__ not in (jobs.__name__, "trainer_core.tracking.model_registry", "trainer_core.client.runs")
        and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel))
        and not inspect.isabstract(kind)
    }
    parts = {name: kind for name, kind in vars(request).items() if getattr(kind, "__module__", "") == request.__name__}
    parts = {name: kind for name, kind in parts.items() if inspect.isclass(kind) and not name.startswith("_")}
    return {**parts, **kinds}


CONSTRUCTORS = list_constructors()


def list_fields(kind: type[Any]) -> tuple[list[str], list[str]]:
    """Return the arguments of a constructor: all, and the required ones."""
    if issubclass(kind, BaseModel):
        # Until its first use, the signature of a pydantic class is that of its base class.
        model = kind.model_fields
        return list(model), [name for name, each in model.items() if each.is_required()]
    parameters = inspect.signature(kind).parameters.values()
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return [each.name for each in named], [each.name for each in named if each.default is each.empty]


@pytest.mark.parametrize("name", sorted(CONSTRUCTORS))
@HOSTILE
@given(data=st.data())
def test_a_constructor_accepts_a_value_or_refuses_it_in_one_line(name, data):
    kind = CONSTRUCTORS[name]
    fields, required = list_fields(kind)
    names = set(required) | data.draw(st.sets(st.sampled_from(fields), max_size=3) if fields else st.just(set()))
    given_fields = {field: data.draw(VALUES, label=field) for field in sorted(names)}
    made = call(kind, **given_fields)

    if isinstance(made, BaseOption):
        call(build_request_data, backend=None, trainer={"image": "x"}, options=[made])


TRAINERS = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"func": st.just("json:loads"), "packaging": st.just("reference")},
        optional={"func_args": VALUES, "num_nodes": VALUES, "env": VALUES, "resources_per_node": VALUES},
    ),
    st.fixed_dictionaries(
        {"image": TEXTS}, optional={"num_nodes": VALUES, "env": VALUES, "resources_per_node": VALUES}
    ),
    st.fixed_dictionaries({"config": VALUES}),
)
INITIALIZERS = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(["dataset", "model"]), VALUES, max_size=2),
    st.fixed_dictionaries(
        {"dataset": st.fixed_dictionaries({"storage_uri": TEXTS}, optional={"env": VALUES, "ignore_patterns": VALUES})}
    ),
)
OPTIONS = st.one_of(
    VALUES,
    st.lists(
        st.dictionaries(
            st.sampled_from([each.__name__ for each in CONSTRUCTORS.values() if issubclass(each, BaseOption)]),
            VALUES,
            min_size=1,
            max_size=1,
        ),
        max_size=2,
    ),
)
DEFINITIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": VALUES,
        "runtime": VALUES,
        "labels": VALUES,
        "suspend": VALUES,
        "trainer": TRAINERS,
        "initializer": INITIALIZERS,
        "options": OPTIONS,
    },
)


@pytest.fixture(scope="module")
def debug_client():
    return TrainerClient(DebugBackendConfig())


@HOSTILE
@given(definition=st.one_of(DEFINITIONS, VALUES))
def test_a_definition_becomes_a_request_or_is_refused_in_one_line(debug_client, definition):
    built = call(build_definition_request, debug_client, definition) if isinstance(definition, dict) else None
    call(initializer_from_dict, definition)
    call(parse_options, definition)

    assert built is None or TrainJobRequest.from_json(built.to_json()) == built


@HOSTILE
@given(
    fields=st.dictionaries(st.sampled_from([*sorted(PART_OF_FIELD), *OWN_EXTENSIONS, "version"]), VALUES, max_size=3),
    trainer=st.dictionaries(st.sampled_from(sorted(TrainerRequest.model_fields)), VALUES, max_size=3),
    source=st.dictionaries(st.sampled_from(sorted(InitializerSource.model_fields)), VALUES, max_size=3),
)
def test_request_data_become_a_request_or_are_refused_in_one_line(fields, trainer, source):
    data = {
        "version": 1,
        "trainer": {"kind": "container", "image": "x", **trainer},
        "initializer": {"dataset": {"storage_uri": "hf://a/b", **source}},
        **fields,
    }
    parsed = call(TrainJobRequest.parse, data)

    assert parsed is None or len(parsed.fingerprint()) == 64


@HOSTILE
@given(backend=st.one_of(st.sampled_from(sorted(OWN_BACKENDS)), VALUES), settings=VALUES, data=st.data())
def test_a_configuration_is_made_or_refused_in_one_line(backend, settings, data):
    call(config_from_dict, backend, settings)
    if isinstance(backend, str) and backend in OWN_BACKENDS:
        names = sorted(set(config_class(backend).model_fields) | {"x"})
        call(config_from_dict, backend, data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3)))


@HOSTILE
@given(text=st.one_of(TEXTS, PLAIN.map(lambda value: yaml.safe_dump(value, allow_unicode=True)), st.text(max_size=60)))
def test_a_yaml_text_is_read_or_refused_in_one_line(text):
    assert isinstance(call(lambda: [parse_yaml(text)]) or [], list)


@pytest.mark.parametrize(
    "text",
    [
        "x: " + "[" * 3000,
        "\n".join(["- " * 3000]),
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{one}: &{one} [{', '.join([f'*{two}'] * 9)}]\n" for two, one in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "&a [*a]",
        "x: " + "9" * 5000,
        "x: !!timestamp x",
        "x: !!python/object:os.system {}",
    ],
    ids=["nested", "nested lists", "alias bomb", "contains itself", "digits", "no timestamp", "an object"],
)
def test_yaml_beyond_the_limits_is_refused(text):
    with pytest.raises(ValueError, match=r"line 1[:,]|more than 100000 values|nested more"):
        parse_yaml(text)


def test_an_invalid_yaml_value_is_named_by_file_line_and_key(tmp_path):
    definition = tmp_path / "job.yaml"
    definition.write_text(f"runtime: python\ntrainer:\n  num_nodes: {'1' * 5000}\n", encoding="utf-8")

    with pytest.raises(InvalidRequestError, match=r"job.yaml cannot be read: line 3: num_nodes: '1+' is not valid"):
        read_definition(str(definition))


def test_a_definition_without_an_end_is_refused():
    with pytest.raises(InvalidRequestError, match="/dev/zero cannot be read"):
        read_definition("/dev/zero")


COMMANDS = [
    ["submit", "--dataset", "{}", "json:loads", "--packaging", "reference"],
    ["submit", "json:loads", "--packaging", "reference", "--runtime", "python", "--arg", "={}"],
    ["submit", "json:loads", "--packaging", "reference", "--runtime", "python", "--env", "{}"],
    ["submit", "json:loads", "--packaging", "reference", "--runtime", "{}"],
    ["submit", "json:loads", "--packaging", "reference", "--package", "{}", "--nodes", "2000000000"],
    ["submit", "json:loads", "--packaging", "reference", "--runtime", "python", "--nodes", "{}"],
    ["submit", "--image", "{}"],
    ["submit", "{}"],
    ["submit", "-f", "{}"],
    ["initialize", "--dataset", "{}", "--name", "{}"],
    ["render", "--image", "x", "--name", "{}"],
    ["get", "{}"],
    ["wait", "{}", "--timeout", "0"],
    ["logs", "{}", "--step", "{}"],
    ["cancel", "{}"],
    ["list", "--backend", "{}"],
    ["runtimes", "create", "torch", "{}", "--dry-run"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", ["cache://a/b", "x" * 2000, "\x1b[31m\n", "9" * 5000, "\0", "a=\0", "../x", "\udcff"])
def test_a_command_refuses_hostile_text_in_one_line_and_creates_nothing(command, text, tmp_path, capsys):
    arguments = [each.format(text) for each in command]
    code = run(["--home", str(tmp_path / "home"), *arguments])

    message = capsys.readouterr().err.strip()
    assert code not in (0, 1), "1 means that a job has failed"
    assert_is_one_short_line(message.removeprefix("trainjob: "))
    assert not (tmp_path / "home" / "jobs").exists() or not list((tmp_path / "home" / "jobs").iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Owner(key=5), "Owner: key: Input should be a valid string, got 5"),
        (lambda: initializer_from_dict({"dataset": "cache://a/b"}), "DataCacheInitializer needs metadata_loc, num_"),
        (lambda: CustomTrainer("a:b", resources_per_node={"memory": 10**400}), "a number of more than 100 digits"),
        (lambda: CustomTrainer("a:b", num_nodes=10**5000), "a number of more than 100 digits"),
        (lambda: TrainJobRequest.from_json("[" * 100_000), "the request is nested too deeply"),
        (lambda: TrainJobRequest.from_json("9" * 5000), "the request is not JSON"),
        (lambda: CustomTrainer("a:b", env={"A": "x" * 200_000}), "has 200000 bytes; use at most 100000"),
        (lambda: CustomTrainer("a:b", env={f"A{n}": "x" * 90_000 for n in range(6)}), "bytes in all values"),
        (lambda: TrainJobRequest.parse({"patches": [{"a": SELF_CONTAINING}]}), "contains itself, or is nested"),
        (lambda: TrainJobRequest.parse({"patches": [{"a": BOMB}]}), "has more than 100000 values"),
        (lambda: build_request_data(backend=None, initializer="hf://a/b"), "a dict of URIs such as {'dataset':"),
        (lambda: CustomTrainer("x" * 2000), "xxx…"),
        (lambda: Name("\x1b[31m" + "x" * 2000), "x1b"),
    ],
)
def test_a_message_names_the_field_and_what_to_do(make, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared below
        make()

    assert message in str(refused.value)
    assert_is_one_short_line(str(refused.value))


def parse_initializer(**fields: Any) -> TrainJobRequest:
    return TrainJobRequest.parse({"initializer": {"dataset": {"storage_uri": "s3://a/b", **fields}}})


@pytest.mark.parametrize("name", sorted(validation.RESERVED_INITIALIZER_ENV))
def test_a_variable_of_an_initializer_does_not_replace_a_checked_field(name):
    with pytest.raises(InvalidRequestError, match=f"env must not set {name}"):
        parse_initializer(env={name: "file:///etc/hostname"})


@pytest.mark.parametrize("env", [{"A\0B": "x"}, {"A": "x\0"}, {"A": "x" * 200_000}, {"": "x"}, {"A=B": "x"}])
def test_a_variable_that_no_process_can_have_is_refused_before_anything_is_created(env):
    with pytest.raises(InvalidRequestError, match="env"):
        parse_initializer(env=env)
    with pytest.raises(ValueError, match="env"):
        CustomTrainer("json:loads", env=env)


@pytest.mark.parametrize("nodes", [1001, 2_000_000_000])
def test_a_job_of_more_processes_than_a_machine_runs_is_refused(tmp_path, nodes):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path))
    built = client.build_request(runtime="python", trainer=CustomTrainer("json:loads", num_nodes=nodes))

    with pytest.raises(UnsupportedError, match="use at most 1000 processes, or a backend on a cluster"):
        client.submit(built)


def _nest(levels: int) -> object:
    return [_nest(levels - 1)] if levels else {"a": 1}


@pytest.mark.parametrize(
    ("most", "more", "message"),
    [
        (_nest(validation.MAX_DEPTH - 1), _nest(validation.MAX_DEPTH), "nested more than 100 levels deep"),
        ([[1] * 1000] * 99, [[1] * 1000] * 100, "more than 100000 values"),
        ({"a": ["x"] * 99_998}, {"a": ["x"] * 99_999}, "more than 100000 values"),
    ],
    ids=["levels", "one list a hundred times", "values of one list"],
)
def test_plain_data_are_limited_in_levels_and_values(most: object, more: object, message: str) -> None:
    validation.check_size("data", most)
    with pytest.raises(ValueError, match=message):
        validation.check_size("data", more)


BROKEN_PARTS = [None, "train:fit", 1, True, [], [None], {}, {"a": None}]
POD_PATCH = {"spec": {"template": {"spec": {"containers": [{"name": "node", "env": [{"name": "A"}]}]}}}}
DEFINITION = {
    "name": "odd",
    "runtime": "python",
    "trainer": {"image": "a", "env": {"A": "1"}, "resources_per_node": {"cpu": 1}},
    "initializer": {"dataset": "hf://a/b", "model": {"storage_uri": "hf://a/c"}},
    "labels": {"a": "b"},
    "options": [
        {"QueueName": "nightly"},
        {"RuntimePatch": {"template": {"spec": {"replicated_jobs": [{"name": "node", "template": POD_PATCH}]}}}},
    ],
}
SEARCH = {
    "name": "odd",
    "trial": {"runtime": "python", "trainer": {"image": "a"}},
    "search_space": {"a": [1, 2], "b": {"uniform": [0, 1]}},
    "objectives": [{"metric": "loss"}],
    "trial_config": {"num_trials": 1},
    "algorithm": {"RandomSearch": {"random_state": 1}},
    "stop": {"Asha": {"factor": 3}},
}


def list_paths(value, path=()):
    """Paths of all parts of plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, item in items for each in list_paths(item, (*path, key)))]


def replace_part(value, path, part):
    if not path:
        return part
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = replace_part(value[path[0]], path[1:], part)
    return copy


@pytest.mark.parametrize("path", list_paths(DEFINITION)[1:], ids=str)
def test_a_definition_with_a_broken_part_is_a_request_or_refused(path):
    client = TrainerClient(DebugBackendConfig())

    for part in BROKEN_PARTS:
        definition = replace_part(DEFINITION, path, part)
        call(lambda definition=definition: build_definition_request(client, definition))


@pytest.mark.parametrize("path", list_paths(SEARCH)[1:], ids=str)
def test_a_search_with_a_broken_part_is_a_search_or_refused(path, tmp_path):
    client, file = TrainerClient(DebugBackendConfig()), tmp_path / "tune.yaml"

    for part in BROKEN_PARTS:
        file.write_text(yaml.safe_dump(replace_part(SEARCH, path, part)), encoding="utf-8")
        call(lambda: open_search(client, str(file)))
