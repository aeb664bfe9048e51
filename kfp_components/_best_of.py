"""What the best_of component does: of several TrainJobs hand over the best."""

from __future__ import annotations

from typing import Any

from kfp_components import _handover
from kfp_components._client import client_of
from kfp_components._executor import Task
from trainer_core.errors import InvalidRequestError
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["best_of"]


def best_of(
    task: Task,
    *,
    jobs: list[dict[str, Any]],
    metric_name: str,
    higher_is_better: bool = True,
    backend_config: dict[str, Any] | None = None,
) -> None:
    """Compare TrainJobs; the component's docstring describes the inputs."""
    sign = 1 if higher_is_better else -1
    outcomes = [_outcome(TrainJobRef.from_dict(job), backend_config) for job in jobs]
    for outcome in outcomes:
        print(f"{outcome.job.name}: {outcome.status}, {metric_name} {outcome.metrics.get(metric_name)}", flush=True)
    able = [outcome for outcome in outcomes if outcome.succeeded and metric_name in outcome.metrics]
    if not able:
        raise InvalidRequestError(f"none of {len(jobs)} jobs is Complete with a metric {metric_name!r}")
    best = max(able, key=lambda outcome: sign * outcome.metrics[metric_name])
    task.write("job", best.job.to_dict())
    task.write("metric", best.metrics[metric_name])
    _handover.left(task, best)


def _outcome(ref: TrainJobRef, settings: dict[str, Any] | None) -> Outcome:
    return client_of(ref, settings).outcome(ref)
