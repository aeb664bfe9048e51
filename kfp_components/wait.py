"""The component that waits for a TrainJob."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["wait"]


@dsl.container_component
def wait(
    job: Dict,
    status: dsl.OutputPath(str),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    classification: dsl.Output[dsl.ClassificationMetrics],
    metric_name: Optional[str] = None,
    backend_config: Optional[Dict] = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> dsl.ContainerSpec:
    """Follow a TrainJob to its end with its log on stdout, and fail with it, in one line that says why.

    Can be retried: it only looks. Switch caching off.

    Args:
        job: Ref of the TrainJob, from `train`.
        metric_name: The metric that the output `metric` takes; the task fails if the job has none.
        backend_config: Settings of the backend, where those of the ref are not enough.
        timeout: Seconds to wait at most; 0 for as long as it takes. The job goes on.
        on_kill: What becomes of the job when this task is terminated: "cancel" or "keep".

    Returns:
        status: Complete.
        result: What the training function returned; under "value" if that is no dict.
        metric: The metric asked for; 0 if none was.
        model: What the function's result names as {"artifacts": {"model": uri}}.
        metrics: The numbers of the result.
        report: Curves of metrics, timeline of steps, and why it failed.
        classification: The result's "confusion_matrix" and "roc".
    """
    return container_spec("wait")
