"""Helpers of the tests of the Training Operator backend: clients of the fake cluster, and requests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from fake_cluster import Cluster

from trainer_core import TrainerClient, TrainingOperatorBackendConfig
from trainer_core.model.request import TrainJobRequest

IMAGE = "registry.local/train:1"
CONTAINER = {"kind": "container", "image": IMAGE}


def create_client(cluster: Cluster, namespace: str = "default", **settings: Any) -> TrainerClient:
    config = {"namespace": namespace, "client_configuration": cluster.configuration(), **settings}
    return TrainerClient(TrainingOperatorBackendConfig(**config))


def build_request(name: str | None = "job", runtime: str = "python", **fields: Any) -> TrainJobRequest:
    """Return a request for one container; the fake cluster plays its life."""
    trainer = {**CONTAINER, **fields.pop("trainer", {})}
    return TrainJobRequest.parse({"name": name, "runtime": {"name": runtime}, "trainer": trainer, **fields})


@contextmanager
def run_cluster(*lives: str, **settings: Any):
    """Run a fake cluster on which every job has the same lives, and yield it with a client."""
    with Cluster(**{"delay": 0.005, "backoff": 0.005, **settings}) as cluster:
        if lives:
            cluster.lives.set("*", *lives)
        yield cluster, create_client(cluster)
