"""Builders of raw Kubernetes objects with the fields that a test needs."""

from __future__ import annotations

import json
from typing import Any

from trainer_core.k8s import pod_state

JOB, UID, NAMESPACE = "digits", "11111111-2222-3333-4444-555555555555", "ml"
IMAGE = "ghcr.io/acme/digits:3"
CREATED, STARTED, ENDED = "2026-11-20T10:00:00Z", "2026-11-20T10:00:05Z", "2026-11-20T10:00:09Z"
LATER = "2026-11-20T11:30:00Z"


def pod(step: str = "node-0", *, main: dict[str, Any] | None = None, others=(), job: str = JOB, rand="abcde", **fields):
    """Return a raw pod of a TrainJob; `main` and `others` are container statuses, `fields` go to its status.

    With `spec`, `metadata`, `labels`: further entries there; with `created`: when it was created.
    """
    role, _, number = step.rpartition("-") if step.rpartition("-")[2].isdigit() else (step, "", "0")
    main = main or waits("ContainerCreating", name=role)
    beside = list(others)
    metadata = {
        "name": f"{job}-{role}-0-{number}-{rand}",
        "namespace": NAMESPACE,
        "uid": f"uid-of-{step}-{rand}",
        "creationTimestamp": fields.pop("created", CREATED),
        "labels": {
            "jobset.sigs.k8s.io/jobset-name": job,
            "jobset.sigs.k8s.io/replicatedjob-name": role,
            "jobset.sigs.k8s.io/job-index": "0",
            "batch.kubernetes.io/job-completion-index": number,
            **fields.pop("labels", {}),
        },
        **fields.pop("metadata", {}),
    }
    containers = [{"name": one["name"], "image": one["image"]} for one in (main, *beside)]
    spec = {"restartPolicy": "OnFailure", "nodeName": "gpu-1", "containers": containers, **fields.pop("spec", {})}
    status = {"phase": _phase(main), "startTime": CREATED, "containerStatuses": [main, *beside], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def seen(step: str = "node-0", **fields: Any) -> pod_state.PodState:
    """Return the PodState of such a pod."""
    return pod_state.parse_pod(pod(step, **fields))


def _phase(main: dict[str, Any]) -> str:
    if "terminated" in main["state"]:
        return "Failed" if main["state"]["terminated"]["exitCode"] else "Succeeded"
    return "Running" if "running" in main["state"] or main["restartCount"] or main["lastState"] else "Pending"


def _status(name: str, state: dict[str, Any], restarts: int = 0, last: dict[str, Any] | None = None, image=IMAGE):
    return {"name": name, "image": image, "state": state, "lastState": last or {}, "restartCount": restarts}


def waits(reason: str, message: str = "", name: str = "node", **more: Any) -> dict[str, Any]:
    return _status(name, {"waiting": {"reason": reason, "message": message}}, **more)


def runs(name: str = "node", **more: Any) -> dict[str, Any]:
    return _status(name, {"running": {"startedAt": STARTED}}, **more)


def ended(code: int = 0, name: str = "node", restarts: int = 0, last: dict[str, Any] | None = None, **more: Any):
    """Return the status of a terminated container; see `end`."""
    return _status(name, end(code, **more), restarts, last)


def end(code: int = 1, message: str = "", reason: str = "", started: str = STARTED, finished: str = ENDED, **more: Any):
    """Return the state of a terminated container."""
    reason = reason or ("Error" if code else "Completed")
    fields = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": finished, **more}
    return {"terminated": {**fields, **({"message": message} if message else {})}}


def error(kind: str = "ValueError", message: str = "bad shape") -> str:
    """Return the termination message of a training function that raised."""
    return json.dumps({"error": {"type": kind, "message": message, "traceback": f"Traceback …\n{kind}", "rank": 0}})


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": ENDED}


def unscheduled(reason: str, message: str) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "containerStatuses": [],
        "startTime": None,
        "spec": {"nodeName": None},
        "conditions": [condition("PodScheduled", "False", reason, message)],
    }


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [condition("DisruptionTarget", "True", reason, message)]}


def train_job(*conditions: dict[str, Any], roles=(), labels=None, annotations=None, status=None, **spec: Any):
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": JOB,
            "namespace": NAMESPACE,
            "uid": UID,
            "resourceVersion": "42",
            "creationTimestamp": CREATED,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "runtimeRef": {"name": "torch-distributed", "kind": "ClusterTrainingRuntime"},
            "suspend": False,
            "managedBy": "trainer.kubeflow.org/trainjob-controller",
            **spec,
        },
        "status": {"conditions": list(conditions), "jobsStatus": list(roles), **(status or {})},
    }


def role(name: str = "node", **counts: int) -> dict[str, Any]:
    return {"name": name, "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0, **counts}


def event(reason: str, message: str, *, kind: str = "Pod", name: str = f"{JOB}-node-0-0-abcde", **fields: Any):
    return {
        "metadata": {"name": "x", "namespace": NAMESPACE, "creationTimestamp": CREATED},
        "involvedObject": {"kind": kind, "name": name, "namespace": NAMESPACE, "uid": fields.pop("uid", "")},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "firstTimestamp": ENDED,
        "lastTimestamp": ENDED,
        "eventTime": None,
        "count": 1,
        **fields,
    }
