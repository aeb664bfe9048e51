"""The double of the KFP backend: what becomes of parameters and arguments (rows 9 to 15 and 21 to 23)."""

# KFP reads the signatures of components and does not know "X | None".
# ruff: noqa: UP045

import json
from typing import Optional

import pytest
from kfp import dsl
from kfp_backend import InvalidRunError
from kfp_backend.values import number_text, parse_output_parameter, to_text
from kfp_programs import compiled, run_python

SHOW = "print(json.dumps(parameters, sort_keys=True))"


@pytest.fixture
def run(make_backend, tmp_path):
    """Run a pipeline with parameters."""

    def run(pipeline, parameters=None, **settings):
        return make_backend(publish_logs=False, **settings).run(compiled(pipeline, tmp_path), parameters)

    return run


def shown(finished, task="show"):
    """What a component that runs SHOW has got."""
    assert finished.phase == "Succeeded", finished.explain()
    return json.loads(finished.task(task).log)


@dsl.container_component
def show_struct(value: dict):
    return run_python("print(sys.argv[1])")


# One component specification for equal containers.


def two_interfaces(*arguments):
    """Two components that differ in nothing but an output, which is `b` and comes second in the alphabet."""

    @dsl.container_component
    def first(a: dsl.OutputPath(str)):
        return run_python("[write(name, name) for name in outputs['parameters']]", *arguments[:1])

    @dsl.container_component
    def second(b: dsl.OutputPath(str)):
        return run_python("[write(name, name) for name in outputs['parameters']]", *arguments[1:])

    @dsl.container_component
    def take(value: str):
        return run_python(SHOW)

    @dsl.pipeline(name="two-interfaces")
    def pipeline():
        first()
        take(value=second().outputs["b"])

    return pipeline


def test_components_with_equal_containers_get_the_interface_of_the_first_in_the_alphabet(run):
    finished = run(two_interfaces())

    assert finished.task("second").execution.outputs == {"a": "a"}
    assert shown(finished, "take") == {"value": ""}


def test_components_with_different_containers_keep_their_interfaces(run):
    finished = run(two_interfaces("one", "two"))

    assert shown(finished, "take") == {"value": "b"}


# Placeholders.


def test_the_executor_input_is_replaced_first_and_parameters_inside_it_as_raw_text(run):
    @dsl.container_component
    def show(value: dict):
        return run_python(SHOW)

    @dsl.pipeline(name="inside")
    def pipeline(number: int, text: str):
        show(value={"number": number, "text": text})

    assert shown(run(pipeline, {"number": 3, "text": "x"}))["value"] == {"number": "3", "text": "x"}


@pytest.mark.parametrize("text", ['a "quote"', "two\nlines", "back\\slash"])
def test_text_that_json_escapes_breaks_the_json_of_a_dict_it_is_part_of(run, text):
    @dsl.container_component
    def show(value: dict):
        return run_python(SHOW)

    @dsl.pipeline(name="inside")
    def pipeline(text: str):
        show(value={"text": text})

    finished = run(pipeline, {"text": text})

    assert (finished.phase, "JSONDecodeError" in finished.task("show").log) == ("Failed", True)


