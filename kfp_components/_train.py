"""What the train and wait components do: submit a TrainJob, follow it, hand over what it left."""

from __future__ import annotations

import math
import os
from typing import Any

from kfp_components import _follow, _handover, _ownership, _request, _task_config
from kfp_components._client import IN_CONTAINER, client_for, client_of
from kfp_components._executor import Artifact, Task
from trainer_core import waiting
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.ref import TrainJobRef

__all__ = ["train", "wait"]


def train(
    task: Task,
    *,
    request: dict[str, Any] | None = None,
    request_file: Artifact | None = None,
    func_args: dict[str, Any] | None = None,
    num_nodes: int = 0,
    num_proc_per_node: int = 0,
    dataset: Artifact | None = None,
    pretrained: Artifact | None = None,
    dataset_uri: str | None = None,
    pretrained_uri: str | None = None,
    backend: str = "local",
    backend_config: dict[str, Any] | None = None,
    job_name: str | None = None,
    run_id: str | None = None,
    wait: bool = False,
    metric_name: str | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
    task_config: dict[str, Any] | None = None,
) -> None:
    """Submit a TrainJob, and with `wait` follow it to its end; the component's docstring describes the inputs."""
    _follow.check_on_kill(on_kill)
    _check_lives_on(backend, wait)
    client = client_for(backend, backend_config)
    data = _request.asked_for(client, request, request_file)
    _request.trains(data, func_args or {}, num_nodes=num_nodes, num_proc_per_node=num_proc_per_node)
    _request.fetches(data, "dataset", dataset, dataset_uri, backend)
    _request.fetches(data, "model", pretrained, pretrained_uri, backend)
    _task_config.pass_on(data, task_config, client)
    is_named = bool(job_name or data.get("name"))
    # A job with a name of its own may serve several runs.
    _request.of_run(data, None if is_named else run_id)
    owned = _request.owned(data, job_name, task.artifact("report").uri, slug=_slug(data))
    with _follow.submitted(client, owned, on_kill if wait else "keep") as ref:
        task.write("job", ref.to_dict())
        print(f"TrainJob {ref.name} on {ref.backend} (logs: trainjob logs {ref.name})", flush=True)
        if not is_named:
            _ownership.tie_to_run(client, ref, backend_config)
        if wait:
            _finish(task, client, ref, metric_name, timeout)
        else:
            _handover.submitted(task, client, ref)


def wait(
    task: Task,
    *,
    job: dict[str, Any],
    metric_name: str | None = None,
    backend_config: dict[str, Any] | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> None:
    """Follow a TrainJob to its end; the component's docstring describes the inputs."""
    _follow.check_on_kill(on_kill)
    ref = TrainJobRef.from_dict(job)
    client = client_of(ref, backend_config)
    with _follow.ended_with(client, ref, on_kill):
        _finish(task, client, ref, metric_name, timeout)


def _finish(task: Task, client: TrainerClient, ref: TrainJobRef, metric_name: str | None, timeout: int) -> None:
    outcome, history = _follow.follow(client, ref, timeout)
    _handover.ended(task, client, outcome, history)
    waiting.outcome_or_raise(outcome)
    task.write("metric", _metric(outcome.metrics, metric_name))
    for name in task.unwritten():
        # Outputs that train_task and wait_task have added: metrics by their names.
        task.write(name, _metric(outcome.metrics, name))


def _check_lives_on(backend: str, wait: bool) -> None:
    if backend in _request.ON_THIS_MACHINE and not wait and os.environ.get(IN_CONTAINER):
        raise InvalidRequestError(
            f"the processes of the {backend} backend end with this container; set wait=True, or use another backend"
        )


def _metric(metrics: dict[str, float], name: str | None) -> float:
    if name is None:
        return 0.0
    if name not in metrics:
        known = ", ".join(sorted(metrics)) or "none"
        raise InvalidRequestError(f"metric_name: the job reported no metric {name!r}; it reported {known}")
    if not math.isfinite(metrics[name]):
        raise InvalidRequestError(
            f"metric_name: the job reported {name!r} as {metrics[name]}, which is no measure of it"
        )
    return metrics[name]


def _slug(data: dict[str, Any]) -> str:
    code = (data.get("trainer") or {}).get("code") or {}
    return str(code.get("entry") or "train").rpartition(":")[2]
