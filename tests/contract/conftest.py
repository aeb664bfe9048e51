"""The backends of the house; one joins by one line here, and a file of its own of the same name."""

from __future__ import annotations

import hashlib
from functools import cache

import container_engine
import pytest
from fake_cluster import Cluster

from trainer_core import (
    DebugBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    RunaiBackendConfig,
    TrainerClient,
    TrainingOperatorBackendConfig,
)
from trainer_core.cluster import watch
from trainer_core.testing import BackendCase, on_each


@cache
def cluster():
    """A cluster for the whole session, with a namespace for each test: its pods are processes of this machine."""
    return Cluster().__enter__()


def on_the_cluster(folder, config=KubernetesBackendConfig):
    namespace = f"test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if cluster().get("Namespace", namespace) is None:
        cluster().add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return TrainerClient(config(namespace=namespace, client_configuration=cluster().configuration()))


CASES = (
    BackendCase("local", lambda folder: TrainerClient(LocalProcessBackendConfig(home=folder))),
    BackendCase(
        "debug",
        lambda _: TrainerClient(DebugBackendConfig()),
        outlives_its_client=False,
        runs_beside_its_client=False,
        ends_at_deadline=False,
        runs_every_node=False,
        installs_packages=False,
    ),
    BackendCase("container", container_engine.client),
    BackendCase("kubernetes", on_the_cluster, reads_this_machine=False, runs_bare_runtimes=True),
    BackendCase(
        "training-operator",
        lambda folder: on_the_cluster(folder, TrainingOperatorBackendConfig),
        reads_this_machine=False,
    ),
    BackendCase(
        "runai",
        lambda folder: on_the_cluster(folder, RunaiBackendConfig),
        reads_this_machine=False,
        ends_at_deadline=False,
    ),
)


def pytest_generate_tests(metafunc):
    name = metafunc.module.__name__.removeprefix("test_contract_").replace("_", "-")
    on_each([case for case in CASES if case.name == name], metafunc)


@pytest.fixture
def cases():
    return CASES


@pytest.fixture(autouse=True)
def _nothing_is_kept_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _nobody_watches_the_cluster_for_longer():
    yield
    watch.stop()


@pytest.fixture(scope="session", autouse=True)
def _the_cluster_ends():
    yield
    if cluster.cache_info().currsize:
        cluster().__exit__(None, None, None)
