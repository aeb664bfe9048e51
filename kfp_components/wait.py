"""The component that waits for a TrainJob."""

from typing import Dict

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["wait"]


@component
def wait(
    last_job: dsl.OutputPath(Dict),
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
) -> dsl.ContainerSpec:
    """Follow a TrainJob to its end with its log on stdout; if the job fails, the task fails and prints the diagnosis.

    A retry of this task waits again. `kfp_components.tasks.wait_task` adds metrics as outputs with their own names.

    Args:
        job: Ref of the TrainJob, from `submit`.
        output_path: The same as for `train`: KFP then mounts its workspace into this task, which reads the model there.
        backend_config: Settings of the backend, where those of the ref are not enough.
        run_id: Id of the run, dsl.PIPELINE_JOB_ID_PLACEHOLDER: a job of this run is deleted with the run while this
            task waits for it.

    Returns:
        last_job: Ref of the TrainJob that ended last: `job`, or a later attempt.
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
        submitted = train_task(trainer=trainer, backend="kubernetes")
        waited = wait_task(job=submitted.outputs["job"], metrics=["accuracy"])
    """
    return build_container_spec("wait")
