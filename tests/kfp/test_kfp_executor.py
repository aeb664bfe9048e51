"""Executor inputs as drivers write them, and as people do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_components.step.executor_input import Artifact, Task, get_local_path
from kfp_components.step.request_encoding import encode_request
from trainer_core import InvalidRequestError


def target(
    task: Task,
    *,
    needed: str = "given",
    count: int = 7,
    rate: float = 0.5,
    really: bool = False,
    names: list[str] | None = None,
    settings: dict[str, Any] | None = None,
    data: Artifact | None = None,
) -> None:
    """Takes one input of each kind."""


def strict(task: Task, *, needed: str) -> None:
    """Takes an input without a default."""


def with_parameters(**values: Any) -> Task:
    return Task({"inputs": {"parameterValues": values}, "outputs": {}})


def argument(name: str, value: Any, **others: Any) -> Any:
    return with_parameters(**{name: value}, **others).get_arguments(target)[name]


DEFAULTS = {
    "needed": "given",
    "count": 7,
    "rate": 0.5,
    "really": False,
    "names": None,
    "settings": None,
    "data": None,
}


@pytest.mark.parametrize("executor_input", [{}, {"inputs": {}}, {"inputs": {"parameterValues": None}, "outputs": None}])
def test_inputs_that_are_missing_take_their_defaults(executor_input):
    assert Task(executor_input).get_arguments(target) == DEFAULTS


def test_inputs_that_are_null_take_their_defaults():
    assert with_parameters(**dict.fromkeys(DEFAULTS)).get_arguments(target) == DEFAULTS


@pytest.mark.parametrize("value", [2.0, 2, "2", "2.0"])
def test_a_whole_number_arrives_as_int(value):
    assert repr(argument("count", value)) == "2"


@pytest.mark.parametrize("value", [2.0, 2, "2"])
def test_a_number_arrives_as_float_where_a_float_is_declared(value):
    assert repr(argument("rate", value)) == "2.0"


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_a_bool_arrives_as_bool(value):
    assert argument("really", value) is True


@pytest.mark.parametrize("value", [["a"], '["a"]'])
def test_a_list_arrives_as_list(value):
    assert argument("names", value) == ["a"]


def test_whole_numbers_inside_a_dict_become_ints_again():
    given = {"a": 1.0, "deep": [{"b": 2.0}, 2.5], "yes": True}

    assert repr(argument("settings", given)) == repr({"a": 1, "deep": [{"b": 2}, 2.5], "yes": True})


def test_a_pipeline_parameter_inside_a_dict_keeps_its_type():
    given = {"epochs": "{{$.inputs.parameters['pipelinechannel--epochs']}}"}

    assert argument("settings", given, **{"pipelinechannel--epochs": 3.0}) == {"epochs": 3}


def test_a_pipeline_parameter_inside_a_text_becomes_text():
    given = {"run": "run-{{$.inputs.parameters['pipelinechannel--number']}}-of-{{$.inputs.parameters['who']}}"}

    assert argument("settings", given, **{"pipelinechannel--number": 3.0, "who": "me"}) == {"run": "run-3-of-me"}


def test_a_reference_that_leads_nowhere_stays_as_it_is():
    given = {"text": "{{$.inputs.parameters['unknown']}}"}

    assert argument("settings", given) == given


def test_a_needed_input_that_is_missing_is_named():
    with pytest.raises(InvalidRequestError, match=r"input 'needed' is missing; pass it"):
        with_parameters().get_arguments(strict)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("count", 2.5, "int"),
        ("count", "many", "int"),
        ("count", True, "int"),
        ("settings", [1], "dict"),
        ("needed", 3, "str"),
    ],
)
def test_an_input_of_another_type_is_named_with_its_type(name, value, kind):
    with pytest.raises(InvalidRequestError, match=f"input '{name}' must be {kind}, got"):
        argument(name, value)


def test_an_artifact_arrives_with_its_path_and_metadata():
    held = {"artifacts": [{"name": "d", "uri": "minio://bucket/d", "metadata": {"rows": 3}}]}

    artifact = Task({"inputs": {"artifacts": {"data": held}}}).get_arguments(target)["data"]

    assert (artifact.path, artifact.metadata) == (Path("/minio/bucket/d"), {"rows": 3})


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://bucket/key", "/s3/bucket/key"),
        ("minio://bucket/key", "/minio/bucket/key"),
        ("gs://bucket/key", "/gcs/bucket/key"),
        ("oci://registry/model:1", "/oci/registry_model:1/models"),
        ("file:///data/a%20b", "/data/a b"),
        ("/runs/1/model", "/runs/1/model"),
    ],
)
def test_a_uri_lies_where_the_launcher_puts_it(uri, path):
    assert get_local_path(uri) == Path(path)


def test_an_unknown_scheme_lies_nowhere_on_this_machine():
    assert get_local_path("hf://owner/name") is None


def test_a_custom_path_wins_over_the_uri():
    assert Artifact.parse({"name": "d", "uri": "s3://b/k", "customPath": "/mnt/d"}).path == Path("/mnt/d")


def test_an_artifact_in_the_workspace_lies_in_the_workspace():
    artifact = Artifact("d", "minio://b/k", {"_kfp_workspace": True})

    assert artifact.path == Path("/kfp-workspace/.artifacts/minio/b/k")


def test_folders_of_outputs_are_made(tmp_path):
    outputs = {
        "parameters": {"n": {"outputFile": str(tmp_path / "a" / "n")}},
        "artifacts": {"m": {"artifacts": [{"name": "m", "uri": str(tmp_path / "b" / "m")}]}},
        "outputFile": str(tmp_path / "c" / "executor_output.json"),
    }

    Task({"outputs": outputs}).make_output_folders()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_outputs_without_a_value_are_known(tmp_path):
    files = {name: {"outputFile": str(tmp_path / name)} for name in ("a", "b", "c")}
    task = Task({"outputs": {"parameters": files}})
    task.write("b", 1)

    assert task.list_missing_outputs() == ["a", "c"]


@pytest.mark.parametrize(
    ("value", "text"),
    [("a text", "a text"), (1, "1"), (0.5, "0.5"), (True, "true"), ({"a": None}, '{"a": null}'), ([1.5], "[1.5]")],
)
def test_an_output_is_text_as_it_is_and_anything_else_json(tmp_path, value, text):
    task = Task({"outputs": {"parameters": {"n": {"outputFile": str(tmp_path / "n")}}}})

    task.write("n", value)

    assert (tmp_path / "n").read_text() == text


def test_nan_and_infinity_become_null(tmp_path):
    task = Task({"outputs": {"parameters": {"n": {"outputFile": str(tmp_path / "n")}}}})

    task.write("n", {"loss": float("nan"), "all": [float("inf")]})

    assert json.loads((tmp_path / "n").read_text()) == {"loss": None, "all": [None]}


def test_text_with_a_list_that_is_nested_too_deeply_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^input 'names' contains itself, or is nested more than 100 levels"):
        argument("names", "[" * 200 + "]" * 200)


def test_broken_json_says_what_may_have_broken_it():
    with pytest.raises(InvalidRequestError, match="make the whole dict a pipeline parameter"):
        Task.parse('{"inputs": {"parameterValues": {"d": {"n": "a"b"}}}}')


@pytest.mark.parametrize("text", ["[1]", "null", '"a"'])
def test_an_executor_input_that_is_no_object_is_refused(text):
    with pytest.raises(InvalidRequestError, match="the executor input is no JSON object; pass"):
        Task.parse(text)


def test_several_artifacts_for_one_input_are_refused():
    held = {"artifacts": [{"uri": "/a"}, {"uri": "/b"}]}

    with pytest.raises(InvalidRequestError, match="exactly one artifact"):
        Task({"inputs": {"artifacts": {"data": held}}})


NOTE = 'several\nlines with "quotes" and $$'


def test_a_reference_to_another_input_takes_its_value_whatever_its_type():
    given = {"note": {"trainjob.input": "func_args_note"}, "tags": [{"trainjob.input": "func_args_tags"}]}

    found = argument("settings", given, func_args_note=NOTE, func_args_tags=[1.0, {"a": 2.5}])

    assert repr(found) == repr({"note": NOTE, "tags": [[1, {"a": 2.5}]]})


def test_a_reference_to_an_input_that_was_left_out_is_left_out_too():
    assert argument("settings", {"note": {"trainjob.input": "func_args_note"}, "rate": 1}) == {"rate": 1}


def takes_a_request(task: Task, *, request: dict[str, Any], dataset: Artifact | None = None) -> None:
    """Takes what `train` takes."""


def test_an_encoded_request_arrives_byte_for_byte_with_its_references_filled_in():
    request = {"text": "{{$.inputs.parameters['x']}} $$", "seed": 2**60, "rate": 2.0, "n": {"trainjob.input": "n"}}
    executor_input = json.dumps({"inputs": {"parameterValues": {"x": "replaced", "n": 3.0}}})

    task = Task.parse(executor_input, encode_request(request))

    assert repr(task.get_arguments(takes_a_request)["request"]) == repr({**request, "n": 3})


def test_the_log_that_kfp_adds_is_no_output_of_the_component():
    logs = {"artifacts": [{"uri": "minio://bucket/logs"}]}

    assert Task({"outputs": {"artifacts": {"executor-logs": logs}}}).artifacts == {}


def test_metadata_that_are_no_number_are_left_out(tmp_path):
    held = {"artifacts": [{"name": "metrics", "uri": str(tmp_path / "metrics")}]}
    task = Task({"outputs": {"artifacts": {"metrics": held}, "outputFile": str(tmp_path / "output.json")}})
    task.get_artifact("metrics").metadata.update(loss=float("nan"), accuracy=0.5)

    task.close()

    (recorded,) = json.loads((tmp_path / "output.json").read_text())["artifacts"]["metrics"]["artifacts"]
    assert recorded["metadata"] == {"accuracy": 0.5}
