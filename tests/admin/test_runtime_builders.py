"""Runtimes from parameters: like Trainer's own, fit for its CRDs, without findings."""

from __future__ import annotations

import copy

import pytest

from trainer_core.admin import build, diff
from trainer_core.admin.blueprint import Blueprint, Coscheduling, Initializer, Mpi, Pod, Storage, Volcano
from trainer_core.admin.raw import replicated_jobs
from trainer_core.admin.validate import findings
from trainer_core.secrets import SecretRef

TORCHTUNE = ("torchtune-llama3.2-1b", "torchtune-llama3.2-3b", "torchtune-qwen2.5-1.5b")
POD = Pod(
    node_selector={"pool": "gpu"},
    tolerations=[{"key": "gpu", "operator": "Exists"}],
    service_account="trainer",
    volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    mounts=[{"name": "shm", "mountPath": "/dev/shm"}],
)
FULL = Blueprint(
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
    (job,) = [each for each in replicated_jobs(runtime) if each.name == name]
    return job


def container(runtime):
    return node(runtime).container("node")


@pytest.mark.parametrize("kind", ["torch", "jax", "xgboost", "deepspeed", "mlx"])
def test_with_a_name_only_a_runtime_is_trainers_own(kind, stock):
    assert build.KINDS[kind](Blueprint(f"{kind}-distributed")) == stock[f"{kind}-distributed"]


@pytest.mark.parametrize("name", TORCHTUNE)
def test_a_torchtune_runtime_is_trainers_own(name, stock):
    built = build.torchtune(Blueprint(name, resources={"gpu": 2}))

    assert diff.changes(stock[name], built) == []


@pytest.mark.parametrize("kind", SIMPLE)
def test_what_is_built_from_all_parameters_fits_the_crd(kind, schema):
    assert schema(build.KINDS[kind](FULL)) == []


@pytest.mark.parametrize("kind", SIMPLE)
def test_what_is_built_with_initializers_fits_the_crd(kind, schema):
    steps = {"dataset": Initializer("s3://bucket/data", secret="s3", service_account="fetch"), "model": Initializer()}
    storage = Storage(size="1Ti", access_mode="ReadWriteMany", storage_class="nfs")

    assert schema(build.with_initializers(build.KINDS[kind](FULL), **steps, storage=storage)) == []


@pytest.mark.parametrize("kind", SIMPLE)
def test_what_is_built_has_no_findings(kind):
    runtime = build.KINDS[kind](Blueprint("mine", image="image:1", num_nodes=2))
    steps = {"dataset": Initializer(), "model": Initializer()}
    more = build.with_initializers(runtime, **steps, storage=Storage(access_mode="ReadWriteMany"))

    assert (findings(runtime), findings(more)) == ([], [])


def test_a_namespace_makes_it_a_training_runtime():
    runtime = build.torch(FULL)

    assert (runtime["kind"], runtime["metadata"]["namespace"]) == ("TrainingRuntime", "team-a")


def test_resources_are_limits_by_their_full_names():
    assert container(build.torch(FULL))["resources"] == {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}}


