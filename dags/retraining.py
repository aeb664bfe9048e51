"""What the two retraining DAGs share: their parameters, the training with templates in it, and the promotion."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from airflow.sdk import Metadata, Param, get_current_context, task
from digits import digits_trainer
from registry import MODEL, dataset_folder, promote

from trainer_core import FileDatasetInitializer, Initializer

__all__ = ["DATA", "DEFAULT_ARGS", "PARAMS", "TRAINER", "promote_if_better"]

PARAMS = {
    "epochs": Param(15, type="integer", minimum=1, description="Passes over the training scans."),
    "learning_rate": Param(0.005, type="number", exclusiveMinimum=0, description="Of the optimiser."),
    "nodes": Param(1, type="integer", minimum=1, description="Nodes to train on."),
    "processes_per_node": Param(2, type="integer", minimum=1, description="Processes on each node."),
}
DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30)}

DATA = Initializer(dataset=FileDatasetInitializer(dataset_folder().as_uri()))

# Templates become texts; the function's annotations make numbers of them again.
TRAINER = digits_trainer(
    epochs="{{ params.epochs }}",
    learning_rate="{{ params.learning_rate }}",
    num_nodes="{{ params.nodes }}",
    num_proc_per_node="{{ params.processes_per_node }}",
)


@task(task_id="promote", outlets=[MODEL])
def promote_if_better(result: dict[str, Any]) -> Iterator[Metadata]:
    """Put the model into the registry if it beats the promoted one, and say so by the model's Asset."""
    version = get_current_context()["run_id"].replace(":", "-").replace("+", "-")
    entry = promote(result, version)
    if entry is not None:
        yield Metadata(MODEL, extra=entry)
    return entry
