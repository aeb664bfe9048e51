"""A real cluster, set by environment variables: it requires Kubeflow Trainer and an image with Python."""

from __future__ import annotations

import os

import pytest

from trainer_core import KubernetesBackendConfig, TrainerClient
from trainer_core.k8s import labels, resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters, build_plain_runtime
from trainer_core.testing import BackendCase, parametrize_backends

#: Kubeconfig of the cluster; a namespace without TrainJobs, for the tests; a runtime that runs functions; an image
#: with python3 for it. Optional: TRAINJOB_E2E_ACCESS_MODE, of a claim of the default StorageClass for checkpoints.
SETTINGS = ("KUBECONFIG", "TRAINJOB_E2E_NAMESPACE", "TRAINJOB_E2E_RUNTIME", "TRAINJOB_E2E_IMAGE")
MISSING = [name for name in SETTINGS if not os.environ.get(name)]


def pytest_collection_modifyitems(items):
    reason = f"needs a cluster: set {', '.join(MISSING)}"
    for item in (each for each in items if each.get_closest_marker("e2e")):
        # The kubeconfig may turn off TLS verification.
        item.add_marker(pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"))
        item.add_marker(pytest.mark.slow)
        if MISSING:
            item.add_marker(pytest.mark.skip(reason=reason))


#: With the default no job of several nodes can have checkpoints.
ACCESS_MODE = os.environ.get("TRAINJOB_E2E_ACCESS_MODE", "ReadWriteOnce")
CLAIM = "trainjob-e2e-checkpoints"
ONCE = "trainjob-e2e-once"


def build_config():
    return KubernetesBackendConfig(
        namespace=os.environ["TRAINJOB_E2E_NAMESPACE"], checkpoints_uri=f"pvc://{CLAIM}/contract"
    )


def connect(_=None):
    return TrainerClient(build_config())


def get_api(_=None):
    return ApiClient(Connection(build_config()))


CASE = BackendCase(
    "cluster",
    connect,
    runtime=os.environ.get("TRAINJOB_E2E_RUNTIME", ""),
    runtime_without_restarts=ONCE,
    image=os.environ.get("TRAINJOB_E2E_IMAGE"),
    reads_local_files=False,
    reads_checkpoints=False,
    runs_runtime_without_trainer=True,
    restarts_processes=True,
    shares_checkpoints=ACCESS_MODE == "ReadWriteMany",
    replaces_pods=True,
    get_api=get_api,
)


def pytest_generate_tests(metafunc):
    parametrize_backends([CASE], metafunc)


@pytest.fixture(scope="session")
def empty_namespace():
    """Refuse a namespace with TrainJobs of other users; create a claim and a runtime, and delete all at the end."""
    names = [job.name for job in connect().list_jobs()]
    assert names == [], "the namespace has TrainJobs; set TRAINJOB_E2E_NAMESPACE to an empty namespace"
    api = get_api()
    api.create(
        resources.VOLUME_CLAIMS,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "labels": {labels.MANAGED_BY: labels.MANAGER}},
            "spec": {"accessModes": [ACCESS_MODE], "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    place = {"image": os.environ["TRAINJOB_E2E_IMAGE"], "namespace": os.environ["TRAINJOB_E2E_NAMESPACE"]}
    api.create(resources.TRAINING_RUNTIMES, build_plain_runtime(RuntimeParameters(ONCE, restarts=0, **place)))
    yield
    api.delete(resources.TRAINING_RUNTIMES, ONCE, foreground=False)
    for claim in api.list(resources.VOLUME_CLAIMS, label_selector=f"{labels.MANAGED_BY}={labels.MANAGER}"):
        api.delete(resources.VOLUME_CLAIMS, claim["metadata"]["name"], foreground=False)
