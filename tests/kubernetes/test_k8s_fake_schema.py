"""The double refuses what an API server with Trainer's CRDs and webhooks refuses, in the same words."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster, cel, crds
from fake_cluster.raw_client import RawClient
from fake_cluster.runtimes import runtime

JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"


@pytest.fixture
def cluster():
    with Cluster(controllers=False) as made:
        made.add(runtime("steps", "plain", initializers=("dataset-initializer",)))
        made.add(runtime("mpi", "deepspeed", {"mpi": {"runLauncherAsNode": True}}))
        yield made


@pytest.fixture
def client(cluster):
    with RawClient(cluster.url) as made:
        yield made


def job(name: str = "job", runtime: str = "torch-distributed", **spec) -> dict:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime}, **spec},
    }


def patched(container: str = "node", step: str = "node", manager: str = "example.com/me", **fields) -> list[dict]:
    pod = {"spec": {"containers": [{"name": container, **fields}]}}
    steps = [{"name": step, "template": {"spec": {"template": pod}}}]
    return [{"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": steps}}}}]


def test_defaults_are_filled_in(client):
    spec = client.ask("POST", JOBS, job())[1]["spec"]
    assert spec["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    assert (spec["suspend"], spec["managedBy"]) == (False, "trainer.kubeflow.org/trainjob-controller")


def test_unknown_fields_are_refused_where_the_request_is_strict(client):
    status, body = client.ask("POST", f"{JOBS}?fieldValidation=Strict", job(podTemplateOverrides=[]))
    assert (status, body["reason"]) == (400, "BadRequest")
    assert body["message"] == (
        'TrainJob in version "v1alpha1" cannot be handled as a TrainJob: strict decoding error: '
        'unknown field "spec.podTemplateOverrides"'
    )


def test_unknown_fields_are_dropped_with_a_warning_otherwise(client):
    answer = client.send("POST", JOBS, job(trainer={"gpus": 2}))
    assert answer.status == 201
    assert answer.headers["Warning"] == '299 - "unknown field \\"spec.trainer.gpus\\""'
    assert client.ask("GET", f"{JOBS}/job")[1]["spec"]["trainer"] == {}


def test_a_strict_patch_with_unknown_fields_is_invalid(client):
    client.ask("POST", JOBS, job())
    status, body = client.ask("PATCH", f"{JOBS}/job?fieldValidation=Strict", {"spec": {"gpus": 2}})
    assert status == 422
    assert 'strict decoding error: unknown field "spec.gpus"' in body["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"trainer": {"numNodes": "2"}}, "FieldValueTypeInvalid", "must be of type integer"),
        ({"trainer": {"numNodes": 2**31}}, "FieldValueInvalid", "should be less than or equal to 2147483647"),
        ({"trainer": None}, "FieldValueTypeInvalid", 'must be of type object: "null"'),
        ({"activeDeadlineSeconds": 0}, "FieldValueInvalid", "should be greater than or equal to 1"),
        ({"trainer": {"image": "x" * 501}}, "FieldValueTooLong", "may not be more than 500 bytes"),
        ({"trainer": {"args": ["x"] * 129}}, "FieldValueTooMany", "must have at most 128 items"),
        ({"runtimeRef": {}}, "FieldValueRequired", "spec.runtimeRef.name: Required value"),
        ({"trainer": {"env": [{"name": "A"}, {"name": "A"}]}}, "FieldValueDuplicate", 'Duplicate value: {"name": "A"}'),
        ({"trainer": {"resourcesPerNode": {"limits": {"cpu": "many"}}}}, "FieldValueInvalid", "should match '^"),
        ({"initializer": {"dataset": {"storageUri": "here"}}}, "FieldValueInvalid", "storageUri may be empty, or"),
        ({"managedBy": "me"}, "FieldValueInvalid", "ManagedBy must be trainer.kubeflow.org/trainjob-controller or"),
    ],
)
def test_what_breaks_the_schema_is_invalid(client, spec, reason, message):
    status, body = client.ask("POST", JOBS, job(**spec))
    assert (status, body["reason"], body["details"]["causes"][0]["reason"]) == (422, "Invalid", reason)
    assert body["message"].startswith('TrainJob.trainer.kubeflow.org "job" is invalid: ')
    assert message in body["message"]


@pytest.mark.parametrize("name", ["9-job", "a.b", "a" * 64])
def test_names_of_trainjobs_are_dns_labels(client, name):
    status, body = client.ask("POST", JOBS, job(name))
    assert status == 422
    assert "metadata.name must" in body["message"]


@pytest.mark.parametrize("change", [{"runtimeRef": {"name": "python"}}, {"trainer": {"numNodes": 2}}])
def test_what_is_immutable_cannot_be_patched(client, change):
    client.ask("POST", JOBS, job(trainer={"numNodes": 1}))
    status, body = client.ask("PATCH", f"{JOBS}/job", {"spec": change})
    assert status == 422
    assert "field is immutable" in body["message"]


def test_suspending_is_a_patch_that_is_taken(client):
    client.ask("POST", JOBS, job())
    status, body = client.ask("PATCH", f"{JOBS}/job", {"spec": {"suspend": True}})
    assert (status, body["spec"]["suspend"], body["metadata"]["generation"]) == (200, True, 2)


def test_every_rule_of_every_definition_is_known():
    schemas = [
        version["schema"]["openAPIV3Schema"]
        for trainer in crds.TRAINER_VERSIONS
        for definition in crds.definitions(trainer)
        for version in definition["spec"]["versions"]
    ]
    assert set().union(*map(cel.unknown, schemas)) == set()


@pytest.mark.parametrize(
    ("trainer", "field"), [("2.0", "podSpecOverrides"), ("2.1", "podTemplateOverrides"), ("2.2", "runtimePatches")]
)
def test_older_servers_know_older_fields(trainer, field):
    with Cluster(controllers=False, trainer=trainer) as cluster, RawClient(cluster.url) as client:
        schemas = client.ask("GET", "/openapi/v3/apis/trainer.kubeflow.org/v1alpha1")[1]["components"]["schemas"]
        fields = schemas["org.kubeflow.trainer.v1alpha1.TrainJob"]["properties"]["spec"]["properties"]
        assert [one for one in fields if one in ("podSpecOverrides", "podTemplateOverrides", "runtimePatches")] == [
            field
        ]
        assert client.ask("POST", f"{JOBS}?fieldValidation=Strict", job(**{field: []}))[0] == 201


def test_without_definitions_everything_is_taken():
    with Cluster(controllers=False, trainer=None) as cluster, RawClient(cluster.url) as client:
        assert client.ask("POST", f"{JOBS}?fieldValidation=Strict", job(whatever=1))[0] == 201


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (job(runtime="absent"), "specified clusterTrainingRuntime must be created before the TrainJob is created"),
        (job(runtimeRef={"name": "a", "kind": "TrainingRuntime"}), "specified trainingRuntime must be created before"),
        (job(runtimeRef={"name": "a", "kind": "Blueprint"}), "unsupported runtime: Blueprint"),
        (job(trainer={"env": [{"name": "PET_NNODES", "value": "1"}]}), "invalid envs configured: [PET_NNODES]"),
        (
            job(initializer={"dataset": {"storageUri": "hf://a/b"}}),
            "must have dataset-initializer job when trainJob is configured with input datasetConfig",
        ),
        (
            job(runtime="steps", initializer={"model": {"storageUri": "hf://a/b"}}),
            "must have model-initializer job when trainJob is configured with input modelConfig",
        ),
        (job(runtimePatches=patched(manager="me")), "must be a domain-prefixed path"),
        (job(runtimePatches=patched(step="launcher")), "does not exist in the runtime"),
        (job(runtimePatches=patched(container="sidecar")), "does not exist in the runtime job"),
        (
            job(runtimePatches=patched(env=[{"name": "A", "value": "1"}])),
            "must not have envs for the dataset-initializer, model-initializer, node containers",
        ),
        (job(runtime="mpi", trainer={"numNodes": 2}), "does not have either launcher and node"),
    ],
)
def test_the_webhook_denies(client, raw, message):
    status, body = client.ask("POST", JOBS, raw)
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["message"].startswith(
        'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
    )
    assert message in body["message"]


def test_an_initializer_is_taken_where_the_runtime_has_its_step(client):
    raw = job(runtime="steps", initializer={"dataset": {"storageUri": "hf://a/b"}})
    assert client.ask("POST", JOBS, raw)[0] == 201


def test_patches_are_stamped_and_change_only_while_suspended(client):
    made = client.ask("POST", JOBS, job(runtimePatches=patched()))[1]
    assert made["spec"]["runtimePatches"][0]["time"]
    change = {"spec": {"runtimePatches": [*made["spec"]["runtimePatches"], *patched(manager="example.com/other")]}}
    status, body = client.ask("PATCH", f"{JOBS}/job", change)
    assert status == 403
    assert "RuntimePatches can only be modified when the TrainJob is suspended" in body["message"]
    change["spec"]["suspend"] = True
    assert client.ask("PATCH", f"{JOBS}/job", change)[0] == 200


def test_a_runtime_needs_the_container_of_its_step(client):
    raw = runtime("mine", "plain")
    raw["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
        "name"
    ] = "other"
    status, body = client.ask("POST", RUNTIMES, raw)
    assert status == 403
    assert "must contain the required container for the ancestor: trainer" in body["message"]


def test_a_runtime_has_one_policy(client):
    status, body = client.ask("POST", RUNTIMES, runtime("mine", "torch", {"torch": {}, "jax": {}}))
    assert status == 422
    assert "Only one of the policy can be configured" in body["message"]


def test_the_stock_runtimes_are_taken(cluster, client):
    names = cluster.load_stock_runtimes()
    assert names
    for name in names:
        raw = cluster.get("ClusterTrainingRuntime", name)
        raw["metadata"] = {"name": f"my-{name}", "labels": raw["metadata"]["labels"]}
        assert client.ask("POST", f"{RUNTIMES}?fieldValidation=Strict&dryRun=All", raw)[0] == 201


def test_kueue_suspends_what_has_a_queue():
    raw = job()
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    with Cluster(controllers=False, kueue=True) as cluster, RawClient(cluster.url) as client:
        assert client.ask("POST", JOBS, raw)[1]["spec"]["suspend"] is True
        cluster.admit("job")
        spec = cluster.get("TrainJob", "job")["spec"]
    assert (spec["suspend"], spec["runtimePatches"][0]["manager"]) == (False, "kueue.x-k8s.io/manager")
