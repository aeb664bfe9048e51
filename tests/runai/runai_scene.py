"""Helpers of the tests of the Run:ai backend: clients of the fake cluster, requests, raw workloads and pods."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

from fake_cluster import Cluster

from trainer_core import RunaiBackendConfig, TrainerClient
from trainer_core.backends.runai import parse
from trainer_core.backends.runai.backend import build_adapter
from trainer_core.model.jobs import Observation, TrainJobRef
from trainer_core.model.request import TrainJobRequest

NAMESPACE = "runai-team-a"
CONTAINER = {"kind": "container", "image": "registry.local/train:1"}
CREATED, ENDED = "2026-11-20T10:00:00Z", "2026-11-20T10:00:09Z"
parse_job = build_adapter(RunaiBackendConfig(project="team-a")).parse_job

_T = TypeVar("_T")


def create_client(cluster: Cluster, **settings: Any) -> TrainerClient:
    return TrainerClient(RunaiBackendConfig(project="team-a", client_configuration=cluster.configuration(), **settings))


@contextmanager
def run_cluster(*lives: str, **settings: Any):
    """Run a fake cluster on which every job has the same lives, and yield it with a client of project ``team-a``."""
    with Cluster(namespaces=[NAMESPACE, "runai"], delay=0.005, backoff=0.005) as cluster:
        if lives:
            cluster.lives.set("*", *lives)
        yield cluster, create_client(cluster, **settings)


def build_request(name: str | None = "job", runtime: str = "python", trainer: Any = CONTAINER, **fields: Any):
    """Return a request for one container; the fake cluster plays its life."""
    return TrainJobRequest.parse({"name": name, "runtime": {"name": runtime}, "trainer": trainer, **fields})


def build_workload(
    phase: str | None = None, kind: str = "TrainingWorkload", *, status=None, annotations=None, **spec: Any
):
    return {
        "apiVersion": "run.ai/v2alpha1",
        "kind": kind,
        "metadata": {
            "name": "digits",
            "namespace": NAMESPACE,
            "uid": "11111111-2222-3333-4444-555555555555",
            "creationTimestamp": CREATED,
            "annotations": annotations or {},
        },
        "spec": {"usage": "Submit", **spec},
        "status": {**({"phase": phase} if phase else {}), **(status or {})},
    }


def build_pod(name: str = "digits-0-0", role: str = "", phase: str = "Running", state=None, **labels: str):
    state = state or {"running": {"startedAt": CREATED}}
    status = {"name": "main", "image": "x", "state": state, "lastState": {}, "restartCount": 0}
    return parse.parse_pod(
        {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-of-{name}",
                "creationTimestamp": CREATED,
                "labels": {parse.JOB_LABEL: "digits", **({parse.ROLE_LABEL: role} if role else {}), **labels},
            },
            "spec": {"containers": [{"name": "main", "image": "x"}]},
            "status": {"phase": phase, "containerStatuses": [status]},
        }
    )


def wait_until(
    client: TrainerClient, ref: TrainJobRef, condition: Callable[[Observation], _T], timeout: float = 300.0
) -> _T:
    """Poll a job until a condition is true of its observation; return the value of the condition."""
    deadline = time.monotonic() + timeout
    while not (value := condition(client.observe(ref))):
        assert time.monotonic() < deadline, client.observe(ref)
        time.sleep(0.01)
    return value
