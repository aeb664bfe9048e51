"""Runtimes that every cluster has, so that a test needs no file: ``python`` and ``torch-distributed``."""

from __future__ import annotations

from typing import Any

from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES

IMAGE = "registry.local/python:3.11"
_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


def runtime(
    name: str, framework: str, policy: dict[str, Any] | None = None, initializers: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a ClusterTrainingRuntime in the shape of the stock ones."""
    mounts = [{"name": "initializer", "mountPath": "/workspace"}] if initializers else []
    steps = [*(_step(step, step, mounts) for step in initializers), _step("node", "trainer", mounts)]
    if initializers:
        steps[-1]["dependsOn"] = [{"name": step, "status": "Complete"} for step in initializers]
    return {
        "apiVersion": CLUSTER_TRAINING_RUNTIMES.api_version,
        "kind": CLUSTER_TRAINING_RUNTIMES.kind,
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": framework}},
        "spec": {**({"mlPolicy": policy} if policy else {}), "template": {"spec": {"replicatedJobs": steps}}},
    }


def _step(name: str, ancestor: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    container = {"name": name, "image": IMAGE, **({"volumeMounts": mounts} if mounts else {})}
    pod = {"containers": [container]}
    return {
        "name": name,
        "template": {"metadata": {"labels": {_ANCESTOR: ancestor}}, "spec": {"template": {"spec": pod}}},
    }


READY_MADE = (
    runtime("python", "plain"),
    runtime("torch-distributed", "torch", {"numNodes": 1, "torch": {}}),
)
