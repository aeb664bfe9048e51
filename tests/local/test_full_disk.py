"""A full disk refuses a job in one line or ends it with a diagnosis; nothing half-made is left, nothing hangs."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest
from local_jobs import PATIENCE

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
        pytest.skip(f"a small disk of its own needs the right to mount: {mounted.stderr.strip()}")
    yield disk / "state"
    # Lazily: a supervisor may still be leaving.
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk, leave: int) -> None:
    """Write until only so many bytes are left."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / "filler").open("wb") as filler, suppress(OSError):
        filler.write(bytes(max(0, free - leave)))
        filler.flush()


def fills_the_disk(place: str):
    from pathlib import Path

    with Path(place).open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            return "full"


def contents(home, place):
    return sorted(path.name for path in (home / place).iterdir()) if (home / place).exists() else []


def test_a_job_that_does_not_fit_is_refused_in_one_line_and_leaves_nothing(client, ask, home):
    fill(home.parent, leave=16 * 1024)
    with pytest.raises(BackendUnavailableError, match="No space left on device; nothing was created") as refused:
        client.submit(ask())
    assert len(str(refused.value).splitlines()) == 1
    assert [contents(home, place) for place in ("jobs", "staging", "trash")] == [[], [], []]


def test_a_job_that_was_refused_is_accepted_when_there_is_room_again(client, ask, home):
    fill(home.parent, leave=16 * 1024)
    with pytest.raises(BackendUnavailableError):
        client.submit(ask())
    (home.parent / "filler").unlink()
    assert client.wait(client.submit(ask()), timeout=PATIENCE).succeeded


@pytest.mark.parametrize("kib", range(40, 200, 32))
def test_however_much_fits_a_job_is_whole_and_ends_or_is_not_there(client, ask, home, kib):
    fill(home.parent, leave=kib * 1024)
    with suppress(BackendUnavailableError):
        client.wait(client.submit(ask()), timeout=PATIENCE)
    assert {job.status for job in client.list_jobs()} <= {"Complete", "Failed"}
    assert contents(home, "staging") == []


def test_a_disk_that_fills_up_during_the_run_fails_the_job_and_says_so(client, ask, home):
    ref = client.submit(ask(fills_the_disk, {"place": str(home.parent / "filler")}))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert "No space left on device" in diagnosis.reason
