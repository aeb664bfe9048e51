"""RuntimeAdmin: list, create, change and delete runtimes on a cluster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cluster import Cluster

from trainer_core.base.errors import BackendUnavailableError, ConflictError, InvalidRequestError, RuntimeNotFoundError
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import RejectedError
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAINJOBS
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.runtime_admin import diff, runtime_builder
from trainer_core.runtime_admin.accessors import list_replicated_jobs
from trainer_core.runtime_admin.apply import RuntimeAdmin
from trainer_core.runtime_admin.runtime_builder import (
    Coscheduling,
    InitializerParameters,
    MpiParameters,
    PodParameters,
    RuntimeParameters,
    StorageParameters,
    Volcano,
)

READY_MADE = ["python", "torch-distributed"]


@pytest.fixture(scope="module")
def shared():
    with Cluster(namespaces=["team"], controllers=False) as made:
        yield made


@pytest.fixture
def cluster(shared):
    """The fake cluster of these tests, emptied before each test."""
    yield shared
    shared.faults.clear()
    shared.forget_requests()
    for kind in (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        for raw in shared.objects(kind):
            metadata = raw["metadata"]
            if metadata["name"] not in READY_MADE:
                shared.update(kind, metadata["name"], let_go, metadata.get("namespace"))
                shared.delete(kind, metadata["name"], metadata.get("namespace"))


def let_go(raw):
    raw["metadata"].pop("finalizers", None)


@pytest.fixture
def config(cluster, tmp_path):
    return KubernetesBackendConfig(config_file=str(cluster.kubeconfig(tmp_path / "config", "team")))


@pytest.fixture
def admin(config):
    return RuntimeAdmin(config)


def torch(name="mine", **settings):
    """A runtime without a failurePolicy, whose defaults only the server adds."""
    built = runtime_builder.build_torch_runtime(RuntimeParameters(name, **settings))
    del built["spec"]["template"]["spec"]["failurePolicy"]
    return built


def with_steps(size="20Gi"):
    return runtime_builder.add_initializers(
        torch(), dataset=InitializerParameters(), storage=StorageParameters(size=size)
    )


def train_job(name, runtime="mine", kind="ClusterTrainingRuntime", namespace="team", condition=None):
    conditions = [{"type": condition, "status": "True"}] if condition else []
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"runtimeRef": {"name": runtime, "kind": kind}},
        "status": {"conditions": conditions},
    }


def wait_for(condition):
    """Poll until a condition holds, for a minute at most."""
    end = time.monotonic() + 300
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def names(admin):
    return [found.name for found in admin.list()]


def test_a_runtime_is_created_and_read_back(admin):
    admin.create(torch(resources={"gpu": 2}))

    assert admin.get("mine")["kind"] == "ClusterTrainingRuntime"
    assert admin.diff(torch(resources={"gpu": 2})) == []


def test_a_list_summarizes_each_runtime(admin):
    admin.create(
        runtime_builder.add_initializers(
            torch(num_nodes=2, image="i:1", resources={"gpu": 2}), model=InitializerParameters()
        )
    )

    (found,) = [each for each in admin.list() if each.name == "mine"]
    assert found.to_dict() == {
        "name": "mine",
        "namespace": None,
        "framework": "torch",
        "policy": "torch",
        "num_nodes": 2,
        "image": "i:1",
        "device": "gpu",
        "device_count": "2",
        "initializers": ["model"],
        "deprecated": False,
    }


def test_a_training_runtime_takes_precedence_over_a_cluster_training_runtime(admin):
    admin.create(torch())
    admin.create(torch(namespace="team", num_nodes=4))

    assert [(found.name, found.namespace) for found in admin.list() if found.name == "mine"] == [("mine", "team")]
    assert admin.get("mine")["spec"]["mlPolicy"]["numNodes"] == 4


def test_runtimes_of_other_namespaces_are_not_listed(admin):
    admin.create(torch(namespace="default"))

    assert names(admin) == READY_MADE


def test_a_list_contains_the_kind_that_rbac_allows(admin, cluster):
    admin.create(torch(namespace="team"))
    cluster.forbid("list", "clustertrainingruntimes")
    one = names(admin)
    cluster.forbid("list", "trainingruntimes")

    with pytest.raises(BackendUnavailableError, match="list clustertrainingruntimes"):
        admin.list()
    cluster.allow("list", "clustertrainingruntimes")
    cluster.allow("list", "trainingruntimes")
    assert one == ["mine"]


def test_the_error_for_a_missing_runtime_lists_the_existing_ones(admin):
    with pytest.raises(RuntimeNotFoundError, match=r"'nope'.*python, torch-distributed"):
        admin.get("nope")


def test_creating_an_existing_runtime_is_a_conflict(admin):
    admin.create(torch())

    with pytest.raises(ConflictError, match="'mine' already exists"):
        admin.create(torch(num_nodes=2))


def test_an_invalid_runtime_is_not_sent_to_the_server(admin, cluster):
    runtime = torch()
    runtime["spec"]["mlPolicy"]["numNodes"] = 0
    with pytest.raises(InvalidRequestError, match=r"rule V3 at spec\.mlPolicy\.numNodes"):
        admin.create(runtime)

    assert [(each.method, each.path) for each in cluster.requests] == [
        ("GET", "/openapi/v3/apis/trainer.kubeflow.org/v1alpha1")
    ]


def test_applying_creates_then_changes_then_does_nothing(admin):
    assert admin.apply(torch()) == "created"
    assert admin.apply(torch(num_nodes=2)) == "changed"
    assert admin.apply(torch(num_nodes=2)) == "unchanged"
    assert admin.diff(torch(num_nodes=2)) == []


def test_applying_keeps_the_object_and_the_labels_of_other_clients(admin, cluster):
    admin.apply(torch())
    cluster.update(
        CLUSTER_TRAINING_RUNTIMES, "mine", lambda raw: raw["metadata"]["labels"].update({"argocd/instance": "a"}), None
    )
    uid = admin.get("mine")["metadata"]["uid"]
    admin.apply(torch(num_nodes=2, labels={"team": "a"}))

    metadata = admin.get("mine")["metadata"]
    assert metadata["uid"] == uid
    assert metadata["labels"] == {
        "trainer.kubeflow.org/framework": "torch",
        "argocd/instance": "a",
        "team": "a",
    }


def test_a_removed_field_is_removed_from_the_cluster(admin):
    admin.apply(torch(env={"A": "1"}, resources={"gpu": 1}))
    admin.apply(torch())

    (job,) = list_replicated_jobs(admin.get("mine"))
    assert job.container("node").keys() == {"name", "image"}


def test_the_diff_of_a_new_runtime_is_the_complete_runtime(admin):
    (change,) = admin.diff(torch())

    assert (change.path, change.before, change.after) == ("", None, torch())


def test_changing_an_immutable_field_requires_recreate(admin):
    admin.apply(with_steps("20Gi"))

    with pytest.raises(ConflictError, match=r"volumeClaimPolicies.* recreate"):
        admin.apply(with_steps("50Gi"))
    assert admin.diff(with_steps("20Gi")) == []


def test_recreating_creates_a_new_object_of_the_same_name(admin):
    admin.apply(with_steps("20Gi"))
    uid = admin.get("mine")["metadata"]["uid"]

    assert admin.apply(with_steps("50Gi"), recreate=True) == "recreated"
    assert admin.get("mine")["metadata"]["uid"] != uid
    assert admin.diff(with_steps("50Gi")) == []


def test_a_runtime_that_the_server_refuses_does_not_delete_the_existing_one(admin, cluster):
    admin.apply(with_steps("20Gi"))
    cluster.faults.next(status=422, method="POST")

    with pytest.raises(InvalidRequestError):
        admin.apply(with_steps("50Gi"), recreate=True)
    assert admin.diff(with_steps("20Gi")) == []


def test_a_runtime_with_a_finalizer_is_not_recreated_while_jobs_use_it(admin, cluster):
    admin.apply(with_steps("20Gi"))
    cluster.update(
        CLUSTER_TRAINING_RUNTIMES,
        "mine",
        lambda raw: raw["metadata"].update(finalizers=["trainer.kubeflow.org/resource-in-use"]),
        None,
    )
    cluster.add(train_job("busy"))

    with pytest.raises(ConflictError, match="is used by team/busy"):
        admin.apply(with_steps("50Gi"), recreate=True)


def test_recreating_waits_until_the_finalizer_is_removed(admin, cluster):
    admin.apply(with_steps("20Gi"))
    cluster.update(CLUSTER_TRAINING_RUNTIMES, "mine", lambda raw: raw["metadata"].update(finalizers=["a/b"]), None)

    def control():
        assert wait_for(lambda: cluster.get(CLUSTER_TRAINING_RUNTIMES, "mine")["metadata"].get("deletionTimestamp"))
        cluster.update(CLUSTER_TRAINING_RUNTIMES, "mine", let_go, None)

    with ThreadPoolExecutor() as pool:
        controller = pool.submit(control)
        assert admin.apply(with_steps("50Gi"), recreate=True) == "recreated"
        controller.result()
    assert admin.diff(with_steps("50Gi")) == []


def test_an_unused_runtime_is_deleted(admin, cluster):
    admin.create(torch())
    cluster.add(train_job("done", condition="Complete"))
    cluster.add(train_job("failed", condition="Failed"))
    cluster.add(train_job("other", runtime="python"))
    cluster.add(train_job("namespaced", kind="TrainingRuntime"))
    admin.delete("mine")

    assert names(admin) == READY_MADE


def test_deleting_a_runtime_in_use_is_refused_and_names_the_jobs(admin, cluster):
    admin.create(torch())
    cluster.add(train_job("one"))
    cluster.add(train_job("two", namespace="default"))

    with pytest.raises(ConflictError, match="used by default/two, team/one"):
        admin.delete("mine")
    assert "mine" in names(admin)


def test_the_error_names_the_first_of_many_jobs(admin, cluster):
    admin.create(torch())
    for number in range(8):
        cluster.add(train_job(f"job-{number}"))

    with pytest.raises(ConflictError, match=r"team/job-4 and 3 more;"):
        admin.delete("mine")


def test_force_deletes_a_runtime_in_use(admin, cluster):
    admin.create(torch())
    cluster.add(train_job("one"))
    admin.delete("mine", force=True)

    assert names(admin) == READY_MADE


def test_deleting_without_permission_to_list_jobs_requires_force(admin, cluster):
    admin.create(torch())
    cluster.forbid("list", "trainjobs")

    with pytest.raises(BackendUnavailableError, match="or use force"):
        admin.delete("mine")
    cluster.allow("list", "trainjobs")


def test_delete_removes_the_visible_runtime_unless_a_scope_is_given(admin):
    admin.create(torch())
    admin.create(torch(namespace="team"))
    admin.delete("mine", scope=CLUSTER_TRAINING_RUNTIMES)

    assert admin.get("mine")["kind"] == "TrainingRuntime"
    admin.delete("mine")
    with pytest.raises(RuntimeNotFoundError):
        admin.delete("mine", scope=TRAINING_RUNTIMES)


def test_a_dry_run_changes_nothing(admin):
    admin.dry_run(torch())
    admin.apply(with_steps())
    before = admin.get("mine")
    admin.dry_run(torch(num_nodes=2))
    admin.dry_run(with_steps("50Gi"))

    assert admin.get("mine") == before
    assert names(admin) == ["mine", *READY_MADE]


def test_a_dry_run_returns_the_refusal_of_the_server(admin, cluster):
    cluster.faults.next(status=422, method="POST")

    with pytest.raises(InvalidRequestError, match="the cluster refused"):
        admin.dry_run(torch())


def test_a_concurrent_change_is_a_conflict(admin, cluster):
    admin.apply(torch())
    cluster.faults.next(status=409, method="PATCH")

    with pytest.raises(ConflictError, match="changed by another client at the same time"):
        admin.apply(torch(num_nodes=2))


FULL = RuntimeParameters(
    "everything",
    image="registry.example/a:1",
    num_nodes=2,
    labels={"team": "a"},
    command=["python3"],
    env={"LOG_LEVEL": "debug"},
    resources={"gpu": 2, "memory": "64Gi"},
    pod=PodParameters({"pool": "gpu"}, [{"key": "gpu", "operator": "Exists"}], "trainer"),
    gang=Volcano(queue="research", topology="soft"),
)


@pytest.mark.parametrize("kind", ["torch", "jax", "xgboost", "plain", "mpi", "deepspeed", "mlx"])
def test_the_server_accepts_a_runtime_with_all_parameters(admin, kind):
    runtime = runtime_builder.add_initializers(
        runtime_builder.BUILDERS[kind](FULL), dataset=InitializerParameters("hf://a/b"), model=InitializerParameters()
    )

    assert admin.apply(runtime) == "created"
    assert admin.diff(runtime) == []


def test_the_server_accepts_a_torchtune_runtime(admin):
    assert (
        admin.apply(
            runtime_builder.build_torchtune_runtime(RuntimeParameters("torchtune-qwen2.5-1.5b", resources={"gpu": 2}))
        )
        == "created"
    )


def spec(runtime, **fields):
    runtime["spec"]["template"]["spec"].update(fields)
    return runtime


CHANGES = [
    (torch(), torch(num_nodes=3), False),
    (torch(), torch(gang=Coscheduling()), False),
    (torch(), spec(torch(), failurePolicy={"maxRestarts": 1}), False),
    (spec(torch(), failurePolicy={"maxRestarts": 1}), torch(), False),
    (spec(torch(), failurePolicy={"maxRestarts": 1}), spec(torch(), failurePolicy={"maxRestarts": 2}), True),
    (with_steps(), with_steps("50Gi"), True),
    (with_steps(), torch(), False),
    (
        runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine")),
        runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine"), MpiParameters(procs_per_node=2)),
        False,
    ),
    (
        runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine")),
        spec(
            runtime_builder.build_deepspeed_runtime(RuntimeParameters("mine")),
            network={"publishNotReadyAddresses": False},
        ),
        True,
    ),
    (
        with_steps(),
        runtime_builder.add_initializers(torch(), dataset=InitializerParameters(), model=InitializerParameters()),
        True,
    ),
]


@pytest.mark.parametrize(("before", "after", "refused"), CHANGES)
def test_the_server_refuses_changes_that_are_marked_as_fixed(admin, config, cluster, before, after, refused):
    cluster.add(before)
    live = admin.get("mine")
    try:
        ApiClient(Connection(config)).patch(
            CLUSTER_TRAINING_RUNTIMES, "mine", diff.build_patch(live, after), dry_run=True
        )
        answer = False
    except RejectedError:
        answer = True

    assert (answer, any(change.fixed for change in diff.list_changes(live, after))) == (refused, refused)
