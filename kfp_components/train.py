"""The component that submits a TrainJob."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, Optional

from kfp import dsl

from kfp_components._spec import PASSTHROUGHS, container_spec

__all__ = ["train"]


@dsl.container_component
def train(
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    classification: dsl.Output[dsl.ClassificationMetrics],
    request: Optional[Dict] = None,
    request_file: dsl.Input[dsl.Artifact] = None,
    func_args: Optional[Dict] = None,
    num_nodes: int = 0,
    num_proc_per_node: int = 0,
    dataset: dsl.Input[dsl.Dataset] = None,
    pretrained: dsl.Input[dsl.Model] = None,
    dataset_uri: Optional[str] = None,
    pretrained_uri: Optional[str] = None,
    backend: str = "local",
    backend_config: Optional[Dict] = None,
    job_name: Optional[str] = None,
    run_id: Optional[str] = None,
    wait: bool = False,
    metric_name: Optional[str] = None,
    timeout: int = 0,
    on_kill: str = "cancel",
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Submit a TrainJob, once for all retries of this task, and with `wait` follow it to its end.

    Make the request with `kfp_components.tasks.train_task`, and switch caching off.

    Args:
        request: The TrainJob, as `trainer_core.build.plain` returns it, or as a definition for `trainjob submit`.
        request_file: The same as a file in JSON or YAML, where it is large: KFP cuts parameters at 10,000 characters.
        func_args: Arguments of the training function, over those in the request; they take the types the
            function declares. Pipeline parameters go here. A text with quotes or line ends must come as part of a
            dict that is itself one pipeline parameter.
        num_nodes: Nodes; 0 for what the request says.
        num_proc_per_node: Processes on each node; 0 for what the request says.
        dataset: What the training function finds in `dataset_path()`.
        pretrained: What the training function finds in `model_path()`.
        dataset_uri: The same by URI, fetched by the job itself.
        pretrained_uri: The same by URI, fetched by the job itself.
        backend: Where to run. The processes of "local" end with this task's container: on a cluster set `wait`.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.
        job_name: Name of the TrainJob; None for one that belongs to this run. Whoever asks for the same name and
            request gets the same job.
        run_id: The run that it belongs to, dsl.PIPELINE_JOB_ID_PLACEHOLDER: `delete` finds it by that. Not used with a
            name.
        wait: Follow the job to its end, and fail with it.
        metric_name: With `wait`, the metric that the output `metric` takes; the task fails if the job has none.
        timeout: With `wait`, seconds to wait at most; 0 for as long as it takes. The job goes on.
        on_kill: With `wait`, what becomes of the job when this task is terminated: "cancel" or "keep".
        task_config: Passed by KFP: resources, env, node selector, tolerations, affinity and volumes set on the task.
            They reach the pods that train.

    Returns:
        job: Ref of the TrainJob, for `wait`.
        status: Its status: Complete with `wait`, else what it is just after it was submitted.
        result: With `wait`, what the training function returned; under "value" if that is no dict.
        metric: With `wait`, the metric asked for; else 0.
        model: With `wait`, what the function's result names as {"artifacts": {"model": uri}}.
        metrics: With `wait`, the numbers of the result.
        report: What there is to know about the job.
        classification: With `wait`, the result's "confusion_matrix" and "roc".
    """
    return container_spec("train")


# The decorator has no argument for it (kfp.md finding 9).
train.component_spec.task_config_passthroughs = PASSTHROUGHS
