"""docs/guides/kfp-first-run.md: each line that its reader types, on doubles of KFP, its object store and a cluster."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from fake_cluster import Cluster
from kfp_backend import WORKFLOW_DEFINITION
from kfp_backend.rest import ApiServer
from kfp_driver import REPOSITORY
from optional_packages import requires
from s3_storage import serving, static
from test_kfp_on_backend import image_environment

sys.path.append(str(REPOSITORY / "tests" / "docs"))

from blocks import blocks

pytestmark = [pytest.mark.deep, requires("torch", "sklearn")]

PAGE = REPOSITORY / "docs" / "guides" / "kfp-first-run.md"
#: Of the page's blocks, those that are run here.
HERE = "test_kfp_first_run.py"
#: The dataset initializer's own program. On a cluster DNS knows the store's name; here a proxy answers for it.
FETCH = """
import os, sys
os.environ.update(HTTP_PROXY={proxy!r}, TRAINJOB_INITIALIZE_TARGET=os.environ["TRAINJOB_DATASET_PATH"])
from trainer_core.fetch.program import main
sys.exit(main(["dataset"]))
"""


@pytest.fixture
def store(tmp_path):
    """KFP's object store behind any host name: URL, and the host names and access keys of the requests."""
    asked = set()

    async def put(request):
        path = tmp_path / "store" / request.match_info["key"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(await request.read())
        return web.Response(headers={"ETag": '"1"'})

    @web.middleware
    async def record(request, handler):
        signed = re.search(r"Credential=([^/]+)/", request.headers.get("Authorization", ""))
        asked.add((request.host.partition(":")[0], signed and signed[1]))
        return await handler(request)

    app, bucket = web.Application(middlewares=[record], client_max_size=2**25), static.Folder(tmp_path / "store")
    app.router.add_put("/mlpipeline/{key:.*}", put)
    app.router.add_get("/mlpipeline/{key:.*}", bucket.answer)
    app.router.add_get("/mlpipeline", bucket.answer)
    with serving.served(app) as url:
        yield url, asked


@pytest.fixture
def installation(store, make_backend, tmp_path):
    """A stock KFP in the namespace `kubeflow`, and the cluster with what the page asks for."""
    url, _ = store
    with Cluster() as cluster:
        cluster.add(WORKFLOW_DEFINITION)
        cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubeflow"}})
        keys = {"accesskey": "bWluaW8=", "secretkey": "bWluaW8xMjM="}
        name = {"name": "mlpipeline-minio-artifact", "namespace": "kubeflow"}
        cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": name, "data": keys})
        cluster.images["dataset-initializer"] = FETCH.format(proxy=url)
        (tmp_path / "kube").mkdir()
        kubeconfig = cluster.kubeconfig(tmp_path / "kube" / "config", "kubeflow")
        backend = make_backend(
            namespace="kubeflow",
            image_environment={**image_environment(), "KUBECONFIG": str(kubeconfig)},
            proxies={"HTTP_PROXY": url, "NO_PROXY": "127.0.0.1,localhost"},
        )
        backend.objects.host_folders.append(tmp_path / "kube")
        backend.objects.api = cluster
        backend.objects.claims_folder = cluster.claims_folder("kubeflow")
        backend.objects.claims.add("digits")
        backend.objects.secrets["mlpipeline-minio-artifact"] = {"accesskey": "minio", "secretkey": "minio123"}
        yield backend


@pytest.fixture
def api(installation):
    """KFP's API server, and its URL."""
    server = ApiServer(installation)
    with serving.served(server.app()) as url:
        yield server, url


def test_each_line_of_the_page_does_what_it_says(installation, api, store, tmp_path):
    server, host = api
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("dags", "pipelines"):
        (folder / name).symlink_to(REPOSITORY / name)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",
        "KF_PIPELINES_ENDPOINT": host,
        "KUBECONFIG": str(tmp_path / "kube" / "config"),
        "AWS_ENDPOINT_URL": store[0],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "minio",
        "AWS_ACCESS_KEY_ID": "minio",
        "AWS_SECRET_ACCESS_KEY": "minio123",
    }
    shown = [block for block in blocks(PAGE) if block.reason and HERE in block.reason]
    said = {}
    for block in shown:
        if block.file:
            (folder / block.file).write_text(block.text)
        for line in block.commands:
            done = subprocess.run(
                shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            explained = "".join(result.explain() for result in server.results)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}{explained}"
            said[line.split()[1]] = done.stdout

    (run,) = server.results
    assert "SUCCEEDED" in said["run.py"], run.explain()
    # Steps and jobs have found the data at KFP's own address, with the keys of its Secret.
    assert ("seaweedfs.kubeflow", "minio") in store[1]
    assert run.output("submit", "job")["name"] in said["--backend"]
    assert run.artifact("wait", "report")["uri"].startswith("minio://mlpipeline/")
    assert run.output("evaluate-gate", "passed") is True
    assert run.output("promote", "promoted") is True
    assert (installation.objects.claim("digits") / "registry" / "current.json").exists()
    scheduled = server.run_scheduled("retrain-digits")
    assert scheduled.phase == "Succeeded", scheduled.explain()
    assert [scheduled.task(name).cached for name in ("look", "initialize-dataset")] == [False, True]
    assert "promoted" in scheduled.task("promote").log
