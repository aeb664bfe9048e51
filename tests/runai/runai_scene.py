"""What the tests of the Run:ai backend share: a client of the double, jobs, and workloads as a server has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

from fake_cluster import Cluster

from trainer_core import RunaiBackendConfig, TrainerClient
from trainer_core.backends.runai import facts
from trainer_core.backends.runai.dialect import dialect_of
from trainer_core.observation import Observation
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest

NAMESPACE = "runai-team-a"
CONTAINER = {"kind": "container", "image": "registry.local/train:1"}
CREATED, ENDED = "2026-11-20T10:00:00Z", "2026-11-20T10:00:09Z"
READ = dialect_of(RunaiBackendConfig(project="team-a")).read

_T = TypeVar("_T")


def a_client(cluster: Cluster, **settings: Any) -> TrainerClient:
    """A client of its own, with a connection of its own."""
    return TrainerClient(RunaiBackendConfig(project="team-a", client_configuration=cluster.configuration(), **settings))


@contextmanager
def a_stage(*lives: str, **settings: Any):
    """A cluster on which every job lives the same life, and a client of the project ``team-a``."""
    with Cluster(namespaces=[NAMESPACE, "runai"], delay=0.005, backoff=0.005) as cluster:
        if lives:
            cluster.lives.set("*", *lives)
        yield cluster, a_client(cluster, **settings)


def a_request(name: str | None = "job", runtime: str = "python", trainer: Any = CONTAINER, **fields: Any):
    """A job of one container, whose life the cluster plays."""
    return TrainJobRequest.parse({"name": name, "runtime": {"name": runtime}, "trainer": trainer, **fields})


def a_workload(phase: str | None = None, kind: str = "TrainingWorkload", *, status=None, annotations=None, **spec: Any):
    """A raw workload as a server has it."""
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


def a_pod(name: str = "digits-0-0", role: str = "", phase: str = "Running", state=None, **labels: str):
    """What is known of a raw pod of a workload."""
    state = state or {"running": {"startedAt": CREATED}}
    status = {"name": "main", "image": "x", "state": state, "lastState": {}, "restartCount": 0}
    return facts.read_pod(
        {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-of-{name}",
                "creationTimestamp": CREATED,
                "labels": {facts.JOB: "digits", **({facts.ROLE: role} if role else {}), **labels},
            },
            "spec": {"containers": [{"name": "main", "image": "x"}]},
            "status": {"phase": phase, "containerStatuses": [status]},
        }
    )


def seen(client: TrainerClient, ref: TrainJobRef, condition: Callable[[Observation], _T], patience: float = 60.0) -> _T:
    """What a condition says of a job as soon as it says anything; looked at again and again."""
    end = time.monotonic() + patience
    while not (found := condition(client.observe(ref))):
        assert time.monotonic() < end, client.observe(ref)
        time.sleep(0.01)
    return found
