"""What the train and wait components do: submit a TrainJob, follow it, hand over what it left.

Exactly once, over retries: KFP gives a task its output URIs once, the same for each of its retries and others for
every run and loop iteration. So the URI of the report is the job's owner, and a retry finds its job by it.
"""

from __future__ import annotations

import copy
import math
import os
from typing import Any

from kfp_components import _follow, _handover
from kfp_components._client import client_for, client_of
from kfp_components._executor import Artifact, Task
from trainer_core import waiting
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest

__all__ = ["owned", "train", "wait"]

#: Backends whose jobs see this machine's files.
_ON_THIS_MACHINE = ("local", "debug")
#: Set in the components' image.
_IN_CONTAINER = "TRAINJOB_KFP_CONTAINER"


def train(
    task: Task,
    *,
    request: dict[str, Any],
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
    wait: bool = False,
    metric_name: str | None = None,
    timeout: int = 0,
    on_kill: str = "cancel",
) -> None:
    """Submit a TrainJob, and with `wait` follow it to its end; the component's docstring describes the inputs."""
    _follow.check_on_kill(on_kill)
    _check_lives_on(backend, wait)
    data = copy.deepcopy(request)
    _set_trainer(data, func_args or {}, num_nodes=num_nodes, num_proc_per_node=num_proc_per_node)
    _set_source(data, "dataset", dataset, dataset_uri, backend)
    _set_source(data, "model", pretrained, pretrained_uri, backend)
    client = client_for(backend, backend_config)
    ref = client.submit(owned(data, job_name, task.artifact("report").uri, slug=_slug(data)))
    with _follow.ended_with(client, ref, on_kill if wait else "keep"):
        task.write("job", ref.to_dict())
        print(f"TrainJob {ref.name} on {ref.backend} (logs: trainjob logs {ref.name})", flush=True)
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


def owned(data: dict[str, Any], job_name: str | None, uri: str, slug: str) -> TrainJobRequest:
    """Validate a request that has a name, or else belongs to an output of this task.

    Args:
        data: The request as plain data.
        job_name: Wins over everything. A named job stands for itself: whoever asks for the same gets the same.
        uri: Of an output artifact.
        slug: The readable part of the job's name.

    Raises:
        InvalidRequestError: Something in the request cannot be right.
    """
    name = job_name or data.get("name")
    identity = {"name": name} if name else {"owner": {"key": uri, "slug": slug}}
    return TrainJobRequest.parse({**data, **identity})


def _finish(task: Task, client: TrainerClient, ref: TrainJobRef, metric_name: str | None, timeout: int) -> None:
    outcome = _follow.follow(client, ref, timeout)
    _handover.ended(task, client, outcome)
    waiting.outcome_or_raise(outcome)
    task.write("metric", _metric(outcome.metrics, metric_name))


def _check_lives_on(backend: str, wait: bool) -> None:
    if backend in _ON_THIS_MACHINE and not wait and os.environ.get(_IN_CONTAINER):
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


def _set_trainer(data: dict[str, Any], func_args: dict[str, Any], **numbers: int) -> None:
    wanted = {key: value for key, value in numbers.items() if value}
    if not func_args and not wanted:
        return
    trainer = data.get("trainer") or {}
    if not trainer:
        raise InvalidRequestError("func_args, num_nodes and num_proc_per_node need a request with a trainer")
    trainer.update(wanted)
    if func_args:
        if not trainer.get("code"):
            raise InvalidRequestError("func_args are for a training function; this request runs an image or a recipe")
        trainer["code"]["args"] = {**(trainer["code"].get("args") or {}), **func_args}


def _set_source(data: dict[str, Any], role: str, artifact: Artifact | None, uri: str | None, backend: str) -> None:
    """Let the job fetch an artifact of the pipeline, or a URI, instead of what its request says."""
    if artifact is not None and uri:
        raise InvalidRequestError(f"{role} and {role}_uri are both given; give one of them")
    if artifact is None and not uri:
        return
    source = {"storage_uri": uri} if artifact is None else _fetch(role, artifact, backend)
    data["initializer"] = {**(data.get("initializer") or {}), role: source}


def _fetch(role: str, artifact: Artifact, backend: str) -> dict[str, Any]:
    if backend in _ON_THIS_MACHINE:
        # KFP has brought it here already: link, do not copy it again.
        return {"storage_uri": artifact.require_path().absolute().as_uri(), "link": True}
    if "://" not in artifact.uri:
        raise InvalidRequestError(
            f"{role}: the {backend} backend cannot read {artifact.uri} of this machine; pass {role}_uri, or run the "
            "pipeline where artifacts lie in an object store"
        )
    return {"storage_uri": artifact.uri}


def _slug(data: dict[str, Any]) -> str:
    code = (data.get("trainer") or {}).get("code") or {}
    return str(code.get("entry") or "train").rpartition(":")[2]
