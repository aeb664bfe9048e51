"""The training: `python -m churn.train` runs it here, the DAG `retrain_churn` as a TrainJob."""

from __future__ import annotations

import json
from pathlib import Path

from trainer_core import output_path, progress

from .customers import read_customers
from .model import fit_epoch, measure

#: Relative to the folder of the project, which is the working directory of the job.
SETTINGS = Path("configs/default.json")


def main(epochs: int = 20) -> dict:
    """Train a model and write its weights.

    Args:
        epochs: Passes over all customers.

    Returns:
        The metrics, and the URI of the weights.
    """
    settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    rows, labels = read_customers()
    weights = [0.0, 0.0, 0.0, 0.0]
    for epoch in range(epochs):
        weights = fit_epoch(weights, rows, labels, settings["learning_rate"])
        progress(step=epoch + 1, total=epochs, metrics=measure(weights, rows, labels))
    file = output_path() / "weights.json"
    file.write_text(json.dumps(weights), encoding="utf-8")
    return {"metrics": measure(weights, rows, labels), "artifacts": {"model": file.as_uri()}}


if __name__ == "__main__":
    print(main())
