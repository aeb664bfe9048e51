"""The component that deletes TrainJobs."""

from typing import List

from kfp import dsl

from kfp_components.container_spec import build_container_spec, component

__all__ = ["delete"]


@component
def delete(
    deleted: dsl.OutputPath(List[str]),
) -> dsl.ContainerSpec:
    """Delete one TrainJob, or all TrainJobs of the run. A job that is already deleted is not an error.

    As exit task of a pipeline it cannot use outputs of the tasks before it: give it `run_id` alone. KFP does not run
    exit tasks reliably when a run is terminated; the tasks of the run cancel their jobs themselves.

    Args:
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run. Without `job` and `job_name`, all
            TrainJobs of the run are deleted.
        task_name: Name of the task: dsl.PIPELINE_TASK_NAME_PLACEHOLDER. Filled in likewise. KFP never takes a task with
            it from the cache of another task of the run.
        job: Ref of the TrainJob to delete.
        job_name: Name of the TrainJob to delete.
        backend: Name of the backend, for `job_name` and `run_id`; a ref has its own.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.

    Returns:
        deleted: Names of the deleted jobs.

    Example:
        with dsl.ExitHandler(delete(backend="kubernetes")):
            train_task(trainer=trainer, backend="kubernetes", wait=True)
    """
    return build_container_spec("delete")
