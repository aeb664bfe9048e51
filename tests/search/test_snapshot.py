"""A search that is only read: one list, the same trials as its driver has, and nothing is changed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from test_driver import backend, connect, finish, open_search

from trainer_core import Asha, Checkpoints, Name, TrialConfig
from trainer_core.base.errors import JobNotFoundError
from trainer_core.model.jobs import Category, Progress
from trainer_core.model.request import Context, Owner, TrainJobRequest
from trainer_core.search import tables
from trainer_core.search.snapshot import build_snapshot, find_limits, find_newest_generation, list_jobs, read_search


@pytest.fixture
def driver():
    """A search with a complete trial, one that failed, and two that run."""
    client = connect()
    with open_search(client) as driver:
        driver.step()
        finish(client, min(backend(client).jobs))
        driver.step()
        backend(client).fail(backend(client).list_running()[0].ref.name, Category.USER_CODE)
        driver.step()
        yield driver


def test_it_has_the_trials_of_the_driver(driver):
    snapshot = read_search(driver.client, "search/tune")
    table = driver.step(create=False).table
    assert snapshot.trials == tables.build_trials(driver.definition, table)
    assert [trial.status for trial in snapshot.trials] == ["Complete", "Failed", "Running", "Running"]
    assert (snapshot.status, snapshot.table.total) == ("Running", 6)
    assert snapshot.summary.startswith("2 of 6, 2 running, 1 failed, best loss ")


def test_it_is_one_list_and_changes_nothing(driver):
    before = {name: (job.request, job.outcome) for name, job in backend(driver.client).jobs.items()}
    calls = []
    backend(driver.client).on_call = calls.append
    read_search(driver.client, "search/tune")
    assert calls == ["list"]
    assert {name: (job.request, job.outcome) for name, job in backend(driver.client).jobs.items()} == before


def test_an_ended_search_has_its_reason(driver):
    driver.cancel()
    snapshot = read_search(driver.client, "search/tune")
    assert (snapshot.table.reason, snapshot.status) == ("cancelled", "Failed")


def test_the_trainjobs_of_other_searches_and_their_order_change_nothing(driver):
    with open_search(driver.client, options=[Name("other")]) as other:
        other.step()
    jobs = [*list_jobs(driver.client, "search/other"), *list_jobs(driver.client, "search/tune")]
    expected = read_search(driver.client, "search/tune")
    assert build_snapshot("search/tune", jobs[::-1], None, time.time()).trials == expected.trials


def test_the_limits_are_those_that_were_set_last_and_of_several_entries_the_newest():
    entries = [SimpleNamespace(entry=number, limits_since=since) for number, since in ((0, 5), (1, 7), (2, 7), (3, 0))]
    assert find_limits(entries).entry == 2
    assert find_limits([]) is None


@pytest.mark.parametrize("generations", [("1", "10", "9"), ("9", "10", "1"), ("10", "9", "1")])
def test_the_newest_generation_is_that_of_the_highest_number(generations):
    requests = [TrainJobRequest(context=Context(owner=Owner(key="a", generation=each))) for each in generations]
    assert find_newest_generation([(None, request, None) for request in requests]) == "10"


def test_an_older_generation_can_be_read():
    client, owner = connect(), Owner(key="dag/run/tune", slug="tune", generation="1")
    with open_search(client, owner) as driver:
        driver.step()
    with open_search(client, owner.model_copy(update={"generation": "2"})) as driver:
        driver.step()
    older, newest = (read_search(client, owner.key, generation) for generation in ("1", None))
    assert (older.table.reason, newest.table.reason) == ("superseded", None)


def test_a_search_is_complete_when_its_last_trial_has_ended_although_no_driver_has_recorded_it():
    client = connect()
    with open_search(client, trial_config=TrialConfig(1, 1)) as driver:
        driver.step()
    finish(client, *backend(client).jobs)
    assert read_search(client, "search/tune").status == "Complete"


def test_the_time_of_a_search_begins_with_its_first_entry_also_when_that_was_deleted():
    client = connect()
    with open_search(client, trial_config=TrialConfig(6, 2, timeout=60)) as driver:
        driver.step()
    _, (ref, request, observation) = list_jobs(client, "search/tune")
    later = request.context.search.model_copy(update={"created": driver.started + 30})
    jobs = [(ref, request.with_fields(search=later), observation)]
    reasons = [build_snapshot("search/tune", jobs, None, driver.started + after).table.reason for after in (59, 61)]
    assert reasons == [None, "timeout"]


def test_a_search_without_trainjobs_does_not_exist(driver):
    with pytest.raises(JobNotFoundError, match="'search/other' has no TrainJob"):
        read_search(driver.client, "search/other")


def test_a_trial_that_paused_without_a_value_has_failed():
    client = connect()
    policy = Asha(min_step=1, max_step=4, factor=2, promote=True)
    with open_search(client, stop=policy, options=[Name("tune"), Checkpoints()]) as driver:
        driver.step()
        job = backend(client).list_running()[0]
        job.progress = Progress(1, None, {"other": 1.0})
        backend(client).pause(job.ref.name)
        trials = read_search(client, "search/tune").trials
        assert trials[0].reason == "paused at step 1 and reported no loss there"
        assert [trial.status for trial in trials] == ["Failed", "Running"]
