"""Runtime builders: their results equal Trainer's runtimes, match its CRDs and are valid."""

from __future__ import annotations

import copy

import pytest
from fake_cluster import crds

from trainer_core.base.secrets import SecretRef
from trainer_core.k8s import runtimes
from trainer_core.runtime_admin import diff, runtime_builder
from trainer_core.runtime_admin.accessors import list_replicated_jobs
from trainer_core.runtime_admin.runtime_builder import (
    Coscheduling,
    InitializerParameters,
    MpiParameters,
    PodParameters,
    RuntimeParameters,
    StorageParameters,
    Volcano,
)
from trainer_core.runtime_admin.validate import validate_runtime

TORCHTUNE = ("torchtune-llama3.2-1b", "torchtune-llama3.2-3b", "torchtune-qwen2.5-1.5b")
POD = PodParameters(
    node_selector={"pool": "gpu"},
    tolerations=[{"key": "gpu", "operator": "Exists"}],
    service_account="trainer",
    volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    mounts=[{"name": "shm", "mountPath": "/dev/shm"}],
)
FULL = RuntimeParameters(
    "team-a",
    image="registry.example/a:1",
    num_nodes=2,
    namespace="team-a",
    labels={"team": "a"},
    command=["python3"],
    args=["train.py"],
    env={"LOG_LEVEL": "debug", "HF_TOKEN": SecretRef("hf", "token")},
    resources={"gpu": 2, "memory": "64Gi"},
    pod=POD,
    gang=Volcano(queue="research", topology="soft", highest_tier=2),
)
SIMPLE = ("torch", "jax", "xgboost", "plain", "mpi", "deepspeed", "mlx")


def node(runtime, name="node"):
    (job,) = [each for each in list_replicated_jobs(runtime) if each.name == name]
    return job


def container(runtime):
    return node(runtime).container("node")


RESTARTS = {"backoffLimit": 0, "podReplacementPolicy": "Failed"}


@pytest.mark.parametrize("kind", ["torch", "jax", "xgboost", "deepspeed", "mlx"])
def test_a_runtime_with_default_parameters_equals_that_of_trainer_but_restarts_its_nodes_together(kind):
    name = f"{kind}-distributed"
    stock = crds.stock_runtimes()[name]
    if kind in ("torch", "jax", "xgboost"):
        assert not runtimes.restarts_nodes_together(stock)
        template = stock["spec"]["template"]["spec"]
        template["failurePolicy"] = {"maxRestarts": 3}
        template["replicatedJobs"][0]["template"]["spec"].update(RESTARTS)
    built = runtime_builder.BUILDERS[kind](RuntimeParameters(name))

    assert built == stock
    assert runtimes.restarts_nodes_together(built)


@pytest.mark.parametrize("field", [*RESTARTS, "failurePolicy"])
def test_a_runtime_without_one_of_the_fields_does_not_restart_its_nodes_together(field):
    built = runtime_builder.build_torch_runtime(RuntimeParameters("mine"))
    template = built["spec"]["template"]["spec"]
    for place in (template, template["replicatedJobs"][0]["template"]["spec"]):
        place.pop(field, None)
    assert not runtimes.restarts_nodes_together(built)


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("kind", SIMPLE)
def test_a_number_of_restarts_is_that_of_all_nodes_together_and_no_pod_restarts_alone(kind, restarts):
    built = runtime_builder.BUILDERS[kind](RuntimeParameters("mine", image="train:1", restarts=restarts))
    spec = built["spec"]["template"]["spec"]
    assert spec["failurePolicy"] == {"maxRestarts": restarts}
    for job in (each["template"]["spec"] for each in spec["replicatedJobs"]):
        limits = {name: job[name] for name in RESTARTS}
        assert (limits, job["template"]["spec"]["restartPolicy"]) == (RESTARTS, "Never")
    assert validate_runtime(built) == []
    assert runtimes.restarts_nodes_together(built)


def test_a_negative_number_of_restarts_is_refused():
    with pytest.raises(ValueError, match="restarts must be"):
        RuntimeParameters("mine", restarts=-1)


