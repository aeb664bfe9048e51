"""request + runtime → the exact PyTorchJob. Pure.

Numbers, names and texts change their spelling here; `admission` has judged before, the server decides after.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from trainer_core import resources
from trainer_core.backends.training_operator import patching
from trainer_core.backends.training_operator.template import MAIN, template
from trainer_core.cluster import kinds, marks, objects, runtimes
from trainer_core.configs import TrainingOperatorBackendConfig
from trainer_core.options.patches import merged
from trainer_core.request import TrainJobRequest

__all__ = ["MASTER", "WORKER", "num_nodes", "pytorch_job"]

MASTER = "Master"
WORKER = "Worker"
#: A failure of the training fails the job; whether to try again is for whoever submitted it to say.
_NO_RESTART = "Never"
_RESTART = "OnFailure"


def pytorch_job(
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    config: TrainingOperatorBackendConfig,
    namespace: str,
    attempt: int = 0,
) -> dict[str, Any]:
    """Return the PyTorchJob of a named request.

    Args:
        request: A request that `admission` has judged.
        runtime: Its runtime.
        config: The images that fetch.
        namespace: Where the job is to run.
        attempt: Which attempt of its owner it is.

    Raises:
        UnsupportedError: A PyTorchJob cannot express it, or it is too large.
        InvalidRequestError: The request has no name.
    """
    pod = template(request, runtime, config)
    spec = {
        "nprocPerNode": _processes(request, runtime, pod),
        "pytorchReplicaSpecs": _replicas(request, runtime, pod),
    }
    for name, said in (("runPolicy", _run_policy(request)), ("elasticPolicy", dict(_elastic(request)))):
        if said:
            spec[name] = said
    return {
        "apiVersion": kinds.PYTORCH_JOBS.api_version,
        "kind": kinds.PYTORCH_JOBS.kind,
        "metadata": objects.metadata(request, namespace, attempt, {marks.RUNTIME: runtimes.record(runtime)}),
        "spec": spec,
    }


def num_nodes(request: TrainJobRequest, runtime: Mapping[str, Any]) -> int:
    """Return how many nodes a request has."""
    return (request.trainer.num_nodes if request.trainer else None) or runtimes.num_nodes(runtime)


def _replicas(request: TrainJobRequest, runtime: Mapping[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """One master and the other nodes as workers; nodes that may come and go are all workers."""
    nodes = num_nodes(request, runtime)
    counts = {WORKER: nodes} if _elastic(request) else {MASTER: 1, WORKER: nodes - 1}
    policy = _restart_policy(request)
    return {
        kind: {"replicas": count, "restartPolicy": policy, "template": copy.deepcopy(pod)}
        for kind, count in counts.items()
        if count
    }


def _restart_policy(request: TrainJobRequest) -> str:
    asked = request.pytorch_job.restart_policy if request.pytorch_job else None
    restarts = _elastic(request) or _run_policy(request).get("backoffLimit")
    return asked or (_RESTART if restarts else _NO_RESTART)


def _run_policy(request: TrainJobRequest) -> dict[str, Any]:
    # No cleanPodPolicy: a job has succeeded with its master, and the other nodes shall end what they do.
    policy: dict[str, Any] = objects.life(request)
    if request.delete_after_seconds is not None:
        policy["ttlSecondsAfterFinished"] = request.delete_after_seconds
    if queue := patching.queue(request.patches):
        policy["schedulingPolicy"] = {"queue": queue}
    for more in (request.distributed, request.pytorch_job):
        policy = merged(policy, more.run_policy if more else {})
    return policy


def _elastic(request: TrainJobRequest) -> Mapping[str, Any]:
    return request.pytorch_job.elastic_policy if request.pytorch_job else {}


def _processes(request: TrainJobRequest, runtime: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """How many processes torchrun starts on each node, as Trainer has it: one for each GPU, or else for each CPU."""
    asked = request.trainer.num_proc_per_node if request.trainer else None
    if runtimes.policy(runtime) != "torch":
        return "1"
    of_runtime = runtime["spec"]["mlPolicy"]["torch"].get("numProcPerNode")
    if asked or of_runtime:
        return str(asked or of_runtime)
    main = next(container for container in pod["spec"]["containers"] if container["name"] == MAIN)
    given = main.get("resources") or {}
    amounts = {**(given.get("requests") or {}), **(given.get("limits") or {})}
    if any("gpu" in name for name in amounts):
        return "auto"
    return str(max(1, int(resources.parse_quantity(amounts.get("cpu", 1)))))
