"""A stamp says whether an artifact is still the one that a training left, in a folder and in S3."""

from __future__ import annotations

import os
import shutil
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from trainer_core.node import artifact_stamps, s3_client
from trainer_core.node.artifact_stamps import find_change, list_files, read_stamps

FILES = {"weights.bin": "trained", "deep/config.json": "{}"}


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


class Folder:
    """An artifact in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = folder.as_uri()

    def write(self, name: str, content: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        before = path.stat()
        path.write_text(content)
        # As `cp -p`, `rsync -t` and `tar` do.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class Objects:
    """An artifact below a prefix of S3."""

    def __init__(self, client, bucket: str) -> None:
        self.client, self.bucket = client, bucket
        self.uri = f"s3://{bucket}/models/ü 1"

    def write(self, name: str, content: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"models/ü 1/{name}", Body=content.encode())

    def remove(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"models/ü 1/{name}")


@pytest.fixture
def keys(moto, monkeypatch):
    variables = {"AWS_ENDPOINT_URL": moto[0], "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", "s3"])
def artifact(request, tmp_path, moto, bucket, keys):
    places = {"folder": Folder(tmp_path / "ü 1"), "s3": Objects(moto[1], bucket.name)}
    for name, content in FILES.items():
        places[request.param].write(name, content)
    return places[request.param]


def stamp(uri: str) -> str:
    return read_stamps({"model": uri})["model"]


def test_an_artifact_that_nothing_wrote_again_has_not_changed(artifact):
    assert find_change(artifact.uri, stamp(artifact.uri), format_time(0)) is None


@pytest.mark.parametrize("hashed", [artifact_stamps._HASHED_BYTES, 0], ids=["small", "large"])
@pytest.mark.parametrize(
    "change",
    [
        lambda artifact: artifact.write("weights.bin", "of another training"),
        lambda artifact: artifact.write("more.bin", ""),
        lambda artifact: artifact.remove("deep/config.json"),
    ],
    ids=["written", "added", "removed"],
)
def test_an_artifact_that_another_training_wrote_has_changed(artifact, change, hashed, monkeypatch):
    monkeypatch.setattr(artifact_stamps, "_HASHED_BYTES", hashed)
    before = stamp(artifact.uri)
    change(artifact)
    problem = find_change(artifact.uri, before, format_time(0))
    assert problem == f"{artifact.uri} was written again after the TrainJob had ended"


def test_an_artifact_of_the_same_size_and_time_has_changed_with_its_content(artifact):
    before = stamp(artifact.uri)
    artifact.write("weights.bin", "TRAINED")
    assert find_change(artifact.uri, before, None)


def test_an_artifact_that_was_removed_is_missing(artifact):
    before = stamp(artifact.uri)
    for name in FILES:
        artifact.remove(name)
    shutil.rmtree(getattr(artifact, "folder", ""), ignore_errors=True)
    assert find_change(artifact.uri, before, None) == f"{artifact.uri} is missing"


def test_a_single_file_or_object_is_an_artifact(artifact):
    uri = f"{artifact.uri}/weights.bin"
    before = stamp(uri)
    artifact.write("weights.bin.bak", "beside it")
    assert find_change(uri, before, None) is None
    artifact.write("weights.bin", "TRAINED")
    assert find_change(uri, before, None)


@pytest.mark.parametrize(("ended", "is_same"), [(3600, True), (-3600, False)], ids=["before the end", "later"])
def test_without_a_stamp_an_artifact_that_was_written_after_the_end_has_changed(artifact, ended, is_same):
    assert (find_change(artifact.uri, None, format_time(time.time() + ended)) is None) == is_same
    assert find_change(artifact.uri, None, None) is None


def test_a_restored_copy_of_a_small_artifact_has_not_changed(tmp_path):
    artifact = Folder(tmp_path / "model")
    artifact.write("weights.bin", "trained")
    before = stamp(artifact.uri)
    artifact.folder.rename(tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", artifact.folder, copy_function=shutil.copyfile)
    assert find_change(artifact.uri, before, None) is None


def test_files_behind_links_belong_to_the_artifact_and_circles_end(tmp_path):
    artifact, other = Folder(tmp_path / "model"), Folder(tmp_path / "other")
    artifact.write("weights.bin", "trained")
    other.write("more.bin", "more")
    (artifact.folder / "more").symlink_to(other.folder)
    (artifact.folder / "circle").symlink_to(artifact.folder)
    (artifact.folder / "gone").symlink_to("nowhere")
    before = stamp(artifact.uri)
    other.write("more.bin", "MORE")
    assert find_change(artifact.uri, before, None)


def test_the_paths_of_many_files_are_made_relative_once_for_each_folder(tmp_path, monkeypatch):
    names = [f"deep/{number:03}.csv" for number in range(100)]
    (tmp_path / "deep").mkdir()
    for name in names:
        (tmp_path / name).touch()
    relpath, calls = os.path.relpath, []
    monkeypatch.setattr(os.path, "relpath", lambda *paths: calls.append(paths) or relpath(*paths))
    assert list(list_files(tmp_path).items()) == [(name, str(tmp_path / name)) for name in names]
    assert len(calls) == 2


@pytest.mark.parametrize("uri", ["hf://team/digits", "gs://b/model", "file://host/model", "models/relative", "a:b:c"])
def test_what_only_others_can_read_has_no_stamp_and_is_trusted(uri):
    assert read_stamps({"model": uri}) == {}
    assert find_change(uri, "0" * 16, format_time(0)) is None


def test_storage_that_hangs_or_refuses_costs_no_training_its_result(artifact, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(artifact_stamps, "_SECONDS", 0.05)
    monkeypatch.setattr(artifact_stamps, "_read", lambda uri: answer.wait(300))
    assert read_stamps({"model": artifact.uri}) == {}
    with pytest.raises(OSError, match="its storage has not answered in 0 s"):
        find_change(artifact.uri, None, None)
    answer.set()


def test_storage_without_credentials_is_an_error_and_no_change(keys, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr(s3_client.importlib.util, "find_spec", lambda name: None)
    assert read_stamps({"model": "s3://bucket/model"}) == {}
    with pytest.raises(OSError, match="no credentials"):
        find_change("s3://bucket/model", "0" * 16, None)
