"""Secrets of a request: stored only in the Secret of the job, owned by the job, and created despite crashes."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from k8s_scene import HF, TOKEN, a_client, a_request, a_request_with_a_token, a_stage, finished

from trainer_core import CustomTrainer, KubernetesBackendConfig, MlflowServer, Name, SecretRef, TrainerClient
from trainer_core.base.errors import InvalidRequestError, TrainerError
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.model.request import TrainJobRequest
from trainer_core.testing.training_functions import return_env

SECRET = "job-initializer"


@pytest.fixture
def stage():
    with a_stage("complete") as made:
        yield made


def a_left_over_secret():
    """A Secret of a deleted job of the same name, before its garbage collection."""
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "job", "uid": "of-yesterday"}
    metadata = {"name": SECRET, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {}}


def owner_of(cluster) -> str:
    (reference,) = cluster.get("Secret", SECRET)["metadata"]["ownerReferences"]
    return reference["uid"]


def env_of_the_initializer(cluster) -> list[dict]:
    return cluster.get("TrainJob", "job")["spec"]["initializer"]["model"]["env"]


def test_a_literal_token_becomes_a_secret_owned_by_the_job(stage):
    cluster, client = stage
    ref = client.submit(a_request_with_a_token())
    assert owner_of(cluster) == ref.uid
    assert TOKEN in json.dumps(decoded(cluster.get("Secret", SECRET)))


def decoded(secret: dict) -> dict[str, str]:
    import base64

    return {
        **{key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()},
        **(secret.get("stringData") or {}),
    }


def test_the_job_references_the_secret_by_name_and_key(stage):
    cluster, client = stage
    client.submit(a_request_with_a_token())
    (entry,) = env_of_the_initializer(cluster)
    reference = entry["valueFrom"]["secretKeyRef"]
    assert (entry["name"], reference["name"]) == ("ACCESS_TOKEN", SECRET)
    assert decoded(cluster.get("Secret", SECRET))[reference["key"]] == TOKEN


def test_the_secret_is_deleted_with_the_job(stage):
    cluster, client = stage
    client.submit(a_request_with_a_token())
    client.delete_job("job")
    cluster.until(lambda: cluster.get("Secret", SECRET) is None)


def test_a_token_is_stored_only_in_its_secret(stage, caplog):
    cluster, client = stage
    request = a_request_with_a_token()
    with caplog.at_level(logging.DEBUG):
        ref = client.submit(request)
        finished(client, ref)
        shown = [
            client.render(request),
            request,
            request.to_json(),
            client.get_job("job"),
            client.get_job_events("job"),
        ]
    everything = [
        raw for kind in ("TrainJob", "JobSet", "Job", "Pod", "Event", "ConfigMap") for raw in cluster.objects(kind)
    ]
    assert TOKEN not in json.dumps(everything) + repr(shown) + caplog.text


@pytest.mark.parametrize("status", [401, 409, 422])
def test_no_error_contains_a_token(stage, caplog, status):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/secrets", reset=True)
    cluster.faults.next(method="POST", path="/secrets", status=status)
    with caplog.at_level(logging.DEBUG), pytest.raises(TrainerError) as failed:
        client.submit(a_request_with_a_token())
    chain = [failed.value, failed.value.__cause__, failed.value.__context__]
    assert TOKEN not in repr(chain) + str(failed.value) + caplog.text


def test_a_secret_missing_after_a_crash_is_created_by_the_next_submit(stage):
    cluster, client = stage
    client.backend._create_secret = crash
    with pytest.raises(SystemExit):
        client.submit(a_request_with_a_token())
    assert cluster.get("Secret", SECRET) is None
    ref = a_client(cluster).submit(a_request_with_a_token())
    assert owner_of(cluster) == ref.uid
    assert len(cluster.objects("TrainJob")) == 1


def crash(*_, **__):
    raise SystemExit


def test_without_permission_to_create_secrets_the_job_is_deleted_again(stage):
    cluster, client = stage
    cluster.forbid("create", "secrets")
    with pytest.raises(ForbiddenError, match="may create secrets"):
        client.submit(a_request_with_a_token())
    assert [cluster.objects(kind) for kind in ("TrainJob", "JobSet", "Pod", "Secret")] == [[], [], [], []]


def test_a_second_submit_accepts_the_existing_secret(stage):
    cluster, client = stage
    assert client.submit(a_request_with_a_token()) == client.submit(a_request_with_a_token())
    assert len(cluster.objects("Secret")) == 1


def test_a_secret_of_an_earlier_job_of_the_same_name_is_not_reused(stage):
    cluster, client = stage
    cluster.add(a_left_over_secret())
    submitted = []
    submitter = threading.Thread(target=lambda: submitted.append(client.submit(a_request_with_a_token())))
    submitter.start()
    cluster.until(lambda: cluster.counts["create secrets"])
    cluster.delete("Secret", SECRET)
    submitter.join()
    assert owner_of(cluster) == submitted[0].uid


def test_a_secret_ref_is_referenced_and_no_secret_is_created(stage):
    cluster, client = stage
    model = {**HF, "secrets": {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}}
    client.submit(a_request_with_a_token(initializer={"model": model}, literal_secrets={}))
    assert env_of_the_initializer(cluster) == [
        {"name": "ACCESS_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}}
    ]
    assert cluster.objects("Secret") == []


def test_the_secret_of_an_initialize_only_request_is_owned_by_its_job(stage):
    cluster, client = stage
    ref = client.submit(a_request_with_a_token(runtime=None, trainer=None))
    assert ref.uid == cluster.get("Job", "job")["metadata"]["uid"] == owner_of(cluster)


def test_training_reads_a_secret_from_its_environment():
    with a_stage() as (cluster, client):
        cluster.add(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "stringData": {"token": "s3cr3t"}}
        )
        trainer = CustomTrainer(return_env, {"name": "HF_TOKEN"}, env={"HF_TOKEN": SecretRef("hf", "token")})
        name = client.train("python", trainer=trainer, options=[Name("job")])
        assert "s3cr3t" not in json.dumps(cluster.get("TrainJob", "job"))
        assert client.wait(name, timeout=300).result == "s3cr3t"


def test_the_request_annotation_contains_no_secret():
    with pytest.raises(InvalidRequestError, match="Secret"):
        a_request(trainer={"kind": "container", "image": "x", "env": {"TOKEN": {"name": "no such name!", "key": "k"}}})


def a_tracked_client(cluster):
    """A client whose MLflow server has credentials. No server answers, so that its run is created later."""
    config = KubernetesBackendConfig(namespace="default", client_configuration=cluster.configuration())
    return TrainerClient(config, tracking=MlflowServer("http://127.0.0.1:1", username="team", password="pass-9f3c"))


def a_tracked_request(**settings):
    tracking = {"training_uri": "https://mlflow.example.com", **settings}
    return a_request(tracking=tracking)


def list_env(cluster) -> set[str]:
    trainer = cluster.get("TrainJob", "job")["spec"]["trainer"]
    return {entry["name"] for entry in trainer["env"] if entry["name"].startswith("MLFLOW_")}


def test_without_permission_to_create_secrets_a_job_runs_without_the_credentials_of_its_tracker(caplog):
    with a_stage("complete") as (cluster, _):
        cluster.forbid("create", "secrets")
        client = a_tracked_client(cluster)
        ref = client.submit(a_tracked_request())
        assert client.submit(a_tracked_request()) == ref
        assert finished(client, ref).succeeded
        assert list_env(cluster) == set()
    assert "mlflow in TrainJob job does not get the tracking server" in caplog.text
    assert "pass-9f3c" not in caplog.text


def test_required_tracking_fails_a_submit_that_cannot_store_the_credentials():
    with a_stage("complete") as (cluster, _):
        cluster.forbid("create", "secrets")
        request = TrainJobRequest.model_validate(
            {
                **a_tracked_request(required=True).to_dict(),
                "literal_secrets": {"trainer.MLFLOW_TRACKING_PASSWORD": "pass-9f3c"},
            }
        )
        with pytest.raises(ForbiddenError, match="secrets"):
            a_client(cluster).backend.submit(request)
        assert cluster.objects("TrainJob") == []


def test_the_credentials_of_a_tracker_are_stored_where_the_role_permits_it():
    with a_stage("complete") as (cluster, _):
        a_tracked_client(cluster).submit(a_tracked_request())
        assert {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD"} <= list_env(cluster)
        assert cluster.get("secrets", "job-initializer")
