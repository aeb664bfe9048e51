"""Requests that a Run:ai workload cannot express are refused with the alternative."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runai_examples import build_template, train
from runai_scene import CONTAINER, build_request

from trainer_core import BuiltinTrainer, CustomTrainer, TorchTuneConfig
from trainer_core.backends.runai import manifest, validation
from trainer_core.backends.runai.backend import RunaiBackend
from trainer_core.backends.runai.config import RunaiBackendConfig
from trainer_core.backends.runai.runtime_templates import BUILT_IN_TEMPLATES
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.definition import request_builder

CONFIG = RunaiBackendConfig(project="team-a")
FUNCTION = request_builder.build_request_data(
    backend=RunaiBackend, trainer=CustomTrainer(func=train, func_args={"epochs": 1})
)["trainer"]
RECIPE = request_builder.build_request_data(
    backend=RunaiBackend, trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1))
)["trainer"]
PATCH = {"manager": "a/b", "trainingRuntimeSpec": {}}


def render(request, runtime="python"):
    template = BUILT_IN_TEMPLATES.get(runtime) or build_template(runtime)
    validation.check_request(request, template)
    return manifest.render_workload(request, template, CONFIG, "runai-team-a")


def build_initializer(uri, role="dataset"):
    return {"initializer": {role: {"storage_uri": uri}}}


REFUSED = {
    "a patch": ({"patches": [PATCH]}, "patches: the runai backend has no RuntimePatch; remove it"),
    "a deadline": (
        {"active_deadline_seconds": 60},
        "active_deadline_seconds: the runai backend has no ActiveDeadlineSeconds; remove it",
    ),
    "another controller": (
        {"managed_by": "kueue.x-k8s.io/multikueue"},
        "managed_by: the runai backend has no ManagedBy; remove it",
    ),
    "a workspace": ({"workspace": {}}, "workspace: the runai backend has no Workspace; remove it"),
    "DistributedConfig": ({"distributed": {}}, "distributed: the runai backend has no DistributedConfig; remove it"),
    "PyTorchJobSpec": ({"pytorch_job": {}}, "pytorch_job: the runai backend has no PyTorchJobSpec; remove it"),
    "hf://": (build_initializer("hf://acme/digits"), "initializer.dataset: hf:// is not supported"),
    "s3:// of a model": (build_initializer("s3://models/m", "model"), r"initializer\.model: s3:// is not supported"),
    "a folder of a claim": (build_initializer("pvc://data/raw/digits"), "cannot mount the folder 'raw/digits'"),
    "storage": (
        {"trainer": {**CONTAINER, "resources_per_node": {"storage": "1Gi"}}},
        "cannot guarantee ephemeral storage",
    ),
    "several slices": (
        {"trainer": {**CONTAINER, "resources_per_node": {"mig-1g.5gb": 2}}},
        "a workload has one MIG slice",
    ),
    "a long grace": (
        {"checkpoints": {"every_steps": 1, "grace": 31}},
        "Checkpoints grace: Run:ai has no field for it and ends pods after 30 s; use at most 30",
    ),
    "several processes": ({"trainer": {**FUNCTION, "num_proc_per_node": 2}}, "always starts 1 process on each node"),
    "a recipe on a plain runtime": ({"trainer": RECIPE}, "BuiltinTrainer can't be used with python runtime"),
    "no trainer": ({"trainer": None}, "runtime 'python' has no command"),
    "initialize only": ({"trainer": None, **build_initializer("pvc://data")}, "initialize is not supported"),
    "RunaiMasterSpec with one node": ({"runai": {"master": {"gpu": "0"}}}, "a job with one node has no master"),
    "a name set directly": ({"runai": {"spec": {"name": "x"}}}, "RunaiSpec: name is set by the backend"),
    "memory that overrides that of each attempt": (
        {
            "trainer": {**CONTAINER, "resources_per_node": {"memory": "8Gi"}},
            "more_memory": {"limit": "32Gi"},
            "runai": {"spec": {"memory_limit": "9Gi"}},
        },
        "MoreMemory: RunaiSpec memory_limit would override the memory of each attempt; remove it",
    ),
    "another command for a function": (
        {"trainer": FUNCTION, "runai": {"spec": {"command": "x"}}},
        "RunaiSpec: command is set by the backend",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_part_of_a_request_is_refused_by_name(case):
    fields, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as refused:
        render(build_request(**fields))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["PET_NNODES", "MASTER_ADDR", "RANK", "WORLD_SIZE"])
def test_rendezvous_variables_are_reserved(name):
    with pytest.raises(InvalidRequestError, match=f"must not set {name}"):
        render(build_request(trainer={**CONTAINER, "env": {name: "1"}}))


def test_a_recipe_on_several_nodes_is_refused():
    with pytest.raises(UnsupportedError, match="num_nodes must be 1"):
        render(build_request(trainer={**RECIPE, "num_nodes": 2}), "torchtune-llama3.2-1b")


def test_a_function_on_a_torchtune_runtime_is_refused():
    with pytest.raises(UnsupportedError, match=r"CustomTrainer can.t be used with torchtune-llama3\.2-1b"):
        render(build_request(trainer=FUNCTION), "torchtune-llama3.2-1b")


def test_two_claims_with_one_mount_path_are_refused():
    claims = {"dataset": {"storage_uri": "pvc://a/dataset"}, "model": {"storage_uri": "pvc://b/model"}}
    with pytest.raises(UnsupportedError, match="claims 'a' and 'b' cannot both be mounted at /workspace"):
        render(build_request(initializer=claims))


@pytest.mark.parametrize(
    ("claims", "mount_paths"),
    [
        ({"dataset": "pvc://a/dataset", "model": "pvc://a/model"}, {"/workspace"}),
        ({"dataset": "pvc://a", "model": "pvc://b"}, {"/workspace/dataset", "/workspace/model"}),
        ({"dataset": "pvc://a/dataset", "model": "pvc://b"}, {"/workspace", "/workspace/model"}),
    ],
)
def test_claims_are_mounted_at_the_paths_of_the_initializers(claims, mount_paths):
    request = build_request(initializer={role: {"storage_uri": uri} for role, uri in claims.items()})
    items = render(request)["spec"]["pvcs"]["items"]
    assert {item["value"]["path"] for item in items.values()} == mount_paths


def test_a_name_that_is_too_long_for_its_service_is_refused():
    request = build_request().with_fields(name="n" * 49)
    with pytest.raises(UnsupportedError, match="use at most 48"):
        render(request)


def test_what_a_workload_can_just_express_is_accepted():
    trainer = {**CONTAINER, "resources_per_node": {"cpu": 4, "mig-1g.5gb": 1}}
    checkpoints = {"uri": "s3://bucket/runs", "every_steps": 1, "grace": 30}
    request = build_request(trainer=trainer, checkpoints=checkpoints)
    assert render(request.with_fields(name="n" * 48))["metadata"]["name"] == "n" * 48


def test_fields_of_the_master_that_contradict_the_request_are_refused():
    fields = {"num_nodes": 2, "resources_per_node": {"gpu": 1}}
    request = build_request(trainer={**CONTAINER, **fields}, runai={"master": {"gpu_memory": "8G"}})
    with pytest.raises(InvalidRequestError, match="gpu and gpu_memory exclude each other"):
        render(request)


def test_a_distributed_workload_copies_the_fields_of_its_template():
    workload = render(build_request(trainer={**CONTAINER, "num_nodes": 2}), "blueprint")
    assert "baseWorkload" not in workload["spec"]
    assert [workload[part]["nodePools"] for part in ("spec", "masterSpec")] == [{"value": "a100"}] * 2


def test_the_job_label_cannot_be_overridden():
    request = build_request(runai={"spec": {"labels": {"trainjob-workflows/job": "other", "team": "vision"}}})
    items = render(request)["spec"]["labels"]["items"]
    assert items == {"trainjob-workflows/job": {"value": "job"}, "team": {"value": "vision"}}


def test_a_template_runs_without_a_trainer():
    assert render(build_request(trainer=None), "blueprint")["spec"]["baseWorkload"] == "blueprint"


def test_the_backoff_limit_of_a_template_is_kept():
    assert "backoffLimit" not in render(build_request(), "blueprint")["spec"]


def test_the_gpus_of_a_template_set_the_number_of_processes():
    template = build_template()
    with_gpus = replace(template, spec=template.spec.model_copy(update={"gpu": "4"}))
    workload = manifest.render_workload(build_request(trainer=FUNCTION), with_gpus, CONFIG, "runai-team-a")
    assert workload["spec"]["environment"]["items"]["PET_NPROC_PER_NODE"] == {"value": "4"}
