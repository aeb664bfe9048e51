"""The cluster that the environment names: any, with Kubeflow Trainer, and an image with Python."""

from __future__ import annotations

import os

import pytest

from trainer_core import KubernetesBackendConfig, TrainerClient
from trainer_core.cluster import connect as cluster
from trainer_core.cluster import kinds, marks
from trainer_core.cluster.api import Api
from trainer_core.testing import BackendCase, on_each

#: How to reach the cluster; a namespace without TrainJobs, which the tests may fill and empty; a runtime that runs a
#: function; an image with python3, in which it is run.
SETTINGS = ("KUBECONFIG", "TRAINJOB_E2E_NAMESPACE", "TRAINJOB_E2E_RUNTIME", "TRAINJOB_E2E_IMAGE")
MISSING = [name for name in SETTINGS if not os.environ.get(name)]


def pytest_collection_modifyitems(items):
    reason = f"needs a cluster: set {', '.join(MISSING)}"
    for item in (each for each in items if each.get_closest_marker("e2e")):
        # Whoever names a cluster whose certificate is not to be checked means it.
        item.add_marker(pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"))
        if MISSING:
            item.add_marker(pytest.mark.skip(reason=reason))


def connect(_=None):
    return TrainerClient(KubernetesBackendConfig(namespace=os.environ["TRAINJOB_E2E_NAMESPACE"]))


CASE = BackendCase(
    "cluster",
    connect,
    runtime=os.environ.get("TRAINJOB_E2E_RUNTIME", ""),
    image=os.environ.get("TRAINJOB_E2E_IMAGE"),
    reads_this_machine=False,
    runs_bare_runtimes=True,
)


def pytest_generate_tests(metafunc):
    on_each([CASE], metafunc)


@pytest.fixture(scope="session")
def empty_namespace():
    """Jobs of others are not ours to delete; volumes that jobs of ours fetched into outlive them, and are."""
    client = connect()
    found = [job.name for job in client.list_jobs()]
    assert found == [], "the namespace is used by others: name an empty one in TRAINJOB_E2E_NAMESPACE"
    yield
    api = Api(cluster.connect(KubernetesBackendConfig(namespace=client.backend.namespace)))
    for claim in api.list(kinds.CLAIMS, labels=f"{marks.MANAGED_BY}={marks.MANAGER}"):
        api.delete(kinds.CLAIMS, claim["metadata"]["name"], foreground=False)
