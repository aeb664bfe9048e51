"""Rendering of workloads: golden files, the CRD's schema and shell quoting.

To update the golden files after an intended change, and review them like code::

    TRAINJOB_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/runai/test_runai_manifest.py -q
"""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from fake_cluster import Cluster
from runai_examples import EXAMPLES, GOLDEN, NAMESPACE, build_request, read_golden, to_readable_yaml, train

from trainer_core import CustomTrainer, CustomTrainerContainer, RunaiBackendConfig, RunaiSpec, TrainingWorkloadSpec
from trainer_core.backends.runai import manifest
from trainer_core.backends.runai.runtime_templates import BUILT_IN_TEMPLATES
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import RejectedError
from trainer_core.k8s.resources import get_resource_of_object
from trainer_core.model.request import MoreMemory, TrainJobRequest

CONFIG = RunaiBackendConfig(project="team-vision")
#: Words that a shell changes unless they are quoted.
WORDS = [
    *("it's", '"100%"', "$HOME `date` $(id) ${X}", "two words", "a\nb\tc", "", "*.py ~ ? [x]", "ü \U0001f600"),
    *("back\\slash\\", "'\"'\"'", "#none; & | > < ( ) { } !", "--flag=a b", "\x01\x7f"),
]


def render(request, runtime="python"):
    return manifest.render_workload(request, BUILT_IN_TEMPLATES[runtime], CONFIG, NAMESPACE)


def build_container_request(**fields):
    return TrainJobRequest.parse({"name": "job", "trainer": {"kind": "container", "image": "x:1", **fields}})


@pytest.fixture(scope="module")
def server():
    with Cluster(namespaces=[NAMESPACE], controllers=False) as cluster:
        config = RunaiBackendConfig(namespace=NAMESPACE, client_configuration=cluster.configuration())
        yield ApiClient(Connection(config))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_its_golden_file(name):
    workload = EXAMPLES[name].render()
    assert read_golden(name, workload) == to_readable_yaml(workload)


def test_every_golden_file_belongs_to_an_example():
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_server_with_strict_field_validation_accepts_an_example(name, server):
    workload = EXAMPLES[name].render()
    assert server.create(get_resource_of_object(workload), workload, dry_run=True)["kind"] == workload["kind"]


def test_the_server_rejects_a_field_that_is_not_wrapped(server):
    workload = EXAMPLES["container"].render()
    workload["spec"]["image"] = "x:1"
    with pytest.raises(RejectedError, match="image"):
        server.create(get_resource_of_object(workload), workload, dry_run=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_survives_a_round_trip_through_the_model(name):
    workload = EXAMPLES[name].render()
    for part in ("spec", "masterSpec"):
        raw = workload.get(part, {})
        assert TrainingWorkloadSpec.from_wire(raw).to_wire() == raw


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_request_and_its_json_render_the_same_workload(name):
    example = EXAMPLES[name]
    parsed = TrainJobRequest.from_json(example.request().to_json())
    assert (
        manifest.render_workload(parsed, example.template, example.config, NAMESPACE, example.attempt)
        == example.render()
    )


@pytest.mark.parametrize("word", WORDS)
def test_words_of_a_command_are_quoted(word):
    spec = render(build_container_request(command=["run"], args=["--before", word, "--after"]))["spec"]
    assert shlex.split(spec["arguments"]["value"]) == ["--before", word, "--after"]


def test_words_of_a_command_pass_through_a_shell_unchanged():
    spec = render(build_container_request(command=["printf", "%s|"], args=WORDS))["spec"]
    script = f"{spec['command']['value']} {spec['arguments']['value']}"
    result = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert result.stdout.decode() == "|".join(WORDS) + "|"


def test_variable_references_in_the_env_are_escaped():
    request = build_request(
        trainer=CustomTrainer(func=train, func_args={"epochs": 3}, env={"A": "$(HOME)", "B": "$HOME"})
    )
    items = render(request)["spec"]["environment"]["items"]
    assert (items["A"]["value"], items["B"]["value"]) == ("$$(HOME)", "$HOME")


def test_a_workload_asks_for_the_memory_of_the_attempt():
    request = build_container_request(resources_per_node={"memory": "8Gi"})
    workload = render(request.with_fields(more_memory=MoreMemory(limit="32Gi"), attempt_memory="12Gi"))
    assert (workload["spec"]["memory"], workload["spec"]["memoryLimit"]) == ({"value": "12Gi"}, {"value": "12Gi"})


def test_rendering_does_not_change_the_request():
    request = build_request(trainer=CustomTrainerContainer(image="x"), options=[RunaiSpec(environment={"A": "1"})])
    before = request.to_json()
    assert render(request) == render(request)
    assert request.to_json() == before


def test_fields_that_contradict_the_request_are_refused():
    request = build_request(
        trainer=CustomTrainerContainer(image="x", resources_per_node={"gpu": 2}), options=[RunaiSpec(gpu_memory="8G")]
    )
    with pytest.raises(InvalidRequestError, match=r"RunaiSpec contradicts the request: .*gpu and gpu_memory"):
        render(request)


def test_a_secret_is_a_reference():
    text = json.dumps(EXAMPLES["direct-fields"].render())
    assert "SECRET:wandb,key" in text


@pytest.mark.parametrize(
    ("gpus", "requested", "processes"), [({"gpu": 4}, None, "4"), ({"gpu": 4}, 2, "2"), ({}, None, "1")]
)
def test_torch_starts_one_process_per_gpu(gpus, requested, processes):
    trainer = CustomTrainer(
        func=train, func_args={"epochs": 3}, resources_per_node=gpus or None, num_proc_per_node=requested
    )
    items = render(build_request(trainer=trainer), "torch-distributed")["spec"]["environment"]["items"]
    assert items["PET_NPROC_PER_NODE"] == {"value": processes}


def test_a_fraction_of_a_gpu_has_one_process():
    request = build_request(trainer=CustomTrainer(func=train, func_args={"epochs": 3}), options=[RunaiSpec(gpu=0.5)])
    items = render(request, "torch-distributed")["spec"]["environment"]["items"]
    assert items["PET_NPROC_PER_NODE"] == {"value": "1"}
