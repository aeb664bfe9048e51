"""A driver of a search in a process of its own, for tests that kill it: ``search_driver_process.py HOME TRIALS``."""

from __future__ import annotations

import sys
from pathlib import Path

from trainer_core import (
    CustomTrainer,
    LocalProcessBackendConfig,
    Name,
    Search,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)

SPACE = {"x": Search.uniform(-1, 1), "y": Search.randint(1, 9)}


def train(x: float, y: int) -> dict[str, float]:
    return {"loss": x * x + y}


def start_search(client: TrainerClient, trials: int, parallel: int = 4) -> str:
    """Start the search of the test, or continue it."""
    template = TrainJobTemplate(CustomTrainer(train), runtime="python")
    config = TrialConfig(trials, parallel)
    return client.optimize(template, search_space=SPACE, trial_config=config, options=[Name("tune")])


if __name__ == "__main__":
    client = TrainerClient(LocalProcessBackendConfig(home=Path(sys.argv[1])))
    outcome = client.wait_for_search(start_search(client, int(sys.argv[2])))
    print(outcome.status, outcome.best.trial if outcome.best else None)
