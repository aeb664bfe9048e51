"""What a Run:ai workload has no place for is refused by name, with what to do instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runai_jobs import a_template, train
from runai_scene import CONTAINER, a_request

from trainer_core import BuiltinTrainer, CustomTrainer, TorchTuneConfig, build
from trainer_core.backends.runai import admission, manifest
from trainer_core.backends.runai.backend import RunaiBackend
from trainer_core.backends.runai.blueprints import BUILT_IN
from trainer_core.configs import RunaiBackendConfig
from trainer_core.errors import InvalidRequestError, UnsupportedError

CONFIG = RunaiBackendConfig(project="team-a")
FUNCTION = build.plain(backend=RunaiBackend, trainer=CustomTrainer(func=train, func_args={"epochs": 1}))["trainer"]
RECIPE = build.plain(backend=RunaiBackend, trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1)))["trainer"]
PATCH = {"manager": "a/b", "trainingRuntimeSpec": {}}


def made_of(request, blueprint="python"):
    found = BUILT_IN.get(blueprint) or a_template(blueprint)
    admission.check(request, found)
    return manifest.workload(request, found, CONFIG, "runai-team-a")


def fetches(uri, role="dataset"):
    return {"initializer": {role: {"storage_uri": uri}}}


REFUSED = {
    "a patch": ({"patches": [PATCH]}, "patches: RuntimePatch changes a runtime of Kubeflow Trainer"),
    "a deadline": ({"active_deadline_seconds": 60}, "active_deadline_seconds: no field of a workload"),
    "another controller": ({"managed_by": "kueue.x-k8s.io/multikueue"}, "managed_by: Run:ai sees to its workloads"),
    "a workspace": ({"workspace": {}}, "workspace: only `initialize`"),
    "pods configured by DistributedConfig": ({"distributed": {}}, "distributed: DistributedConfig"),
    "what is of a PyTorchJob": ({"pytorch_job": {}}, "pytorch_job: PyTorchJobSpec is of the training-operator"),
    "hf://": (fetches("hf://acme/digits"), "initializer.dataset: a Run:ai workload has no initializers, so hf://"),
    "s3:// of a model": (fetches("s3://models/m", "model"), r"initializer\.model: .*s3:// is not fetched"),
    "a folder of a claim": (fetches("pvc://data/raw/digits"), "mounts whole claims, and not 'raw/digits'"),
    "storage": ({"trainer": {**CONTAINER, "resources_per_node": {"storage": "1Gi"}}}, "guarantees no storage"),
    "several slices": ({"trainer": {**CONTAINER, "resources_per_node": {"mig-1g.5gb": 2}}}, "one slice of a GPU"),
    "several processes": ({"trainer": {**FUNCTION, "num_proc_per_node": 2}}, "starts one process on each node"),
    "a recipe on a plain runtime": ({"trainer": RECIPE}, "builtin trainer can't be used with python runtime"),
    "no trainer": ({"trainer": None}, "runtime 'python' no command"),
    "only fetching": ({"trainer": None, **fetches("pvc://data")}, "a request without a trainer only fetches"),
    "fields of a master of one node": ({"runai": {"master": {"gpu": "0"}}}, "a job of one node has no master"),
    "a name set directly": ({"runai": {"spec": {"name": "x"}}}, "RunaiSpec: name is written by this backend"),
    "another command for a function": (
        {"trainer": FUNCTION, "runai": {"spec": {"command": "x"}}},
        "RunaiSpec: command is written by this backend",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_equivalent_is_refused_by_name(case):
    fields, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as refused:
        made_of(a_request(**fields))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["PET_NNODES", "MASTER_ADDR", "RANK", "WORLD_SIZE"])
def test_what_says_to_a_node_where_it_stands_is_reserved(name):
    with pytest.raises(InvalidRequestError, match=f"must not set {name}"):
        made_of(a_request(trainer={**CONTAINER, "env": {name: "1"}}))


def test_a_recipe_runs_on_one_node():
    with pytest.raises(UnsupportedError, match="one node of Run:ai"):
        made_of(a_request(trainer={**RECIPE, "num_nodes": 2}), "torchtune-llama3.2-1b")


def test_a_function_does_not_run_on_a_recipes_runtime():
    with pytest.raises(UnsupportedError, match=r"custom trainer can.t be used with torchtune-llama3\.2-1b"):
        made_of(a_request(trainer=FUNCTION), "torchtune-llama3.2-1b")


def test_two_claims_do_not_lie_at_one_place():
    claims = {"dataset": {"storage_uri": "pvc://a/dataset"}, "model": {"storage_uri": "pvc://b/model"}}
    with pytest.raises(UnsupportedError, match="claims 'a' and 'b' cannot both be mounted at /workspace"):
        made_of(a_request(initializer=claims))


@pytest.mark.parametrize(
    ("claims", "places"),
    [
        ({"dataset": "pvc://a/dataset", "model": "pvc://a/model"}, {"/workspace"}),
        ({"dataset": "pvc://a", "model": "pvc://b"}, {"/workspace/dataset", "/workspace/model"}),
        ({"dataset": "pvc://a/dataset", "model": "pvc://b"}, {"/workspace", "/workspace/model"}),
    ],
)
def test_claims_lie_where_containers_look_for_what_was_fetched(claims, places):
    request = a_request(initializer={role: {"storage_uri": uri} for role, uri in claims.items()})
    items = made_of(request)["spec"]["pvcs"]["items"]
    assert {item["value"]["path"] for item in items.values()} == places


def test_a_name_that_grows_too_long_is_refused():
    request = a_request().model_copy(update={"name": "n" * 49})
    with pytest.raises(UnsupportedError, match="use at most 48"):
        made_of(request)


def test_fields_of_the_master_that_contradict_the_request_are_told():
    fields = {"num_nodes": 2, "resources_per_node": {"gpu": 1}}
    request = a_request(trainer={**CONTAINER, **fields}, runai={"master": {"gpu_memory": "8G"}})
    with pytest.raises(InvalidRequestError, match="gpu and gpu_memory exclude each other"):
        made_of(request)


def test_several_nodes_of_a_template_have_its_fields_themselves():
    workload = made_of(a_request(trainer={**CONTAINER, "num_nodes": 2}), "blueprint")
    assert "baseWorkload" not in workload["spec"]
    assert [workload[part]["nodePools"] for part in ("spec", "masterSpec")] == [{"value": "a100"}] * 2


def test_the_label_by_which_pods_are_found_stays():
    request = a_request(runai={"spec": {"labels": {"trainjob-workflows/job": "other", "team": "vision"}}})
    items = made_of(request)["spec"]["labels"]["items"]
    assert items == {"trainjob-workflows/job": {"value": "job"}, "team": {"value": "vision"}}


def test_a_template_runs_as_it_is():
    assert made_of(a_request(trainer=None), "blueprint")["spec"]["baseWorkload"] == "blueprint"


def test_retries_of_a_template_are_its_own():
    assert "backoffLimit" not in made_of(a_request(), "blueprint")["spec"]


def test_gpus_of_a_template_are_for_as_many_processes():
    blueprint = a_template()
    with_gpus = replace(blueprint, template=blueprint.template.model_copy(update={"gpu": "4"}))
    workload = manifest.workload(a_request(trainer=FUNCTION), with_gpus, CONFIG, "runai-team-a")
    assert workload["spec"]["environment"]["items"]["PET_NPROC_PER_NODE"] == {"value": "4"}
