"""A search on this machine whose drivers are killed. `make attack` kills fifty."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import search_chaos

from trainer_core import (
    CustomTrainer,
    LocalProcessBackendConfig,
    Name,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)


def test_the_successor_of_a_killed_driver_has_the_trials_of_an_undisturbed_search(tmp_path: Path) -> None:
    dice = random.Random(1)  # noqa: S311 -- no secret
    assert search_chaos.kill_drivers(tmp_path, 8, kills=2, drivers=1, dice=dice) == []


def wait_for_gate(x: float, gate: str) -> dict[str, float]:
    from pathlib import Path
    from time import sleep

    while not Path(gate).exists():
        sleep(0.05)
    return {"loss": x}


_DRIVE = """
import sys
from trainer_core import LocalProcessBackendConfig, TrainerClient
client = TrainerClient(LocalProcessBackendConfig(home=sys.argv[1]))
client.wait_for_search("tune", on_change=lambda state: print("drives", flush=True))
"""


@pytest.mark.slow
def test_a_stopped_driver_ends_when_it_continues_after_its_search_was_deleted_and_begun_again(tmp_path: Path) -> None:
    client, gate = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home")), tmp_path / "gate"

    def start(space: dict[str, list[float]]) -> str:
        trainer = CustomTrainer(wait_for_gate, func_args={"gate": str(gate)})
        options, config = [Name("tune")], TrialConfig(2, 1)
        return client.optimize(
            TrainJobTemplate(trainer, "python"), search_space=space, trial_config=config, options=options
        )

    start({"x": [1.0, 2.0]})
    command = [sys.executable, "-c", _DRIVE, str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "drives\n"
        os.kill(driver.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, driver.pid, os.WSTOPPED | os.WNOWAIT)
        client.searches.delete_job("tune")
        gate.touch()
        outcome = client.wait_for_search(start({"x": [3.0, 4.0]}))
        before = sorted(job.name for job in client.backend.list_jobs())
        os.kill(driver.pid, signal.SIGCONT)
        _, error = driver.communicate(timeout=60)
    assert "search 'tune' was deleted while this process drove it" in error
    assert sorted(job.name for job in client.backend.list_jobs()) == before
    assert client.wait_for_search("tune") == outcome
