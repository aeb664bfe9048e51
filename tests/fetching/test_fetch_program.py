"""The program of an initializer step: what it is told, where it leaves data, and how it says that it failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fetching_scene import KEYS, contents
from s3_storage.trouble import Fault, says

from trainer_core.fetching import store
from trainer_core.fetching.local import LocalSource
from trainer_core.fetching.progress import Lines
from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError

PATIENCE = 60


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
    command = [sys.executable, "-m", "trainer_core.fetching", *arguments]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.fixture
def on_a_cluster(workspace, tmp_path):
    """Runs the program as Trainer runs an initializer, but for the place: ``on_a_cluster(role, **variables)``."""

    def on_a_cluster(role, **variables):
        place = {"TRAINJOB_INITIALIZE_TARGET": str(workspace / role)}
        return run({**place, "TRAINJOB_TERMINATION_LOG": str(tmp_path / "said"), **variables}, role)

    return on_a_cluster


def test_on_a_cluster_the_variables_of_trainer_fill_a_folder_of_the_workspace(on_a_cluster, bucket, moto, workspace):
    bucket("data/a.csv", b"1,2")
    bucket("data/w.bin", b"3")
    env = {name.upper(): value for name, value in KEYS.items()}
    ended = on_a_cluster(
        "dataset", STORAGE_URI=f"s3://{bucket.name}/data", IGNORE_PATTERNS="*.bin, *.pt", ENDPOINT=moto[0], **env
    )
    assert ended.returncode == 0, ended.stderr
    assert contents(workspace / "dataset") == {"a.csv": b"1,2"}
    assert KEYS["secret_access_key"] not in ended.stdout + ended.stderr


def test_what_lies_in_a_workspace_can_be_read_by_everybody(on_a_cluster, source, workspace):
    on_a_cluster("model", STORAGE_URI=source.as_uri())
    modes = {path.stat().st_mode & 0o444 for path in [workspace / "model", *(workspace / "model").rglob("*")]}
    assert modes == {0o444}


def test_a_cache_of_containers_can_be_read_by_everybody(on_a_cluster, source, workspace):
    on_a_cluster("model", STORAGE_URI=source.as_uri(), TRAINJOB_INITIALIZE_CACHE=str(workspace / "cache"))
    folder = (workspace / "model").readlink()
    assert {path.stat().st_mode & 0o444 for path in [folder.parent, folder, *folder.rglob("*")]} == {0o444}


def test_a_private_cache_is_for_this_user_only(on_a_cluster, source, workspace):
    private = {"TRAINJOB_INITIALIZE_CACHE": str(workspace / "cache"), "TRAINJOB_INITIALIZE_PRIVATE": "1"}
    on_a_cluster("model", STORAGE_URI=source.as_uri(), **private)
    folder = (workspace / "model").readlink()
    assert {path.stat().st_mode & 0o077 for path in [folder.parent, folder, *folder.rglob("*")]} == {0}


def test_a_step_that_is_run_again_finds_what_is_there(on_a_cluster, source):
    on_a_cluster("model", STORAGE_URI=source.as_uri())
    again = on_a_cluster("model", STORAGE_URI=source.as_uri())
    assert (again.returncode, again.stdout.strip().startswith(f"model: {source.as_uri()} found in")) == (0, True)


def test_other_content_takes_the_place_of_what_was_there(on_a_cluster, source, workspace):
    on_a_cluster("model", STORAGE_URI=source.as_uri())
    (source / "a.csv").unlink()
    on_a_cluster("model", STORAGE_URI=source.as_uri())
    assert contents(workspace / "model") == {"deep/w.bin": b"3"}
    assert sorted(path.name for path in workspace.iterdir() if not path.name.startswith(".")) == ["model"]


def test_a_failure_leaves_what_was_there(on_a_cluster, source, workspace, proxy):
    on_a_cluster("dataset", STORAGE_URI=source.as_uri())
    on_a_cluster("dataset", STORAGE_URI="s3://no-such-bucket/x", ENDPOINT=proxy.url, ACCESS_KEY_ID="a")
    assert set(contents(workspace / "dataset")) == {"a.csv", "deep/w.bin"}


def test_what_a_retry_can_mend_has_an_exit_code_of_its_own_and_is_said_last(program, bucket, proxy, tmp_path):
    proxy.faults.append(Fault(says(412, "PreconditionFailed")))
    failed = program(f"s3://{bucket.name}/data", proxy.url)
    output = failed.communicate(timeout=PATIENCE)[0]
    assert failed.returncode == 75
    assert output.splitlines()[-1].startswith("dataset: s3://")
    assert (tmp_path / "termination").read_text() == output.splitlines()[-1]


def test_what_only_a_person_can_mend_ends_with_1(program, moto, tmp_path):
    failed = program("s3://no-such-bucket/data", moto[0], role="model")
    assert "model: s3://no-such-bucket/data: there is no such bucket" in failed.communicate(timeout=PATIENCE)[0]
    assert failed.returncode == 1


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({}, "STORAGE_URI must say what to fetch"),
        ({"STORAGE_URI": "gs://bucket/x"}, "gs:// cannot be fetched here; file://, hf://, s3:// can"),
        ({"STORAGE_URI": "file:///no/such/folder"}, "/no/such/folder does not exist"),
        ({"STORAGE_URI": "file://host/folder"}, "is not a local path"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(on_a_cluster, env, complaint):
    failed = on_a_cluster("dataset", **env)
    assert failed.returncode == 1
    assert complaint in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_no_secret_is_an_argument_of_the_program(program, bucket, proxy):
    import threading

    import psutil
    from s3_storage.trouble import held

    bucket("data/a", b"1")
    at, until = threading.Event(), threading.Event()
    proxy.faults.append(Fault(held(at, until), "data/a", 1))
    running = program(f"s3://{bucket.name}/data", proxy.url)
    assert at.wait(PATIENCE)
    assert KEYS["secret_access_key"] not in " ".join(psutil.Process(running.pid).cmdline())
    until.set()


def test_settings_do_not_show_secrets():
    settings = Settings("dataset", "s3://a/b", access_token="hf_secret", secret_access_key="s3_secret")
    assert "_secret" not in repr(settings).replace("secret_access_key", "")


def test_variables_with_our_prefix_hide_those_without(monkeypatch):
    env = {"TRAINJOB_INITIALIZE_STORAGE_URI": "s3://mine/x", "STORAGE_URI": "s3://other/x", "REGION": "of-somebody"}
    settings = Settings.from_env("dataset", env)
    assert (settings.uri, settings.region) == ("s3://mine/x", None)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk of its own needs the right to mount: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_what_does_not_fit_on_the_disk_is_not_begun(bucket, proxy, small_disk, program):
    bucket("data/a", b"x" * 2**21)
    failed = program(f"s3://{bucket.name}/data", proxy.url, cache=str(small_disk / "cache"))
    output = failed.communicate(timeout=PATIENCE)[0]
    assert "2.1 MB are needed under" in output
    assert "make room, or leave files out with ignore_patterns" in output
    assert (failed.returncode, proxy.gets("data/a")) == (1, 0)


def test_a_disk_that_fills_up_on_the_way_is_one_line(source, small_disk):
    class Growing(LocalSource):
        def fill(self, folder, snapshot, report):
            (small_disk / "filler").write_bytes(bytes(1_000_000))
            (source / "a.csv").write_bytes(bytes(1_000_000))
            super().fill(folder, snapshot, report)

    with pytest.raises(OSError, match="No space left on device"):
        store.fetch(Growing(source), small_disk / "cache", Lines("dataset"))


def test_a_source_that_grows_on_the_way_is_refused_and_worth_a_retry(source, tmp_path):
    class Growing(LocalSource):
        def fill(self, folder, snapshot, report):
            (source / "a.csv").write_text("1,2,3")
            super().fill(folder, snapshot, report)

    with pytest.raises(FetchError, match=r"a.csv has 5 bytes instead of 3: it changed") as failed:
        store.fetch(Growing(source), tmp_path / "cache", Lines("dataset"))
    assert failed.value.retryable


def test_files_that_are_whole_already_are_not_copied_again(source, tmp_path):
    class Interrupted(LocalSource):
        def _take(self, source, target):
            super()._take(source, target)
            raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        store.fetch(Interrupted(source), cache, Lines("dataset"))
    (part,) = cache.glob(".*.part")
    before = (part / "a.csv").stat().st_ino
    folder, _ = store.fetch(LocalSource(source), cache, Lines("dataset"))
    assert (folder / "a.csv").stat().st_ino == before
    assert set(contents(folder)) == {"a.csv", "deep/w.bin"}


def test_what_was_begun_long_ago_is_removed_and_what_is_new_stays(source, tmp_path):
    old, new = tmp_path / "cache" / ".old.part", tmp_path / "cache" / ".new.part"
    for part in (old, new):
        part.mkdir(parents=True)
        (part / "half").touch()
    os.utime(old, (0, 0))
    store.fetch(LocalSource(source), tmp_path / "cache", Lines("dataset"))
    assert (old.exists(), new.exists()) == (False, True)


def test_in_a_workspace_what_was_begun_of_other_content_makes_room_first(on_a_cluster, source, workspace):
    part = workspace / ".model.other.part"
    part.mkdir(parents=True)
    on_a_cluster("model", STORAGE_URI=source.as_uri())
    assert not part.exists()


def test_links_take_no_room_and_lead_to_the_source(source, tmp_path):
    folder, _ = store.fetch(LocalSource(source, link=True), tmp_path / "cache", Lines("dataset"))
    assert (folder / "a.csv").readlink() == Path(source / "a.csv")
