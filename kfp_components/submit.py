"""The component that submits a TrainJob and does not wait for it."""

from typing import Dict

from kfp import dsl

from kfp_components.container_spec import PASSTHROUGHS, build_container_spec, component

__all__ = ["submit"]


@component(task_config_passthroughs=PASSTHROUGHS)
def submit(
    job: dsl.OutputPath(Dict),
    status: dsl.OutputPath(str),
    report: dsl.Output[dsl.HTML],
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Submit a TrainJob, once for all retries of this task, and do not wait for it. `wait` follows it.

    A job that no task of the run waits for continues after the run. `kfp_components.tasks.train_task` packages a
    training function.

    Args:
        backend: Name of the backend. The processes of "local" end with the container of this task: use `train`.
        task_config: Filled in by KFP: resources, env, node selector, tolerations, affinity and volumes that are set on
            the task. They reach the pods that train. Only `train_task` makes KFP fill it in.

    Returns:
        job: Ref of the TrainJob, for `wait`.
        status: Status of the job right after it was submitted.
        report: Page with the facts of the job.

    Example:
        submitted = submit(
            request={"runtime": "torch-distributed", "trainer": {"image": "registry/train:1.0"}},
            backend="kubernetes",
        )
        waited = wait(job=submitted.outputs["job"], metric_name="accuracy")
    """
    return build_container_spec("submit")
