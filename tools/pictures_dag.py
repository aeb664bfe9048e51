"""The DAGs of the pictures: they train a classifier on generated samples.

One fails, because columns are missing; one is killed in its first attempt and continues from its checkpoint; one is a
sweep over three rates, and one a search.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import dag

from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import Asha, Checkpoints, CustomTrainer, Objective, RandomSearch, Search, TrialConfig


def train(
    columns: int = 12,
    epochs: int = 400,
    rate: float = 0.05,
    batch: int = 200,
    seconds_per_epoch: float = 0.3,
    killed_at: int = 0,
) -> dict[str, Any]:
    """Train a logistic regression by stochastic gradient descent.

    Args:
        columns: Columns of the samples; the model expects 12.
        epochs: Number of epochs.
        rate: Initial learning rate.
        batch: Samples of an epoch.
        seconds_per_epoch: Pause after each epoch, so that the training runs while its page is photographed.
        killed_at: Epoch at which the first attempt is killed. Default: never.
    """
    import json
    import math
    import os
    import random
    import signal
    import time

    from trainer_core import checkpoints, progress

    def dot(left: list[float], right: list[float]) -> float:
        return sum(one * other for one, other in zip(left, right, strict=True))

    random.seed(7)
    print(f"generating 800 samples with {columns} columns", flush=True)
    truth = [random.gauss(0, 1) for _ in range(12)]
    samples = [[random.gauss(0, 1) for _ in range(columns)] for _ in range(800)]
    if columns != len(truth):
        raise ValueError(f"the samples have {columns} columns, but the model expects {len(truth)}")
    labels = [dot(truth, sample) + random.gauss(0, 0.6) > 0 for sample in samples]
    print("training on 600 samples, validating on 200", flush=True)
    weights = [random.gauss(0, 0.7) for _ in truth]
    store = checkpoints()
    last = store.latest()
    if last:
        weights = json.loads((last.path / "weights.json").read_text())
        print(f"continuing after epoch {last.step}", flush=True)
    for epoch in range(last.step + 1 if last else 1, epochs + 1):
        current = rate / (1 + epoch / 250)
        loss = 0.0
        chosen = random.sample(range(600), batch)
        gradient = [0.0] * len(truth)
        for index in chosen:
            probability = 1 / (1 + math.exp(-dot(weights, samples[index])))
            loss -= math.log(max(1e-9, probability if labels[index] else 1 - probability)) / batch
            for column, value in enumerate(samples[index]):
                gradient[column] += (probability - labels[index]) * value / batch
        weights = [weight - current * slope for weight, slope in zip(weights, gradient, strict=True)]
        correct = sum((dot(weights, samples[index]) > 0) == labels[index] for index in range(600, 800))
        metrics = {"loss": round(loss, 4), "accuracy": correct / 200, "lr": round(current, 4)}
        progress(step=epoch, total=epochs, metrics=metrics)
        if store.due(epoch):
            with store.save(epoch, metrics) as folder:
                (folder / "weights.json").write_text(json.dumps(weights))
        if epoch == killed_at and not last:
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {loss:.4f}  accuracy {correct / 200:.3f}", flush=True)
        time.sleep(seconds_per_epoch)
    return {"loss": round(loss, 4), "accuracy": correct / 200}


_QUICK = {"seconds_per_epoch": 0.05}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
def nightly_classifier() -> None:
    """Train for two minutes."""
    TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(func=train), deferrable=True)


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
def weekly_classifier() -> None:
    """Fail."""
    trainer = CustomTrainer(func=train, func_args={"columns": 9})
    TrainJobOperator(task_id="train", runtime="python", trainer=trainer, deferrable=True)


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
def monthly_classifier() -> None:
    """Continue in a second attempt."""
    TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=CustomTrainer(func=train, func_args={"killed_at": 260, **_QUICK}),
        options=[Checkpoints(every_steps=50)],
        deferrable=True,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
def classifier_sweep() -> None:
    """Train with three rates."""
    TrainJobOperator.partial(
        task_id="train",
        runtime="python",
        trainer=CustomTrainer(func=train, func_args=_QUICK),
        deferrable=True,
        retries=2,
        retry_delay=timedelta(seconds=1),
    ).expand(func_args=[{"rate": rate} for rate in (0.02, 0.05, 0.2)])


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
def classifier_search() -> None:
    """Search for the best rate and batch; losers end early."""
    SearchOperator(
        task_id="tune",
        runtime="python",
        trainer=CustomTrainer(func=train, func_args={"epochs": 120, "seconds_per_epoch": 0.02}),
        search_space={"rate": Search.loguniform(0.002, 0.5), "batch": [50, 100, 200, 400]},
        objectives=[Objective("loss")],
        trial_config=TrialConfig(num_trials=20, parallel_trials=4),
        algorithm=RandomSearch(random_state=3),
        stop=Asha(min_step=10, max_step=120),
        deferrable=False,
    )


nightly_classifier()
weekly_classifier()
monthly_classifier()
classifier_sweep()
classifier_search()
