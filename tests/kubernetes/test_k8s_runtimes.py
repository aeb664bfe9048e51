"""Parsing of runtimes: those of Trainer 2.3.0 and custom ones."""

from __future__ import annotations

import pytest
from fake_cluster import crds
from k8s_crds import runtime

from trainer_core.k8s import runtimes
from trainer_core.model.runtimes import RuntimeKind, TrainerType


def a_runtime(*, containers=(), labels=None, policy=None, ancestor="trainer", name="mine", **metadata):
    """Return a runtime with one replicated job ``node``."""
    template = {"spec": {"template": {"spec": {"containers": list(containers)}}}}
    if ancestor:
        template["metadata"] = {"labels": {runtimes.ANCESTOR_LABEL: ancestor}}
    spec = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}}}
    if policy:
        spec["mlPolicy"] = policy
    return {"metadata": {"name": name, "labels": labels, **metadata}, "spec": spec}


def a_node(**limits):
    return {"name": "node", "image": "x:1", "resources": {"limits": limits}}


@pytest.mark.parametrize("name", crds.stock_runtimes())
def test_a_stock_runtime_has_a_name_an_image_and_one_node(name):
    found = runtimes.parse_runtime(runtime(name))
    assert (found.name, bool(found.trainer.image), found.trainer.num_nodes) == (name, True, 1)


@pytest.mark.parametrize(
    ("name", "framework", "command"),
    [
        ("torch-distributed", "torch", ("torchrun",)),
        ("deepspeed-distributed", "deepspeed", ("mpirun", "--hostfile", "/etc/mpi/hostfile")),
        ("mlx-distributed", "mlx", ("mpirun", "--hostfile", "/etc/mpi/hostfile")),
        ("jax-distributed", "jax", ("python3",)),
        ("xgboost-distributed", "xgboost", ("python3",)),
        ("torchtune-llama3.2-1b", "torchtune", ("tune", "run")),
    ],
)
def test_a_framework_has_its_command(name, framework, command):
    trainer = runtimes.parse_runtime(runtime(name)).trainer
    assert (trainer.framework, trainer.command) == (framework, command)


def test_a_torchtune_runtime_has_a_builtin_trainer_and_a_pretrained_model():
    found = runtimes.parse_runtime(runtime("torchtune-llama3.2-1b"))
    assert found.trainer.trainer_type is TrainerType.BUILTIN_TRAINER
    assert found.pretrained_model == "hf://meta-llama/Llama-3.2-1B-Instruct"


def test_the_device_is_read_from_the_limits():
    trainer = runtimes.parse_runtime(runtime("torchtune-llama3.2-1b")).trainer
    assert (trainer.device, trainer.device_count) == ("gpu", "2")


def test_a_launcher_with_the_trainer_label_is_the_trainer_job():
    launcher = runtimes.find_trainer_job(runtime("deepspeed-distributed"))
    assert launcher["name"] == "launcher"


@pytest.mark.parametrize(
    ("limits", "device"),
    [
        ({"cpu": "4", "nvidia.com/gpu": 2}, ("gpu", "2")),
        ({"cpu": "4", "google.com/tpu": "8"}, ("tpu", "8")),
        ({"memory": "1Gi", "nvidia.com/mig-1g.5gb": "1"}, ("mig-1g.5gb", "1")),
        ({"huawei.com/Ascend910": 1, "cpu": 1}, ("npu", "1")),
        ({"cpu": "500m"}, ("cpu", "500m")),
        ({"memory": "1Gi"}, ("Unknown", "Unknown")),
        ({"nvidia.com/gpu": "two", "cpu": "4"}, ("cpu", "4")),
        ({}, ("Unknown", "Unknown")),
    ],
)
def test_accelerators_take_precedence_as_device(limits, device):
    trainer = runtimes.parse_runtime(a_runtime(containers=[a_node(**limits)])).trainer
    assert (trainer.device, trainer.device_count) == device


@pytest.mark.parametrize("way", runtimes.ML_POLICIES)
def test_an_empty_policy_is_recognized(way):
    assert runtimes.get_ml_policy(a_runtime(policy={"numNodes": 2, way: {}})) == way


def test_a_runtime_without_a_policy_has_independent_nodes():
    assert runtimes.get_ml_policy(a_runtime(policy={"numNodes": 2})) is None


@pytest.mark.parametrize(
    ("labels", "policy", "framework"),
    [({runtimes.FRAMEWORK_LABEL: "mine"}, {"torch": {}}, "mine"), (None, {"torch": {}}, "torch"), ({}, None, "plain")],
)
def test_the_framework_is_the_label_or_the_policy(labels, policy, framework):
    assert runtimes.get_framework(a_runtime(labels=labels, policy=policy)) == framework


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, RuntimeKind.CLUSTER_TRAINING_RUNTIME),
        ({"namespace": "team"}, RuntimeKind.TRAINING_RUNTIME),
    ],
)
def test_the_kind_of_a_list_item_is_derived_from_its_namespace(fields, kind):
    assert runtimes.parse_runtime(a_runtime(**fields)).kind is kind


def test_the_kind_of_a_runtime_is_read():
    raw = {"kind": "TrainingRuntime", **a_runtime()}
    assert runtimes.get_kind(raw) is RuntimeKind.TRAINING_RUNTIME


def test_the_number_of_nodes_is_read_from_the_policy():
    assert runtimes.parse_runtime(a_runtime(policy={"numNodes": 4})).trainer.num_nodes == 4


def test_a_runtime_without_a_labelled_job_has_no_trainer_container():
    raw = a_runtime(containers=[a_node()], ancestor=None)
    assert runtimes.find_trainer_job(raw) is None
    assert runtimes.parse_runtime(raw).trainer.image == ""


@pytest.mark.parametrize(("label", "deprecated"), [("deprecated", True), ("full", False)])
def test_the_support_label_marks_a_deprecated_runtime(label, deprecated):
    assert runtimes.is_deprecated(a_runtime(labels={"trainer.kubeflow.org/support": label})) is deprecated


@pytest.mark.parametrize("name", crds.stock_runtimes())
def test_a_runtime_annotation_is_read_back_unchanged(name):
    text = runtimes.dump_raw_runtime(runtime(name))
    assert runtimes.load_runtime({"trainjob-workflows/runtime": text}) == runtimes.parse_runtime(runtime(name))
