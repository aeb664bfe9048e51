"""A DistributedConfig in the words of a TrainJob, and what has none there (specs.md C5). Pure.

It is about the nodes: the pods that train, with MPI the launcher's too. The steps that fetch first are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.cluster import runtimes
from trainer_core.errors import UnsupportedError
from trainer_core.options.scheduling import VOLCANO_QUEUE
from trainer_core.request import Distributed, TrainJobRequest

__all__ = ["check", "counted", "nodes", "patch", "resources", "variables"]

#: What a variable says of the pod that it is in, which is another than the launcher's.
_OF_THE_POD = ("fieldRef", "resourceFieldRef")
#: What to do instead.
_INSTEAD = {
    "backoffLimit": "let the orchestrator try again, or ask the runtime's administrator for failurePolicy.maxRestarts",
    "minAvailable": "Trainer counts the pods itself; leave it out",
    "minResources": "Trainer adds the resources up itself; leave it out",
    "priorityClass": "with Kueue, give the option PriorityClass; else ask the runtime's administrator for "
    "priorityClassName in its pods",
    "scheduleTimeoutSeconds": "ask the runtime's administrator for podGroupPolicy.coscheduling.scheduleTimeoutSeconds",
}


def nodes(runtime: Mapping[str, Any]) -> list[str]:
    """Return the names of the replicated jobs whose pods train: with MPI the launcher and the others."""
    trainer = runtimes.trainer_job(runtime)
    names = [trainer["name"]] if trainer else []
    if runtimes.policy(runtime) == "mpi" and runtimes.job(runtime, runtimes.NODE) is not None:
        names.append(runtimes.NODE)
    return list(dict.fromkeys(names))


def variables(request: TrainJobRequest) -> list[dict[str, Any]]:
    """Return its variables as they were written, in their order: one may refer to those before it."""
    return [dict(entry) for entry in request.distributed.env] if request.distributed else []


def resources(request: TrainJobRequest) -> dict[str, Any] | None:
    """Return the requests and limits of a node, None where it says nothing of them."""
    given = request.distributed or Distributed()
    found = {"requests": given.requests, "limits": given.limits}
    return {name: dict(sorted(amounts.items())) for name, amounts in found.items() if amounts} or None


def patch(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return what it changes of the runtime, in the shape of a RuntimePatch entry without a manager."""
    given = request.distributed
    if given is None:
        return {}
    pods = {name: _pod(given, runtimes.job(runtime, name) or {}) for name in nodes(runtime)}
    jobs = [{"name": name, "template": {"spec": {"template": pod}}} for name, pod in pods.items() if pod]
    queue = given.run_policy.get("schedulingPolicy", {}).get("queue")
    template = _given(metadata=_given(annotations=_given(**{VOLCANO_QUEUE: queue})), spec=_given(replicatedJobs=jobs))
    return {"trainingRuntimeSpec": {"template": template}} if template else {}


def counted(request: TrainJobRequest) -> TrainJobRequest:
    """Return the request with its resources in the trainer, where whoever counts devices looks for them."""
    given = request.distributed
    if given is None or request.trainer is None or not (given.requests or given.limits):
        return request
    # The controller looks among the requests first.
    per_node = {**given.limits, **given.requests}
    return request.model_copy(update={"trainer": request.trainer.model_copy(update={"resources_per_node": per_node})})


def check(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Refuse what a TrainJob has no words for, and what would reach some of the nodes only.

    Raises:
        UnsupportedError: The message names it by its dotted path, and says what to do instead.
    """
    given = request.distributed
    if given is None:
        return
    if given.env_from:
        raise UnsupportedError(
            "DistributedConfig env_from: a TrainJob takes no whole sets of variables; name each in env with "
            "valueFrom.secretKeyRef or configMapKeyRef, or ask the runtime's administrator for envFrom in its container"
        )
    if resources(request) and request.trainer and request.trainer.resources_per_node:
        raise UnsupportedError(
            "DistributedConfig requests and limits are what resources_per_node of the trainer says, too; give one of "
            "them"
        )
    if given.run_policy.get("cleanPodPolicy") == "All" and request.delete_after_seconds is None:
        raise UnsupportedError(
            "DistributedConfig run_policy.cleanPodPolicy: the pods of a TrainJob go with the job; give "
            "ttlSecondsAfterFinished, too, after which both are deleted"
        )
    _check_policy(given.run_policy)
    if len(nodes(runtime)) > 1:
        _check_mpi(request, given, runtimes.name(runtime))


def _check_policy(policy: Mapping[str, Any]) -> None:
    within = policy.get("schedulingPolicy", {})
    found = {"backoffLimit": policy.get("backoffLimit")}
    found.update({f"schedulingPolicy.{name}": value for name, value in within.items() if name != "queue"})
    for path, value in found.items():
        if value is not None:
            instead = _INSTEAD[path.rpartition(".")[2]]
            raise UnsupportedError(f"DistributedConfig run_policy.{path} is no part of a TrainJob: {instead}")


def _check_mpi(request: TrainJobRequest, given: Distributed, runtime: str) -> None:
    """What a TrainJob says of containers is for the launcher's; the nodes get what its mpirun hands on."""
    if given.requests or given.limits:
        raise UnsupportedError(
            f"DistributedConfig requests and limits: with runtime {runtime!r} only the launcher would get them; ask "
            "its administrator for resources of its nodes"
        )
    handed_on = request.trainer is not None and request.trainer.kind == "custom"
    for entry in given.env:
        source = entry.get("valueFrom") or {}
        if not handed_on or any(kind in source for kind in _OF_THE_POD):
            raise UnsupportedError(
                f"DistributedConfig env {entry.get('name')}: with runtime {runtime!r} only the launcher would have its "
                "value; ask the runtime's administrator for it"
            )


def _pod(given: Distributed, job: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a pod template. The container that trains takes its variables from the trainer."""
    others = [each["name"] for each in runtimes.pod_spec(job).get("containers") or () if each["name"] != runtimes.NODE]
    env = [dict(entry) for entry in given.env]
    return _given(
        metadata=_given(labels=given.labels, annotations=given.annotations),
        spec=_given(
            nodeSelector=given.node_selector,
            affinity=given.affinity,
            tolerations=list(given.tolerations),
            containers=[{"name": name, "env": env} for name in others] if env else None,
        ),
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
