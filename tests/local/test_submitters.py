"""A submitter that dies or races at any instant leads to one job, never two, and never to half of one."""

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
from local_submitter import request_of, submit

ROUNDS, RACES = 100, 50
#: What every job folder holds from the first moment on which anybody can see it.
WHOLE = {"request.json", "plan.json", "payload.json", "status.json", "lock", "code", "logs", "steps", "workspace"}


def runs(book: Path) -> dict[str, int]:
    return {page.name: len(page.read_text().splitlines()) for page in book.iterdir()}


def half_made(home: Path) -> list[Path]:
    folders = (home / "jobs").iterdir() if (home / "jobs").exists() else ()
    return [folder for folder in folders if not {entry.name for entry in folder.iterdir()} >= WHOLE]


def end_supervisor(home: Path, name: str) -> None:
    with suppress(psutil.NoSuchProcess):
        supervisor_of(home, name).kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "rounds"), [(signal.SIGKILL, ROUNDS), (signal.SIGTERM, ROUNDS // 4)], ids=["killed", "interrupted"]
)
def test_a_submitter_ended_at_any_instant_leads_to_one_job_after_its_retry(processes, client, home, book, how, rounds):
    names = [f"job{number}" for number in range(rounds)]
    instants = random.Random(how)  # noqa: S311 -- the same instants in each run, but for how busy the machine is

    def started(name: str):
        submitter = processes.Process(target=submit, args=(home, book, name))
        submitter.start()
        return submitter

    # The first one also waits for what starts them; the second takes as long as the others would.
    started(names[0]).join(PATIENCE)
    begin = time.monotonic()
    started(names[1]).join(PATIENCE)
    whole = time.monotonic() - begin

    def end_at_some_instant(name: str) -> list[Path]:
        submitter = started(name)
        time.sleep(instants.uniform(0.0, whole))
        with suppress(ProcessLookupError):
            os.kill(submitter.pid, how)
        submitter.join(PATIENCE)
        return half_made(home)

    with ThreadPoolExecutor(3) as threads:
        assert [found for found in threads.map(end_at_some_instant, names[2:]) if found] == []
    left = [job.name for job in client.list_jobs()]
    for name in names:
        client.submit(request_of(client, book, name))
        if name not in left:
            # Made by the retry, as any other job: running it to its end would show no more.
            end_supervisor(home, name)
    ended = [client.wait(client.ref(name), timeout=PATIENCE).status for name in left]
    assert ended == ["Complete"] * len(left)
    assert sorted(job.name for job in client.list_jobs()) == sorted(names)
    assert {name: count for name, count in runs(book).items() if name in left} == dict.fromkeys(left, 1)
    assert set(runs(book).values()) == {1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_submitters_racing_on_one_name_get_one_job(processes, client, home, book):
    names = [f"job{number}" for number in range(RACES)]

    def race(name: str) -> set[str]:
        ends = [processes.Pipe(duplex=False) for _ in range(2)]
        racers = [processes.Process(target=submit, args=(home, book, name, answers)) for _, answers in ends]
        for racer, (_, answers) in zip(racers, ends, strict=True):
            racer.start()
            # The racer's alone: one that dies without an answer is not waited for.
            answers.close()
        refs = {answer.recv() for answer, _ in ends}
        # Who got the job is known; running it to its end would show no more.
        end_supervisor(home, name)
        for racer in racers:
            racer.join(PATIENCE)
        return refs

    with ThreadPoolExecutor(2) as threads:
        refs = list(threads.map(race, names))
    assert [len(of_one_name) for of_one_name in refs] == [1] * RACES
    assert sorted(job.name for job in client.list_jobs()) == sorted(names)
    assert list((home / "staging").iterdir()) == []
