"""Search, then train the best, then promote: a learning rate is searched with short trainings.

python pipelines/compile.py        compile it again
"""

import sys
from pathlib import Path
from typing import Dict

from kfp import dsl, kubernetes

from kfp_components.promote import promote
from kfp_components.tasks import search_task, train_task
from trainer_core import Objective, Search

sys.path.append(str(Path(__file__).resolve().parents[1] / "dags"))

from forecast import forecast_trainer

#: KFP retries a task only within this time of its first start; its default is an hour.
RETRY_WINDOW = "30d"
#: A volume for each run. On a cluster TrainJobs write their models there, and the steps read them.
WORKSPACE = dsl.PipelineConfig(
    workspace=dsl.WorkspaceConfig(
        size="1Gi", kubernetes=dsl.KubernetesWorkspaceConfig(pvcSpecPatch={"accessModes": ["ReadWriteMany"]})
    )
)
#: On a cluster, a volume claim that outlives the runs.
REGISTRY_CLAIM, REGISTRY = "model-registry", "/registry"
#: The day of the readings.
DAY = "2026-01-31"


@dsl.pipeline(
    name="tune-forecast",
    description="Search a learning rate, train with the best one, and promote the model if it is better.",
    pipeline_config=WORKSPACE,
)
def tune_forecast(
    trials: int = 6,
    registry: str = REGISTRY,
    backend: str = "local",
    backend_config: Dict = {},  # noqa: B006 - KFP takes it for an optional input, and never changes it
) -> Dict:
    """Find a learning rate with few steps, train with it to the end, and promote the model if it is better.

    Args:
        trials: Number of trials.
        registry: Folder of promoted models, as an absolute path or file:// URI. The default is in the volume claim
            `model-registry`, which a cluster must have.
        backend: Where to run.
        backend_config: Settings of the backend.
    """
    where = {"backend": backend, "backend_config": backend_config, "output_path": dsl.WORKSPACE_PATH_PLACEHOLDER}
    tuned = search_task(
        trainer=forecast_trainer(DAY, steps=5),
        runtime="python",
        search_space={"learning_rate": Search.loguniform(0.01, 1)},
        objectives=[Objective("error")],
        trial_config={"num_trials": trials, "parallel_trials": 3},
        **where,
    )
    trained = train_task(
        trainer=forecast_trainer(DAY),
        runtime="python",
        func_args=tuned.outputs["parameters"],
        wait=True,
        metrics=["error"],
        **where,
    )
    promoted = promote(model=trained.outputs["model"], metric=trained.outputs["error"], registry=registry, mode="min")
    kubernetes.mount_pvc(promoted, pvc_name=REGISTRY_CLAIM, mount_path=REGISTRY)
    for task in (tuned, trained, promoted):
        task.set_retry(2, backoff_duration="5s", backoff_max_duration=RETRY_WINDOW)
    return tuned.outputs["parameters"]