def test_a_secret_of_the_environment_is_referred_to():
    assert container(build.torch(FULL))["env"] == [
        {"name": "LOG_LEVEL", "value": "debug"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
    ]


def test_what_pods_have_is_in_the_pods():
    pod = node(build.torch(FULL)).pod

    assert {key: value for key, value in pod.items() if key != "containers"} == {
        "serviceAccountName": "trainer",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    assert container(build.torch(FULL))["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


def test_volcano_gets_its_queue_and_the_topology():
    spec = build.torch(FULL)["spec"]

    assert spec["podGroupPolicy"] == {"volcano": {"networkTopology": {"mode": "soft", "highestTierAllowed": 2}}}
    assert spec["template"]["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "research"}


def test_coscheduling_gets_its_timeout():
    runtime = build.torch(Blueprint("a", gang=Coscheduling(120)))

    assert runtime["spec"]["podGroupPolicy"] == {"coscheduling": {"scheduleTimeoutSeconds": 120}}


def test_a_label_for_another_framework_replaces_the_kinds_own():
    runtime = build.plain(Blueprint("a", image="i", labels={"trainer.kubeflow.org/framework": "tensorflow"}))

    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "tensorflow"}


def test_an_mpi_image_may_have_another_user():
    runtime = build.deepspeed(Blueprint("a"), Mpi(4, "/root/.ssh", user=0, launcher_as_node=False))

    assert runtime["spec"]["mlPolicy"]["mpi"]["numProcPerNode"] == 4
    assert container(runtime)["securityContext"] == {"runAsUser": 0}
    assert node(runtime, "launcher").pod["securityContext"] == {"fsGroup": 0}


def test_training_waits_for_the_initializers_and_sees_their_volume():
    runtime = build.with_initializers(build.torch(Blueprint("a")), dataset=Initializer(), model=Initializer())

    assert [job.name for job in replicated_jobs(runtime)] == ["dataset-initializer", "model-initializer", "node"]
    assert node(runtime).depends_on == [
        {"name": "dataset-initializer", "status": "Complete"},
        {"name": "model-initializer", "status": "Complete"},
    ]
    assert container(runtime)["volumeMounts"] == [{"name": "initializer", "mountPath": "/workspace"}]


def test_the_volume_of_the_initializers_can_be_a_claim_that_exists():
    runtime = build.with_initializers(
        build.torch(Blueprint("a")), dataset=Initializer(), storage=Storage(claim="datasets")
    )

    claim = {"name": "initializer", "persistentVolumeClaim": {"claimName": "datasets"}}
    assert [job.pod["volumes"] for job in replicated_jobs(runtime)] == [[claim], [claim]]
    assert "volumeClaimPolicies" not in runtime["spec"]["template"]["spec"]
    assert findings(runtime) == []


def test_adding_initializers_leaves_the_given_runtime_as_it_was():
    runtime = build.torch(Blueprint("a"))
    before = copy.deepcopy(runtime)
    build.with_initializers(runtime, dataset=Initializer())

    assert runtime == before


def test_what_is_built_does_not_change_with_what_it_was_built_from():
    volume = {"name": "shm", "emptyDir": {}}
    runtime = build.torch(Blueprint("a", pod=Pod(volumes=[volume])))
    volume["emptyDir"]["medium"] = "Memory"

    assert node(runtime).pod["volumes"] == [{"name": "shm", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Blueprint("Upper"), "runtime name 'Upper'"),
        (lambda: Blueprint("a", namespace="a.b"), "namespace 'a.b'"),
        (lambda: Blueprint("a", image=" "), "image"),
        (lambda: Blueprint("a", num_nodes=0), "num_nodes"),
        (lambda: Blueprint("a", labels={"a b": "c"}), "labels key"),
        (lambda: Blueprint("a", command="python3"), "command"),
        (lambda: Blueprint("a", args="a"), "args"),
        (lambda: Blueprint("a", env={"A": 1}), "env"),
        (lambda: Blueprint("a", resources={"gpus": 1}), "resource 'gpus' is not known"),
        (lambda: Pod(mounts=[{"name": "a", "mountPath": "/a"}]), "'a', which is not among the volumes"),
        (lambda: Pod(service_account="A"), "service_account"),
        (lambda: Pod(node_selector={"a": "b c"}), "node_selector"),
        (lambda: Coscheduling(0), "timeout_seconds"),
        (lambda: Volcano(topology="near"), "topology"),
        (lambda: Volcano(queue=""), "queue"),
        (lambda: Mpi(procs_per_node=0), "procs_per_node"),
        (lambda: Mpi(ssh_path=".ssh"), "ssh_path"),
        (lambda: Initializer("tatsu-lab/alpaca"), "uri"),
        (lambda: Initializer(secret="A"), "secret"),
        (lambda: Storage(size="much"), "not a quantity"),
        (lambda: Storage(access_mode="RWX"), "access_mode"),
        (lambda: Storage(claim="A"), "claim"),
        (lambda: build.plain(Blueprint("a")), "give an image"),
        (lambda: build.mpi(Blueprint("a")), "give an image"),
        (lambda: build.torchtune(Blueprint("mine")), "Trainer reads the model from the name"),
        (lambda: build.torchtune(Blueprint("llama3.2-1b")), "Trainer reads the model from the name"),
        (lambda: build.with_initializers(build.torch(Blueprint("a"))), "dataset, model, or both"),
        (
            lambda: build.with_initializers(build.torchtune(Blueprint(TORCHTUNE[0])), dataset=Initializer()),
            "has dataset-initializer, model-initializer already",
        ),
    ],
)
def test_a_parameter_that_cannot_be_right_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