def test_arguments_with_placeholders_of_inputs_and_outputs_are_replaced(run):
    @dsl.container_component
    def show(number: float, data: dsl.Output[dsl.Dataset], out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(
            image="python:3.11",
            command=["sh", "-c", 'echo "$0 $1"; echo -n written > "$2"'],
            args=[f"number={number}", data.path, out],
        )

    @dsl.pipeline(name="arguments")
    def pipeline(number: float):
        show(number=number)

    finished = run(pipeline, {"number": 1.0})

    assert finished.task("show").log.startswith("number=1 /minio/mlpipeline/v2/artifacts/arguments/")
    assert finished.output("show", "out") == "written"


def test_an_argument_with_a_parameter_that_only_has_a_default_fails_in_the_driver(run):
    @dsl.container_component
    def show(number: int = 3):
        return dsl.ContainerSpec(image="python:3.11", command=["echo"], args=[number])

    @dsl.pipeline(name="arguments")
    def pipeline():
        show()

    assert 'parameter "number" not found in executor input' in run(pipeline).task("show").message


def test_only_a_placeholder_that_is_the_whole_constant_is_replaced(run):
    @dsl.container_component
    def show(whole: str, part: str, inside: dict, name: str):
        return run_python(SHOW)

    @dsl.pipeline(name="placeholders")
    def pipeline():
        show(
            whole=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            part=f"run {dsl.PIPELINE_JOB_ID_PLACEHOLDER}",
            inside={"run": dsl.PIPELINE_JOB_ID_PLACEHOLDER},
            name=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        )

    finished = run(pipeline)

    assert shown(finished) == {
        "whole": finished.run.id,
        "part": "run {{$.pipeline_job_uuid}}",
        "inside": {"run": "{{$.pipeline_job_uuid}}"},
        "name": "show",
    }


def test_the_path_of_the_workspace_is_replaced_in_text_and_mounts_the_claim(run):
    @dsl.container_component
    def leave(folder: str):
        return run_python("pathlib.Path(parameters['folder']).write_text('left')")

    @dsl.container_component
    def show(folder: str):
        return run_python("parameters['text'] = pathlib.Path(parameters['folder']).read_text();" + SHOW)

    kubernetes = dsl.KubernetesWorkspaceConfig(pvcSpecPatch={"accessModes": ["ReadWriteOnce"]})
    workspace = dsl.WorkspaceConfig(size="1Gi", kubernetes=kubernetes)

    @dsl.pipeline(name="workspace", pipeline_config=dsl.PipelineConfig(workspace=workspace))
    def pipeline():
        left = leave(folder=f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/file")
        show(folder=f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/file").after(left)

    assert shown(run(pipeline)) == {"folder": "/kfp-workspace/file", "text": "left"}


# Values.


def test_numbers_are_doubles_and_written_as_go_writes_them(run):
    @dsl.pipeline(name="numbers")
    def pipeline():
        show_struct(value={"whole": 20, "half": 0.5, "large": 2**53 + 1, "huge": 1e22, "small": 1e-7})

    text = run(pipeline).task("show-struct").log.replace(", ", ",")

    assert '{"half":0.5,"huge":1e+22,"large":9007199254740992,"small":1e-7,"whole":20}' in text


@pytest.mark.parametrize(
    ("number", "text"), [(20.0, "20"), (-0.25, "-0.25"), (0.0, "0"), (1e21, "1e+21"), (123456789.0, "123456789")]
)
def test_a_number_has_no_decimal_point_without_need(number, text):
    assert number_text(number) == text


def test_the_white_space_of_an_executor_input_differs_from_run_to_run(make_backend, tmp_path):
    @dsl.pipeline(name="spaces")
    def pipeline():
        show_struct(value={"a": 1, "b": 2}).set_caching_options(False)

    backend = make_backend(publish_logs=False)
    documents = compiled(pipeline, tmp_path)

    logs = [backend.run(documents).task("show-struct").log for _ in range(8)]

    assert {'"a":1,"b":2' in log for log in logs} == {True, False}


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.5, "0.5"), (True, "true"), ([1, "<"], '[1,"\\u003c"]'), ({"a": None}, '{"a":null}'), (None, "")],
)
def test_a_text_input_takes_anything_as_text(value, text):
    assert to_text(value) == text


def with_input_type(documents, component, name, kind):
    """Change the type of an input as a component of another team may declare it."""
    documents[0]["components"][component]["inputDefinitions"]["parameters"][name]["parameterType"] = kind
    return documents


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("3", "NUMBER_INTEGER"),
        ("[1]", "LIST"),
        ("true", "BOOLEAN"),
        (3, "BOOLEAN"),
        ({"a": 1}, "LIST"),
        (True, "STRUCT"),
    ],
)
def test_a_value_of_another_type_is_refused_and_never_parsed(make_backend, tmp_path, value, kind):
    @dsl.container_component
    def show(value: type(value)):
        return run_python(SHOW)

    @dsl.pipeline(name="types")
    def pipeline(value: type(value)):
        show(value=value)

    documents = with_input_type(compiled(pipeline, tmp_path), "comp-show", "value", kind)
    finished = make_backend().run(documents, {"value": value})

    assert f'input parameter "value" type mismatch: expect {kind}' in finished.task("show").message


def test_a_number_for_a_text_input_arrives_as_text(make_backend, tmp_path):
    @dsl.container_component
    def show(value: int):
        return run_python(SHOW)

    @dsl.pipeline(name="types")
    def pipeline(value: int):
        show(value=value)

    documents = with_input_type(compiled(pipeline, tmp_path), "comp-show", "value", "STRING")

    assert shown(make_backend().run(documents, {"value": 3})) == {"value": "3"}


