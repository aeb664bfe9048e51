"""The component that picks the best of several TrainJobs."""

from typing import Dict, List

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["best_of"]


@component
def best_of(
    job: dsl.OutputPath(Dict),
    failed: dsl.OutputPath(List[str]),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> dsl.ContainerSpec:
    """Pick the TrainJob with the best metric among those that are Complete.

    It does not wait: pass jobs of `train_task(wait=True, allow_failure=True)`, or of tasks after `wait_task`. Without
    `allow_failure` the first failed job fails its task, the loop, and this task.

    Args:
        metric_name: The metric to compare.
        jobs: Refs of TrainJobs: dsl.Collected(trained.outputs["job"]).
        higher_is_better: Whether a higher metric is better.
        output_path: The same as for `train`: KFP then mounts its workspace into this task, which reads the model there.
        backend_config: Settings of the backend, where those of the ref are not enough.

    Returns:
        job: Ref of the best job.
        failed: Names of the jobs that are not Complete.
        result: What its training function returned; a value that is not a dict is under "value".
        metric: Its metric.
        model: The model that its result names as {"artifacts": {"model": uri}}.
        metrics: The numbers of its result.

    Example:
        with dsl.ParallelFor([0.001, 0.01]) as rate:
            trained = train_task(trainer=trainer, func_args={"rate": rate}, wait=True, allow_failure=True)
        best = best_of(jobs=dsl.Collected(trained.outputs["job"]), metric_name="accuracy")
    """
    return build_container_spec("best_of")
