"""S3 storage of a test's own, behind a proxy that can have a bad day."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fetching_scene import KEYS
from s3_storage import serving, static, trouble

from trainer_core.fetching import store
from trainer_core.fetching.progress import Lines
from trainer_core.fetching.s3 import S3Source
from trainer_core.fetching.settings import PREFIX, Settings


@pytest.fixture(scope="session")
def moto():
    """URL of moto's server, and a client for it; without a line for each request."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    yield url, client
    client.close()
    server.stop()


@pytest.fixture
def bucket(moto, request):
    """Name of an empty bucket, and ``put(key, body)``."""
    _, client = moto
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    client.create_bucket(Bucket=name)

    def put(key, body):
        client.put_object(Bucket=name, Key=key, Body=body)

    put.name = name
    return put


@pytest.fixture
def proxy(moto):
    """moto's server on a bad day: add to its `faults`."""
    proxy = trouble.Proxy(moto[0])
    with serving.served(proxy.app()) as proxy.url:
        yield proxy


@pytest.fixture
def folder_proxy(tmp_path):
    """A folder served as a bucket, on a bad day: fill `folder`, then ask for `url`."""
    folder = tmp_path / "served"
    folder.mkdir()
    proxy = trouble.Proxy("")
    proxy.folder = folder
    with serving.served(static.app(folder)) as proxy.upstream, serving.served(proxy.app()) as proxy.url:
        yield proxy


@pytest.fixture
def fetch(tmp_path):
    """Fetch a URI from an endpoint into this test's cache, and return the folder: ``fetch(uri, endpoint, …)``."""

    def fetch(uri, endpoint, *, retries=2, **more):
        settings = Settings("dataset", uri, endpoint=endpoint, **{**KEYS, **more})
        return store.fetch(S3Source(settings, retries), tmp_path / "cache", Lines("dataset"))[0]

    return fetch


@pytest.fixture
def program(tmp_path):
    """Starts the fetching program: ``program(uri, endpoint)``; its output goes to `log`."""
    started = []

    def program(uri, endpoint, role="dataset", **more):
        told = {"STORAGE_URI": uri, "ROLE": role, "ENDPOINT": endpoint, "CACHE": str(tmp_path / "cache")}
        told.update({name.upper(): value for name, value in {**KEYS, **more}.items()})
        env = {PREFIX + name: value for name, value in told.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer_core.fetching"],
            env={**os.environ, **env, "TRAINJOB_TERMINATION_LOG": str(tmp_path / "termination")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()