def test_a_parameter_that_a_component_does_not_declare_stays(run):
    @dsl.container_component
    def show(value: dict):
        return run_python(SHOW)

    @dsl.pipeline(name="inside")
    def pipeline(number: int):
        show(value={"number": number})

    assert shown(run(pipeline, {"number": 3}))["pipelinechannel--number"] == 3


# Null, and defaults.


@dsl.container_component
def show(value: Optional[str] = None, count: int = 7, items: Optional[list] = None):
    return run_python(SHOW)


def test_null_for_an_optional_input_is_left_out(run):
    @dsl.pipeline(name="optional")
    def pipeline(value: Optional[str] = None):
        show(value=value)

    assert shown(run(pipeline)) == {"count": 7}


def test_null_for_a_required_input_fails_in_the_driver(run):
    @dsl.container_component
    def need(value: str):
        return run_python(SHOW)

    @dsl.pipeline(name="required")
    def pipeline(value: Optional[str] = None):
        need(value=value)

    assert "the resolved input parameter is null: value" in run(pipeline).task("need").message


def null_from_upstream(kind):
    @dsl.container_component
    def give(value: dsl.OutputPath(kind)):
        return run_python("report(parameterValues={'value': None})")

    @dsl.container_component
    def show(value: Optional[kind] = None):
        return run_python(SHOW)

    @dsl.pipeline(name="upstream")
    def pipeline():
        show(value=give().outputs["value"])

    return pipeline


def test_null_from_an_upstream_output_is_an_empty_text(run):
    assert shown(run(null_from_upstream(str))) == {"value": ""}


def test_null_from_an_upstream_output_fails_in_the_driver_for_all_other_types(run):
    assert 'got null for input parameter "value"' in run(null_from_upstream(dict)).task("show").message


def test_a_sub_pipeline_hands_null_to_its_tasks_for_what_it_was_not_given(run):
    @dsl.pipeline(name="inner")
    def inner(value: Optional[str] = None, count: int = 9):
        show(value=value, count=count)

    @dsl.pipeline(name="outer")
    def outer():
        inner()

    assert shown(run(outer)) == {"count": 9}


def test_defaults_of_a_component_are_added_by_the_launcher(run):
    @dsl.pipeline(name="defaults")
    def pipeline():
        show(value="x")

    finished = run(pipeline)

    assert shown(finished) == {"value": "x", "count": 7}
    assert "count" not in finished.task("show").execution.inputs


def test_the_api_server_checks_parameters_before_anything_runs(run):
    @dsl.pipeline(name="checked")
    def pipeline(number: int):
        show(count=number)

    for parameters, message in (
        ({}, "parameter number is not optional, yet has neither default value nor user provided value"),
        ({"number": "3"}, "input parameter number requires type NUMBER_INTEGER"),
        ({"number": 3, "more": 1}, "not required by pipeline: more"),
    ):
        with pytest.raises(InvalidRunError, match=message):
            run(pipeline, parameters)


# Output parameters.


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("STRING", "null\n", "null\n"),
        ("NUMBER_INTEGER", " 3\n", 3.0),
        ("NUMBER_DOUBLE", "3", 3.0),
        ("NUMBER_DOUBLE", "inf", float("inf")),
        ("BOOLEAN", "True", True),
        ("BOOLEAN", "0", False),
        ("LIST", "[1]", [1.0]),
        ("STRUCT", '{"a": null}', {"a": None}),
    ],
)
def test_the_file_of_an_output_parameter_is_read_by_its_type(kind, text, value):
    assert parse_output_parameter(text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("NUMBER_INTEGER", "3.0"),
        ("NUMBER_INTEGER", "null"),
        ("NUMBER_DOUBLE", ""),
        ("BOOLEAN", "yes"),
        ("LIST", "null"),
        ("LIST", "{}"),
        ("STRUCT", '{"a": NaN}'),
    ],
)
def test_a_file_that_is_not_of_this_type_fails_the_step(kind, text):
    with pytest.raises(ValueError, match=r"TextToPbValue|syntax error"):
        parse_output_parameter(text, kind)


