"""The ref of a task's TrainJob in the storage that all tries of the task share."""

from __future__ import annotations

import pytest

from airflow_provider.task_memory import TaskMemory
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
    """Return the memory as the next try sees it."""
    store.values["trainjob_place"] = {**REF.to_dict()}
    return lambda max_tries=3: TaskMemory(StandInTaskInstance(max_tries=max_tries), store)


def test_a_job_that_all_hosts_see_is_not_saved(store, start_try):
    saved = start_try()
    saved.announce({}, ON_CLUSTER)
    saved.record_submit(ON_CLUSTER.to_dict())
    saved.withdraw()

    assert (saved.earlier_ref, store.changes) == (None, [])


def test_a_job_is_saved_once(store, start_try):
    start_try().record_submit(REF.to_dict())
    again = start_try()
    again.record_submit(REF.to_dict())

    assert (again.earlier_ref, again.earlier_ref.host, store.changes) == (REF, "host-1", ["set"])


def test_only_a_job_that_was_announced_and_not_created_is_withdrawn(start_try):
    start_try().announce({}, REF)
    killed = start_try().earlier_ref
    start_try().withdraw()
    kept = start_try().earlier_ref
    refused = start_try()
    refused.announce({}, REF)
    refused.withdraw()

    assert (killed, kept, start_try().earlier_ref) == (REF, REF, None)


def test_a_job_that_exists_is_not_withdrawn(start_try):
    saved = start_try()
    saved.announce({}, REF)
    saved.record_submit(REF.to_dict())
    saved.withdraw()

    assert start_try().earlier_ref == REF


def test_the_end_of_another_job_does_not_forget_the_saved_one(start_try):
    start_try().record_submit(NEXT.to_dict())
    start_try().forget(REF)
    kept = start_try().earlier_ref
    start_try().forget(NEXT)

    assert (kept, start_try().earlier_ref) == (NEXT, None)


def test_the_wait_in_the_worker_is_remembered_for_its_own_job_only(start_try):
    start_try().record_submit(REF.to_dict())
    before = start_try().waits_in_worker(REF)
    start_try().wait_in_worker(REF)
    saved = start_try()

    assert (before, saved.waits_in_worker(REF), saved.waits_in_worker(NEXT)) == (False, True, False)
    saved.record_submit(REF.to_dict())
    assert start_try().waits_in_worker(REF)
    saved.record_submit(NEXT.to_dict())
    assert not start_try().waits_in_worker(NEXT)


def test_a_cleared_task_has_no_saved_job(start_try):
    start_try(max_tries=3).wait_in_worker(REF)
    cleared = start_try(max_tries=4)

    assert (cleared.earlier_ref, cleared.waits_in_worker(REF)) == (None, False)


def test_without_a_storage_a_try_knows_its_own_job_only():
    saved = TaskMemory(StandInTaskInstance())
    saved.announce({}, REF)
    own = saved.earlier_ref
    saved.withdraw()

    assert (own, saved.earlier_ref, TaskMemory(StandInTaskInstance()).earlier_ref) == (REF, None, None)


def test_a_clear_that_continues_holds_although_the_worker_is_killed_before_it_submits(store):
    def start(max_tries):
        return TaskMemory(StandInTaskInstance(max_tries=max_tries), store)

    start(1).record_wait(REF, waits=True)
    start(3).continue_cleared()

    again = start(3)
    assert (again.generation, again.cleared_job) == ("1", None)
    assert start(5).cleared_job == REF


def test_what_an_earlier_version_has_stored_is_read(store):
    ref = REF.to_dict()
    store.values = {
        "trainjob_place": {"backend": "local"},
        "trainjob_ref": {"generation": "3", "ref": ref, "waits_in_worker": True},
        "trainjob_generation": {"task_generation": "2", "generation": "1", "ref": ref, "waits": True},
        "trainjob_log": {"uid": "uid-1", "place": {"node-0": 3}, "percent": 50, "complete": False},
        "trainjob_trouble": {"uid": "uid-1", "of": {"errors": 2}},
    }
    memory = TaskMemory(StandInTaskInstance(max_tries=3), store)
    assert (memory.place, memory.earlier_ref, memory.waits_in_worker(REF)) == ({"backend": "local"}, REF, True)
    assert (memory.generation, memory.abandoned_job, memory.read_wait(REF)) == ("3", REF, {"errors": 2})
    assert memory.read_log_position(REF).cursor == {"node-0": 3}
