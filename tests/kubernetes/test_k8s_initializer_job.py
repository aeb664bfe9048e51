"""Claim and Job of an initialize-only request."""

from __future__ import annotations

import pytest

from trainer_core.base import naming
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.k8s import initializer_job, labels, manifest_common
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.request import TrainJobRequest

DATASET = {"storage_uri": "hf://tatsu-lab/alpaca"}
MODEL = {"storage_uri": "s3://models/digits"}


def a_request(initializer=None, **fields):
    return TrainJobRequest.parse({"name": "fetch", "initializer": initializer or {"dataset": DATASET}, **fields})


def rendered(request, attempt=0, **config):
    return initializer_job.render_manifests(request, KubernetesBackendConfig(**config), "team", attempt)


def pod(request, **config):
    return rendered(request, **config)[1]["spec"]["template"]["spec"]


def test_the_claim_is_created_before_the_job():
    assert [each["kind"] for each in rendered(a_request())] == ["PersistentVolumeClaim", "Job"]


def test_the_claim_is_named_after_the_job_by_default():
    claims = [rendered(a_request(workspace=workspace))[0] for workspace in (None, {"claim": "data"})]
    assert [claim["metadata"]["name"] for claim in claims] == ["fetch", "data"]


def test_the_claim_has_the_requested_size_class_and_access_mode():
    asked = {"claim": "data", "size": "50Gi", "storage_class": "fast", "access_mode": "ReadWriteMany"}
    assert rendered(a_request(workspace=asked))[0]["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "50Gi"}},
        "storageClassName": "fast",
    }


def test_the_claim_has_no_owner_reference():
    assert "ownerReferences" not in rendered(a_request())[0]["metadata"]


def test_without_a_storage_class_the_cluster_default_is_used():
    assert "storageClassName" not in rendered(a_request())[0]["spec"]


@pytest.mark.parametrize("slug", ["fetch", "fetch_the_whole_training_dataset"])
def test_all_attempts_of_an_owner_share_one_claim_for_any_name_length(slug):
    request = a_request(name=None, owner={"key": "dag/run/task", "slug": slug})
    attempts = [rendered(request.with_name(request.get_attempt_name(attempt)), attempt) for attempt in (0, 1, 10)]
    assert {claim["metadata"]["name"] for claim, _ in attempts} == {request.get_attempt_name(0)}


def test_all_attempts_share_one_claim():
    again = rendered(a_request().with_name("fetch-2"), attempt=2)
    assert again[0]["metadata"]["name"] == "fetch"
    assert again[1]["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "fetch"}


def test_dataset_and_model_are_containers_named_after_their_steps():
    containers = pod(a_request({"dataset": DATASET, "model": MODEL}))["containers"]
    assert [container["name"] for container in containers] == ["dataset-initializer", "model-initializer"]


def test_the_images_come_from_the_configuration():
    containers = pod(a_request({"dataset": DATASET, "model": MODEL}), model_initializer_image="mirror/model:1")[
        "containers"
    ]
    assert [container["image"] for container in containers] == [
        "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0",
        "mirror/model:1",
    ]


def test_the_images_get_their_settings_as_environment_variables():
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


def test_a_literal_secret_is_stored_in_a_secret_of_the_job():
    request = a_request(literal_secrets={"dataset.ACCESS_TOKEN": "hf_literal"})
    (container,) = pod(request)["containers"]
    job = rendered(request)[-1]
    job["metadata"]["uid"] = "uid"
    secret = manifest_common.build_secret(request, job)
    reference = {"name": "fetch-initializer", "key": "dataset.ACCESS_TOKEN"}
    assert container["env"][1] == {"name": "ACCESS_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    assert secret["stringData"] == {"dataset.ACCESS_TOKEN": "hf_literal"}
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"


def test_the_volume_is_mounted_where_the_images_write():
    (container,) = pod(a_request())["containers"]
    assert container["volumeMounts"] == [{"name": "workspace", "mountPath": "/workspace"}]


def test_failed_pods_keep_their_logs_and_finished_jobs_are_kept():
    spec = rendered(a_request())[1]["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in spec


def test_the_job_has_the_labels_and_annotations_of_every_job():
    request = a_request(owner={"key": "dag/run/task"})
    metadata = rendered(request, attempt=1)[1]["metadata"]
    assert metadata["labels"][labels.OWNER] == naming.hash_owner_key("dag/run/task")
    assert metadata["annotations"][labels.REQUEST] == request.to_json()
    assert metadata["annotations"][labels.ATTEMPT] == "1"


def test_suspend_and_deadline_are_rendered():
    spec = rendered(a_request(suspend=True, active_deadline_seconds=60))[1]["spec"]
    assert (spec["suspend"], spec["activeDeadlineSeconds"]) == (True, 60)


@pytest.mark.parametrize(
    ("controller", "managed_by"),
    [("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"), ("trainer.kubeflow.org/trainjob-controller", None)],
)
def test_managed_by_is_rendered_only_for_kueue(controller, managed_by):
    assert rendered(a_request(managed_by=controller))[1]["spec"].get("managedBy") == managed_by


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("cache://schema/table", "a cache exists only as long as the TrainJob that reads it"),
        ("pvc://claim/dataset", "is in a volume already"),
        ("file:///data", "a cluster cannot read files of this machine; use one of hf://, s3://"),
        ("gs://bucket/key", "in an initialize-only request; use one of hf://, s3://"),
    ],
)
def test_an_unsupported_scheme_is_refused_with_the_reason(uri, reason):
    with pytest.raises(UnsupportedError, match=f"initializer.dataset: .*{reason}"):
        rendered(a_request({"dataset": {"storage_uri": uri}}))


def test_runtime_patches_are_refused():
    with pytest.raises(UnsupportedError, match="RuntimePatch"):
        rendered(a_request(patches=[{"manager": "example.com/team"}]))


def test_reserved_labels_are_refused():
    with pytest.raises(InvalidRequestError, match=r"metadata\.labels: trainjob-workflows/owner"):
        rendered(a_request(metadata={"labels": {labels.OWNER: "me"}}))
