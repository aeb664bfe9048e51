"""A job that only fetches: its claim and its Job."""

from __future__ import annotations

import pytest

from trainer_core.cluster import initialize, kinds, marks, objects
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.request import TrainJobRequest

DATASET = {"storage_uri": "hf://tatsu-lab/alpaca"}
MODEL = {"storage_uri": "s3://models/digits"}


def a_request(initializer=None, **fields):
    return TrainJobRequest.parse({"name": "fetch", "initializer": initializer or {"dataset": DATASET}, **fields})


def rendered(request, attempt=0, **config):
    return initialize.manifests(request, KubernetesBackendConfig(**config), "team", attempt)


def pod(request, **config):
    return rendered(request, **config)[1]["spec"]["template"]["spec"]


def test_the_claim_comes_before_the_job():
    assert [each["kind"] for each in rendered(a_request())] == ["PersistentVolumeClaim", "Job"]


def test_the_claim_has_the_name_of_the_job_unless_it_is_given_one():
    claims = [rendered(a_request(workspace=workspace))[0] for workspace in (None, {"claim": "data"})]
    assert [claim["metadata"]["name"] for claim in claims] == ["fetch", "data"]


def test_the_claim_is_what_was_asked_for():
    asked = {"claim": "data", "size": "50Gi", "storage_class": "fast", "access_mode": "ReadWriteMany"}
    assert rendered(a_request(workspace=asked))[0]["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "50Gi"}},
        "storageClassName": "fast",
    }


def test_nobody_owns_the_claim():
    assert "ownerReferences" not in rendered(a_request())[0]["metadata"]


def test_the_default_storage_class_is_left_to_the_cluster():
    assert "storageClassName" not in rendered(a_request())[0]["spec"]


@pytest.mark.parametrize("slug", ["fetch", "fetch_the_whole_training_dataset"])
def test_every_attempt_of_an_owner_fetches_into_the_same_volume_however_long_its_name_is(slug):
    request = a_request(name=None, owner={"key": "dag/run/task", "slug": slug})
    attempts = [rendered(request.named(request.attempt_name(attempt)), attempt) for attempt in (0, 1, 10)]
    assert {claim["metadata"]["name"] for claim, _ in attempts} == {request.attempt_name(0)}


def test_every_attempt_fetches_into_the_same_volume():
    again = rendered(a_request().named("fetch-2"), attempt=2)
    assert again[0]["metadata"]["name"] == "fetch"
    assert again[1]["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "fetch"}


def test_dataset_and_model_are_containers_named_as_the_steps():
    containers = pod(a_request({"dataset": DATASET, "model": MODEL}))["containers"]
    assert [container["name"] for container in containers] == ["dataset-initializer", "model-initializer"]


def test_the_images_are_those_of_the_configuration():
    containers = pod(a_request({"dataset": DATASET, "model": MODEL}), model_initializer_image="mirror/model:1")[
        "containers"
    ]
    assert [container["image"] for container in containers] == [
        "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0",
        "mirror/model:1",
    ]


def test_the_images_are_told_what_to_fetch_by_their_own_variables():
    source = {
        "storage_uri": "s3://bucket/key",
        "ignore_patterns": ["*.tmp", "*.csv"],
        "env": {"ENDPOINT": "https://minio.example.com"},
        "secrets": {"ACCESS_KEY_ID": {"name": "minio", "key": "id"}},
    }
    (container,) = pod(a_request({"dataset": source}))["containers"]
    assert container["env"] == [
        {"name": "STORAGE_URI", "value": "s3://bucket/key"},
        {"name": "ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "minio", "key": "id"}}},
        {"name": "ENDPOINT", "value": "https://minio.example.com"},
        {"name": "IGNORE_PATTERNS", "value": "*.tmp,*.csv"},
    ]


def test_a_literal_secret_lies_in_a_secret_of_the_job():
    request = a_request(literal_secrets={"dataset.ACCESS_TOKEN": "hf_literal"})
    (container,) = pod(request)["containers"]
    secret = objects.secret(request, "fetch", "team", "uid", kinds.JOBS)
    reference = {"name": "fetch-initializer", "key": "dataset.ACCESS_TOKEN"}
    assert container["env"][1] == {"name": "ACCESS_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    assert secret["stringData"] == {"dataset.ACCESS_TOKEN": "hf_literal"}
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"


def test_the_volume_is_mounted_where_the_images_write():
    (container,) = pod(a_request())["containers"]
    assert container["volumeMounts"] == [{"name": "workspace", "mountPath": "/workspace"}]


def test_failed_pods_keep_their_logs_and_finished_jobs_stay():
    spec = rendered(a_request())[1]["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in spec


def test_the_job_is_marked_like_every_job_of_ours():
    request = a_request(owner={"key": "dag/run/task"})
    metadata = rendered(request, attempt=1)[1]["metadata"]
    assert metadata["labels"][marks.OWNER] == marks.owner_value("dag/run/task")
    assert metadata["annotations"][marks.REQUEST] == request.to_json()
    assert metadata["annotations"][marks.ATTEMPT] == "1"


def test_a_job_is_suspended_and_ends_at_its_deadline():
    spec = rendered(a_request(suspend=True, active_deadline_seconds=60))[1]["spec"]
    assert (spec["suspend"], spec["activeDeadlineSeconds"]) == (True, 60)


@pytest.mark.parametrize(
    ("controller", "managed_by"),
    [("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"), ("trainer.kubeflow.org/trainjob-controller", None)],
)
def test_only_kueue_can_see_to_a_job_in_place_of_the_cluster(controller, managed_by):
    assert rendered(a_request(managed_by=controller))[1]["spec"].get("managedBy") == managed_by


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("cache://schema/table", "a cache lives only as long as the TrainJob that reads it"),
        ("pvc://claim/dataset", "lies in a volume already"),
        ("file:///data", "give the data as s3://"),
        ("gs://bucket/key", "reads hf:// and s3://"),
    ],
)
def test_what_cannot_be_fetched_into_a_volume_is_refused_with_the_reason(uri, reason):
    with pytest.raises(UnsupportedError, match=f"initializer.dataset: .*{reason}"):
        rendered(a_request({"dataset": {"storage_uri": uri}}))


def test_patches_of_a_runtime_are_refused_where_there_is_none():
    with pytest.raises(UnsupportedError, match="RuntimePatch"):
        rendered(a_request(patches=[{"manager": "example.com/team"}]))


def test_labels_of_ours_are_refused():
    with pytest.raises(InvalidRequestError, match=r"metadata\.labels: trainjob-workflows/owner"):
        rendered(a_request(metadata={"labels": {marks.OWNER: "me"}}))
