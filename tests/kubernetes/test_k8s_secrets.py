"""What is secret is in its Secret alone, belongs to its job, and is there whoever dies meanwhile."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from k8s_crds import needs_crds
from k8s_scene import HF, TOKEN, a_client, a_request, a_request_with_a_token, a_stage, finished

from trainer_core import CustomTrainer, Name, SecretRef
from trainer_core.cluster.answers import ForbiddenError
from trainer_core.errors import InvalidRequestError, TrainerError
from trainer_core.testing.functions import returns_setting

pytestmark = needs_crds
SECRET = "job-initializer"


@pytest.fixture
def stage():
    with a_stage("complete") as made:
        yield made


def a_left_over_secret():
    """Of an earlier job of that name, which is gone; the garbage collector has not come yet."""
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "job", "uid": "of-yesterday"}
    metadata = {"name": SECRET, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {}}


def owner_of(cluster) -> str:
    (reference,) = cluster.get("Secret", SECRET)["metadata"]["ownerReferences"]
    return reference["uid"]


def env_of_the_initializer(cluster) -> list[dict]:
    return cluster.get("TrainJob", "job")["spec"]["initializer"]["model"]["env"]


def test_a_literal_token_becomes_a_secret_that_belongs_to_the_job(stage):
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


def test_the_job_refers_to_the_secret_by_name_and_key(stage):
    cluster, client = stage
    client.submit(a_request_with_a_token())
    (entry,) = env_of_the_initializer(cluster)
    reference = entry["valueFrom"]["secretKeyRef"]
    assert (entry["name"], reference["name"]) == ("ACCESS_TOKEN", SECRET)
    assert decoded(cluster.get("Secret", SECRET))[reference["key"]] == TOKEN


def test_the_secret_goes_with_its_job(stage):
    cluster, client = stage
    client.submit(a_request_with_a_token())
    client.delete_job("job")
    cluster.until(lambda: cluster.get("Secret", SECRET) is None)


def test_nothing_of_a_token_is_anywhere_else(stage, caplog):
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
def test_no_error_shows_a_token(stage, caplog, status):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/secrets", reset=True)
    cluster.faults.next(method="POST", path="/secrets", status=status)
    with caplog.at_level(logging.DEBUG), pytest.raises(TrainerError) as failed:
        client.submit(a_request_with_a_token())
    chain = [failed.value, failed.value.__cause__, failed.value.__context__]
    assert TOKEN not in repr(chain) + str(failed.value) + caplog.text


def test_a_submitter_that_dies_before_the_secret_is_there_leaves_it_to_the_next(stage):
    cluster, client = stage
    client.backend._complete = dies
    with pytest.raises(SystemExit):
        client.submit(a_request_with_a_token())
    assert cluster.get("Secret", SECRET) is None
    ref = a_client(cluster).submit(a_request_with_a_token())
    assert owner_of(cluster) == ref.uid
    assert len(cluster.objects("TrainJob")) == 1


def dies(*_, **__):
    raise SystemExit


def test_where_secrets_may_not_be_created_nothing_is_left(stage):
    cluster, client = stage
    cluster.forbid("create", "secrets")
    with pytest.raises(ForbiddenError, match="may create secrets"):
        client.submit(a_request_with_a_token())
    assert [cluster.objects(kind) for kind in ("TrainJob", "JobSet", "Pod", "Secret")] == [[], [], [], []]


def test_a_second_submit_does_not_mind_the_secret_that_is_there(stage):
    cluster, client = stage
    assert client.submit(a_request_with_a_token()) == client.submit(a_request_with_a_token())
    assert len(cluster.objects("Secret")) == 1


def test_a_secret_that_an_earlier_job_of_that_name_left_is_not_taken_for_the_new_one(stage):
    cluster, client = stage
    cluster.add(a_left_over_secret())
    submitted = []
    submitter = threading.Thread(target=lambda: submitted.append(client.submit(a_request_with_a_token())))
    submitter.start()
    cluster.until(lambda: cluster.counts["create secrets"])
    cluster.delete("Secret", SECRET)
    submitter.join()
    assert owner_of(cluster) == submitted[0].uid


def test_a_secret_by_reference_is_referred_to_and_nothing_is_created(stage):
    cluster, client = stage
    model = {**HF, "secrets": {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}}
    client.submit(a_request_with_a_token(initializer={"model": model}, literal_secrets={}))
    assert env_of_the_initializer(cluster) == [
        {"name": "ACCESS_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}}
    ]
    assert cluster.objects("Secret") == []


def test_the_token_of_a_job_that_only_fetches_belongs_to_that_job(stage):
    cluster, client = stage
    ref = client.submit(a_request_with_a_token(runtime=None, trainer=None))
    assert ref.uid == cluster.get("Job", "job")["metadata"]["uid"] == owner_of(cluster)


def test_training_is_given_a_secret_that_nobody_else_sees():
    with a_stage() as (cluster, client):
        cluster.add(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "stringData": {"token": "s3cr3t"}}
        )
        trainer = CustomTrainer(returns_setting, {"name": "HF_TOKEN"}, env={"HF_TOKEN": SecretRef("hf", "token")})
        name = client.train("python", trainer=trainer, options=[Name("job")])
        assert "s3cr3t" not in json.dumps(cluster.get("TrainJob", "job"))
        assert client.wait(name, timeout=60).result == "s3cr3t"


def test_a_secret_is_no_text_of_an_owned_request():
    with pytest.raises(InvalidRequestError, match="Secret"):
        a_request(trainer={"kind": "container", "image": "x", "env": {"TOKEN": {"name": "no such name!", "key": "k"}}})
