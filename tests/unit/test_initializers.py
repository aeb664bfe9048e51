"""Initializers: where from, what not, and with which credentials."""

from __future__ import annotations

import pytest

from trainer_core.base.secrets import SecretRef
from trainer_core.definition.initializers import (
    DATASET_PATH,
    MODEL_PATH,
    DataCacheInitializer,
    FileDatasetInitializer,
    FileModelInitializer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    S3DatasetInitializer,
    S3ModelInitializer,
    VolumeDatasetInitializer,
    VolumeModelInitializer,
    initializer_from_dict,
)

HUGGING_FACE = pytest.mark.parametrize("kind", [HuggingFaceDatasetInitializer, HuggingFaceModelInitializer])
S3 = pytest.mark.parametrize("kind", [S3DatasetInitializer, S3ModelInitializer])
VOLUME = pytest.mark.parametrize("kind", [VolumeDatasetInitializer, VolumeModelInitializer])
FILE = pytest.mark.parametrize("kind", [FileDatasetInitializer, FileModelInitializer])
MODELS_TO_IGNORE = ["*.msgpack", "*.h5", "*.bin", "*.pt", "*.pth"]


def cache(**changed):
    given = {"storage_uri": "cache://schema/table", "metadata_loc": "s3://bucket/metadata.json", "num_data_nodes": 2}
    return DataCacheInitializer(**{**given, **changed})


def test_mount_paths_are_those_of_trainer():
    assert (DATASET_PATH, MODEL_PATH) == ("/workspace/dataset", "/workspace/model")


@HUGGING_FACE
@pytest.mark.parametrize(
    "uri", ["hf://owner/name", "hf://owner/name/path.json", "volume://claim/data", "{{ params.uri }}"]
)
def test_a_hugging_face_initializer_accepts_any_uri_with_a_scheme(kind, uri):
    assert kind(uri).storage_uri == uri


@HUGGING_FACE
@pytest.mark.parametrize("uri", ["owner/name", "hf:/owner", "hf://", "://x", "1f://x", "hf://a\nb"])
def test_a_storage_uri_without_a_scheme_is_refused(kind, uri):
    with pytest.raises(ValueError, match="storage_uri must look like 'scheme://rest', got"):
        kind(uri)


@HUGGING_FACE
@pytest.mark.parametrize("uri", ["", " ", None, 3])
def test_a_storage_uri_that_is_not_a_string_is_refused(kind, uri):
    with pytest.raises(ValueError, match="storage_uri must be a non-empty string"):
        kind(uri)


def test_a_storage_uri_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="storage_uri has 2049 characters; use at most 2048"):
        HuggingFaceDatasetInitializer("hf://" + "a" * 2044)


@S3
@pytest.mark.parametrize("uri", ["s3://bucket/prefix", "{{ params.uri }}"])
def test_an_s3_initializer_accepts_s3_uris(kind, uri):
    assert kind(uri).storage_uri == uri


@S3
@pytest.mark.parametrize("uri", ["hf://owner/name", "S3://bucket", "bucket"])
def test_an_s3_initializer_refuses_other_uris(kind, uri):
    with pytest.raises(ValueError, match="storage_uri must"):
        kind(uri)


@S3
@pytest.mark.parametrize("field", ["endpoint", "region", "role_arn"])
def test_an_empty_setting_of_s3_is_refused(kind, field):
    with pytest.raises(ValueError, match=f"{field} must be a non-empty string"):
        kind("s3://bucket", **{field: ""})


@pytest.mark.parametrize("kind", [HuggingFaceModelInitializer, S3ModelInitializer])
def test_default_ignore_patterns_are_not_shared(kind):
    uri = {HuggingFaceModelInitializer: "hf://owner/name", S3ModelInitializer: "s3://bucket"}[kind]
    kind(uri).ignore_patterns.append("*.safetensors")
    assert kind(uri).ignore_patterns == MODELS_TO_IGNORE


@pytest.mark.parametrize("patterns", ["*.bin", [""], [3], ["*.bin,*.pt"]])
def test_invalid_ignore_patterns_are_refused(patterns):
    with pytest.raises(ValueError, match="ignore_patterns"):
        HuggingFaceDatasetInitializer("hf://owner/name", patterns)


@pytest.mark.parametrize("secret", ["hunter2", SecretRef("hub", "token"), None])
def test_a_secret_is_a_reference_or_a_string(secret):
    assert HuggingFaceModelInitializer("hf://owner/name", access_token=secret).access_token == secret


@pytest.mark.parametrize("secret", ["", " ", 3, {"name": "hub"}])
def test_an_invalid_secret_is_refused(secret):
    with pytest.raises(ValueError, match=r"access_token must be SecretRef\(name, key\)"):
        HuggingFaceModelInitializer("hf://owner/name", access_token=secret)


@pytest.mark.parametrize(
    "initializer",
    [
        HuggingFaceDatasetInitializer("hf://owner/name", access_token="hunter2"),
        HuggingFaceModelInitializer("hf://owner/name", access_token="hunter2"),
        S3DatasetInitializer("s3://bucket", access_key_id="hunter2", secret_access_key="hunter2"),
        S3ModelInitializer("s3://bucket", access_key_id="hunter2", secret_access_key="hunter2"),
    ],
)
def test_a_secret_is_never_shown(initializer):
    assert "hunter2" not in repr(initializer)


