"""The component that resumes a TrainJob."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["resume"]


@dsl.container_component
def resume(
    job: Dict,
    status: dsl.OutputPath(str),
    backend_config: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Start a suspended TrainJob again from its beginning.

    Can be retried. Switch caching off.

    Args:
        job: Ref of the TrainJob, from `train`.
        backend_config: Settings of the backend, where those of the ref are not enough.

    Returns:
        status: Its status just after; a queue may still hold it back.
    """
    return container_spec("resume")
