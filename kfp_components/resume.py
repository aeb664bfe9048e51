"""The component that resumes a TrainJob."""

from typing import Dict, Optional

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["resume"]


@component
def resume(
    job: Dict,
    run_id: str,
    task_name: str,
    status: dsl.OutputPath(str),
    backend_config: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Start a suspended TrainJob again from its beginning. A retry of this task does no harm.

    Args:
        job: Ref of the TrainJob.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run.
        task_name: Name of the task: dsl.PIPELINE_TASK_NAME_PLACEHOLDER. Filled in likewise. KFP never takes a task with
            it from the cache of another task of the run.
        backend_config: Settings of the backend, where those of the ref are not enough.

    Returns:
        status: Status of the job right after that; a queue may still hold it back.

    Example:
        resumed = resume(job=submitted.outputs["job"])
    """
    return build_container_spec("resume")
