"""Owner references: a client ties a TrainJob to the Workflow that owns its pod, and releases it."""

from __future__ import annotations

import pytest
from k8s_scene import a_client, a_request, a_stage

from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.model.jobs import KFP_RUN_LABEL, OwnerReference

OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run-1", "uid": "w-1"}
WORKFLOW = OwnerReference.from_manifest(OWNER)


@pytest.fixture
def stage():
    with a_stage("runs") as made:
        yield made


@pytest.fixture
def ref(stage):
    return stage[1].submit(a_request())


def metadata(cluster):
    return cluster.get("TrainJob", "job")["metadata"]


def test_the_owner_of_a_pod_becomes_the_owner_of_a_job(stage, ref):
    cluster, client = stage
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "step", "namespace": ref.namespace, "ownerReferences": [{**OWNER, "controller": True}]},
        "spec": {"containers": [{"name": "main", "image": "x:1"}]},
    }
    uid = cluster.add(pod)["metadata"]["uid"]

    owners = client.get_pod("step", uid)["metadata"]["ownerReferences"]
    client.set_job_owner(ref, "Workflow", OwnerReference.from_manifest(owners[0]), {KFP_RUN_LABEL: "run-id"})

    assert metadata(cluster)["ownerReferences"] == [OWNER]
    assert metadata(cluster)["labels"][KFP_RUN_LABEL] == "run-id"
    assert client.get_job(ref).labels[KFP_RUN_LABEL] == "run-id"


def test_a_pod_of_the_same_name_with_another_uid_is_not_found(stage, ref):
    assert stage[1].get_pod("step", "another") is None


def test_setting_the_owner_again_keeps_one_reference(stage, ref):
    cluster, client = stage
    client.set_job_owner(ref, "Workflow", WORKFLOW)
    client.set_job_owner("job", "Workflow", OwnerReference(**{**vars(WORKFLOW), "name": "run-2", "uid": "w-2"}))

    assert [owner["name"] for owner in metadata(cluster)["ownerReferences"]] == ["run-2"]


def test_removing_the_owner_of_a_kind_keeps_the_others(stage, ref):
    cluster, client = stage
    other = OwnerReference("v1", "ConfigMap", "settings", "c-1")
    client.set_job_owner(ref, "ConfigMap", other)
    client.set_job_owner(ref, "Workflow", WORKFLOW, {KFP_RUN_LABEL: "run-id"})

    client.set_job_owner(ref, "Workflow", None, {KFP_RUN_LABEL: None})

    assert metadata(cluster)["ownerReferences"] == [other.to_manifest()]
    assert KFP_RUN_LABEL not in metadata(cluster)["labels"]


def test_a_deleted_job_gets_no_owner(stage, ref):
    client = stage[1]
    client.delete_job(ref)

    with pytest.raises(JobNotFoundError, match="'job'"):
        client.set_job_owner(ref, "Workflow", WORKFLOW)


def test_a_role_that_denies_listing_pods_is_reported(stage):
    cluster, client = stage
    cluster.forbid("list", "pods", client.backend.namespace)

    with pytest.raises(BackendUnavailableError, match="pods"):
        a_client(cluster).get_pod("step", "uid")
