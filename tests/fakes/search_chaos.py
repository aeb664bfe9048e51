"""A search on this machine whose drivers are killed: ``search_chaos.py HOME TRIALS KIND`` is one of its drivers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trainer_core import (
    Asha,
    Checkpoints,
    CustomTrainer,
    DebugBackendConfig,
    GridSearch,
    LocalProcessBackendConfig,
    MedianStop,
    Name,
    OptunaSampler,
    Search,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)
from trainer_core.model.jobs import RUNNING
from trainer_core.search import early_stop, snapshot
from trainer_core.search.results import SearchOutcome

SPACE = {"x": Search.uniform(-1, 1), "y": Search.randint(1, 9)}
PARALLEL = 4
#: What a kind of search has beside its space and its limits.
KINDS: dict[str, dict[str, Any]] = {
    "random": {},
    "grid": {"algorithm": GridSearch(), "search_space": {"x": [-0.5, 0.1, 0.7], "y": Search.randint(1, 9)}},
    "tpe": {"algorithm": OptunaSampler(n_startup_trials=3)},
    "asha": {"stop": Asha(max_step=9)},
    "promote": {"stop": Asha(max_step=9, promote=True)},
    "median": {"stop": MedianStop(min_trials=2)},
}


def train(x: float, y: int) -> dict[str, float]:
    return {"loss": x * x + y}


def train_in_steps(x: float, y: int) -> dict[str, float]:
    import time

    from trainer_core import checkpoints, progress

    store = checkpoints()
    last = store.latest()
    for step in range(last.step + 1 if last else 1, 10):
        time.sleep(0.1)
        progress(step=step, total=9, metrics={"loss": x * x + y + 1 / step})
        if store.due(step):
            with store.save(step) as folder:
                (folder / "state").touch()
    return {"loss": x * x + y + 1 / 9}


def kill_drivers(
    home: Path, trials: int, kills: int, drivers: int, dice: random.Random, kind: str = "random"
) -> list[str]:
    """Kill drivers at random instants, end the search by one that is not killed, and return what did not hold."""
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    sampler = _Sampler(client)
    sampler.start()
    running = [_start_driver(home, trials, kind) for _ in range(drivers)]
    for _ in range(kills):
        time.sleep(dice.uniform(0.2, 2.0))
        victim = running.pop(dice.randrange(len(running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        running.append(_start_driver(home, trials, kind))
    outcome = client.wait_for_search(_start_search(client, trials, kind))
    codes = [driver.wait(300) for driver in running]
    sampler.done.set()
    sampler.join()
    differences = _compare(client, outcome, trials, kind)
    return [*differences, *sampler.violations, *(f"driver exited with {c}" for c in codes if c)]


def _compare(client: TrainerClient, outcome: SearchOutcome, trials: int, kind: str) -> list[str]:
    """Return in what a search differs from one that nothing has disturbed, or from what its reports demand."""
    undisturbed = TrainerClient(DebugBackendConfig())
    expected = undisturbed.wait_for_search(_start_search(undisturbed, trials, kind))
    entries = snapshot.list_jobs(client, "search/tune")
    sections = [request.context.search for _, request, _ in entries if request.context.search]
    runs = [(section.trial, section.rung) for section in sections if section.kind == "run"]
    checks = {
        "parameters": [trial.values for trial in outcome.trials] == [trial.values for trial in expected.trials],
        "entries": sorted(section.entry for section in sections) == list(range(len(sections))),
        "runs of a trial": len(set(runs)) == len(runs),
    }
    stop = KINDS[kind].get("stop")
    if stop is None:
        best = (outcome.best and outcome.best.trial) == (expected.best and expected.best.trial)
        values = [trial.value for trial in outcome.trials] == [trial.value for trial in expected.trials]
        checks |= {"best trial": best, "values": values}
    else:
        table = snapshot.read_search(client, "search/tune").table
        reports = [report for trial in table.trials.values() for report in trial.reports]
        losers = early_stop.find_losers(stop, "minimize", reports)
        stopped = {trial.number for trial in outcome.trials if trial.status == "Stopped early"}
        full = [trial for trial in outcome.trials if trial.status == "Complete"]
        checks |= {
            "stopped trials": kind == "promote" or stopped <= set(losers),
            "ends": len(stopped) + len(full) == trials,
            "full trainings": bool(full),
        }
    return [f"{kind}: the {what} differ from what they must be" for what, is_equal in checks.items() if not is_equal]


def _start_driver(home: Path, trials: int, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(home), str(trials), kind])


def _start_search(client: TrainerClient, trials: int, kind: str) -> str:
    fields = {"search_space": SPACE, **KINDS[kind]}
    function = train_in_steps if "stop" in fields else train
    # The debug backend runs each trial to its end, which does not change its parameters.
    if client.backend.name == "debug":
        fields.pop("stop", None)
    template = TrainJobTemplate(CustomTrainer(function), runtime="python")
    options = [Name("tune"), *([Checkpoints()] if function is train_in_steps else [])]
    return client.optimize(template, trial_config=TrialConfig(trials, PARALLEL), options=options, **fields)


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
    client.wait_for_search(_start_search(client, int(sys.argv[2]), sys.argv[3]))
