"""What is fetched from S3 storage is what lies there: all of it, under its names, and nothing else."""

from __future__ import annotations

import os

import pytest
from fetching_scene import contents

from trainer_core.fetching.s3.download import LARGE
from trainer_core.fetching.source import FetchError

MIB = 2**20


def test_objects_below_a_prefix_lie_in_a_folder_under_their_names(bucket, moto, fetch):
    names = {"a.csv": b"1,2", "deep/er/b c.csv": b"3", "é#%41&+?*[x]": b"4", "empty": b""}
    for name, body in names.items():
        bucket(f"data/{name}", body)
    bucket("data-of-others/x", b"5")
    assert contents(fetch(f"s3://{bucket.name}/data", moto[0])) == names


def test_a_whole_bucket_can_be_fetched(bucket, moto, fetch):
    bucket("a", b"1")
    bucket("b/c", b"2")
    assert contents(fetch(f"s3://{bucket.name}", moto[0])) == {"a": b"1", "b/c": b"2"}


def test_a_single_object_lies_in_the_folder_under_its_own_name(bucket, moto, fetch):
    bucket("models/best.safetensors", b"weights")
    found = contents(fetch(f"s3://{bucket.name}/models/best.safetensors", moto[0]))
    assert found == {"best.safetensors": b"weights"}


def test_objects_that_stand_for_folders_are_no_files(bucket, moto, fetch):
    bucket("data/deep/", b"")
    bucket("data/deep/a", b"1")
    assert contents(fetch(f"s3://{bucket.name}/data", moto[0])) == {"deep/a": b"1"}


@pytest.mark.parametrize("pattern", ["*.bin", "deep/*", "data/deep/*", "w.bin"])
def test_ignored_is_what_matches_by_path_by_name_or_by_key(bucket, moto, fetch, pattern):
    bucket("data/a.csv", b"1")
    bucket("data/deep/w.bin", b"2")
    assert contents(fetch(f"s3://{bucket.name}/data", moto[0], ignore=(pattern,))) == {"a.csv": b"1"}


def test_a_listing_of_several_pages_is_read_to_its_end(folder_proxy, fetch):
    for number in range(1100):
        (folder_proxy.folder / f"{number:04}").write_bytes(b"%d" % number)
    found = contents(fetch("s3://any", folder_proxy.url))
    assert found == {f"{number:04}": b"%d" % number for number in range(1100)}


def test_a_large_object_comes_by_several_requests_and_is_whole(folder_proxy, fetch):
    body = os.urandom(MIB) * (LARGE // MIB) + b"the end"
    (folder_proxy.folder / "large").write_bytes(body)
    assert (fetch("s3://any", folder_proxy.url) / "large").read_bytes() == body
    assert folder_proxy.gets("large") == LARGE // (8 * MIB) + 1


def test_the_same_content_is_fetched_once(bucket, proxy, fetch):
    bucket("data/a", b"1")
    first = fetch(f"s3://{bucket.name}/data", proxy.url)
    assert fetch(f"s3://{bucket.name}/data", proxy.url) == first
    assert proxy.gets("data/a") == 1


def test_changed_content_is_fetched_anew_and_lies_elsewhere(bucket, moto, fetch):
    bucket("data/a", b"1")
    first = fetch(f"s3://{bucket.name}/data", moto[0])
    bucket("data/a", b"2")
    assert contents(fetch(f"s3://{bucket.name}/data", moto[0])) == {"a": b"2"}
    assert contents(first) == {"a": b"1"}


def test_what_is_fetched_is_for_this_user_only_and_not_to_be_written_to(bucket, moto, fetch):
    bucket("data/deep/a", b"1")
    folder = fetch(f"s3://{bucket.name}/data", moto[0])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "deep" / "a").stat().st_mode & 0o222 == 0


def test_a_file_that_somebody_took_out_of_the_cache_is_fetched_again_and_the_others_are_not(bucket, proxy, fetch):
    bucket("data/a", b"1")
    bucket("data/b", b"2")
    folder = fetch(f"s3://{bucket.name}/data", proxy.url)
    (folder / "a").unlink()
    assert contents(fetch(f"s3://{bucket.name}/data", proxy.url)) == {"a": b"1", "b": b"2"}
    assert (proxy.gets("data/a"), proxy.gets("data/b")) == (2, 1)


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("s3://no-such-bucket/data", "there is no such bucket"),
        ("s3://{bucket}/nothing", "there is nothing; check bucket and prefix"),
        ("s3://{bucket}/data", "ignore_patterns leave nothing of its 1 objects"),
        ("s3:///data", "names no bucket"),
    ],
)
def test_what_is_not_there_is_one_line_and_not_worth_a_retry(bucket, moto, fetch, uri, complaint):
    bucket("data/a", b"1")
    with pytest.raises(FetchError, match=complaint) as refused:
        fetch(uri.format(bucket=bucket.name), moto[0], ignore=("a",))
    assert not refused.value.retryable
    assert len(str(refused.value).splitlines()) == 1
