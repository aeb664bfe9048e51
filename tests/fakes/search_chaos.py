"""A search on this machine whose drivers are killed: ``search_chaos.py HOME TRIALS`` is one of its drivers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from trainer_core import (
    CustomTrainer,
    LocalProcessBackendConfig,
    Name,
    RandomSearch,
    Search,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)
from trainer_core.jobs import RUNNING
from trainer_core.naming import hash_owner_key
from trainer_core.search import sampling
from trainer_core.search.results import SearchOutcome

SPACE = {"x": Search.uniform(-1, 1), "y": Search.randint(1, 9)}
PARALLEL = 4


def train(x: float, y: int) -> dict[str, float]:
    return {"loss": x * x + y}


def kill_drivers(home: Path, trials: int, kills: int, drivers: int, dice: random.Random) -> list[str]:
    """Kill drivers at random instants, end the search by one that is not killed, and return what did not hold."""
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    sampler = _Sampler(client)
    sampler.start()
    running = [_start_driver(home, trials) for _ in range(drivers)]
    for _ in range(kills):
        time.sleep(dice.uniform(0.2, 2.0))
        victim = running.pop(dice.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        running.append(_start_driver(home, trials))
    outcome = client.wait_for_search(_start_search(client, trials))
    codes = [driver.wait(120) for driver in running]
    sampler.done.set()
    sampler.join()
    return [*_compare(client, outcome, trials), *sampler.violations, *(f"driver exited with {c}" for c in codes if c)]


def _compare(client: TrainerClient, outcome: SearchOutcome, trials: int) -> list[str]:
    """Return in what a search differs from one that nothing has disturbed."""
    seed = hash_owner_key("search/tune")
    parameters = [sampling.suggest(SPACE, RandomSearch(), seed, trial, (), {}) for trial in range(trials)]
    values = [train(**each)["loss"] for each in parameters]
    jobs = client.backend.list_search_jobs("search/tune", ())
    entries = sorted(job[1].search.entry for job in jobs.values() if job and job[1].search)
    best = outcome.best.trial if outcome.best else None
    checks = {
        "parameters": [trial.values for trial in outcome.trials] == parameters,
        "values": [trial.value for trial in outcome.trials] == values,
        "best trial": best == values.index(min(values)),
        "entries": entries == list(range(trials + 1)),  # The last one is the record that closes the search.
    }
    return [
        f"the {what} differ from those of an undisturbed search" for what, is_equal in checks.items() if not is_equal
    ]


def _start_driver(home: Path, trials: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(home), str(trials)])


def _start_search(client: TrainerClient, trials: int) -> str:
    template = TrainJobTemplate(CustomTrainer(train), runtime="python")
    config = TrialConfig(trials, PARALLEL)
    return client.optimize(template, search_space=SPACE, trial_config=config, options=[Name("tune")])


class _Sampler(threading.Thread):
    """Counts the TrainJobs that run at the same time."""

    def __init__(self, client: TrainerClient) -> None:
        super().__init__(daemon=True)
        self.client, self.done, self.violations = client, threading.Event(), list[str]()

    def run(self) -> None:
        while not self.done.wait(0.05):
            running = [job.name for job in self.client.list_jobs() if job.status == RUNNING]
            if len(running) > PARALLEL:
                self.violations.append(f"more than {PARALLEL} trials ran: {', '.join(running)}")


if __name__ == "__main__":
    client = TrainerClient(LocalProcessBackendConfig(home=Path(sys.argv[1])))
    client.wait_for_search(_start_search(client, int(sys.argv[2])))
