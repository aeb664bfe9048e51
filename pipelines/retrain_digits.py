"""Retrain the digits model as a KFP pipeline: initialize → train → wait → promote, if it is good enough.

The training definition is the one that the DAGs use too (`dags/digits.py`).

    python pipelines/retrain_digits.py --run     run the compiled YAML on this machine, without a container engine
    python pipelines/compile.py                  compile it again
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from kfp import components, dsl, kubernetes

from kfp_components.promote import promote
from kfp_components.tasks import initialize_task, train_task, wait_task
from kfp_components.testing import host_runner

ROOT = Path(__file__).resolve().parents[1]
COMPILED = Path(__file__).with_suffix(".yaml")
#: KFP retries a task only within this time of its first start; its default is an hour.
RETRY_WINDOW = "30d"

# DAGs and pipelines share definitions by folder: Airflow puts dags/ on the path, and here we do.
sys.path.append(str(ROOT / "dags"))

from digits import digits_trainer, write_dataset  # noqa: E402

#: A volume for each run. On a cluster TrainJobs write their models there, and the steps read them.
WORKSPACE = dsl.PipelineConfig(
    workspace=dsl.WorkspaceConfig(
        size="1Gi", kubernetes=dsl.KubernetesWorkspaceConfig(pvcSpecPatch={"accessModes": ["ReadWriteMany"]})
    )
)
#: On a cluster, a volume claim that outlives the runs.
REGISTRY_CLAIM, REGISTRY = "model-registry", "/registry"


class Retrained(NamedTuple):
    """What a run leaves."""

    job: Dict
    status: str
    accuracy: float
    model: dsl.Model


@dsl.pipeline(
    name="retrain-digits",
    description="Fetch the digits, train on several processes, promote a good model.",
    pipeline_config=WORKSPACE,
)
def retrain_digits(
    dataset_uri: str,
    registry: str = REGISTRY,
    epochs: int = 20,
    learning_rate: float = 0.01,
    nodes: int = 1,
    processes_per_node: int = 2,
    min_accuracy: float = 0.95,
    endpoint: str = "",
    region: str = "",
    secret: Optional[str] = None,
    backend: str = "local",
    backend_config: Dict = {},  # noqa: B006 - KFP takes it for an optional input, and never changes it
) -> Retrained:
    """Retrain the digits model.

    Args:
        dataset_uri: Folder that `write_dataset` wrote, as a URI, such as minio://mlpipeline/digits.
        registry: Folder of promoted models, as an absolute path or file:// URI. The default is in the volume claim
            `model-registry`, which a cluster must have.
        epochs: Passes over the data.
        learning_rate: Of the optimiser.
        nodes: Nodes to train on.
        processes_per_node: Processes on each node.
        min_accuracy: Test accuracy from which on a model may be promoted.
        endpoint: Address of an S3-compatible store that has the dataset; empty for AWS, minio:// and other sources.
        region: Region of that store.
        secret: Secret with the keys of that store in its entries `accesskey` and `secretkey`; leave it out for minio://
            and public data.
        backend: Where to run. "local" trains where the step runs, which suits this machine and not a cluster.
        backend_config: Settings of the backend.
    """
    where = {"backend": backend, "backend_config": backend_config}
    fetched = initialize_task(
        "dataset", storage_uri=dataset_uri, endpoint=endpoint, region=region, secret=secret, **where
    )
    trained = train_task(
        trainer=digits_trainer(),
        runtime="torch-distributed",
        func_args={"epochs": epochs, "learning_rate": learning_rate},
        num_nodes=nodes,
        num_proc_per_node=processes_per_node,
        dataset=fetched.outputs["dataset"],
        output_path=dsl.WORKSPACE_PATH_PLACEHOLDER,
        **where,
    )
    waited = wait_task(
        job=trained.outputs["job"],
        metrics=["accuracy"],
        attempts=3,
        output_path=dsl.WORKSPACE_PATH_PLACEHOLDER,
        backend_config=backend_config,
    )
    with dsl.If(waited.outputs["accuracy"] >= min_accuracy, name="good-enough"):
        promoted = promote(
            model=waited.outputs["model"],
            metric=waited.outputs["accuracy"],
            registry=registry,
        )
    kubernetes.mount_pvc(promoted, pvc_name=REGISTRY_CLAIM, mount_path=REGISTRY)
    for task in (fetched, trained, waited, promoted):
        # A step that is run again finds the TrainJob of its first try.
        task.set_retry(2, backoff_duration="5s", backoff_max_duration=RETRY_WINDOW)
    return Retrained(
        job=trained.outputs["job"],
        status=waited.outputs["status"],
        accuracy=waited.outputs["accuracy"],
        model=waited.outputs["model"],
    )


def run(root: Path, **arguments: Any) -> Retrained:
    """Run the compiled pipeline on this machine, and return what it left.

    Args:
        root: Folder for the dataset, the registry and what the tasks write.
        **arguments: Of the pipeline, instead of its defaults.
    """
    root = root.resolve()
    if "dataset_uri" not in arguments:
        write_dataset(root / "dataset")
        arguments["dataset_uri"] = (root / "dataset").as_uri()
    arguments.setdefault("registry", str(root / "registry"))
    pipeline = components.load_component_from_file(str(COMPILED))
    with host_runner(root / "runs"):
        outputs = pipeline(**arguments).outputs
    return Retrained(**{name: outputs[name] for name in Retrained._fields})


def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", required=True, help="run the compiled YAML on this machine")
    parser.add_argument("--root", type=Path, default=ROOT / ".demo" / "kfp", help="folder for everything it writes")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--processes-per-node", type=int)
    parser.add_argument("--min-accuracy", type=float)
    given = vars(parser.parse_args())
    root, _ = given.pop("root"), given.pop("run")
    left = run(root, **{name: value for name, value in given.items() if value is not None})
    print(f"TrainJob  {left.job['name']}")
    print(f"status    {left.status}")
    print(f"accuracy  {left.accuracy:.4f}")
    print(f"model     {left.model.path}")
    print(f"registry  {root / 'registry'}")
    print(f"logs      trainjob logs {left.job['name']}")


if __name__ == "__main__":
    main()
