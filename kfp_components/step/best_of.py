"""What the best_of component does: compare TrainJobs and return the outputs of the best one."""

from __future__ import annotations

from typing import Any

from kfp_components.step import outputs
from kfp_components.step.client import open_job
from kfp_components.step.executor_input import Task
from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.jobs import Outcome


def best_of(
    task: Task,
    *,
    metric_name: str,
    jobs: list[dict[str, Any]] | None = None,
    higher_is_better: bool = True,
    output_path: str | None = None,  # Read by KFP alone, which mounts its workspace for it.
    backend_config: dict[str, Any] | None = None,
) -> None:
    """Compare TrainJobs; the component's docstring describes the inputs."""
    sign = 1 if higher_is_better else -1
    outcomes = [_get_outcome(job, backend_config) for job in jobs or ()]
    for outcome in outcomes:
        value = outcome.metrics.get(metric_name)
        found = f"no {metric_name}" if value is None else f"{metric_name} {value}"
        print(f"{outcome.job.name}: {outcome.status}, {found}")
    candidates = [outcome for outcome in outcomes if outcome.succeeded and metric_name in outcome.metrics]
    if not candidates:
        raise InvalidRequestError(f"none of {len(outcomes)} jobs is Complete with a metric {metric_name!r}")
    best = max(candidates, key=lambda outcome: sign * outcome.metrics[metric_name])
    task.write("failed", [outcome.job.name for outcome in outcomes if not outcome.succeeded])
    task.write("job", best.job.to_dict())
    task.write("metric", best.metrics[metric_name])
    outputs.write_result(task, best)


def _get_outcome(job: dict[str, Any], settings: dict[str, Any] | None) -> Outcome:
    client, ref = open_job(job, settings)
    return client.get_job_outcome(ref)
