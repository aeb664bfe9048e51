"""Submitters that are killed or race: the result is one complete job, never two and never an incomplete one."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from local_jobs import PATIENCE, supervisor_of
from local_submitter import build_request, submit

# Hundreds of processes.
pytestmark = pytest.mark.slow

#: `make attack` plays more.
ROUNDS, RACES = 20, 10
#: Content of every job folder from the moment it is visible.
COMPLETE = {"request.json", "plan.json", "payload.json", "status.json", "lock", "code", "logs", "steps", "workspace"}


def count_runs(run_log: Path) -> dict[str, int]:
    return {path.name: len(path.read_text().splitlines()) for path in run_log.iterdir()}


def find_incomplete_jobs(home: Path) -> list[Path]:
    folders = (home / "jobs").iterdir() if (home / "jobs").exists() else ()
    return [folder for folder in folders if not {entry.name for entry in folder.iterdir()} >= COMPLETE]


def end_supervisor(home: Path, name: str) -> None:
    with suppress(psutil.NoSuchProcess):
        supervisor_of(home, name).kill()


@pytest.mark.parametrize(
    ("how", "rounds"), [(signal.SIGKILL, ROUNDS), (signal.SIGTERM, ROUNDS // 4)], ids=["killed", "interrupted"]
)
def test_retrying_a_submitter_killed_at_any_instant_gives_one_job(processes, client, home, run_log, how, rounds):
    names = [f"job{number}" for number in range(rounds)]
    instants = random.Random(how)  # noqa: S311 -- a fixed seed for reproducible instants

    def start(name: str):
        submitter = processes.Process(target=submit, args=(home, run_log, name))
        submitter.start()
        return submitter

    # The first submitter also waits for the fork server. The second one is as fast as the others.
    start(names[0]).join(PATIENCE)
    begin = time.monotonic()
    start(names[1]).join(PATIENCE)
    duration = time.monotonic() - begin

    def kill_at_random_instant(name: str) -> list[Path]:
        submitter = start(name)
        time.sleep(instants.uniform(0.0, duration))
        with suppress(ProcessLookupError):
            os.kill(submitter.pid, how)
        submitter.join(PATIENCE)
        return find_incomplete_jobs(home)

    with ThreadPoolExecutor(3) as threads:
        assert [found for found in threads.map(kill_at_random_instant, names[2:]) if found] == []
    created = [job.name for job in client.list_jobs()]
    for name in names:
        client.submit(build_request(client, run_log, name))
        if name not in created:
            # The retry created it like any other job; running it to its end would test nothing more.
            end_supervisor(home, name)
    ended = [client.wait(client.get_job_ref(name), timeout=PATIENCE).status for name in created]
    assert ended == ["Complete"] * len(created)
    assert sorted(job.name for job in client.list_jobs()) == sorted(names)
    assert {name: count for name, count in count_runs(run_log).items() if name in created} == dict.fromkeys(created, 1)
    assert set(count_runs(run_log).values()) == {1}


def test_submitters_racing_on_one_name_get_one_job(processes, client, home, run_log):
    names = [f"job{number}" for number in range(RACES)]

    def race(name: str) -> set[str]:
        ends = [processes.Pipe(duplex=False) for _ in range(2)]
        racers = [processes.Process(target=submit, args=(home, run_log, name, answers)) for _, answers in ends]
        for racer, (_, answers) in zip(racers, ends, strict=True):
            racer.start()
            # Closed in this process, so that a racer that dies without an answer raises EOFError here.
            answers.close()
        refs = {answer.recv() for answer, _ in ends}
        # The winner is known; running the job to its end would test nothing more.
        end_supervisor(home, name)
        for racer in racers:
            racer.join(PATIENCE)
        return refs

    with ThreadPoolExecutor(2) as threads:
        refs = list(threads.map(race, names))
    assert [len(of_one_name) for of_one_name in refs] == [1] * RACES
    assert sorted(job.name for job in client.list_jobs()) == sorted(names)
    assert list((home / "staging").iterdir()) == []