@pytest.mark.parametrize("name", TORCHTUNE)
def test_a_torchtune_runtime_equals_that_of_trainer(name):
    built = runtime_builder.build_torchtune_runtime(RuntimeParameters(name, resources={"gpu": 2}))

    changed = {
        change.path.removeprefix("spec.template.spec.")
        for change in diff.list_changes(crds.stock_runtimes()[name], built)
    }
    assert changed == {"failurePolicy", *(f"replicatedJobs[node].template.spec.{field}" for field in RESTARTS)}


@pytest.mark.parametrize("kind", SIMPLE)
def test_a_runtime_with_all_parameters_matches_the_crd(kind):
    assert crds.list_violations(runtime_builder.BUILDERS[kind](FULL)) == []


@pytest.mark.parametrize("kind", SIMPLE)
def test_a_runtime_with_initializers_matches_the_crd(kind):
    steps = {
        "dataset": InitializerParameters("s3://bucket/data", secret="s3", service_account="fetch"),
        "model": InitializerParameters(),
    }
    storage = StorageParameters(size="1Ti", access_mode="ReadWriteMany", storage_class="nfs")

    runtime = runtime_builder.add_initializers(runtime_builder.BUILDERS[kind](FULL), **steps, storage=storage)
    assert crds.list_violations(runtime) == []


@pytest.mark.parametrize("kind", SIMPLE)
def test_a_built_runtime_is_valid(kind):
    runtime = runtime_builder.BUILDERS[kind](RuntimeParameters("mine", image="image:1", num_nodes=2))
    steps = {"dataset": InitializerParameters(), "model": InitializerParameters()}
    more = runtime_builder.add_initializers(runtime, **steps, storage=StorageParameters(access_mode="ReadWriteMany"))

    assert (validate_runtime(runtime), validate_runtime(more)) == ([], [])


def test_a_runtime_with_a_namespace_is_a_training_runtime():
    runtime = runtime_builder.build_torch_runtime(FULL)

    assert (runtime["kind"], runtime["metadata"]["namespace"]) == ("TrainingRuntime", "team-a")


def test_resources_are_limits_by_their_full_names():
    assert container(runtime_builder.build_torch_runtime(FULL))["resources"] == {
        "limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}
    }


