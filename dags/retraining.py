"""Shared parts of the two retraining DAGs: parameters, training definition with templates, and promotion."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, get_current_context, task
from digits import digits_trainer
from registry import MODEL, dataset_folder, latest, promote

from airflow_provider.compat import AirflowSkipException
from trainer_core import Checkpoints, FileDatasetInitializer, Initializer, OnBackend

__all__ = ["DATA", "DEFAULT_ARGS", "OPTIONS", "PARAMS", "TRAINER", "promote_if_better"]

PARAMS = {
    "epochs": Param(15, type="integer", minimum=1, description="Passes over the training scans."),
    "learning_rate": Param(0.005, type="number", exclusiveMinimum=0, description="Learning rate of the optimizer."),
    "nodes": Param(1, type="integer", minimum=1, description="Nodes to train on."),
    "processes_per_node": Param(2, type="integer", minimum=1, description="Processes on each node."),
}
DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30)}

# A killed ingestion can leave a temporary file.
DATA = Initializer(dataset=FileDatasetInitializer(dataset_folder().as_uri(), ignore_patterns=["*.tmp"]))

# Templates render to strings, which are converted to the types that the function declares.
TRAINER = digits_trainer(
    epochs="{{ params.epochs }}",
    learning_rate="{{ params.learning_rate }}",
    num_nodes="{{ params.nodes }}",
    num_proc_per_node="{{ params.processes_per_node }}",
)

# A retry of a killed training continues after its last epoch. A cluster needs a volume for that: set `checkpoints_uri`
# of the connection, and add "kubernetes" here.
OPTIONS = [OnBackend(backend, Checkpoints(every_steps=1)) for backend in ("local", "container")]

_log = logging.getLogger(__name__)


@task(task_id="promote", outlets=[MODEL])
def promote_if_better(result: dict[str, Any], ref: dict[str, Any]) -> dict[str, Any]:
    """Promote the model if it is better than the promoted one, and update its Asset.

    Otherwise the task is skipped: a successful task updates its Assets, and would start the DAGs scheduled on the
    model.
    """
    entry = promote(result, ref["name"])
    if entry is None:
        current = latest()
        raise AirflowSkipException(
            f"accuracy {result['accuracy']:.4f} is not better than {current['metric']:.4f} of {current['version']}"
        )
    get_current_context()["outlet_events"][MODEL].extra = entry
    _log.info("%s is the promoted model, with accuracy %.4f", entry["version"], entry["metric"])
    return entry
