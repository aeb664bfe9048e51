"""The compiled YAML: up to date, valid for KFP's backend, free of what only the local runner resolves."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from google.protobuf import json_format
from kfp import components
from kfp.pipeline_spec import pipeline_spec_pb2
from kfp_driver import COMPONENTS, REPOSITORY, component_spec, container, document

from kfp_components import container_spec
from kfp_components.container_spec import VERSION
from kfp_components.step.entrypoint import TARGETS, load_target
from kfp_components.step.executor_input import is_shared

NAMES = sorted(TARGETS)
PIPELINES = REPOSITORY / "pipelines"
DOCUMENTS = sorted([*COMPONENTS.glob("*.yaml"), *PIPELINES.glob("*.yaml")])


def identity(path):
    return path.stem


def executors(path):
    document = next(yaml.safe_load_all(path.read_text()))
    found = [spec["container"] for spec in document["deploymentSpec"]["executors"].values()]
    assert found, f"{path} has no executor"
    return found


def tasks_of(path):
    """Every task that is no group of tasks, also those inside conditions."""
    document = next(yaml.safe_load_all(path.read_text()))
    dags = [document["root"]["dag"], *(c["dag"] for c in document["components"].values() if "dag" in c)]
    tasks = [task for dag in dags for task in dag["tasks"].values()]
    return [task for task in tasks if "executorLabel" in document["components"][task["componentRef"]["name"]]]


def test_every_target_has_a_component_and_a_file():
    assert sorted(path.stem for path in COMPONENTS.glob("*.yaml")) == NAMES


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Everything compiled again, in a new process and from another folder."""
    folder = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, str(PIPELINES / "compile.py"), "--output", str(folder)]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return folder


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_the_committed_yaml_is_what_the_sources_compile_to(compiled, path):
    again = (compiled / path.relative_to(REPOSITORY)).read_text()

    assert without_version(again) == without_version(path.read_text()), "run `make compile` and commit the result"


def without_version(text):
    return re.sub(r"^sdkVersion: .*$", "", text, flags=re.MULTILINE)


def test_everything_that_compiles_is_committed(compiled):
    written = {path.relative_to(compiled) for path in compiled.rglob("*.yaml")}

    assert written == {path.relative_to(REPOSITORY) for path in DOCUMENTS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_the_yaml_is_a_pipeline_spec_without_unknown_fields(path):
    document, *platform = yaml.safe_load_all(path.read_text())

    for each in platform:
        json_format.ParseDict(each, pipeline_spec_pb2.PlatformSpec())
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    for executor in document["deploymentSpec"]["executors"].values():
        json_format.ParseDict(executor, pipeline_spec_pb2.PipelineDeploymentConfig.ExecutorSpec())

    assert spec.schema_version == "2.1.0"


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_the_yaml_can_be_loaded_by_its_users(path):
    assert components.load_component_from_file(str(path)).component_spec.inputs


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_images_are_pinned_and_the_executor_input_is_the_only_placeholder(path):
    for running in executors(path):
        assert re.search(r"(@sha256:[0-9a-f]{64}|:\d+\.\d+\.\d+)$", running["image"])
        assert running["command"] == ["python3", "-m", "kfp_components.step.entrypoint"]
        assert running["args"][0] in TARGETS
        assert running["args"][1] == "{{$}}"
        assert not any("{{" in argument for argument in running["args"][2:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_nothing_is_left_to_concat_or_if_present(path):
    assert not re.search(r"Concat|IfPresent", path.read_text())


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_nothing_of_the_compiling_machine_is_in_the_yaml(path):
    assert str(REPOSITORY) not in path.read_text()
    assert str(Path.home()) + "/" not in path.read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_no_service_account_is_named(path):
    assert not re.search(r"service.?account|pipeline-runner|default-editor", path.read_text(), flags=re.IGNORECASE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=identity)
def test_no_document_comes_near_the_limits_of_the_backend(path):
    parameters = [value for task in tasks_of(path) for value in task.get("inputs", {}).get("parameters", {}).values()]

    assert max((len(json.dumps(value)) for value in parameters), default=0) < 10_000
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=identity)
def test_tasks_of_pipelines_are_retried(path):
    assert min(task["retryPolicy"]["maxRetryCount"] for task in tasks_of(path)) > 0


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=identity)
def test_tasks_of_pipelines_are_retried_also_after_more_than_a_week(path):
    windows = [int(task["retryPolicy"]["backoffMaxDuration"].removesuffix("s")) for task in tasks_of(path)]

    assert min(windows) > 7 * 24 * 3600


def test_every_retry_that_is_shown_has_a_window_longer_than_kfps_hour():
    shown = [*(REPOSITORY / "docs" / "guides").glob("kfp*.md"), REPOSITORY / "README.md", *PIPELINES.glob("*.py")]
    calls = [call for path in shown for call in re.findall(r"set_retry\([^)]*\)", path.read_text())]

    assert len(calls) > 5
    assert [call for call in calls if "backoff_max_duration" not in call] == []


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=identity)
def test_kfp_can_take_from_its_cache_what_depends_on_its_inputs_alone(path):
    cached = [task for task in tasks_of(path) if task["cachingOptions"].get("enableCache")]
    every_run = [task for task in cached if "run_id" in task["inputs"]["parameters"]]
    fetches = [task for task in cached if "version" in task["inputs"]["parameters"]]
    pure = [task for task in cached if task["componentRef"]["name"] in ("comp-best-of", "comp-evaluate-gate")]

    assert [task for task in cached if task not in [*every_run, *fetches, *pure]] == []
    given = [task["inputs"]["parameters"]["run_id"]["runtimeValue"]["constant"] for task in every_run]
    assert set(given) <= {"{{$.pipeline_job_uuid}}"}


