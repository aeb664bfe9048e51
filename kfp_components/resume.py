"""The component that resumes a TrainJob."""

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["resume"]


@component
def resume(
    status: dsl.OutputPath(str),
) -> dsl.ContainerSpec:
    """Start a suspended TrainJob again from its beginning. A retry of this task does no harm.

    Returns:
        status: Status of the job right after that; a queue may still hold it back.

    Example:
        resumed = resume(job=submitted.outputs["job"])
    """
    return build_container_spec("resume")
