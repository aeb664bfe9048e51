"""A sweep as a KFP pipeline: one TrainJob for each learning rate, the best of them is promoted.

python pipelines/compile.py        compile it anew
"""

import sys
from pathlib import Path
from typing import Dict, List

from kfp import dsl

from kfp_components.best_of import best_of
from kfp_components.promote import promote
from kfp_components.tasks import initialize_task, train_task

sys.path.append(str(Path(__file__).resolve().parents[1] / "dags"))

from digits import digits_trainer


@dsl.pipeline(name="sweep", description="Train the digits model with several learning rates and promote the best.")
def sweep(
    dataset_uri: str,
    registry: str,
    learning_rates: List[float] = [0.001, 0.01, 0.1],  # noqa: B006 - KFP never changes it
    epochs: int = 20,
    backend: str = "local",
    backend_config: Dict = {},  # noqa: B006
) -> Dict:
    """Find the best learning rate.

    Args:
        dataset_uri: Folder that `write_dataset` wrote, as a URI.
        registry: Folder of promoted models, as an absolute path or file:// URI.
        learning_rates: Of the optimiser; one TrainJob each.
        epochs: Passes over the data.
        backend: Where to run.
        backend_config: Settings of the backend.
    """
    where = {"backend": backend, "backend_config": backend_config}
    fetched = initialize_task("dataset", storage_uri=dataset_uri, **where)
    with dsl.ParallelFor(learning_rates, parallelism=2) as rate:
        trained = train_task(
            trainer=digits_trainer(),
            runtime="torch-distributed",
            func_args={"epochs": epochs, "learning_rate": rate},
            dataset=fetched.outputs["dataset"],
            wait=True,
            **where,
        )
        trained.set_retry(2, backoff_duration="5s")
    best = best_of(jobs=dsl.Collected(trained.outputs["job"]), metric_name="accuracy", backend_config=backend_config)
    promoted = promote(model=best.outputs["model"], metric=best.outputs["metric"], registry=registry)
    fetched.set_retry(2, backoff_duration="5s")
    for task in (best, promoted):
        task.set_caching_options(False).set_retry(2, backoff_duration="5s")
    return best.outputs["job"]
