"""The exact workload of a request: golden files, what the kinds' definitions say of them, and what shells make of them.

After a change that is meant, write the golden files anew and review them like code::

    TRAINJOB_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/runai/test_runai_manifest.py -q
"""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from fake_cluster import Cluster
from runai_jobs import EXAMPLES, GOLDEN, NAMESPACE, a_request, golden, readable, train

from trainer_core import CustomTrainer, CustomTrainerContainer, RunaiBackendConfig, RunaiSpec, TrainingWorkloadSpec
from trainer_core.backends.runai import manifest
from trainer_core.backends.runai.blueprints import BUILT_IN
from trainer_core.cluster.answers import RejectedError
from trainer_core.cluster.api import Api
from trainer_core.cluster.connect import connect
from trainer_core.cluster.kinds import of
from trainer_core.errors import InvalidRequestError
from trainer_core.request import TrainJobRequest

CONFIG = RunaiBackendConfig(project="team-vision")
#: What a shell, or what splits as one does, makes something else of unless it is quoted.
WORDS = [
    *("it's", '"100%"', "$HOME `date` $(id) ${X}", "two words", "a\nb\tc", "", "*.py ~ ? [x]", "ü \U0001f600"),
    *("back\\slash\\", "'\"'\"'", "#none; & | > < ( ) { } !", "--flag=a b", "\x01\x7f"),
]


def rendered(request, blueprint="python"):
    return manifest.workload(request, BUILT_IN[blueprint], CONFIG, NAMESPACE)


def a_container(**fields):
    return TrainJobRequest.parse({"name": "job", "trainer": {"kind": "container", "image": "x:1", **fields}})


@pytest.fixture(scope="module")
def server():
    with Cluster(namespaces=[NAMESPACE], controllers=False) as cluster:
        config = RunaiBackendConfig(namespace=NAMESPACE, client_configuration=cluster.configuration())
        yield Api(connect(config))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_as_it_was_reviewed(name):
    workload = EXAMPLES[name].workload()
    assert golden(name, workload) == readable(workload)


def test_every_golden_file_is_of_an_example():
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_strict_server_takes_an_example(name, server):
    workload = EXAMPLES[name].workload()
    assert server.create(of(workload), workload, dry_run=True)["kind"] == workload["kind"]


def test_a_strict_server_refuses_a_field_that_is_not_wrapped(server):
    workload = EXAMPLES["container"].workload()
    workload["spec"]["image"] = "x:1"
    with pytest.raises(RejectedError, match="image"):
        server.create(of(workload), workload, dry_run=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_model_reads_back_what_an_example_sends(name):
    workload = EXAMPLES[name].workload()
    for part in ("spec", "masterSpec"):
        raw = workload.get(part, {})
        assert TrainingWorkloadSpec.from_wire(raw).to_wire() == raw


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_request_and_its_json_give_the_same_workload(name):
    example = EXAMPLES[name]
    again = TrainJobRequest.from_json(example.request().to_json())
    assert manifest.workload(again, example.blueprint, example.config, NAMESPACE, example.attempt) == example.workload()


@pytest.mark.parametrize("word", WORDS)
def test_words_of_a_command_arrive_unchanged(word):
    spec = rendered(a_container(command=["run"], args=["--before", word, "--after"]))["spec"]
    assert shlex.split(spec["arguments"]["value"]) == ["--before", word, "--after"]


def test_words_of_a_command_arrive_unchanged_through_a_shell():
    text = rendered(a_container(command=["printf", "%s|"], args=WORDS))["spec"]
    script = f"{text['command']['value']} {text['arguments']['value']}"
    ran = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert ran.stdout.decode() == "|".join(WORDS) + "|"


def test_what_kubernetes_would_expand_is_doubled_where_nobody_meant_it():
    request = a_request(trainer=CustomTrainer(func=train, func_args={"epochs": 3}, env={"A": "$(HOME)", "B": "$HOME"}))
    items = rendered(request)["spec"]["environment"]["items"]
    assert (items["A"]["value"], items["B"]["value"]) == ("$$(HOME)", "$HOME")


def test_rendering_changes_nothing_of_the_request():
    request = a_request(trainer=CustomTrainerContainer(image="x"), options=[RunaiSpec(environment={"A": "1"})])
    before = request.to_json()
    assert rendered(request) == rendered(request)
    assert request.to_json() == before


def test_fields_that_contradict_the_request_are_told_together():
    request = a_request(
        trainer=CustomTrainerContainer(image="x", resources_per_node={"gpu": 2}), options=[RunaiSpec(gpu_memory="8G")]
    )
    with pytest.raises(InvalidRequestError, match=r"RunaiSpec and the request together: .*gpu and gpu_memory"):
        rendered(request)


def test_no_secret_is_in_a_workload():
    text = json.dumps(EXAMPLES["direct-fields"].workload())
    assert "SECRET:wandb,key" in text


@pytest.mark.parametrize(
    ("gpus", "asked", "processes"), [({"gpu": 4}, None, "4"), ({"gpu": 4}, 2, "2"), ({}, None, "1")]
)
def test_torch_starts_a_process_for_each_gpu(gpus, asked, processes):
    trainer = CustomTrainer(
        func=train, func_args={"epochs": 3}, resources_per_node=gpus or None, num_proc_per_node=asked
    )
    items = rendered(a_request(trainer=trainer), "torch-distributed")["spec"]["environment"]["items"]
    assert items["PET_NPROC_PER_NODE"] == {"value": processes}


def test_a_part_of_a_gpu_is_for_one_process():
    request = a_request(trainer=CustomTrainer(func=train, func_args={"epochs": 3}), options=[RunaiSpec(gpu=0.5)])
    items = rendered(request, "torch-distributed")["spec"]["environment"]["items"]
    assert items["PET_NPROC_PER_NODE"] == {"value": "1"}
