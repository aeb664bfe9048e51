"""On a full disk, a job is refused in one line or fails with a diagnosis. Nothing incomplete remains, nothing hangs."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest
from local_jobs import PATIENCE, processes_of, waits_at

from trainer_core import BackendUnavailableError, Category

MIB = 2**20


@pytest.fixture
def home(tmp_path):
    """A state folder on a disk of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MIB}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.strip()}")
    yield disk / "state"
    # Lazy unmount, because a supervisor may still be exiting.
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk, leave: int) -> None:
    """Fill the disk until only this number of bytes is free."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / "filler").open("wb") as filler, suppress(OSError):
        filler.write(bytes(max(0, free - leave)))
        filler.flush()


def fills_the_disk(path: str, fail: bool = False):
    from pathlib import Path

    with Path(path).open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            if fail:
                raise ValueError("no luck") from None
            return "full"


def list_folder(home, name):
    return sorted(path.name for path in (home / name).iterdir()) if (home / name).exists() else []


def test_a_job_is_refused_in_one_line_if_the_disk_is_full(client, ask, home):
    fill(home.parent, leave=16 * 1024)
    with pytest.raises(BackendUnavailableError, match="No space left on device; no job was created") as refused:
        client.submit(ask())
    assert len(str(refused.value).splitlines()) == 1
    assert [list_folder(home, name) for name in ("jobs", "staging", "trash")] == [[], [], []]


def test_a_refused_job_can_be_submitted_when_the_disk_has_space_again(client, ask, home):
    fill(home.parent, leave=16 * 1024)
    with pytest.raises(BackendUnavailableError):
        client.submit(ask())
    (home.parent / "filler").unlink()
    assert client.wait(client.submit(ask()), timeout=PATIENCE).succeeded


@pytest.mark.parametrize("kib", range(40, 200, 32))
def test_with_little_disk_space_a_job_is_complete_and_ends_or_is_absent(client, ask, home, kib):
    fill(home.parent, leave=kib * 1024)
    with suppress(BackendUnavailableError):
        client.wait(client.submit(ask()), timeout=PATIENCE)
    assert {job.status for job in client.list_jobs()} <= {"Complete", "Failed"}
    assert list_folder(home, "staging") == []


def test_a_training_that_returns_on_a_full_disk_keeps_its_result(client, ask, home):
    ref = client.submit(ask(fills_the_disk, {"path": str(home.parent / "filler")}))
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.status, outcome.result) == ("Complete", "full")


def test_a_failure_on_a_full_disk_keeps_its_diagnosis(client, ask, home):
    ref = client.submit(ask(fills_the_disk, {"path": str(home.parent / "filler"), "fail": True}))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.reason) == (Category.USER_CODE, "ValueError: no luck")


def test_on_a_full_disk_a_job_is_cancelled_and_deleted(client, running, gate, home):
    ref = running(waits_at, {"gate": gate})
    fill(home.parent, leave=0)
    with pytest.raises(BackendUnavailableError, match=r"cannot be changed in .*: No space left on device; free some"):
        client.suspend(ref)
    client.cancel(ref)
    assert client.get_job_outcome(ref).diagnosis.category == Category.DELETED
    assert processes_of(ref.uid) == []
    client.delete_job(ref)
    assert list_folder(home, "jobs") == []
