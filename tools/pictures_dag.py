"""The DAGs of the pictures: they train a classifier on generated samples. One fails, because columns are missing."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import dag

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer


def train(columns: int = 12, epochs: int = 400, seconds_per_epoch: float = 0.3) -> dict[str, Any]:
    """Train a logistic regression by stochastic gradient descent.

    Args:
        columns: Columns of the samples; the model expects 12.
        epochs: Number of epochs.
        seconds_per_epoch: Pause after each epoch, so that the training runs while its page is photographed.
    """
    import math
    import random
    import time

    from trainer_core import progress

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
    for epoch in range(1, epochs + 1):
        rate = 0.05 / (1 + epoch / 250)
        loss = 0.0
        batch = random.sample(range(600), 200)
        gradient = [0.0] * len(truth)
        for index in batch:
            probability = 1 / (1 + math.exp(-dot(weights, samples[index])))
            loss -= math.log(max(1e-9, probability if labels[index] else 1 - probability)) / len(batch)
            for column, value in enumerate(samples[index]):
                gradient[column] += (probability - labels[index]) * value / len(batch)
        weights = [weight - rate * slope for weight, slope in zip(weights, gradient, strict=True)]
        correct = sum((dot(weights, samples[index]) > 0) == labels[index] for index in range(600, 800))
        metrics = {"loss": round(loss, 4), "accuracy": correct / 200, "lr": round(rate, 4)}
        progress(step=epoch, total=epochs, metrics=metrics)
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {loss:.4f}  accuracy {correct / 200:.3f}", flush=True)
        time.sleep(seconds_per_epoch)
    return {"loss": round(loss, 4), "accuracy": correct / 200}


def build_dag(dag_id: str, columns: int) -> None:
    """Create a DAG of one deferred training.

    Args:
        dag_id: Id of the DAG.
        columns: Columns of the samples.
    """

    @dag(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc))
    def training() -> None:
        trainer = CustomTrainer(func=train, func_args={"columns": columns})
        TrainJobOperator(task_id="train", runtime="python", trainer=trainer, deferrable=True)

    training()


build_dag("nightly_classifier", columns=12)
build_dag("weekly_classifier", columns=9)
