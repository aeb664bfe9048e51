"""Retrain on a schedule, with Kubeflow Trainer on Kubernetes: fetch, train, and promote what is good enough.

Needs a PersistentVolumeClaim that several pods can mount: data, models and the registry lie in it, and the pods of the
TrainJob see what the steps see. `pipelines/schedule.py` makes the recurring run.

    python pipelines/compile.py        compile it again
"""

import sys
from pathlib import Path
from typing import Dict, Optional

from kfp import dsl, kubernetes

from kfp_components.evaluate_gate import evaluate_gate
from kfp_components.promote import promote
from kfp_components.tasks import initialize_task, train_task, wait_task
from trainer_core import DeleteAfter

sys.path.append(str(Path(__file__).resolve().parents[1] / "dags"))

from digits import digits_trainer

_CLAIM, _MOUNTED = "digits", "/workspace"
_A_WEEK = 7 * 24 * 3600
#: KFP retries a task only within this time of its first start; its default is an hour.
_RETRY_WINDOW = "30d"


@dsl.pipeline(name="retrain-scheduled", description="Retrain the digits model on Kubernetes, for a recurring run.")
def retrain_scheduled(
    dataset_uri: str,
    epochs: int = 20,
    min_accuracy: float = 0.95,
    endpoint: str = "",
    region: str = "",
    secret: Optional[str] = None,
    backend_config: Dict = {},  # noqa: B006 - KFP takes it for an optional input, and never changes it
) -> None:
    """Retrain the digits model.

    Args:
        dataset_uri: Folder that `write_dataset` wrote, as a URI, such as minio://mlpipeline/digits or s3://data/digits.
        epochs: Passes over the data.
        min_accuracy: Test accuracy from which on a model may be promoted.
        endpoint: Address of an S3-compatible store that has the dataset; empty for AWS, minio:// and other sources.
        region: Region of that store.
        secret: Secret with the keys of that store in its entries `accesskey` and `secretkey`; leave it out for minio://
            and public data.
        backend_config: Such as {"namespace": "team-a"}.
    """
    where = {"backend": "kubernetes", "backend_config": backend_config}
    # Fetched again only when the files in the bucket have changed.
    fetched = initialize_task(
        "dataset",
        storage_uri=dataset_uri,
        endpoint=endpoint,
        region=region,
        secret=secret,
        workspace={"claim": _CLAIM},
        **where,
    )
    trained = train_task(
        trainer=digits_trainer(),
        runtime="torch-distributed",
        options=[DeleteAfter(_A_WEEK)],
        func_args={"epochs": epochs},
        dataset_uri=fetched.outputs["uri"],
        **where,
    )
    # These reach the pods that train, not the pod of the step that submits.
    trained.set_cpu_limit("2").set_memory_limit("4G")
    trained.set_env_variable("TRAINJOB_OUTPUT_PATH", f"{_MOUNTED}/output")
    waited = wait_task(
        job=trained.outputs["job"], metrics=["accuracy"], attempts=3, backoff=60, backend_config=backend_config
    )
    gate = evaluate_gate(metrics=waited.outputs["metrics"], at_least={"accuracy": min_accuracy})
    with dsl.If(gate.outputs["passed"] == True, name="good-enough"):  # noqa: E712 - KFP compares, not Python
        promoted = promote(
            model=waited.outputs["model"],
            metric=waited.outputs["accuracy"],
            registry=f"{_MOUNTED}/registry",
        )
    for task in (trained, waited, promoted):
        kubernetes.mount_pvc(task, pvc_name=_CLAIM, mount_path=_MOUNTED)
    for task in (fetched, trained, waited, gate, promoted):
        task.set_retry(3, backoff_duration="30s", backoff_max_duration=_RETRY_WINDOW)
