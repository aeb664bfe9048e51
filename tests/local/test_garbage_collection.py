"""Retention of finished jobs by number and age. Live jobs are never removed, and thousands of jobs can be listed."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime, timezone

import pytest
from local_jobs import PATIENCE, kill, supervisor_of, wait_for_supervisor_exit, waits_at

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, Owner, Suspend, TrainerClient
from trainer_core.backends.local import gc
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.testing.case import wait_for_status

HOUR = 3600
DAY = 24 * HOUR
MANY = 2000


@pytest.fixture
def create_old_jobs(client, ask, home):
    """Creates finished jobs ``old-0``, ``old-1``, …, one for each age in seconds."""
    client.wait(client.submit(ask(name="template")))
    assert wait_for_supervisor_exit(home, "template")
    template = home.parent / "template"
    (home / "jobs" / "template").rename(template)
    status = json.loads((template / "status.json").read_text())

    def create(ages):
        now = time.time()
        for number, age in enumerate(ages):
            folder = home / "jobs" / f"old-{number}"
            folder.mkdir()
            for name in ("request.json", "plan.json", "lock"):
                shutil.copyfile(template / name, folder / name)
            created = datetime.fromtimestamp(now - age, timezone.utc).isoformat()
            (folder / "status.json").write_text(json.dumps({**status, "name": folder.name, "created": created}))
            os.utime(folder / "status.json", (now - age,) * 2)

    return create


def names(client):
    return [job.name for job in client.list_jobs()]


def test_thousands_of_jobs_are_listed_newest_first_and_those_of_an_owner_are_found(client, create_old_jobs, ask):
    ages = [(number * 7919) % MANY + 10 for number in range(MANY)]
    create_old_jobs(ages)
    assert names(client) == [f"old-{number}" for number in sorted(range(MANY), key=lambda number: ages[number])]

    request = ask().with_fields(name=None, owner=Owner(key="dag/run/task", slug="old"))
    ref = client.submit(request)
    client.wait(ref)
    assert [found.name for found in client.find_jobs(request)] == [ref.name]
    assert client.submit(request) == ref


def test_the_oldest_jobs_beyond_keep_finished_are_removed_when_a_job_ends(home, create_old_jobs, ask, client):
    create_old_jobs([10, 30, 20, 40])
    limited = TrainerClient(LocalProcessBackendConfig(home=home, keep_finished=3))
    limited.wait(limited.submit(ask()))
    assert wait_for_supervisor_exit(home, "job")
    assert names(client) == ["job", "old-0", "old-2"]


def return_loss(loss):
    return {"loss": loss}


def test_the_jobs_of_a_search_are_kept_until_it_has_ended_and_only_its_best_trial_if_they_are_too_old(home, client):
    template = {"trainer": CustomTrainer(func=return_loss), "runtime": "python"}
    name = client.optimize(
        template,
        search_space={"loss": [3, 1, 2]},
        trial_config={"num_trials": 3, "parallel_trials": 1},
        algorithm="GridSearch",
        options=[Name("tune")],
    )
    with client.searches.find(name) as driver:
        while len(client.list_jobs()) < 3:
            driver.wait(driver.step())
        while not driver.step(create=False).must_create:  # The last trial runs to its end, and no record follows.
            driver.wait(driver.step(create=False))
        trials = [trial.name for trial in client.searches.get_job(name).trials]
    assert [wait_for_supervisor_exit(home, trial) for trial in trials] == [True] * 3
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=30) == []
    age(home, *trials)
    assert set(gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=30)) == {trials[0], trials[2]}


def age(home, *jobs):
    """Let jobs have ended long ago."""
    for name in jobs:
        os.utime(home / "jobs" / name / "status.json", (0, 0))


@pytest.mark.parametrize(("direction", "best"), [("minimize", 1), ("maximize", 0)])
def test_the_best_trial_is_kept_as_long_as_the_record_of_its_search(home, client, direction, best):
    name = client.optimize(
        {"trainer": CustomTrainer(func=return_loss), "runtime": "python"},
        search_space={"loss": [3, 1]},
        objectives=[{"metric": "loss", "direction": direction}],
        trial_config={"num_trials": 2, "parallel_trials": 2},
        algorithm="GridSearch",
        options=[Name("tune")],
    )
    outcome = client.wait_for_search(name)
    jobs, state = [trial.name for trial in outcome.trials], StateFolder(home)
    records = {job.name for job in client.backend.list_jobs()} - {*jobs}
    assert [wait_for_supervisor_exit(home, job) for job in [*jobs, *records]] == [True] * 3
    age(home, *jobs)
    assert outcome.best is not None
    assert outcome.best.job == jobs[best]
    assert gc.remove_old_jobs(state, keep=1, keep_days=30) == [jobs[1 - best]]
    age(home, *records)
    assert set(gc.remove_old_jobs(state, keep=1, keep_days=30)) == {*records, jobs[best]}


def test_a_job_does_not_remove_itself_when_keep_finished_is_zero(home, create_old_jobs, ask, client):
    create_old_jobs([10])
    limited = TrainerClient(LocalProcessBackendConfig(home=home, keep_finished=0))
    ref = limited.submit(ask())
    limited.wait(ref)
    assert wait_for_supervisor_exit(home, "job")
    assert limited.get_job_outcome(ref).succeeded
    assert names(client) == ["job"]


def test_finished_jobs_older_than_keep_finished_days_are_removed(home, create_old_jobs, client):
    create_old_jobs([HOUR, 2 * DAY, 3 * DAY, 40 * DAY])
    assert sorted(gc.remove_old_jobs(StateFolder(home), keep=1000, keep_days=2.5)) == ["old-2", "old-3"]
    assert names(client) == ["old-0", "old-1"]


def test_jobs_that_have_not_ended_are_never_removed(client, ask, running, home, gate):
    running(waits_at, {"gate": gate}, name="runs")
    client.submit(ask(name="waits", options=[Suspend()]))
    wait_for_status(client, "waits", "Suspended")
    for name in ("runs", "waits"):
        os.utime(home / "jobs" / name / "status.json", (0, 0))
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=0) == []
    assert sorted(names(client)) == ["runs", "waits"]


def test_a_job_whose_supervisor_was_killed_is_removed_like_a_finished_job(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    client.wait(ref, timeout=PATIENCE)
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=30) == []
    os.utime(home / "jobs/job/status.json", (time.time() - 2 * HOUR,) * 2)
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=30) == ["job"]


def test_abandoned_staging_and_trash_folders_are_removed_after_an_hour(client, ask, home):
    client.wait(client.submit(ask()))
    assert wait_for_supervisor_exit(home, "job")  # It removes such folders too.
    for folder in ("staging", "trash"):
        for name, age in (("young", HOUR / 2), ("old", 2 * HOUR)):
            (home / folder / name / "code").mkdir(parents=True)
            os.utime(home / folder / name, (time.time() - age,) * 2)
    gc.remove_old_jobs(StateFolder(home), keep=1000, keep_days=30)
    assert [path.name for folder in ("staging", "trash") for path in (home / folder).iterdir()] == ["young", "young"]


def test_a_folder_that_another_process_removes_meanwhile_is_no_error(client, ask, home):
    client.wait(client.submit(ask()))
    assert wait_for_supervisor_exit(home, "job")
    # A dangling link behaves like a folder that is removed between listing and reading it.
    (home / "trash" / "gone").symlink_to(home / "nowhere")
    old = home / "staging" / "old"
    old.mkdir()
    os.utime(old, (time.time() - 2 * HOUR,) * 2)
    os.utime(home / "jobs/job/status.json", (time.time() - 40 * DAY,) * 2)
    assert gc.remove_old_jobs(StateFolder(home), keep=1000, keep_days=30) == ["job"]
    assert not old.exists()


def test_the_files_of_a_large_project_that_no_job_uses_are_removed_after_a_day(client, ask, home, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text("def main(): pass\n")
    (tmp_path / "project/noise.bin").write_bytes(os.urandom(310_000))
    client.submit(ask("train:main", code=tmp_path / "project", name="used"))
    assert wait_for_supervisor_exit(home, "used")
    (used,) = (home / "code").iterdir()
    unused, new = home / "code/unused", home / "code/new"
    for path in (unused, new):
        path.touch()
    for path in (used, unused):
        os.utime(path, (0, 0))
    gc.remove_unused_code(StateFolder(home))
    assert sorted((home / "code").iterdir()) == sorted([used, new])
    client.delete_job("used")
    gc.remove_unused_code(StateFolder(home))
    assert list((home / "code").iterdir()) == [new]


def test_a_kit_that_no_job_uses_is_removed_after_a_day(client, ask, home):
    client.submit(ask(name="used"))
    assert wait_for_supervisor_exit(home, "used")
    (used,) = (home / "kits").iterdir()
    unused, new = home / "kits/unused", home / "kits/new"
    for path in (unused, new):
        path.mkdir()
    # Created by an earlier version, it has its own programs.
    (home / "jobs/earlier/code").mkdir(parents=True)
    for path in (used, unused):
        os.utime(path, (0, 0))
    gc.remove_unused_code(StateFolder(home))
    assert set((home / "kits").iterdir()) == {used, new}
    client.submit(ask(name="later"))
    assert used.stat().st_mtime > time.time() - HOUR
    assert wait_for_supervisor_exit(home, "later")
    for name in ("used", "later"):
        client.delete_job(name)
    os.utime(used, (0, 0))
    gc.remove_unused_code(StateFolder(home))
    assert list((home / "kits").iterdir()) == [new]
