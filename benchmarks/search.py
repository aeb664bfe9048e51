"""What a search costs beside its trainings: the driver's processor time, the wall time, and a suggestion.

Trials of 0 s on this machine, four at a time, after the same number of plain `train` and `wait` by four threads.
Then one suggestion of Optuna's TPE after 10,000 trials, in a new process and in one that made the one before. Then the
processor time of 300 trials with TPE in this process, by the debug backend, against Optuna's own loop.

Prints each value with its limit, and whether the limit is kept. TRIALS is the number of trials (default 500).
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainer_core import (
    CustomTrainer,
    DebugBackendConfig,
    LocalProcessBackendConfig,
    OptunaSampler,
    RandomSearch,
    Search,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)
from trainer_core.search.history import SettledTrial
from trainer_core.search.sampling import suggest
from trainer_core.search.space import parse_space

TRIALS = int(os.environ.get("TRIALS", "500"))
DEBUG_TRIALS = int(os.environ.get("DEBUG_TRIALS", "300"))
LINES = 10_000
PARALLEL = 4
SPACE = {"lr": Search.loguniform(1e-4, 1e-1), "drop": Search.uniform(0, 1), "batch": [16, 32], "layers": [1, 2, 3, 4]}


def train(lr: float, drop: float, batch: int, layers: int) -> dict[str, float]:
    return {"loss": (lr - 0.01) ** 2 + drop * layers / batch}


class Total:
    """Seconds of processor and wall time of a process, added up."""

    def __init__(self) -> None:
        self.processor = self.wall = 0.0

    def measure(self, action: Callable[[], object]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        action()
        self.wall += time.perf_counter() - wall
        self.processor += time.process_time() - processor


def check(what: str, value: float, limit: float, unit: str) -> None:
    print(f"{what}: {value:.3g}{unit}, limit {limit:g}{unit}: {'met' if value <= limit else 'MISSED'}")


def measure_trials(home: Path) -> None:
    """Run the plain trainings, and then the search."""
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    template = TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python")
    searches, plain = Total(), Total()
    samples = RandomSearch(random_state=2).sample(SPACE, TRIALS)

    def search() -> None:
        config = TrialConfig(TRIALS, PARALLEL)
        algorithm = RandomSearch(random_state=1)
        name = client.optimize(template, search_space=SPACE, trial_config=config, algorithm=algorithm)
        outcome = client.wait_for_search(name)
        if outcome.status != "Complete" or len(outcome.trials) != TRIALS:
            raise SystemExit(outcome.message)

    def run(args: dict[str, object]) -> None:
        name = client.train(runtime="python", trainer=CustomTrainer(func=train, func_args=args))
        if not (outcome := client.wait(name)).succeeded:
            raise SystemExit(str(outcome.diagnosis))

    with ThreadPoolExecutor(PARALLEL) as pool:
        plain.measure(lambda: list(pool.map(run, samples)))
    searches.measure(search)
    print(f"{TRIALS} trials: {searches.wall:.1f} s; {TRIALS} trainings: {plain.wall:.1f} s")
    check("processor time of the driver for a trial", 1000 * searches.processor / TRIALS, 20, " ms")
    print(f"that of train and wait: {1000 * plain.processor / TRIALS:.3g} ms")
    check("wall time, trials / trainings", searches.wall / plain.wall, 1.15, "")


def measure_suggestions() -> None:
    """Draw the parameters of trial 10,000 and of the next one."""
    space = parse_space(SPACE)
    draw = random.Random(1)  # noqa: S311 -- equal values in each run
    start = time.process_time()
    drawn = [suggest(space, RandomSearch(), "", number, (), {}) for number in range(LINES)]
    check("suggestion of RandomSearch", 1000 * (time.process_time() - start) / LINES, 1, " ms")
    lines = [SettledTrial(number, "Complete", draw.random(), (), parameters) for number, parameters in enumerate(drawn)]
    suggest(space, OptunaSampler(), "warm up", 0, (), {})
    for what, limit in ((f"after {LINES} trials", 1.5), ("and the next one", 0.2)):
        start = time.process_time()
        parameters = suggest(space, OptunaSampler(), "seed", len(lines), lines, {})
        check(f"suggestion of TPE {what}", time.process_time() - start, limit, " s")
        lines.append(SettledTrial(len(lines), "Complete", draw.random(), (), parameters))


def measure_debug() -> None:
    """Search with TPE in this process, and by Optuna alone."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    client, alone, searched = TrainerClient(DebugBackendConfig()), Total(), Total()
    template = TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python")
    config = TrialConfig(DEBUG_TRIALS, 1)

    def evaluate(trial: optuna.Trial) -> float:
        lr, drop = trial.suggest_float("lr", 1e-4, 1e-1, log=True), trial.suggest_float("drop", 0, 1)
        batch, layers = trial.suggest_categorical("batch", [16, 32]), trial.suggest_categorical("layers", [1, 2, 3, 4])
        return train(lr, drop, batch, layers)["loss"]

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, multivariate=True, constant_liar=True))
    alone.measure(lambda: study.optimize(evaluate, n_trials=DEBUG_TRIALS))
    algorithm = OptunaSampler(random_state=1)
    searched.measure(
        lambda: client.wait_for_search(
            client.optimize(template, search_space=SPACE, trial_config=config, algorithm=algorithm)
        )
    )
    check("processor time, debug backend / Optuna's loop", searched.processor / alone.processor, 1.5, "")


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        measure_trials(Path(folder, "home"))
    measure_suggestions()
    measure_debug()


if __name__ == "__main__":
    main()
