"""Locks and the desired state of one job, as files: no job runs here."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer_core.backends.local.job_store import JobFolder, write_json
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.node import locks


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


@pytest.fixture
def descriptors(tmp_path):
    """The test leaves no file of its folder open."""
    yield
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []


@contextmanager
def locked(path, kind=fcntl.LOCK_EX):
    with path.open("a") as file:
        fcntl.flock(file, kind)
        yield


def test_a_job_without_a_desired_state_has_an_empty_one(folder):
    assert folder.read_desired() == {}


@pytest.mark.parametrize("damage", [b"", b'{"suspend": tr', b"\xff\xfe\x00", b"[1, 2]", b"5", b"null", b'"text"'])
def test_a_damaged_desired_state_is_an_empty_one(folder, damage):
    folder.desired.write_bytes(damage)

    assert folder.read_desired() == {}


def test_the_desired_state_is_what_was_written_last(folder):
    for value in (True, False):
        write_json(folder.desired, {"suspend": value, "reason": "Größe\u2028", "home": "/home/not-utf-8-\udcff"})

    assert folder.read_desired() == {"suspend": False, "reason": "Größe\u2028", "home": "/home/not-utf-8-\udcff"}


def test_a_change_waits_for_the_one_before(folder):
    order = []

    def change():
        with folder.lock_desired():
            order.append("second")

    with folder.lock_desired():
        thread = threading.Thread(target=change)
        thread.start()
        with pytest.raises(BlockingIOError, match="is locked by another process"):
            locks.acquire(folder.desired_lock, 0)
        order.append("first")
    thread.join(300)

    assert order == ["first", "second"]


def test_a_change_that_waits_too_long_names_the_lock_and_what_to_do(folder, monkeypatch, descriptors):
    clock, pauses = itertools.count(1000), []
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", pauses.append)
    message = r"'.*' cannot be changed: another process has locked .*/desired.lock for 10 s; end that process"
    with (
        locked(folder.desired_lock),
        pytest.raises(BackendUnavailableError, match=message),
        folder.lock_desired(),
    ):
        pytest.fail("the lock is held")

    assert len(pauses) == 9


def test_a_change_that_fails_leaves_the_lock_free(folder, descriptors):
    with pytest.raises(ZeroDivisionError), folder.lock_desired():
        raise ZeroDivisionError
    with folder.lock_desired():
        assert locks.is_locked(folder.desired_lock)

    assert not locks.is_locked(folder.desired_lock)


def test_a_supervisor_lives_as_long_as_it_holds_its_lock(folder, descriptors):
    assert not folder.is_supervised()
    descriptor = locks.acquire(folder.lock, 0)
    assert folder.is_supervised()
    with pytest.raises(BlockingIOError):
        locks.acquire(folder.lock, 0)
    os.close(descriptor)

    assert not folder.is_supervised()


def test_observers_of_a_lock_do_not_see_each_other(folder, descriptors):
    folder.lock.touch()
    with locked(folder.lock, fcntl.LOCK_SH):
        assert not locks.is_locked(folder.lock)


def test_locks_are_private(folder):
    locks.release(locks.acquire(folder.lock))
    folder.allocate_reserve()

    assert [path.stat().st_mode & 0o777 for path in (folder.lock, folder.desired_lock)] == [0o600, 0o600]