@pytest.mark.parametrize("source", ["", "write('value', '3.0')"])
def test_a_missing_or_wrong_output_parameter_fails_the_step_with_nothing_published(run, source):
    @dsl.container_component
    def give(value: dsl.OutputPath(int)):
        return run_python(source)

    @dsl.pipeline(name="outputs")
    def pipeline():
        give()

    finished = run(pipeline)

    assert 'failed to read output parameter name="value" type="NUMBER_INTEGER"' in finished.task("give").message
    assert finished.task("give").execution.outputs == {}


def test_a_number_that_is_not_finite_fails_in_the_driver_of_its_consumer(run):
    @dsl.container_component
    def give(value: dsl.OutputPath(float)):
        return run_python("write('value', 'NaN')")

    @dsl.container_component
    def take(value: float):
        return run_python(SHOW)

    @dsl.pipeline(name="outputs")
    def pipeline():
        take(value=give().outputs["value"])

    finished = run(pipeline)

    assert finished.task("give").phase == "Succeeded"
    assert "invalid nan value" in finished.task("take").message


# Text on its way.


def test_dollars_in_constants_are_expanded_in_the_drivers_pod_and_in_the_steps(run):
    @dsl.container_component
    def show(value: dict):
        return run_python(SHOW)

    @dsl.pipeline(name="dollars")
    def pipeline():
        show(value={"cost": "$$$$5 $$6", "pod": "$(KFP_POD_NAME)", "retry": "$(KFP_RETRY_INDEX)", "x": "$(X) $HOME"})

    finished = run(pipeline)

    assert shown(finished)["value"] == {
        "cost": "$5 $6",
        "pod": "driver-pod",
        "retry": "$(KFP_RETRY_INDEX)",
        "x": "$(X) $HOME",
    }


def test_variables_of_the_step_are_expanded_in_its_own_arguments(run):
    @dsl.container_component
    def show():
        return run_python("print(json.dumps(sys.argv[2:]))", "$(COLOUR)", "$$(COLOUR)", "$$$$(COLOUR)")

    @dsl.pipeline(name="variables")
    def pipeline():
        show().set_env_variable("COLOUR", "blue")

    assert shown(run(pipeline)) == ["blue", "blue", "$(COLOUR)"]


def test_names_that_argo_knows_are_replaced_in_constants(run):
    @dsl.container_component
    def show(value: dict):
        return run_python(SHOW)

    @dsl.pipeline(name="argo")
    def pipeline():
        show(value={"name": "{{workflow.name}}", "unknown": "{{something.else}}"})

    finished = run(pipeline)

    assert shown(finished)["value"] == {"name": finished.run.name, "unknown": "{{something.else}}"}


@pytest.mark.parametrize(("character", "count"), [("a", 131_000), ('"', 65_300), ("<", 21_700)])
def test_a_task_of_more_than_131072_escaped_bytes_fails_in_the_driver(run, character, count):
    @dsl.pipeline(name="sizes")
    def pipeline():
        show_struct(value={"text": character * (count + 200)}).set_display_name("large")

    assert "bytes are passed as @/tmp/argo_arg_0.txt" in run(pipeline).task("show-struct").message


def test_an_executor_input_of_more_than_131071_bytes_cannot_be_an_argument_of_the_launcher(run):
    @dsl.container_component
    def give(value: dsl.OutputPath(str)):
        return run_python("write('value', 'a' * 131072)")

    @dsl.container_component
    def take(value: str):
        return run_python(SHOW)

    @dsl.pipeline(name="sizes")
    def pipeline():
        take(value=give().outputs["value"])

    assert "argument list too long" in run(pipeline).task("take").message


def test_an_argument_of_more_than_131071_bytes_arrives_as_the_name_of_a_file(make_backend, tmp_path):
    @dsl.container_component
    def show():
        return run_python("print(sys.argv[2])", "x")

    @dsl.pipeline(name="sizes")
    def pipeline():
        show()

    documents = compiled(pipeline, tmp_path)
    container = documents[0]["deploymentSpec"]["executors"]["exec-show"]["container"]
    # The driver is the first that cannot read it; an argument may grow until the step by a variable of the step.
    container["args"][1] = "$(LONG)" * 2
    container["env"] = [{"name": "LONG", "value": "x" * 66_000}]

    assert make_backend().run(documents).task("show").log == "@/tmp/argo_arg_4.txt\n"
