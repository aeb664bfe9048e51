"""What the tests of the Kubernetes backend share: a client of the double, jobs for it, and what it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeVar

from fake_cluster import Cluster
from fake_cluster.runtimes import runtime as a_runtime

from trainer_core import KubernetesBackendConfig, TrainerClient
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef
from trainer_core.model.request import TrainJobRequest

IMAGE = "registry.local/train:1"
CONTAINER = {"kind": "container", "image": IMAGE}
HF = {"storage_uri": "hf://tatsu-lab/alpaca"}
TOKEN = "hf_literal_9f3c"
_FETCHES = a_runtime("fetches", "plain", initializers=("model-initializer",))

_T = TypeVar("_T")


def a_client(cluster: Cluster, namespace: str = "default", **settings: Any) -> TrainerClient:
    """A new client with a separate connection."""
    config = KubernetesBackendConfig(namespace=namespace, client_configuration=cluster.configuration(), **settings)
    return TrainerClient(config)


def a_request(name: str | None = "job", runtime: Any = "python", **fields: Any) -> TrainJobRequest:
    """A job of one container, whose life the cluster plays."""
    named = {"name": runtime} if isinstance(runtime, str) else runtime
    return TrainJobRequest.parse({"name": name, "runtime": named, "trainer": CONTAINER, **fields})


def a_request_with_a_token(name: str | None = "job", **fields: Any) -> TrainJobRequest:
    """A job that fetches a model with a token that is given as text."""
    literal = {"initializer": {"model": HF}, "literal_secrets": {"model.ACCESS_TOKEN": TOKEN}}
    return a_request(name, **{"runtime": "fetches", **literal, **fields})


@contextmanager
def a_stage(*lives: str, **settings: Any):
    """A cluster on which every job lives the same life, and a client of it; its runtime ``fetches`` fetches a model."""
    with Cluster(**{"delay": 0.005, "backoff": 0.005, **settings}) as cluster:
        cluster.add(_FETCHES)
        if lives:
            cluster.lives.set("*", *lives)
        yield cluster, a_client(cluster)


def asked(cluster: Cluster) -> list[str]:
    """The requests so far, such as ``get trainjobs/job`` and ``list pods``; the path where it is of no object."""
    return [_short(request.verb, request.path) for request in cluster.requests]


def _short(verb: str, path: str) -> str:
    if not verb:
        return path
    parts = path.split("/")
    after = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-2:]
    if verb in ("list", "create", "watch"):
        return f"{verb} {after[-1]}"
    return f"{verb} {'/'.join(after)}"


def condition(cluster: Cluster, name: str, *types: str) -> dict[str, Any] | None:
    """A condition of a job that is true."""
    found = (cluster.get("TrainJob", name).get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] in types and one["status"] == "True"), None)


def until_ended(cluster: Cluster, name: str = "job") -> dict[str, Any]:
    """Wait until a job has ended in the state of the cluster, without a request."""
    return cluster.until(lambda: condition(cluster, name, "Complete", "Failed"))


def until_the_next_second(cluster: Cluster) -> None:
    """Wait until a new object is younger than the existing ones: a cluster counts whole seconds."""
    this = int(time.time())
    cluster.until(lambda: int(time.time()) > this)


def seen(
    client: TrainerClient, ref: TrainJobRef, condition: Callable[[Observation], _T], patience: float = 300.0
) -> _T:
    """Return the first true value of a condition of a job, which is polled."""
    end = time.monotonic() + patience
    while not (found := condition(client.observe(ref))):
        assert time.monotonic() < end, client.observe(ref)
        time.sleep(0.01)
    return found


def finished(client: TrainerClient, ref: TrainJobRef, **settings: Any) -> Outcome:
    return client.wait(ref, **{"timeout": 600, **settings})
