"""The component that submits a TrainJob and follows it to its end."""

from typing import Dict

from kfp import dsl

from kfp_components.container_spec import PASSTHROUGHS, build_container_spec, component

__all__ = ["train"]


@component(task_config_passthroughs=PASSTHROUGHS)
def train(
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
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Submit a TrainJob, once for all retries of this task, and follow it to its end with its log on stdout.

    If the job fails, the task fails and prints the diagnosis. `kfp_components.tasks.train_task(wait=True)` packages a
    training function and adds metrics as outputs with their own names.

    Args:
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