@pytest.mark.parametrize("name", ["delete", "look", "promote", "resume", "submit", "suspend", "train"])
def test_a_component_that_must_run_takes_the_id_of_the_run(name):
    """KFP has caching options for tasks, none for components; an input that differs in each run never hits."""
    inputs = component_spec(name)["inputDefinitions"]["parameters"]

    assert not inputs["run_id"].get("isOptional", False)


@pytest.mark.parametrize("name", ["delete", "resume", "submit", "suspend", "train"])
def test_a_component_that_changes_a_job_takes_the_name_of_its_task(name):
    """The id of the run is the same for two tasks of one run."""
    inputs = component_spec(name)["inputDefinitions"]["parameters"]

    assert not inputs["task_name"].get("isOptional", False)


@pytest.mark.parametrize("name", ["delete", "look", "promote", "resume", "submit", "suspend", "train"])
def test_a_component_that_must_run_is_not_cached_as_a_pipeline_of_its_own(name):
    (task,) = document(name)["root"]["dag"]["tasks"].values()

    assert not task["cachingOptions"].get("enableCache", False)


@pytest.mark.parametrize("name", NAMES)
def test_a_component_names_its_version(name):
    text = (COMPONENTS / f"{name}.yaml").read_text()

    assert f"Version {VERSION} of trainjob-workflows. Image {container(name)['image']}." in text


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_input_is_an_argument_of_the_target(name):
    declared = component_spec(name)["inputDefinitions"]
    inputs = {**declared.get("parameters", {}), **declared.get("artifacts", {})}

    assert set(inputs) == set(arguments_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_an_input_is_optional_where_the_target_has_a_default(name):
    declared = component_spec(name)["inputDefinitions"]
    inputs = {**declared.get("parameters", {}), **declared.get("artifacts", {})}
    optional = {key for key, spec in inputs.items() if spec.get("isOptional")}

    assert optional == {key for key, p in arguments_of(name).items() if p.default is not p.empty}


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_of_component_and_target_agree(name):
    declared = component_spec(name)["inputDefinitions"]["parameters"]
    defaults = {key: spec.get("defaultValue") for key, spec in declared.items() if spec.get("isOptional")}
    given = arguments_of(name)

    assert defaults == {key: given[key].default for key in defaults}


def arguments_of(name):
    """Return the arguments of a component's target, with the fields of the dataclasses among them."""
    target = load_target(name)
    found = {}
    for each in [*filter(is_shared, get_type_hints(target).values()), target]:
        hints = get_type_hints(each)
        parameters = [p for p in inspect.signature(each).parameters.values() if p.kind is p.KEYWORD_ONLY]
        found |= {p.name: p for p in parameters if not is_shared(hints[p.name])}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_outputs_are_described(name):
    spec = component_spec(name)
    definitions = [spec["inputDefinitions"], spec["outputDefinitions"]]
    described = [value for part in definitions for kind in part.values() for value in kind.values()]

    assert described
    assert all(value.get("description") for value in described)


def test_an_optional_number_has_a_default():
    """KFP's local runner turns a missing int into int(None)."""
    declared = [spec for name in NAMES for spec in component_spec(name)["inputDefinitions"]["parameters"].items()]
    numbers = [each for each in declared if each[1]["parameterType"] == "NUMBER_INTEGER" and each[1].get("isOptional")]

    assert numbers
    assert [name for name, spec in numbers if "defaultValue" not in spec] == []


@pytest.mark.parametrize("name", ["latest", "name:latest", "name", "registry:5000/name", "name@sha256:abc", "a b:1"])
def test_an_image_that_is_not_pinned_is_refused(monkeypatch, name):
    monkeypatch.setenv(container_spec.IMAGE_VARIABLE, name)

    with pytest.raises(ValueError, match="is not pinned; write name@sha256"):
        container_spec.get_image()


@pytest.mark.parametrize("name", ["registry:5000/name:1.2", f"name@sha256:{'0' * 64}", "name:v1.2.3-rc1"])
def test_components_take_a_pinned_image_of_ones_own(monkeypatch, name):
    monkeypatch.setenv(container_spec.IMAGE_VARIABLE, name)

    assert container_spec.build_container_spec("wait").image == name


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="unknown target 'fly'; known are best_of, delete"):
        container_spec.build_container_spec("fly")


