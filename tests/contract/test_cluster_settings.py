"""The contract suite of tests/e2e with the settings of a stranger's cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fake_cluster import Cluster

ROOT = Path(__file__).parents[2]
#: Tests that name a runtime of the cluster.
CHOSEN = "absent_job_or_runtime or invalid_request_is"


def test_the_tests_for_a_real_cluster_need_no_runtime_but_the_configured_one(tmp_path):
    with Cluster(namespaces=["e2e"]) as cluster:
        cluster.delete("ClusterTrainingRuntime", "python")
        settings = {
            "KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig", "e2e")),
            "TRAINJOB_E2E_NAMESPACE": "e2e",
            "TRAINJOB_E2E_RUNTIME": "torch-distributed",
            "TRAINJOB_E2E_IMAGE": "registry.example/python:3.11",
        }
        command = [sys.executable, "-m", "pytest", "-q", "tests/e2e/test_cluster.py", "-k", CHOSEN]
        done = subprocess.run(
            [*command, f"--basetemp={tmp_path / 'e2e'}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
