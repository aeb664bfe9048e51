"""The program of an initializer step: its variables, the target folder, the cache, exit codes and messages."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fetch_helpers import KEYS, read_files
from s3_storage.faults import Fault, says

from trainer_core.fetch import local_files
from trainer_core.fetch.cache import fetch_to_cache
from trainer_core.fetch.local_files import LocalSource
from trainer_core.fetch.progress import LogProgress
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import FetchError

TIMEOUT = 300


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.csv").write_text("1,2")
    (folder / "deep" / "w.bin").write_text("3")
    return folder


@pytest.fixture
def workspace(tmp_path):
    return tmp_path / "workspace"


def run(env, *arguments):
    command = [sys.executable, "-m", "trainer_core.fetch", *arguments]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.fixture
def run_on_cluster(workspace, tmp_path):
    """Run the program as Trainer does, with another target folder: ``run_on_cluster(role, **variables)``."""

    def run_on_cluster(role, **variables):
        target = {"TRAINJOB_INITIALIZE_TARGET": str(workspace / role)}
        return run({**target, "TRAINJOB_TERMINATION_LOG": str(tmp_path / "termination"), **variables}, role)

    return run_on_cluster


def test_the_variables_of_trainer_select_what_is_fetched_to_the_workspace(run_on_cluster, bucket, moto, workspace):
    bucket("data/a.csv", b"1,2")
    bucket("data/w.bin", b"3")
    env = {name.upper(): value for name, value in KEYS.items()}
    ended = run_on_cluster(
        "dataset", STORAGE_URI=f"s3://{bucket.name}/data", IGNORE_PATTERNS="*.bin, *.pt", ENDPOINT=moto[0], **env
    )
    assert ended.returncode == 0, ended.stderr
    assert read_files(workspace / "dataset") == {"a.csv": b"1,2"}
    assert KEYS["secret_access_key"] not in ended.stdout + ended.stderr


def test_files_in_a_workspace_are_readable_by_all_users(run_on_cluster, source, workspace):
    run_on_cluster("model", STORAGE_URI=source.as_uri())
    modes = {path.stat().st_mode & 0o444 for path in [workspace / "model", *(workspace / "model").rglob("*")]}
    assert modes == {0o444}


def test_files_in_a_shared_cache_are_readable_by_all_users(run_on_cluster, source, workspace):
    run_on_cluster("model", STORAGE_URI=source.as_uri(), TRAINJOB_INITIALIZE_CACHE=str(workspace / "cache"))
    folder = (workspace / "model").readlink()
    assert {path.stat().st_mode & 0o444 for path in [folder.parent, folder, *folder.rglob("*")]} == {0o444}


def test_files_in_a_private_cache_are_readable_by_this_user_only(run_on_cluster, source, workspace):
    private = {"TRAINJOB_INITIALIZE_CACHE": str(workspace / "cache"), "TRAINJOB_INITIALIZE_PRIVATE": "1"}
    run_on_cluster("model", STORAGE_URI=source.as_uri(), **private)
    folder = (workspace / "model").readlink()
    assert {path.stat().st_mode & 0o077 for path in [folder.parent, folder, *folder.rglob("*")]} == {0}


def test_a_second_run_of_the_step_fetches_nothing(run_on_cluster, source):
    run_on_cluster("model", STORAGE_URI=source.as_uri())
    again = run_on_cluster("model", STORAGE_URI=source.as_uri())
    assert (again.returncode, again.stdout.strip().startswith(f"model: {source.as_uri()} found in")) == (0, True)


def test_changed_content_replaces_the_folder(run_on_cluster, source, workspace):
    run_on_cluster("model", STORAGE_URI=source.as_uri())
    (source / "a.csv").unlink()
    run_on_cluster("model", STORAGE_URI=source.as_uri())
    assert read_files(workspace / "model") == {"deep/w.bin": b"3"}
    assert sorted(path.name for path in workspace.iterdir() if not path.name.startswith(".")) == ["model"]


def test_a_failed_fetch_keeps_the_old_content(run_on_cluster, source, workspace, proxy):
    run_on_cluster("dataset", STORAGE_URI=source.as_uri())
    run_on_cluster("dataset", STORAGE_URI="s3://no-such-bucket/x", ENDPOINT=proxy.url, ACCESS_KEY_ID="a")
    assert set(read_files(workspace / "dataset")) == {"a.csv", "deep/w.bin"}


def test_a_retryable_failure_exits_with_75_and_writes_the_termination_message(program, bucket, proxy, tmp_path):
    proxy.faults.append(Fault(says(412, "PreconditionFailed")))
    failed = program(f"s3://{bucket.name}/data", proxy.url)
    output = failed.communicate(timeout=TIMEOUT)[0]
    assert failed.returncode == 75
    assert output.splitlines()[-1].startswith("dataset: s3://")
    assert (tmp_path / "termination").read_text() == output.splitlines()[-1]


def test_a_permanent_failure_exits_with_1(program, moto, tmp_path):
    failed = program("s3://no-such-bucket/data", moto[0], role="model")
    assert "model: s3://no-such-bucket/data: the bucket does not exist" in failed.communicate(timeout=TIMEOUT)[0]
    assert failed.returncode == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "STORAGE_URI is not set; set it to the URI of the dataset"),
        ({"STORAGE_URI": "gs://bucket/x"}, "gs:// cannot be fetched here; supported are file://, hf://, s3://"),
        ({"STORAGE_URI": "file:///no/such/folder"}, "/no/such/folder does not exist"),
        ({"STORAGE_URI": "file://host/folder"}, "is not a local path"),
    ],
)
def test_a_mistake_in_the_settings_is_reported_in_one_line(run_on_cluster, env, message):
    failed = run_on_cluster("dataset", **env)
    assert failed.returncode == 1
    assert message in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_the_arguments_of_the_program_contain_no_secret(program, bucket, proxy):
    import threading

    import psutil
    from s3_storage.faults import held

    bucket("data/a", b"1")
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(held(at, until), "data/a", 1))
    running = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(TIMEOUT)
    assert KEYS["secret_access_key"] not in " ".join(psutil.Process(running.pid).cmdline())
    until.set()


def test_the_repr_of_settings_contains_no_secret():
    settings = FetchSettings("dataset", "s3://a/b", access_token="hf_secret", secret_access_key="s3_secret")
    assert "_secret" not in repr(settings).replace("secret_access_key", "")


def test_variables_with_the_prefix_hide_plain_variables(monkeypatch):
    env = {"TRAINJOB_INITIALIZE_STORAGE_URI": "s3://mine/x", "STORAGE_URI": "s3://other/x", "REGION": "of-the-machine"}
    settings = FetchSettings.from_env("dataset", env)
    assert (settings.uri, settings.region) == ("s3://mine/x", None)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs privileges: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_fetch_larger_than_the_free_disk_space_is_not_started(bucket, proxy, small_disk, program):
    bucket("data/a", b"x" * 2**21)
    failed = program(f"s3://{bucket.name}/data", proxy.url, cache=str(small_disk / "cache"))
    output = failed.communicate(timeout=TIMEOUT)[0]
    assert "free, but the fetch needs 2.1 MB" in output
    assert "free disk space, or leave files out with ignore_patterns" in output
    assert (failed.returncode, proxy.gets("data/a")) == (1, 0)


def test_a_disk_that_becomes_full_raises_an_os_error(source, small_disk):
    class Racing(LocalSource):
        def fetch_files(self, folder, snapshot, report):
            (small_disk / "filler").write_bytes(bytes(600_000))
            super().fetch_files(folder, snapshot, report)

    (source / "a.csv").write_bytes(bytes(600_000))
    with pytest.raises(OSError, match="No space left on device"):
        fetch_to_cache(Racing(source), small_disk / "cache", LogProgress("dataset"))


def test_a_file_that_grows_during_the_fetch_is_a_retryable_error(source, tmp_path):
    class Growing(LocalSource):
        def fetch_files(self, folder, snapshot, report):
            (source / "a.csv").write_text("1,2,3")
            super().fetch_files(folder, snapshot, report)

    with pytest.raises(FetchError, match=r"a.csv has 4 bytes instead of 3: it changed") as failed:
        fetch_to_cache(Growing(source), tmp_path / "cache", LogProgress("dataset"))
    assert failed.value.retryable


def add_fifo(source):
    os.mkfifo(source / "pipe")
    return "pipe is not a regular file"


def add_link_to_a_device(source):
    (source / "random").symlink_to("/dev/random")
    return "random is not a regular file"


def add_dangling_link(source):
    (source / "gone").symlink_to(source / "nothing")
    return "gone cannot be read"


def test_a_folder_that_cannot_be_read_fails_the_fetch(source, tmp_path, monkeypatch):
    list_folder = os.scandir

    def refuse(path):
        # Permissions do not keep root out.
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FetchError, match=r"deep cannot be read \(Permission denied\)"):
        fetch_to_cache(LocalSource(source), tmp_path / "cache", LogProgress("dataset"))


@pytest.mark.parametrize("add", [add_fifo, add_link_to_a_device, add_dangling_link])
def test_what_is_not_a_readable_file_fails_the_fetch(source, tmp_path, add):
    expected = add(source)
    with pytest.raises(FetchError, match=expected) as failed:
        fetch_to_cache(LocalSource(source), tmp_path / "cache", LogProgress("dataset"))
    assert not failed.value.retryable


def test_a_device_is_not_a_dataset(tmp_path):
    with pytest.raises(FetchError, match="/dev/zero is not a regular file"):
        fetch_to_cache(LocalSource(Path("/dev/zero")), tmp_path / "cache", LogProgress("dataset"))


def test_a_file_that_the_uri_names_is_fetched_whatever_the_patterns(source, tmp_path):
    file = source / "weights.bin"
    file.write_bytes(b"weights")
    folder, _ = fetch_to_cache(LocalSource(file, ("*.bin",)), tmp_path / "cache", LogProgress("model"))
    assert (folder / "weights.bin").read_bytes() == b"weights"


def test_a_folder_of_which_no_file_is_selected_is_refused(source, tmp_path):
    with pytest.raises(
        FetchError, match=r"none of its [0-9]+ files is selected; check storage_uri and ignore_patterns"
    ):
        fetch_to_cache(LocalSource(source, ("*",)), tmp_path / "cache", LogProgress("model"))


def test_complete_files_are_not_copied_again(source, tmp_path):
    class Interrupted(LocalSource):
        def _copy_file(self, source, target):
            super()._copy_file(source, target)
            raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        fetch_to_cache(Interrupted(source), cache, LogProgress("dataset"))
    (part,) = cache.glob(".*.part")
    before = (part / "a.csv").stat().st_ino
    folder, _ = fetch_to_cache(LocalSource(source), cache, LogProgress("dataset"))
    assert (folder / "a.csv").stat().st_ino == before
    assert set(read_files(folder)) == {"a.csv", "deep/w.bin"}


def test_old_interrupted_fetches_are_deleted_and_new_ones_are_kept(source, tmp_path):
    old, new = tmp_path / "cache" / ".old.part", tmp_path / "cache" / ".new.part"
    for part in (old, new):
        part.mkdir(parents=True)
        (part / "half").touch()
    os.utime(old, (0, 0))
    fetch_to_cache(LocalSource(source), tmp_path / "cache", LogProgress("dataset"))
    assert (old.exists(), new.exists()) == (False, True)


def test_an_interrupted_fetch_of_other_content_is_deleted_from_a_workspace(run_on_cluster, source, workspace):
    part = workspace / ".model.other.part"
    part.mkdir(parents=True)
    run_on_cluster("model", STORAGE_URI=source.as_uri())
    assert not part.exists()


def test_links_lead_to_the_files_of_the_source(source, tmp_path):
    folder, _ = fetch_to_cache(LocalSource(source, link=True), tmp_path / "cache", LogProgress("dataset"))
    assert (folder / "a.csv").readlink() == Path(source / "a.csv")


def test_a_failure_is_one_printable_line_whatever_the_names_of_files_are(source, tmp_path):
    os.mkfifo(source / "a\x1b[31m\nb")
    ended = run({"STORAGE_URI": source.as_uri(), "TRAINJOB_INITIALIZE_TARGET": str(tmp_path / "target")}, "dataset")
    assert ended.returncode == 1
    assert "a\\x1b[31m b is not a regular file" in ended.stderr
    assert ended.stderr.strip().isprintable()


@pytest.mark.parametrize("hashed", [local_files._HASHED_BYTES, 0], ids=["small", "large"])
@pytest.mark.parametrize("link", [False, True], ids=["copied", "linked"])
def test_other_content_of_the_same_size_and_time_is_fetched_again(source, tmp_path, monkeypatch, hashed, link):
    monkeypatch.setattr(local_files, "_HASHED_BYTES", hashed)
    file = source / "a.csv"
    os.utime(file, ns=(1, 1))
    first, _ = fetch_to_cache(LocalSource(source, link=link), tmp_path / "cache", LogProgress("dataset"))
    new = tmp_path / "new.csv"
    new.write_text("9,9")
    os.utime(new, ns=(1, 1))
    new.replace(file)
    second, _ = fetch_to_cache(LocalSource(source, link=link), tmp_path / "cache", LogProgress("dataset"))
    assert first != second
    assert (second / "a.csv").read_text() == "9,9"


@pytest.mark.parametrize("hashed", [local_files._HASHED_BYTES, 0], ids=["small", "large"])
def test_content_that_changes_while_it_is_fetched_is_a_retryable_error(source, tmp_path, monkeypatch, hashed):
    class Changing(LocalSource):
        def fetch_files(self, folder, snapshot, report):
            (source / "a.csv").write_text("9,9")
            os.utime(source / "a.csv", ns=(1, 1))  # Written within a tick of the clock, it would have the same times.
            super().fetch_files(folder, snapshot, report)

    monkeypatch.setattr(local_files, "_HASHED_BYTES", hashed)
    with pytest.raises(FetchError, match=r"a.csv changed while it was fetched; fetch it again") as failed:
        fetch_to_cache(Changing(source), tmp_path / "cache", LogProgress("dataset"))
    assert failed.value.retryable


def test_a_copy_at_another_place_is_in_the_cache(source, tmp_path):
    first = fetch_to_cache(LocalSource(source), tmp_path / "cache", LogProgress("dataset"))
    shutil.copytree(source, tmp_path / "copy")
    second = fetch_to_cache(LocalSource(tmp_path / "copy"), tmp_path / "cache", LogProgress("dataset"))
    assert (first[1], second) == (True, (first[0], False))
