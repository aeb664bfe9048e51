"""The component that submits a TrainJob and does not wait for it."""

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components.container_spec import PASSTHROUGHS, build_container_spec, component

__all__ = ["submit"]


@component(task_config_passthroughs=PASSTHROUGHS)
def submit(
    run_id: str,
    task_name: str,
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    report: dsl.Output[dsl.HTML],
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
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Submit a TrainJob, once for all retries of this task, and do not wait for it. `wait` follows it.

    A job that no task of the run waits for continues after the run. `kfp_components.tasks.train_task` packages a
    training function.

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
        backend: Name of the backend. The processes of "local" end with the container of this task: use `train`.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for a name that belongs to this task and run. A job with a given name
            belongs to no run: every task that submits the same request under this name gets the same job.
        task_config: Filled in by KFP: resources, env, node selector, tolerations, affinity and volumes that are set on
            the task. They reach the pods that train. Only `train_task` makes KFP fill it in.

    Returns:
        job: Ref of the TrainJob, for `wait`.
        status: Status of the job right after it was submitted.
        report: Page with the facts of the job.

    Example:
        submitted = submit(
            request={"runtime": "torch-distributed", "trainer": {"image": "registry/train:1.0"}},
            backend="kubernetes",
        )
        waited = wait(job=submitted.outputs["job"], metric_name="accuracy")
    """
    return build_container_spec("submit")
