"""The component that picks the best of several TrainJobs."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["best_of"]


@dsl.container_component
def best_of(
    jobs: List[Dict],
    metric_name: str,
    job: dsl.OutputPath(Dict),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    higher_is_better: bool = True,
    backend_config: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Pick the TrainJob with the best metric, of those that are Complete. It waits for none. Switch caching off.

    Args:
        jobs: Refs of TrainJobs: dsl.Collected(train.outputs["job"]).
        metric_name: The metric to compare.
        higher_is_better: Whether a higher metric is the better one.
        backend_config: Settings of the backend, where those of the refs are not enough.

    Returns:
        job: Ref of the best one.
        result: What its training function returned; under "value" if that is no dict.
        metric: Its metric.
        model: What its result names as {"artifacts": {"model": uri}}.
        metrics: The numbers of its result.
    """
    return container_spec("best_of")
