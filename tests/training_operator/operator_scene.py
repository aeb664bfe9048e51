"""What the tests of the training-operator backend share: a client of the double, and requests for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from fake_cluster import Cluster

from trainer_core import TrainerClient, TrainingOperatorBackendConfig
from trainer_core.request import TrainJobRequest

IMAGE = "registry.local/train:1"
CONTAINER = {"kind": "container", "image": IMAGE}


def a_client(cluster: Cluster, namespace: str = "default", **settings: Any) -> TrainerClient:
    """A client of its own, with a connection of its own."""
    given = {"namespace": namespace, "client_configuration": cluster.configuration(), **settings}
    return TrainerClient(TrainingOperatorBackendConfig(**given))


def a_request(name: str | None = "job", runtime: str = "python", **fields: Any) -> TrainJobRequest:
    """A job of one container, whose life the cluster plays."""
    trainer = {**CONTAINER, **fields.pop("trainer", {})}
    return TrainJobRequest.parse({"name": name, "runtime": {"name": runtime}, "trainer": trainer, **fields})


@contextmanager
def a_stage(*lives: str, **settings: Any):
    """A cluster on which every job lives the same life, and a client of it."""
    with Cluster(**{"delay": 0.005, "backoff": 0.005, **settings}) as cluster:
        if lives:
            cluster.lives.set("*", *lives)
        yield cluster, a_client(cluster)
