"""TaskConfig: components ask KFP to pass on what is set on a task; the entry point refuses what cannot reach training.

test_kfp_cluster tests, on a cluster's API, that it reaches the TrainJob.
"""

import kfp_definitions as definitions
import pytest
from kfp import dsl, kubernetes
from kfp_driver import compiled, request_for

from kfp_components.step.task_config import apply_task_config, list_claim_mounts
from kfp_components.tasks import train_task
from trainer_core import CustomTrainer
from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.request import KUEUE_QUEUE, TrainJobRequest

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
    declared = documents[0]["components"]["comp-submit"]["taskConfigPassthroughs"]

    assert sorted(each["field"] for each in declared) == [
        *("ENV", "KUBERNETES_AFFINITY", "KUBERNETES_NODE_SELECTOR", "KUBERNETES_TOLERATIONS", "KUBERNETES_VOLUMES"),
        "RESOURCES",
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            lambda task: kubernetes.empty_dir_mount(task, "shm", "/dev/shm", medium="Memory"),
            r"^empty_dir_mount: .* not on the pods that train; use RuntimePatch with a volume of the pod template",
        ),
        (
            lambda task: kubernetes.add_ephemeral_volume(task, "scratch", "/scratch", ["ReadWriteOnce"], "10Gi"),
            r"^add_ephemeral_volume: .*; use RuntimePatch with a volume",
        ),
        (
            lambda task: kubernetes.add_pod_label(task, KUEUE_QUEUE, "team"),
            r"^add_pod_label kueue.x-k8s.io/queue-name: .*; use QueueName in options$",
        ),
    ],
)
def test_what_is_meant_for_training_and_would_stay_on_the_pod_of_the_step_is_refused(setting, message):
    def define(backend):
        @dsl.pipeline
        def pipeline():
            setting(train_task(trainer=TRAINER, backend=backend))

        return pipeline

    assert define("local").pipeline_spec.root.dag.tasks.keys() == {"submit"}
    with pytest.raises(ValueError, match=message):
        define("kubernetes")


