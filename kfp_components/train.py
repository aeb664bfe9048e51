"""The component that submits a TrainJob and follows it to its end."""

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components.container_spec import PASSTHROUGHS, build_container_spec, component

__all__ = ["train"]


@component(task_config_passthroughs=PASSTHROUGHS)
def train(
    run_id: str,
    task_name: str,
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    checkpoint: dsl.OutputPath(int),
    resumed_from: dsl.OutputPath(int),
    reused: dsl.OutputPath(bool),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    classification: dsl.Output[dsl.ClassificationMetrics],
    request: Optional[Dict] = None,
    request_file: dsl.Input[dsl.Artifact] = None,
    func_args: Optional[Dict] = None,
    command: Optional[List[str]] = None,
    args: Optional[List[str]] = None,
    num_nodes: int = 0,
    num_proc_per_node: int = 0,
    dataset: dsl.Input[dsl.Dataset] = None,
    pretrained: dsl.Input[dsl.Model] = None,
    dataset_uri: Optional[str] = None,
    pretrained_uri: Optional[str] = None,
    output_path: Optional[str] = None,
    backend: str = "local",
    backend_config: Optional[Dict] = None,
    job_name: Optional[str] = None,
    metric_name: Optional[str] = None,
    timeout: int = 0,
    on_kill: str = "cancel",
    attempts: int = 1,
    backoff: int = 10,
    allow_failure: bool = False,
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Submit a TrainJob, once for all retries of this task, and follow it to its end with its log on stdout.

    If the job fails, the task fails and prints the diagnosis. `kfp_components.tasks.train_task(wait=True)` packages a
    training function and adds metrics as outputs with their own names.

    Args:
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run. `delete` and `trainjob reap` find the
            jobs of a run by it.
        task_name: Name of the task: dsl.PIPELINE_TASK_NAME_PLACEHOLDER. Filled in likewise. KFP never takes a task with
            it from the cache of another task of the run.
        request: The TrainJob: a definition as for `trainjob submit`, such as {"runtime": "torch-distributed",
            "trainer": {"image": "registry/name:1.0", "num_nodes": 2}}, or what
            `trainer_core.definition.request_builder.build_request_data` returns.
        request_file: The same as a file in JSON or YAML.
        func_args: Arguments of the training function, over those in the request; they get the types that the function
            declares. From Python, `train_task` also takes pipeline parameters inside the dict.
        command: Command of a trainer with an image, instead of the one in the request.
        args: Arguments of a trainer with an image, instead of those in the request.
        num_nodes: Number of nodes; 0 for the number in the request.
        num_proc_per_node: Processes on each node; 0 for the number in the request.
        dataset: Dataset of the job: what the training function finds in `dataset_path()`. A job on a cluster reads it
            from the URI in the artifact's metadata, else from KFP's object store.
        pretrained: Model of the job: what the training function finds in `model_path()`, read in the same way.
        dataset_uri: The dataset by URI, or by its path in a mounted volume claim: KFP downloads nothing into this task.
        pretrained_uri: The model by URI, in the same way.
        output_path: On a cluster, the folder of `output_path()` of the training function: in a volume claim that this
            task mounts, such as dsl.WORKSPACE_PATH_PLACEHOLDER. Each job has its own folder in it. None for a folder in
            the pod, which is lost with it.
        backend: Name of the backend. The processes of "local" run in this task's own container.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for a name that belongs to this task and run. A job with a given name
            belongs to no run: every task that submits the same request under this name gets the same job.
        metric_name: Metric for the output `metric`; the task fails if the job did not report it.
        timeout: Seconds to wait at most; 0 for no limit. The job continues.
        on_kill: What this task does to the job when its run is terminated: "cancel" or "keep". With "keep" the job
            also outlives the run.
        attempts: Jobs that this task submits at most, one after the other. After a failure that a retry can
            help, it submits the next one, which continues from the last checkpoint.
        backoff: Seconds between two attempts.
        allow_failure: Whether this task succeeds, with the `status` Failed, although its job failed: for `best_of`
            after a loop. A failed job has no metric for an output.
        task_config: Filled in by KFP: resources, env, node selector, tolerations, affinity and volumes that are set on
            the task. They reach the pods that train. Only `train_task` makes KFP fill it in.

    Returns:
        job: Ref of the TrainJob: the last attempt.
        status: Complete; Failed with `allow_failure`.
        result: What the training function returned; a value that is not a dict is under "value".
        metric: The metric `metric_name`; without it null, which a task that takes it refuses.
        checkpoint: Step of the last checkpoint (option Checkpoints); 0 without one.
        resumed_from: Step of the checkpoint that the training last resumed from; 0 if it began from the start.
        reused: Whether an earlier TrainJob had trained the same, and its outputs are these (option Reuse).
        model: The model that the result names as {"artifacts": {"model": uri}}.
        metrics: The numbers of the result.
        report: Page with curves of metrics and a timeline of the steps. KFP stores it only if the task succeeds.
        classification: The "confusion_matrix" and "roc" of the result.

    Example:
        trained = train(
            request={"runtime": "torch-distributed", "trainer": {"image": "registry/train:1.0"}},
            args=["--epochs", "3"],
            metric_name="accuracy",
            backend="kubernetes",
        )
    """
    return build_container_spec("train")