def test_a_secret_in_the_environment_is_a_reference():
    assert container(runtime_builder.build_torch_runtime(FULL))["env"] == [
        {"name": "LOG_LEVEL", "value": "debug"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
    ]


def test_pod_parameters_are_fields_of_the_pods():
    pod = node(runtime_builder.build_torch_runtime(FULL)).pod

    assert {key: value for key, value in pod.items() if key != "containers"} == {
        "serviceAccountName": "trainer",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    assert container(runtime_builder.build_torch_runtime(FULL))["volumeMounts"] == [
        {"name": "shm", "mountPath": "/dev/shm"}
    ]


def test_volcano_gets_its_queue_and_the_topology():
    spec = runtime_builder.build_torch_runtime(FULL)["spec"]

    assert spec["podGroupPolicy"] == {"volcano": {"networkTopology": {"mode": "soft", "highestTierAllowed": 2}}}
    assert spec["template"]["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "research"}


def test_coscheduling_gets_its_timeout():
    runtime = runtime_builder.build_torch_runtime(RuntimeParameters("a", gang=Coscheduling(120)))

    assert runtime["spec"]["podGroupPolicy"] == {"coscheduling": {"scheduleTimeoutSeconds": 120}}


def test_a_framework_label_replaces_the_default():
    runtime = runtime_builder.build_plain_runtime(
        RuntimeParameters("a", image="i", labels={"trainer.kubeflow.org/framework": "tensorflow"})
    )

    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "tensorflow"}


def test_the_user_of_an_mpi_image_can_be_set():
    runtime = runtime_builder.build_deepspeed_runtime(
        RuntimeParameters("a"), MpiParameters(4, "/root/.ssh", user=0, launcher_as_node=False)
    )

    assert runtime["spec"]["mlPolicy"]["mpi"]["numProcPerNode"] == 4
    assert container(runtime)["securityContext"] == {"runAsUser": 0}
    assert node(runtime, "launcher").pod["securityContext"] == {"fsGroup": 0}


def test_training_depends_on_the_initializers_and_mounts_their_volume():
    runtime = runtime_builder.add_initializers(
        runtime_builder.build_torch_runtime(RuntimeParameters("a")),
        dataset=InitializerParameters(),
        model=InitializerParameters(),
    )

    assert [job.name for job in list_replicated_jobs(runtime)] == ["dataset-initializer", "model-initializer", "node"]
    assert node(runtime).depends_on == [
        {"name": "dataset-initializer", "status": "Complete"},
        {"name": "model-initializer", "status": "Complete"},
    ]
    assert container(runtime)["volumeMounts"] == [{"name": "initializer", "mountPath": "/workspace"}]


def test_the_volume_of_the_initializers_can_be_an_existing_claim():
    runtime = runtime_builder.add_initializers(
        runtime_builder.build_torch_runtime(RuntimeParameters("a")),
        dataset=InitializerParameters(),
        storage=StorageParameters(claim="datasets"),
    )

    claim = {"name": "initializer", "persistentVolumeClaim": {"claimName": "datasets"}}
    assert [job.pod["volumes"] for job in list_replicated_jobs(runtime)] == [[claim], [claim]]
    assert "volumeClaimPolicies" not in runtime["spec"]["template"]["spec"]
    assert validate_runtime(runtime) == []


def test_adding_initializers_does_not_change_the_given_runtime():
    runtime = runtime_builder.build_torch_runtime(RuntimeParameters("a"))
    before = copy.deepcopy(runtime)
    runtime_builder.add_initializers(runtime, dataset=InitializerParameters())

    assert runtime == before


def test_a_built_runtime_is_a_copy_of_its_parameters():
    volume = {"name": "shm", "emptyDir": {}}
    runtime = runtime_builder.build_torch_runtime(RuntimeParameters("a", pod=PodParameters(volumes=[volume])))
    volume["emptyDir"]["medium"] = "Memory"

    assert node(runtime).pod["volumes"] == [{"name": "shm", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RuntimeParameters("Upper"), "runtime name 'Upper'"),
        (lambda: RuntimeParameters("a", namespace="a.b"), "namespace 'a.b'"),
        (lambda: RuntimeParameters("a", image=" "), "image"),
        (lambda: RuntimeParameters("a", num_nodes=0), "num_nodes"),
        (lambda: RuntimeParameters("a", labels={"a b": "c"}), "labels key"),
        (lambda: RuntimeParameters("a", command="python3"), "command"),
        (lambda: RuntimeParameters("a", args="a"), "args"),
        (lambda: RuntimeParameters("a", env={"A": 1}), "env"),
        (lambda: RuntimeParameters("a", resources={"gpus": 1}), "resource 'gpus' is unknown"),
        (lambda: PodParameters(mounts=[{"name": "a", "mountPath": "/a"}]), "'a', which is not in volumes"),
        (lambda: PodParameters(service_account="A"), "service_account"),
        (lambda: PodParameters(node_selector={"a": "b c"}), "node_selector"),
        (lambda: Coscheduling(0), "timeout_seconds"),
        (lambda: Volcano(topology="near"), "topology"),
        (lambda: Volcano(queue=""), "queue"),
        (lambda: MpiParameters(procs_per_node=0), "procs_per_node"),
        (lambda: MpiParameters(ssh_path=".ssh"), "ssh_path"),
        (lambda: InitializerParameters("tatsu-lab/alpaca"), "uri"),
        (lambda: InitializerParameters(secret="A"), "secret"),
        (lambda: StorageParameters(size="much"), "not a quantity"),
        (lambda: StorageParameters(access_mode="RWX"), "access_mode"),
        (lambda: StorageParameters(claim="A"), "claim"),
        (lambda: runtime_builder.build_plain_runtime(RuntimeParameters("a")), "image is missing"),
        (lambda: runtime_builder.build_mpi_runtime(RuntimeParameters("a")), "image is missing"),
        (
            lambda: runtime_builder.build_torchtune_runtime(RuntimeParameters("mine")),
            "Trainer reads the model from the name",
        ),
        (
            lambda: runtime_builder.build_torchtune_runtime(RuntimeParameters("llama3.2-1b")),
            "Trainer reads the model from the name",
        ),
        (
            lambda: runtime_builder.add_initializers(runtime_builder.build_torch_runtime(RuntimeParameters("a"))),
            "dataset, model or both",
        ),
        (
            lambda: runtime_builder.add_initializers(
                runtime_builder.build_torchtune_runtime(RuntimeParameters(TORCHTUNE[0])),
                dataset=InitializerParameters(),
            ),
            "already has dataset-initializer, model-initializer",
        ),
    ],
)
def test_an_invalid_parameter_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