def test_what_is_for_the_pod_of_the_step_is_taken(tmp_path):
    @dsl.pipeline
    def pipeline():
        task = train_task(trainer=TRAINER, backend="kubernetes")
        kubernetes.add_pod_label(task, "team", "vision")
        kubernetes.set_image_pull_secrets(task, ["registry"])

    platform = compiled(pipeline, tmp_path)[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-submit"]
    assert platform == {"podMetadata": {"labels": {"team": "vision"}}, "imagePullSecret": platform["imagePullSecret"]}


def test_a_step_that_waits_keeps_its_environment_and_volumes_and_takes_no_gpu(documents):
    declared = documents[0]["components"]["comp-submit"]["taskConfigPassthroughs"]

    assert {each["field"] for each in declared if each.get("applyToTask")} == {"ENV", "KUBERNETES_VOLUMES"}


def test_the_configuration_arrives_as_an_input_of_the_component(documents):
    inputs = documents[0]["components"]["comp-submit"]["inputDefinitions"]["parameters"]

    assert inputs["task_config"]["parameterType"] == "TASK_CONFIG"


def test_settings_of_the_task_are_in_the_compiled_pipeline(documents):
    container = documents[0]["deploymentSpec"]["executors"]["exec-submit"]["container"]
    pod = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-submit"]

    assert container["env"] == [{"name": "MODE", "value": "fast"}]
    assert {"resourceCpuRequest", "resourceMemoryLimit", "accelerator"} <= set(container["resources"])
    assert set(pod) == {"nodeAffinity", "nodeSelector", "pvcMount", "secretAsEnv", "tolerations"}


def test_a_step_that_trains_itself_keeps_everything(tmp_path):
    (document,) = compiled(on_this_machine, tmp_path)

    assert "taskConfigPassthroughs" not in document["components"]["comp-submit"]


CONFIG = {"nodeSelector": {"gpu": "a100"}, "resources": {"limits": {"cpu": "4"}}}


def test_a_setting_that_cannot_reach_training_is_refused(task):
    finished = task("submit", request=request_for(definitions.run_for_ever), task_config=CONFIG).run()

    (line,) = finished.stderr.splitlines()
    assert finished.returncode == 1
    assert "nodeSelector, resources of the KFP task cannot reach a job of the local backend" in line


def test_a_configuration_in_which_nothing_is_set_changes_nothing(task):
    empty = {"affinity": None, "env": [], "nodeSelector": {}, "resources": {"limits": None, "requests": None}}

    finished = task("submit", request=request_for(definitions.run_for_ever), task_config=empty).run()

    assert finished.returncode == 0, finished.stderr


def applied(task_config, backend="kubernetes", **trainer):
    """The validated request of a job after the configuration of its task is applied."""
    data = {"trainer": {"kind": "container", "image": "train:1", **trainer}}
    apply_task_config(data, task_config, backend)
    return TrainJobRequest.parse(data)


def test_a_request_for_cpu_does_not_become_a_limit_of_training():
    request = applied({"resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "1"}}})

    assert request.work.trainer.resources_per_node is None
    assert request.work.distributed.requests == {"cpu": "500m", "nvidia.com/gpu": "1"}
    assert request.work.distributed.limits == {"nvidia.com/gpu": "1"}


def test_limits_alone_are_the_resources_of_a_node():
    request = applied({"resources": {"limits": {"cpu": "4"}}}, resources_per_node={"gpu": 1, "cpu": 2})

    assert request.work.trainer.resources_per_node == {"nvidia.com/gpu": "1", "cpu": "4"}
    assert request.work.distributed is None


#: What the driver of KFP 2.17 adds to the environment of every task of some installations.
INJECTED = [
    {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
    {"name": "MLFLOW_RUN_ID", "value": "nested"},
    {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mlflow", "key": "token"}}},
]


@pytest.mark.parametrize("backend", ["kubernetes", "training-operator", "runai", "container"])
def test_proxies_of_the_installation_reach_training_and_the_run_of_the_step_does_not(backend):
    request = applied({"env": INJECTED}, backend)

    assert request.work.trainer.env == {"HTTPS_PROXY": "http://proxy:3128"}


def test_variables_of_the_installation_give_way_to_those_of_the_trainer():
    request = applied({"env": INJECTED}, env={"MLFLOW_RUN_ID": "mine", "HTTPS_PROXY": "http://other:3128"})

    assert request.work.trainer.env == {"MLFLOW_RUN_ID": "mine", "HTTPS_PROXY": "http://other:3128"}


def test_variables_of_the_installation_do_not_refuse_a_request_without_a_trainer():
    data = {"runtime": {"name": "torch"}}

    apply_task_config(data, {"env": INJECTED}, "kubernetes")

    assert data == {"runtime": {"name": "torch"}}


def test_a_variable_of_the_user_needs_a_trainer():
    data = {"runtime": {"name": "torch"}}

    with pytest.raises(InvalidRequestError, match="env of the KFP task need a request with a trainer"):
        apply_task_config(data, {"env": [{"name": "MODE", "value": "x"}]}, "kubernetes")


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_a_step_that_trains_itself_has_its_environment_and_volumes_already(backend):
    mounted = {"volumes": [{"name": "shared"}], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}

    request = applied({"env": [*INJECTED, {"name": "MODE", "value": "fast"}], **mounted}, backend)

    assert (request.work.trainer.env, request.work.patches) == ({}, ())


REFERENCES = [
    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token", "optional": True}}},
]


def test_references_that_are_no_plain_secret_stay_as_kubernetes_spells_them():
    assert applied({"env": REFERENCES}).work.distributed.env == tuple(REFERENCES)


def test_a_reference_that_the_backend_cannot_resolve_is_refused():
    with pytest.raises(InvalidRequestError, match="env POD_IP, MODE, TOKEN comes from a reference that the runai"):
        applied({"env": REFERENCES}, "runai")


def test_nulls_of_the_driver_are_no_values():
    entry = {"name": "TOKEN", "value": None, "valueFrom": {"secretKeyRef": {"name": "t", "key": "k", "optional": None}}}

    assert applied({"env": [entry]}).work.trainer.env["TOKEN"].key == "k"


def test_the_claims_that_a_task_mounts_are_known_by_their_paths():
    config = {
        "volumes": [
            {"name": "kfp-workspace", "persistentVolumeClaim": {"claimName": "run-1-kfp-workspace", "readOnly": None}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "token", "secret": {"secretName": "token"}},
        ],
        "volumeMounts": [
            {"name": "kfp-workspace", "mountPath": "/kfp-workspace", "subPath": None},
            {"name": "shared", "mountPath": "/data", "subPath": "team-a/"},
            {"name": "token", "mountPath": "/token"},
        ],
    }

    assert list_claim_mounts(config) == {"/kfp-workspace": "run-1-kfp-workspace", "/data": "data/team-a"}
