"""``s3://``: selection and paths of objects, caching and permissions."""

from __future__ import annotations

import os

import pytest
from fetch_helpers import read_files
from hypothesis import HealthCheck, given, settings, strategies as st

from trainer_core.fetch.s3.download import LARGE_FILE_SIZE
from trainer_core.fetch.source import FetchError

MIB = 2**20


def test_objects_below_a_prefix_keep_their_relative_paths(bucket, moto, fetch):
    names = {"a.csv": b"1,2", "deep/er/b c.csv": b"3", "é#%41&+?*[x]": b"4", "empty": b""}
    for name, body in names.items():
        bucket(f"data/{name}", body)
    bucket("data-of-others/x", b"5")
    assert read_files(fetch(f"s3://{bucket.name}/data", moto[0])) == names


def test_a_whole_bucket_can_be_fetched(bucket, moto, fetch):
    bucket("a", b"1")
    bucket("b/c", b"2")
    assert read_files(fetch(f"s3://{bucket.name}", moto[0])) == {"a": b"1", "b/c": b"2"}


def test_a_single_object_keeps_its_name(bucket, moto, fetch):
    bucket("models/best.safetensors", b"weights")
    found = read_files(fetch(f"s3://{bucket.name}/models/best.safetensors", moto[0]))
    assert found == {"best.safetensors": b"weights"}


def test_empty_objects_that_represent_folders_are_skipped(bucket, moto, fetch):
    bucket("data/deep/", b"")
    bucket("data/deep/a", b"1")
    assert read_files(fetch(f"s3://{bucket.name}/data", moto[0])) == {"deep/a": b"1"}


SEGMENTS = st.sampled_from(["a", "b", "c"])
TREES = st.dictionaries(
    st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), st.sampled_from([b"", b"1"]), max_size=4
)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES, st.sets(st.lists(SEGMENTS, max_size=3).map("/".join), min_size=1, max_size=3))
def test_the_marker_of_a_folder_is_a_folder_or_nothing(bucket, moto, fetch, tmp_path_factory, tree, markers):
    files = {key: body for key, body in tree.items() if not any(other.startswith(f"{key}/") for other in tree)}
    prefix = tmp_path_factory.mktemp("tree").name
    for key, body in [*files.items(), *((f"{marker}/", b"") for marker in markers)]:
        bucket(f"{prefix}/{key}".replace("//", "/"), body)
    expected = {key: body for key, body in files.items() if body or not any(m.startswith(f"{key}/") for m in markers)}
    bucket(f"{prefix}/{'z'}", b"z")
    assert read_files(fetch(f"s3://{bucket.name}/{prefix}", moto[0])) == {**expected, "z": b"z"}


@pytest.mark.parametrize("key", ["data/", "data/deep/", "data/deep/er/"])
def test_a_prefix_with_markers_alone_has_no_objects(bucket, moto, fetch, key):
    bucket(key, b"")
    with pytest.raises(FetchError, match="/data has no objects; check bucket and prefix"):
        fetch(f"s3://{bucket.name}/data", moto[0])


@pytest.mark.parametrize("pattern", ["*.bin", "deep/*", "data/deep/*", "w.bin"])
def test_patterns_match_the_path_the_name_or_the_key(bucket, moto, fetch, pattern):
    bucket("data/a.csv", b"1")
    bucket("data/deep/w.bin", b"2")
    assert read_files(fetch(f"s3://{bucket.name}/data", moto[0], ignore=(pattern,))) == {"a.csv": b"1"}


def test_all_pages_of_a_listing_are_read(folder_proxy, fetch):
    for number in range(1100):
        (folder_proxy.folder / f"{number:04}").write_bytes(b"%d" % number)
    found = read_files(fetch("s3://any", folder_proxy.url))
    assert found == {f"{number:04}": b"%d" % number for number in range(1100)}


def test_a_large_object_is_downloaded_by_several_requests(folder_proxy, fetch):
    body = os.urandom(MIB) * (LARGE_FILE_SIZE // MIB) + b"the end"
    (folder_proxy.folder / "large").write_bytes(body)
    (folder_proxy.folder / "small").write_bytes(b"1")
    found = fetch("s3://any", folder_proxy.url)
    assert (found / "large").read_bytes() == body
    (found / "small").unlink()
    assert (fetch("s3://any", folder_proxy.url) / "small").read_bytes() == b"1"
    assert folder_proxy.gets("large") == LARGE_FILE_SIZE // (8 * MIB) + 1


def test_unchanged_content_is_fetched_once(bucket, proxy, fetch):
    bucket("data/a", b"1")
    first = fetch(f"s3://{bucket.name}/data", proxy.url)
    assert fetch(f"s3://{bucket.name}/data", proxy.url) == first
    assert proxy.gets("data/a") == 1


def test_changed_content_is_fetched_to_another_folder(bucket, moto, fetch):
    bucket("data/a", b"1")
    first = fetch(f"s3://{bucket.name}/data", moto[0])
    bucket("data/a", b"2")
    assert read_files(fetch(f"s3://{bucket.name}/data", moto[0])) == {"a": b"2"}
    assert read_files(first) == {"a": b"1"}


def test_fetched_files_are_private_and_read_only(bucket, moto, fetch):
    bucket("data/deep/a", b"1")
    folder = fetch(f"s3://{bucket.name}/data", moto[0])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "deep" / "a").stat().st_mode & 0o222 == 0


def test_only_a_file_deleted_from_the_cache_is_fetched_again(bucket, proxy, fetch):
    bucket("data/a", b"1")
    bucket("data/b", b"2")
    folder = fetch(f"s3://{bucket.name}/data", proxy.url)
    (folder / "a").unlink()
    assert read_files(fetch(f"s3://{bucket.name}/data", proxy.url)) == {"a": b"1", "b": b"2"}
    assert (proxy.gets("data/a"), proxy.gets("data/b")) == (2, 1)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket/data", "the bucket does not exist"),
        ("s3://{bucket}/nothing", "has no objects; check bucket and prefix"),
        ("s3://{bucket}/data", "none of its 1 objects is selected; check ignore_patterns"),
        ("s3:///data", "does not name a bucket"),
    ],
)
def test_a_missing_source_is_a_permanent_error_in_one_line(bucket, moto, fetch, uri, message):
    bucket("data/a", b"1")
    with pytest.raises(FetchError, match=message) as raised:
        fetch(uri.format(bucket=bucket.name), moto[0], ignore=("a",))
    assert not raised.value.retryable
    assert len(str(raised.value).splitlines()) == 1
