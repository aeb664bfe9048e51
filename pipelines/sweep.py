"""A sweep as a KFP pipeline: one TrainJob for each learning rate, the best of them is promoted.

python pipelines/compile.py        compile it again
"""

import sys
from pathlib import Path
from typing import Dict, List, Optional

from kfp import dsl, kubernetes

from kfp_components.best_of import best_of
from kfp_components.promote import promote
from kfp_components.tasks import initialize_task, train_task

sys.path.append(str(Path(__file__).resolve().parents[1] / "dags"))

from digits import digits_trainer

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


@dsl.pipeline(
    name="sweep",
    description="Train the digits model with several learning rates and promote the best.",
    pipeline_config=WORKSPACE,
)
def sweep(
    dataset_uri: str,
    registry: str = REGISTRY,
    learning_rates: List[float] = [0.001, 0.01, 0.1],  # noqa: B006 - KFP never changes it
    epochs: int = 20,
    endpoint: str = "",
    region: str = "",
    secret: Optional[str] = None,
    backend: str = "local",
    backend_config: Dict = {},  # noqa: B006
) -> Dict:
    """Find the best learning rate.

    Args:
        dataset_uri: Folder that `write_dataset` wrote, as a URI, such as minio://mlpipeline/digits.
        registry: Folder of promoted models, as an absolute path or file:// URI. The default is in the volume claim
            `model-registry`, which a cluster must have.
        learning_rates: Of the optimiser; one TrainJob each.
        epochs: Passes over the data.
        endpoint: Address of an S3-compatible store that has the dataset; empty for AWS, minio:// and other sources.
        region: Region of that store.
        secret: Secret with the keys of that store in its entries `accesskey` and `secretkey`; leave it out for minio://
            and public data.
        backend: Where to run.
        backend_config: Settings of the backend.
    """
    where = {"backend": backend, "backend_config": backend_config}
    fetched = initialize_task(
        "dataset", storage_uri=dataset_uri, endpoint=endpoint, region=region, secret=secret, **where
    )
    with dsl.ParallelFor(learning_rates, parallelism=2) as rate:
        trained = train_task(
            trainer=digits_trainer(num_proc_per_node=1),
            runtime="torch-distributed",
            func_args={"epochs": epochs, "learning_rate": rate},
            dataset=fetched.outputs["dataset"],
            output_path=dsl.WORKSPACE_PATH_PLACEHOLDER,
            wait=True,
            attempts=3,
            allow_failure=True,
            **where,
        )
        trained.set_retry(2, backoff_duration="5s", backoff_max_duration=RETRY_WINDOW)
    best = best_of(
        jobs=dsl.Collected(trained.outputs["job"]),
        metric_name="accuracy",
        output_path=dsl.WORKSPACE_PATH_PLACEHOLDER,
        backend_config=backend_config,
    )
    promoted = promote(
        model=best.outputs["model"],
        metric=best.outputs["metric"],
        registry=registry,
    )
    kubernetes.mount_pvc(promoted, pvc_name=REGISTRY_CLAIM, mount_path=REGISTRY)
    for task in (fetched, best, promoted):
        task.set_retry(2, backoff_duration="5s", backoff_max_duration=RETRY_WINDOW)
    return best.outputs["job"]
