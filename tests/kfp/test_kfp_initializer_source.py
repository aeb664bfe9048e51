"""Which source a job reads for an artifact or a URI of its pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_components.step.executor_input import Artifact
from kfp_components.step.initializer_source import set_initializer_source
from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.request import TrainJobRequest

ROOT = "minio://mlpipeline/v2/artifacts/pipeline/run-1/task/2f0c"
WORKSPACE = {"/kfp-workspace": "run-1-kfp-workspace"}
KFP_KEYS = {
    "ACCESS_KEY_ID": {"name": "mlpipeline-minio-artifact", "key": "accesskey"},
    "SECRET_ACCESS_KEY": {"name": "mlpipeline-minio-artifact", "key": "secretkey"},
}


def artifact(uri=f"{ROOT}/dataset", **metadata):
    return Artifact("dataset", uri, metadata)


def source(artifact=None, uri=None, *, backend="kubernetes", mounts=None, own=None):
    """The dataset's source in a request, validated."""
    data = {"runtime": {"name": "torch"}, **({"initializer": {"dataset": own}} if own else {})}
    set_initializer_source(data, "dataset", artifact, uri, backend, mounts or {})
    return TrainJobRequest.parse(data).model_dump(exclude_defaults=True)["work"]["initializer"]["dataset"]


@pytest.mark.parametrize("recorded", ["pvc://data/dataset", "s3://models/digits", "hf://owner/name"])
def test_a_cluster_reads_an_artifact_where_its_metadata_says_it_is(recorded):
    assert source(Artifact("dataset", f"{ROOT}/dataset", {"uri": recorded})) == {"storage_uri": recorded}


def test_a_cluster_reads_kfps_own_store_with_kfps_own_secret():
    assert source(artifact()) == {
        "storage_uri": ROOT.replace("minio://", "s3://") + "/dataset",
        "env": {"ENDPOINT": "http://seaweedfs.kubeflow:9000", "REGION": "minio"},
        "secrets": KFP_KEYS,
    }


def test_the_requests_own_initializer_gives_endpoint_and_secrets_of_another_store():
    own = {
        "storage_uri": "s3://any/data",
        "env": {"ENDPOINT": "https://store.example"},
        "secrets": {"ACCESS_KEY_ID": {"name": "mine", "key": "id"}},
    }

    found = source(artifact(), own=own)

    assert found["env"] == {"ENDPOINT": "https://store.example", "REGION": "minio"}
    assert found["secrets"] == {**KFP_KEYS, "ACCESS_KEY_ID": {"name": "mine", "key": "id"}}


def test_an_s3_artifact_is_read_with_the_settings_of_the_initializer():
    own = {"storage_uri": "s3://any/data", "env": {"REGION": "eu-west-1"}, "ignore_patterns": ["*.txt"]}

    assert source(artifact("s3://bucket/run/dataset"), own=own) == {
        "storage_uri": "s3://bucket/run/dataset",
        "env": {"REGION": "eu-west-1"},
        "ignore_patterns": ("*.txt",),
    }


def test_settings_of_another_kind_of_source_are_dropped():
    own = {"storage_uri": "hf://owner/name", "secrets": {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}}

    assert source(uri="s3://bucket/data", own=own) == {"storage_uri": "s3://bucket/data"}


def test_a_uri_of_the_same_kind_keeps_the_token():
    secrets = {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}
    own = {"storage_uri": "hf://owner/name", "secrets": secrets}

    assert source(uri="hf://owner/other", own=own) == {"storage_uri": "hf://owner/other", "secrets": secrets}


def test_a_gs_artifact_without_hmac_keys_is_refused():
    with pytest.raises(InvalidRequestError, match=r"gs://bucket/data with Google's credentials; .* HMAC keys"):
        source(artifact("gs://bucket/data"))


def test_a_gs_artifact_is_read_by_its_s3_endpoint():
    own = {"storage_uri": "s3://any/data", "env": {"ENDPOINT": "https://storage.googleapis.com"}}

    assert source(artifact("gs://bucket/data"), own=own)["storage_uri"] == "s3://bucket/data"


@pytest.mark.parametrize("uri", ["/kfp-workspace/digits/train", "file:///kfp-workspace/digits/train"])
def test_a_path_in_the_workspace_becomes_the_claim_on_a_cluster(uri):
    assert source(uri=uri, mounts=WORKSPACE) == {"storage_uri": "pvc://run-1-kfp-workspace/digits/train"}


def test_a_path_that_no_claim_holds_is_refused_on_a_cluster():
    with pytest.raises(InvalidRequestError, match="dataset_uri: no volume claim is mounted at /data/digits"):
        source(uri="/data/digits", mounts=WORKSPACE)


def test_a_mount_of_a_part_of_a_claim_keeps_that_part():
    mounts = {"/data": "shared/team-a", "/data/deep": "other"}

    assert source(uri="/data/digits", mounts=mounts) == {"storage_uri": "pvc://shared/team-a/digits"}
    assert source(uri="/data/deep/x", mounts=mounts) == {"storage_uri": "pvc://other/x"}


def test_a_model_in_the_workspace_is_read_from_its_claim():
    model = Artifact("model", f"{ROOT}/model", {"uri": "file:///kfp-workspace/output/model"})

    assert source(model, mounts=WORKSPACE) == {"storage_uri": "pvc://run-1-kfp-workspace/output/model"}


def test_an_imported_artifact_in_the_workspace_is_read_from_its_claim():
    imported = artifact("s3://bucket/data", _kfp_workspace=True)

    assert source(imported, mounts=WORKSPACE) == {
        "storage_uri": "pvc://run-1-kfp-workspace/.artifacts/s3/bucket/data",
    }


def test_a_path_of_this_machine_is_refused_on_a_cluster():
    with pytest.raises(InvalidRequestError, match=r"cannot read /tmp/data of this machine; pass dataset_uri"):
        source(artifact("/tmp/data"))


def test_what_the_launcher_downloaded_is_linked_on_this_machine(tmp_path):
    downloaded = Artifact("dataset", str(tmp_path), {"uri": "file:///of/another/pod"})

    assert source(downloaded, backend="local") == {"storage_uri": Path(tmp_path).as_uri(), "link": True}


def test_an_artifact_without_content_is_fetched_from_its_recorded_uri_on_this_machine(tmp_path):
    empty = Artifact("dataset", str(tmp_path / "empty"), {"uri": "hf://owner/name"})

    assert source(empty, backend="local") == {"storage_uri": "hf://owner/name"}


def test_a_path_in_a_mounted_volume_is_linked_on_this_machine():
    assert source(uri="/kfp-workspace/digits", backend="local") == {
        "storage_uri": "file:///kfp-workspace/digits",
        "link": True,
    }


def test_an_artifact_and_a_uri_together_are_refused():
    with pytest.raises(InvalidRequestError, match="dataset and dataset_uri are both given"):
        source(artifact(), uri="s3://bucket/data")
