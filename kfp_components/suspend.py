"""The component that suspends a TrainJob."""

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["suspend"]


@component
def suspend(
    status: dsl.OutputPath(str),
) -> dsl.ContainerSpec:
    """Stop the pods of a TrainJob and keep the job, to `resume` it later from its beginning. A retry does no harm.

    Returns:
        status: Suspended, or the final status of a job that ended before.

    Example:
        suspended = suspend(job=submitted.outputs["job"])
    """
    return build_container_spec("suspend")
