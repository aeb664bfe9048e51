"""Rendering of a DistributedConfig as parts of a TrainJob, and checks for what TrainJob cannot express. Pure.

A DistributedConfig applies to the nodes: the pods that run training, including the launcher with MPI. It does not apply
to initializer steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import runtimes
from trainer_core.model.request import VOLCANO_QUEUE, Distributed, TrainJobRequest

#: Kinds of `valueFrom` whose value depends on the pod.
_POD_SOURCES = ("fieldRef", "resourceFieldRef")
#: Alternatives to fields of the run policy that TrainJob lacks.
_ALTERNATIVES = {
    "backoffLimit": "use the retries of the orchestrator, or ask the runtime's administrator for "
    "failurePolicy.maxRestarts",
    "minAvailable": "Trainer computes it from the number of pods; remove it",
    "minResources": "Trainer computes it from the resources of the pods; remove it",
    "priorityClass": "with Kueue, use the option PriorityClass; otherwise ask the runtime's administrator for "
    "priorityClassName in its pods",
    "scheduleTimeoutSeconds": "ask the runtime's administrator for podGroupPolicy.coscheduling.scheduleTimeoutSeconds",
}


def list_node_jobs(runtime: Mapping[str, Any]) -> list[str]:
    """Return the names of the replicated jobs whose pods run training; with MPI these include the launcher."""
    trainer = runtimes.find_trainer_job(runtime)
    names = [trainer["name"]] if trainer else []
    if runtimes.get_ml_policy(runtime) == "mpi" and runtimes.find_replicated_job(runtime, runtimes.NODE) is not None:
        names.append(runtimes.NODE)
    return list(dict.fromkeys(names))


def get_env(request: TrainJobRequest) -> list[dict[str, Any]]:
    """Return the environment variables in their original order: a variable may refer to earlier ones."""
    return [dict(entry) for entry in request.work.distributed.env] if request.work.distributed else []


def get_resources(request: TrainJobRequest) -> dict[str, Any] | None:
    """Return the resource requests and limits of a node; None if there are none."""
    config = request.work.distributed or Distributed()
    resources = {"requests": config.requests, "limits": config.limits}
    return {name: dict(sorted(amounts.items())) for name, amounts in resources.items() if amounts} or None


def build_patch(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Build the changes to the runtime, as a RuntimePatch entry without a manager."""
    config = request.work.distributed
    if config is None:
        return {}
    pods = {
        name: _build_pod_template(config, runtimes.find_replicated_job(runtime, name) or {})
        for name in list_node_jobs(runtime)
    }
    jobs = [{"name": name, "template": {"spec": {"template": pod}}} for name, pod in pods.items() if pod]
    queue = config.run_policy.get("schedulingPolicy", {}).get("queue")
    annotations = _drop_empty(**{VOLCANO_QUEUE: queue})
    template = _drop_empty(metadata=_drop_empty(annotations=annotations), spec=_drop_empty(replicatedJobs=jobs))
    return {"trainingRuntimeSpec": {"template": template}} if template else {}


def copy_resources_to_trainer(request: TrainJobRequest) -> TrainJobRequest:
    """Return the request with the resources in its trainer, where devices are counted."""
    config = request.work.distributed
    if config is None or request.work.trainer is None or not (config.requests or config.limits):
        return request
    # The Trainer controller reads requests before limits.
    per_node = {**config.limits, **config.requests}
    return request.with_fields(trainer=request.work.trainer.model_copy(update={"resources_per_node": per_node}))


def check_distributed(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Check for what a TrainJob cannot express, and for what would reach only some of the nodes."""
    config = request.work.distributed
    if config is None:
        return
    if config.env_from:
        raise UnsupportedError(
            "DistributedConfig env_from is not supported by TrainJob; list each variable in env with "
            "valueFrom.secretKeyRef or configMapKeyRef, or ask the runtime's administrator for envFrom in its container"
        )
    if get_resources(request) and request.work.trainer and request.work.trainer.resources_per_node:
        raise UnsupportedError(
            "DistributedConfig requests and limits conflict with the trainer's resources_per_node; set only one of them"
        )
    if config.run_policy.get("cleanPodPolicy") == "All" and request.policy.delete_after_seconds is None:
        raise UnsupportedError(
            "DistributedConfig run_policy.cleanPodPolicy: the pods of a TrainJob are deleted with the job; also set "
            "ttlSecondsAfterFinished, after which both are deleted"
        )
    _check_run_policy(config.run_policy)
    if len(list_node_jobs(runtime)) > 1:
        _check_mpi(request, config, runtimes.get_name(runtime))


def _check_run_policy(policy: Mapping[str, Any]) -> None:
    scheduling = policy.get("schedulingPolicy", {})
    fields = {"backoffLimit": policy.get("backoffLimit")}
    fields.update({f"schedulingPolicy.{name}": value for name, value in scheduling.items() if name != "queue"})
    for path, value in fields.items():
        if value is not None:
            alternative = _ALTERNATIVES[path.rpartition(".")[2]]
            raise UnsupportedError(f"DistributedConfig run_policy.{path} is not supported by TrainJob: {alternative}")


def _check_mpi(request: TrainJobRequest, config: Distributed, runtime: str) -> None:
    """With MPI a TrainJob sets them only in the launcher; mpirun exports the environment of a CustomTrainer."""
    if config.requests or config.limits:
        raise UnsupportedError(
            f"DistributedConfig requests and limits: runtime {runtime!r} would apply them only to the launcher; ask "
            "its administrator for resources of its nodes"
        )
    exported = request.work.trainer is not None and request.work.trainer.kind == "custom"
    for entry in config.env:
        source = entry.get("valueFrom") or {}
        if not exported or any(kind in source for kind in _POD_SOURCES):
            raise UnsupportedError(
                f"DistributedConfig env {entry.get('name')}: runtime {runtime!r} would set it only in the launcher; "
                "ask the runtime's administrator to set it"
            )


def _build_pod_template(config: Distributed, job: Mapping[str, Any]) -> dict[str, Any]:
    """Build the patch of a pod template. The training container gets its environment from `spec.trainer.env`."""
    containers = runtimes.get_pod_spec(job).get("containers") or ()
    others = [container["name"] for container in containers if container["name"] != runtimes.NODE]
    env = [dict(entry) for entry in config.env]
    return _drop_empty(
        metadata=_drop_empty(labels=config.labels, annotations=config.annotations),
        spec=_drop_empty(
            nodeSelector=config.node_selector,
            affinity=config.affinity,
            tolerations=list(config.tolerations),
            containers=[{"name": name, "env": env} for name in others] if env else None,
        ),
    )


def _drop_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
