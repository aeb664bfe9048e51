"""Locks on files and folders. Each call opens the file again, so that one process can hold and ask for a lock."""

from __future__ import annotations

import os

import pytest
from clock import Clock

from trainer_core.node import locks


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_shared_locks_exclude_only_an_exclusive_one(path):
    held = [locks.acquire(path, 0, shared=True), locks.acquire(path, 0, shared=True)]
    with pytest.raises(BlockingIOError, match=r"lock is locked by another process$"):
        locks.acquire(path, 0.01)
    for descriptor in held:
        locks.release(descriptor)
    locks.release(locks.acquire(path, 0))


def test_a_released_lock_is_free_although_a_forked_child_keeps_its_descriptor(path):
    descriptor = locks.acquire(path, 0)
    copy = os.dup(descriptor)
    locks.release(descriptor)
    assert not locks.is_locked(path)
    os.close(copy)


def test_a_released_lock_leaves_a_private_file_and_no_descriptor(path):
    descriptor = locks.acquire(path, 0)
    locks.release(descriptor)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_only_an_exclusive_lock_counts_as_held_and_observers_hold_none(path):
    assert not locks.is_locked(path)
    shared = locks.acquire(path, 0, shared=True)
    assert not locks.is_locked(path)
    locks.release(shared)
    with locks.locked(path, 0):
        assert locks.is_locked(path)
    assert not locks.is_locked(path)


def test_a_lock_is_waited_for_until_the_timeout(path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(locks, "time", clock)
    with locks.locked(path), pytest.raises(BlockingIOError, match=r"lock is locked by another process$"):
        locks.acquire(path, 5)
    assert clock.now == pytest.approx(1005, abs=0.1)


def test_a_block_runs_with_the_lock_of_its_folder_if_it_can_be_had_in_time(tmp_path):
    with locks.locked_if_possible(tmp_path, 0):
        assert locks.is_locked(tmp_path)
        with locks.locked_if_possible(tmp_path, 0.01), locks.locked_if_possible(tmp_path / "missing", 0):
            assert locks.is_locked(tmp_path)
        assert locks.is_locked(tmp_path)
    assert not locks.is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