def test_the_image_has_the_version_of_the_package():
    version = importlib.import_module("importlib.metadata").version("trainjob-workflows")

    assert container_spec.DEFAULT_IMAGE.endswith(f":{version}")
    assert container("train")["image"] == container_spec.DEFAULT_IMAGE


def test_the_dockerfile_names_no_floating_image():
    lines = (REPOSITORY / "kfp_components" / "Dockerfile").read_text().splitlines()

    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE_IMAGE}"]
    assert "ARG BASE_IMAGE" in lines
    assert not [line for line in lines if "latest" in line]


def test_the_dockerfile_copies_what_the_build_reads():
    lines = (REPOSITORY / "kfp_components" / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    project = (REPOSITORY / "pyproject.toml").read_text()
    read = re.findall(r'^readme = "(.*)"$', project, flags=re.MULTILINE)
    (packages,) = re.findall(r"^packages = (\[.*\])$", project, flags=re.MULTILINE)

    assert copied >= {"pyproject.toml", "constraints.txt", "LICENSE", *read, *json.loads(packages)}


def test_the_program_of_the_image_needs_no_kfp():
    program = (
        "from kfp_components.step.entrypoint import *; [*map(load_target, TARGETS)]; sys.exit('kfp' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("arguments", [[], ["train"], ["fly", "{}"], ["train", "{}", "{}"], ["train", "{}", "--fly=1"]])
def test_wrong_usage_ends_with_2(arguments):
    command = [sys.executable, "-m", "kfp_components.step.entrypoint", *arguments]

    finished = subprocess.run(command, capture_output=True, text=True, check=False)

    assert finished.returncode == 2
    assert finished.stderr.startswith("usage: ")
