"""The component that suspends a TrainJob."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["suspend"]


@dsl.container_component
def suspend(
    job: Dict,
    status: dsl.OutputPath(str),
    backend_config: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """End the steps of a TrainJob that run and keep the job, to `resume` it later from its beginning.

    Can be retried. Switch caching off.

    Args:
        job: Ref of the TrainJob, from `train`.
        backend_config: Settings of the backend, where those of the ref are not enough.

    Returns:
        status: Suspended, or how it has ended before.
    """
    return container_spec("suspend")
