"""The backends under test: a new backend is one line in CASES and one test file of its name."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

import container_engine
import pytest
from fake_cluster import Cluster
from fake_cluster.runtimes import IMAGE, runtime

from trainer_core import (
    DebugBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    RunaiBackendConfig,
    TrainerClient,
    TrainingOperatorBackendConfig,
)
from trainer_core.k8s import informer
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters, build_plain_runtime
from trainer_core.testing import BackendCase, parametrize_backends


@cache
def start_cluster():
    """Start the fake cluster of the session; its pods are local processes."""
    # Time for a checkpoint, also on a slow machine.
    cluster = Cluster(grace=30.0).__enter__()
    # Trainer gives resources to nodes only if the runtime has a policy.
    cluster.add(runtime("python-with-policy", "plain", {"numNodes": 1}))
    cluster.add(build_plain_runtime(RuntimeParameters("python-once", image=IMAGE, restarts=0)))
    return cluster


def connect_to_cluster(folder, config=KubernetesBackendConfig, **settings):
    """Return a client with its own namespace for each test."""
    namespace = f"test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if start_cluster().get("Namespace", namespace) is None:
        start_cluster().add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return TrainerClient(
        config(
            namespace=namespace,
            client_configuration=start_cluster().configuration(),
            checkpoints_uri="pvc://checkpoints/of-tests",
            **settings,
        )
    )


def get_api(client):
    """Return an API client of the double for the namespace of a test."""
    configuration = start_cluster().configuration()
    return ApiClient(
        Connection(KubernetesBackendConfig(namespace=client.backend.namespace, client_configuration=configuration))
    )


#: The double runs no images.
_IMAGE = f"ghcr.io/team/train@sha256:{64 * '0'}"
CASES = (
    BackendCase(
        "local",
        lambda folder, **settings: TrainerClient(LocalProcessBackendConfig(home=folder, **settings)),
        limits_memory=False,
        restarts_in_place=True,
    ),
    BackendCase(
        "debug",
        lambda _: TrainerClient(DebugBackendConfig()),
        is_visible_to_other_clients=False,
        runs_in_background=False,
        enforces_deadline=False,
        runs_multiple_nodes=False,
        installs_packages=False,
        times_log_lines=False,
        reports_resource_use=False,
        limits_memory=False,
        restarts_trainings=False,
        notices_stalls=False,
        knows_versions=False,
    ),
    BackendCase("container", container_engine.client, restarts_in_place=True),
    BackendCase(
        "kubernetes",
        connect_to_cluster,
        runtime_with_resources="python-with-policy",
        runtime_without_restarts="python-once",
        reads_local_files=False,
        reads_checkpoints=False,
        runs_runtime_without_trainer=True,
        image_with_digest=_IMAGE,
        restarts_processes=True,
        replaces_pods=True,
        get_api=get_api,
    ),
    BackendCase(
        "training-operator",
        lambda folder, **settings: connect_to_cluster(folder, TrainingOperatorBackendConfig, **settings),
        image_with_digest=_IMAGE,
        reads_local_files=False,
        reads_checkpoints=False,
        replaces_pods=True,
        get_api=get_api,
    ),
    BackendCase(
        "runai",
        lambda folder, **settings: connect_to_cluster(folder, RunaiBackendConfig, **settings),
        image_with_digest=_IMAGE,
        reads_local_files=False,
        reads_checkpoints=False,
        enforces_deadline=False,
    ),
)


def pytest_generate_tests(metafunc):
    name = metafunc.module.__name__.removeprefix("test_contract_").replace("_", "-")
    parametrize_backends([case for case in CASES if case.name == name], metafunc)


@pytest.fixture
def cases():
    return CASES


@pytest.fixture(autouse=True)
def _use_temporary_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _stop_informers():
    yield
    informer.stop_informers()


@pytest.fixture(scope="session", autouse=True)
def _stop_cluster():
    yield
    if start_cluster.cache_info().currsize:
        start_cluster().__exit__(None, None, None)


@pytest.fixture
def add_secret():
    """Create a Secret on the cluster: ``add_secret(namespace, name, values)``."""

    def add_secret(namespace, name, values):
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        metadata = {"name": name, "namespace": namespace}
        start_cluster().add({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    return add_secret
