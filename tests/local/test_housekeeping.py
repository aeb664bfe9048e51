"""Old jobs: thousands can be listed, and those beyond the number or the age to keep go; live ones never."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime, timezone

import pytest
from local_jobs import PATIENCE, kill, left, supervisor_of, waits_at

from trainer_core import LocalProcessBackendConfig, Owner, Suspend, TrainerClient
from trainer_core.backends.local import collect
from trainer_core.backends.local.files import Home
from trainer_core.testing.case import reached

HOUR = 3600
DAY = 24 * HOUR
MANY = 2000


@pytest.fixture
def past(client, ask, home):
    """Makes finished jobs ``old-0``, ``old-1``, …, one for each age in seconds."""
    client.wait(client.submit(ask(name="pattern")))
    assert left(home, "pattern")
    pattern = home.parent / "pattern"
    (home / "jobs" / "pattern").rename(pattern)
    status = json.loads((pattern / "status.json").read_text())

    def make(ages):
        now = time.time()
        for number, age in enumerate(ages):
            folder = home / "jobs" / f"old-{number}"
            folder.mkdir()
            for name in ("request.json", "plan.json", "lock"):
                shutil.copyfile(pattern / name, folder / name)
            created = datetime.fromtimestamp(now - age, timezone.utc).isoformat()
            (folder / "status.json").write_text(json.dumps({**status, "name": folder.name, "created": created}))
            os.utime(folder / "status.json", (now - age,) * 2)

    return make


def names(client):
    return [job.name for job in client.list_jobs()]


def test_thousands_of_old_jobs_are_listed_newest_first(client, past):
    ages = [(number * 7919) % MANY + 10 for number in range(MANY)]
    past(ages)
    assert names(client) == [f"old-{number}" for number in sorted(range(MANY), key=lambda number: ages[number])]


def test_among_thousands_an_owner_finds_its_own(client, past, ask):
    past(range(10, MANY))
    request = ask().model_copy(update={"name": None, "owner": Owner(key="dag/run/task", slug="old")})
    ref = client.submit(request)
    client.wait(ref)
    assert [found.name for found in client.find(request)] == [ref.name]
    assert client.submit(request) == ref


def test_a_job_that_ends_takes_those_along_that_are_too_many(home, past, ask, client):
    past([10, 30, 20, 40])
    sparing = TrainerClient(LocalProcessBackendConfig(home=home, keep_finished=3))
    sparing.wait(sparing.submit(ask()))
    assert left(home, "job")
    assert names(client) == ["job", "old-0", "old-2"]


def test_the_outcome_of_the_job_itself_is_kept_even_where_none_are(home, past, ask, client):
    past([10])
    sparing = TrainerClient(LocalProcessBackendConfig(home=home, keep_finished=0))
    ref = sparing.submit(ask())
    sparing.wait(ref)
    assert left(home, "job")
    assert sparing.outcome(ref).succeeded
    assert names(client) == ["job"]


def test_finished_jobs_beyond_the_age_to_keep_go(home, past, client):
    past([HOUR, 2 * DAY, 3 * DAY, 40 * DAY])
    assert sorted(collect.sweep(Home(home), keep=1000, keep_days=2.5)) == ["old-2", "old-3"]
    assert names(client) == ["old-0", "old-1"]


def test_jobs_that_have_not_ended_are_never_swept(client, ask, running, home, gate):
    running(waits_at, {"gate": gate}, name="runs")
    client.submit(ask(name="waits", options=[Suspend()]))
    reached(client, "waits", "Suspended")
    for name in ("runs", "waits"):
        os.utime(home / "jobs" / name / "status.json", (0, 0))
    assert collect.sweep(Home(home), keep=0, keep_days=0) == []
    assert sorted(names(client)) == ["runs", "waits"]


def test_a_job_whose_supervisor_was_killed_is_swept_like_a_finished_one(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    client.wait(ref, timeout=PATIENCE)
    assert collect.sweep(Home(home), keep=0, keep_days=30) == []
    os.utime(home / "jobs/job/status.json", (time.time() - 2 * HOUR,) * 2)
    assert collect.sweep(Home(home), keep=0, keep_days=30) == ["job"]


def test_what_was_left_half_made_is_removed_after_an_hour(client, ask, home):
    client.wait(client.submit(ask()))
    for place in ("staging", "trash"):
        for name, age in (("young", HOUR / 2), ("old", 2 * HOUR)):
            (home / place / name / "code").mkdir(parents=True)
            os.utime(home / place / name, (time.time() - age,) * 2)
    collect.sweep(Home(home), keep=1000, keep_days=30)
    assert [path.name for place in ("staging", "trash") for path in (home / place).iterdir()] == ["young", "young"]


def test_what_another_sweeper_has_just_removed_stops_no_sweep(client, ask, home):
    client.wait(client.submit(ask()))
    assert left(home, "job")
    # A link to nowhere is what a folder looks like that went between the list and the look.
    (home / "trash" / "gone").symlink_to(home / "nowhere")
    old = home / "staging" / "old"
    old.mkdir()
    os.utime(old, (time.time() - 2 * HOUR,) * 2)
    os.utime(home / "jobs/job/status.json", (time.time() - 40 * DAY,) * 2)
    assert collect.sweep(Home(home), keep=1000, keep_days=30) == ["job"]
    assert not old.exists()
