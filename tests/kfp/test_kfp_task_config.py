"""What is set on a KFP task: KFP is told to pass it on, and the entry point refuses what cannot arrive.

That it reaches the TrainJob is tested on a cluster's API, in test_kfp_cluster.
"""

import kfp_definitions as definitions
import pytest
import yaml
from kfp import dsl, kubernetes
from kfp_driver import compiled, request_for

from kfp_components.tasks import train_task
from trainer_core import CustomTrainer

TRAINER = CustomTrainer(func=definitions.run_for_ever)


@dsl.pipeline
def everything(gpus: str = "2"):
    task = train_task(trainer=TRAINER, runtime="torch-distributed", backend="kubernetes")
    task.set_cpu_request("4").set_memory_limit("16G")
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(gpus)
    task.set_env_variable("MODE", "fast")
    kubernetes.use_secret_as_env(task, "hugging-face", {"token": "HF_TOKEN"})
    kubernetes.add_node_selector(task, "gpu", "a100")
    kubernetes.add_toleration(task, key="gpu", operator="Exists", effect="NoSchedule")
    kubernetes.add_node_affinity(task, match_expressions=[{"key": "zone", "operator": "In", "values": ["a"]}])
    kubernetes.mount_pvc(task, pvc_name="shared", mount_path="/shared")


@dsl.pipeline
def on_this_machine():
    train_task(trainer=TRAINER, backend="local").set_env_variable("MODE", "fast")


@pytest.fixture
def documents(tmp_path):
    return compiled(everything, tmp_path)


def test_all_that_can_be_set_on_the_task_is_passed_on(documents):
    declared = documents[0]["components"]["comp-train"]["taskConfigPassthroughs"]

    assert sorted(each["field"] for each in declared) == [
        *("ENV", "KUBERNETES_AFFINITY", "KUBERNETES_NODE_SELECTOR", "KUBERNETES_TOLERATIONS", "KUBERNETES_VOLUMES"),
        "RESOURCES",
    ]


def test_a_step_that_waits_keeps_its_environment_and_volumes_and_takes_no_gpu(documents):
    declared = documents[0]["components"]["comp-train"]["taskConfigPassthroughs"]

    assert {each["field"] for each in declared if each.get("applyToTask")} == {"ENV", "KUBERNETES_VOLUMES"}


def test_the_configuration_arrives_as_an_input_of_the_component(documents):
    inputs = documents[0]["components"]["comp-train"]["inputDefinitions"]["parameters"]

    assert inputs["task_config"]["parameterType"] == "TASK_CONFIG"


def test_kfp_has_what_it_is_to_pass_on(documents):
    container = documents[0]["deploymentSpec"]["executors"]["exec-train"]["container"]
    pod = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]

    assert container["env"] == [{"name": "MODE", "value": "fast"}]
    assert {"resourceCpuRequest", "resourceMemoryLimit", "accelerator"} <= set(container["resources"])
    assert set(pod) == {"nodeAffinity", "nodeSelector", "pvcMount", "secretAsEnv", "tolerations"}


def test_a_step_that_trains_itself_keeps_everything(tmp_path):
    (document,) = compiled(on_this_machine, tmp_path)

    assert "taskConfigPassthroughs" not in document["components"]["comp-train"]


CONFIG = {"nodeSelector": {"gpu": "a100"}, "resources": {"limits": {"cpu": "4"}}}


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"task_config": CONFIG}, "nodeSelector, resources of the KFP task cannot reach a job of the local backend"),
        (
            {"task_config": {"env": [{"name": "POD", "valueFrom": {"fieldRef": {}}}]}, "backend": "kubernetes"},
            "env POD comes from fieldRef, which cannot reach a TrainJob",
        ),
    ],
)
def test_what_cannot_arrive_is_refused_instead_of_dropped(task, monkeypatch, tmp_path, inputs, reason):
    kubeconfig = {
        "current-context": "none",
        "contexts": [{"name": "none", "context": {"cluster": "none"}}],
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    finished = task("train", request=request_for(definitions.run_for_ever), **inputs).run()

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, reason in line) == (1, True), line


def test_a_configuration_in_which_nothing_is_set_changes_nothing(task):
    empty = {"affinity": None, "env": [], "nodeSelector": {}, "resources": {"limits": None, "requests": None}}

    finished = task("train", request=request_for(definitions.run_for_ever), task_config=empty).run()

    assert finished.returncode == 0, finished.stderr