@pytest.mark.parametrize("count", [2, 16, "3"])
def test_a_data_cache_has_more_than_one_data_node(count):
    assert cache(num_data_nodes=count).num_data_nodes == count


@pytest.mark.parametrize("count", [1, 0, -1, True, 2.0, "1", "{{ params.nodes }}", None])
def test_a_cache_with_too_few_data_nodes_is_refused(count):
    with pytest.raises(ValueError, match="num_data_nodes must be greater than 1, got"):
        cache(num_data_nodes=count)


@pytest.mark.parametrize("uri", ["cache://schema", "cache:///", "cache://a/b/c", "cache:///table", "cache://schema/"])
def test_a_data_cache_uri_has_schema_and_table(uri):
    with pytest.raises(ValueError, match="storage_uri must be in format 'cache://<SCHEMA_NAME>/<TABLE_NAME>'"):
        cache(storage_uri=uri)


def test_a_data_cache_refuses_other_uris():
    with pytest.raises(ValueError, match="storage_uri must start with 'cache://', got 's3://a/b'"):
        cache(storage_uri="s3://a/b")


@pytest.mark.parametrize("field", ["head_cpu", "head_mem", "worker_cpu", "worker_mem"])
def test_cpu_and_memory_of_a_data_cache_are_quantities(field):
    assert getattr(cache(**{field: "{{ params.size }}"}), field) == "{{ params.size }}"
    assert getattr(cache(**{field: "2Gi"}), field) == "2Gi"
    with pytest.raises(ValueError, match=f"{field}: 'much' is not a quantity"):
        cache(**{field: "much"})


@pytest.mark.parametrize("field", ["metadata_loc", "iam_role"])
def test_an_empty_setting_of_a_cache_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be a non-empty string"):
        cache(**{field: ""})


@FILE
@pytest.mark.parametrize("uri", ["file:///data/digits", "file:///data/with space", "{{ ti.xcom_pull('initialize') }}"])
def test_a_file_has_an_absolute_path(kind, uri):
    assert kind(uri).storage_uri == uri


@FILE
@pytest.mark.parametrize("uri", ["file://data/digits", "file://./data", "/data/digits", "hf://owner/name"])
def test_a_file_without_an_absolute_path_is_refused(kind, uri):
    with pytest.raises(ValueError, match="storage_uri must"):
        kind(uri)


@FILE
def test_files_are_copied_by_default(kind):
    initializer = kind("file:///data")
    assert (initializer.ignore_patterns, initializer.link) == (None, False)


@FILE
@pytest.mark.parametrize("link", ["yes", 1, None])
def test_link_is_a_boolean(kind, link):
    with pytest.raises(ValueError, match="link must be True or False"):
        kind("file:///data", link=link)


@VOLUME
@pytest.mark.parametrize("uri", ["pvc://claim/dataset", "pvc://claim", "pvc://team.data-1/a/b c/ü", "{{ params.uri }}"])
def test_a_volume_uri_has_a_claim_and_a_path(kind, uri):
    assert kind(uri).storage_uri == uri


@VOLUME
@pytest.mark.parametrize("uri", ["pvc://Claim/x", "pvc:///x", "pvc://a_b/x", "pvc://c/../x", "pvc://c//x", "s3://c/x"])
def test_an_invalid_volume_uri_is_refused(kind, uri):
    with pytest.raises(ValueError, match="storage_uri"):
        kind(uri)


def test_plain_data_selects_the_initializer_by_scheme():
    found = initializer_from_dict({"dataset": "pvc://claim/dataset", "model": {"storage_uri": "pvc://claim/model"}})
    assert found == Initializer(
        VolumeDatasetInitializer("pvc://claim/dataset"), VolumeModelInitializer("pvc://claim/model")
    )


@pytest.mark.parametrize(
    ("role", "uri", "known"),
    [
        ("dataset", "ftp://host/x", "file://, hf://, s3://, cache://, pvc://"),
        ("dataset", "S3://bucket/x", "file://, hf://, s3://, cache://, pvc://"),
        ("model", "cache://a/b", "file://, hf://, s3://, pvc://"),
    ],
)
def test_plain_data_with_an_unknown_scheme_are_refused_with_the_known_ones(role, uri, known):
    scheme = uri.partition("://")[0]
    with pytest.raises(ValueError, match=f"^initializer.{role}: {scheme}:// is not supported .*; use one of {known}$"):
        initializer_from_dict({role: uri})


def test_an_initializer_holds_a_dataset_and_a_model():
    both = Initializer(FileDatasetInitializer("file:///data"), FileModelInitializer("file:///model"))
    assert (both.dataset.storage_uri, both.model.storage_uri) == ("file:///data", "file:///model")


@pytest.mark.parametrize(
    "wrong",
    [
        {"dataset": FileModelInitializer("file:///m")},
        {"model": FileDatasetInitializer("file:///d")},
        {"dataset": "hf://a"},
    ],
)
def test_an_initializer_of_another_role_is_refused_with_the_known_ones(wrong):
    with pytest.raises(ValueError, match=r"Initializer (dataset|model) must be one of HuggingFace"):
        Initializer(**wrong)
