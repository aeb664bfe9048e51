"""The ref of a task's TrainJob in the storage that all tries of the task share."""

from __future__ import annotations

import pytest

from airflow_provider.task_owner import TaskGeneration
from airflow_provider.task_store import SavedRef
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core.model.jobs import TrainJobRef

REF = TrainJobRef("local", "/home", "job", "uid-1", "host-1")
NEXT = TrainJobRef("local", "/home", "job", "uid-2", "host-1")
ON_CLUSTER = TrainJobRef("kubernetes", "default", "job", "uid-1")


class Store:
    """Airflow's storage of one task; keeps each change."""

    def __init__(self):
        self.values, self.changes = {}, []

    def get(self, key):
        return self.values.get(key)

    def set(self, key, value):
        self.changes.append("set")
        self.values[key] = value

    def delete(self, key):
        self.changes.append("delete")
        del self.values[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def start_try(store):
    """Return the saved ref as the next try sees it."""
    return lambda max_tries=3: SavedRef(store, StandInTaskInstance(max_tries=max_tries))


def test_a_job_that_all_hosts_see_is_not_saved(store, start_try):
    saved = start_try()
    saved.announce(ON_CLUSTER)
    saved.save(ON_CLUSTER)
    saved.withdraw()

    assert (saved.ref, store.changes) == (None, [])


def test_a_job_is_saved_once(store, start_try):
    start_try().save(REF)
    again = start_try()
    again.save(REF)

    assert (again.ref, again.ref.host, store.changes) == (REF, "host-1", ["set"])


def test_only_a_job_that_was_announced_and_not_created_is_withdrawn(start_try):
    start_try().announce(REF)
    killed = start_try().ref
    start_try().withdraw()
    kept = start_try().ref
    refused = start_try()
    refused.announce(REF)
    refused.withdraw()

    assert (killed, kept, start_try().ref) == (REF, REF, None)


def test_a_job_that_exists_is_not_withdrawn(start_try):
    saved = start_try()
    saved.announce(REF)
    saved.save(REF)
    saved.withdraw()

    assert start_try().ref == REF


def test_the_end_of_another_job_does_not_forget_the_saved_one(start_try):
    start_try().save(NEXT)
    start_try().forget(REF)
    kept = start_try().ref
    start_try().forget(NEXT)

    assert (kept, start_try().ref) == (NEXT, None)


def test_the_wait_in_the_worker_is_remembered_for_its_own_job_only(start_try):
    start_try().save(REF)
    before = start_try().waits_in_worker(REF)
    start_try().wait_in_worker(REF)
    saved = start_try()

    assert (before, saved.waits_in_worker(REF), saved.waits_in_worker(NEXT)) == (False, True, False)
    saved.save(REF)
    assert start_try().waits_in_worker(REF)
    saved.save(NEXT)
    assert not start_try().waits_in_worker(NEXT)


def test_a_cleared_task_has_no_saved_job(start_try):
    start_try(max_tries=3).wait_in_worker(REF)
    cleared = start_try(max_tries=4)

    assert (cleared.ref, cleared.waits_in_worker(REF)) == (None, False)


def test_without_a_storage_a_try_knows_its_own_job_only():
    saved = SavedRef(None, StandInTaskInstance())
    saved.announce(REF)
    own = saved.ref
    saved.withdraw()

    assert (own, saved.ref, SavedRef(None, StandInTaskInstance()).ref) == (REF, None, None)


def test_a_clear_that_continues_holds_although_the_worker_is_killed_before_it_submits(store):
    def start(max_tries):
        return TaskGeneration(store, StandInTaskInstance(max_tries=max_tries))

    start(1).save(REF, waits=True)
    start(3).continue_cleared()

    again = start(3)
    assert (again.value, again.cleared_job) == ("1", None)
    assert start(5).cleared_job == REF
