"""A search on this machine: drivers that are killed, and several at a time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from search_driver_process import SPACE, start_search, train

from trainer_core import LocalProcessBackendConfig, RandomSearch, TrainerClient
from trainer_core.jobs import RUNNING
from trainer_core.naming import hash_owner_key
from trainer_core.search import sampling
from trainer_core.search.results import SearchOutcome

PARALLEL = 4


def start_driver(home: Path, trials: int) -> subprocess.Popen[str]:
    """Start a driver in a separate process."""
    script = Path(__file__).with_name("search_driver_process.py")
    return subprocess.Popen([sys.executable, str(script), str(home), str(trials)], text=True)


def check_undisturbed(outcome: SearchOutcome, trials: int) -> None:
    """Check that a search has the trials, values and best trial of one that nothing has disturbed."""
    seed = hash_owner_key("search/tune")
    parameters = [sampling.suggest(SPACE, RandomSearch(), seed, trial, (), {}) for trial in range(trials)]
    values = [train(**each)["loss"] for each in parameters]
    assert [trial.values for trial in outcome.trials] == parameters
    assert [trial.value for trial in outcome.trials] == values
    assert outcome.best is not None
    assert outcome.best.trial == values.index(min(values))


class Sampler(threading.Thread):
    """Counts the TrainJobs that run at the same time."""

    def __init__(self, client: TrainerClient) -> None:
        super().__init__(daemon=True)
        self.client, self.most, self.done = client, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            running = [job for job in self.client.list_jobs() if job.status == RUNNING]
            self.most = max(self.most, len(running))


def disturb(home: Path, trials: int, kills: int, drivers: int) -> SearchOutcome:
    """Kill drivers at random instants, and end the search by one that is not killed."""
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    sampler = Sampler(client)
    sampler.start()
    running = [start_driver(home, trials) for _ in range(drivers)]
    dice = random.Random(os.environ.get("TRAINJOB_CHAOS_SEED", "1"))  # noqa: S311 -- no secret
    for _ in range(kills):
        time.sleep(dice.uniform(0.2, 2.0))
        victim = running.pop(dice.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        running.append(start_driver(home, trials))
    outcome = client.wait_for_search(start_search(client, trials))
    for driver in running:
        assert driver.wait(120) == 0
    sampler.done.set()
    sampler.join()
    assert sampler.most <= PARALLEL
    entries = [job.search.entry for each in client.list_jobs() if (job := client.get_job_request(each.name)).search]
    assert sorted(entries) == list(range(trials))  # The list leaves out the record that closes the search.
    return outcome


def test_the_successor_of_a_killed_driver_has_the_trials_of_an_undisturbed_search(tmp_path: Path) -> None:
    check_undisturbed(disturb(tmp_path, 8, kills=2, drivers=1), 8)


@pytest.mark.slow
def test_fifty_kills_of_two_drivers_change_nothing(tmp_path: Path) -> None:
    check_undisturbed(disturb(tmp_path, 24, kills=50, drivers=2), 24)
