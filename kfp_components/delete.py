"""The component that deletes TrainJobs."""

# Outputs are arguments that KFP passes itself: they are described under Returns, and mypy takes them for calls.
# mypy: disable-error-code="valid-type"
# ruff: noqa: D417

from typing import Dict, List, Optional

from kfp import dsl

from kfp_components._spec import container_spec

__all__ = ["delete"]


@dsl.container_component
def delete(
    deleted: dsl.OutputPath(List[str]),
    job: Optional[Dict] = None,
    job_name: Optional[str] = None,
    run_id: Optional[str] = None,
    backend: str = "local",
    backend_config: Optional[Dict] = None,
) -> dsl.ContainerSpec:
    """Delete a TrainJob, or all of a run; what is gone already is no failure. Switch caching off.

    An exit task may not read outputs of the tasks it follows: give it `run_id`, and the same to `train`. When a run is
    terminated, KFP does not run exit tasks reliably: the run's tasks end their jobs themselves.

    Args:
        job: Ref of the TrainJob; its backend is in it.
        job_name: Its name instead.
        run_id: All that `train` submitted with this `run_id`: dsl.PIPELINE_JOB_ID_PLACEHOLDER.
        backend: Where they run, for `job_name` and `run_id`.
        backend_config: Settings of the backend, such as {"namespace": "team-a"}.

    Returns:
        deleted: Names of what was deleted.
    """
    return container_spec("delete")
