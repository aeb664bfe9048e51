"""An S3 server for the tests, and proxies that inject faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fetch_helpers import KEYS
from s3_storage import faults, serving, static

from trainer_core.fetch import cache
from trainer_core.fetch.progress import LogProgress
from trainer_core.fetch.s3.bucket import S3Source
from trainer_core.fetch.settings import ENV_PREFIX, FetchSettings


@pytest.fixture(scope="session")
def moto():
    """URL of a moto server without request logs, and a boto3 client of it."""
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
    """An empty bucket: ``bucket(key, body)`` stores an object, ``bucket.name`` is its name."""
    _, client = moto
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    client.create_bucket(Bucket=name)

    def put(key, body):
        client.put_object(Bucket=name, Key=key, Body=body)

    put.name = name
    return put


@pytest.fixture
def proxy(moto):
    """A proxy in front of moto; append to its `faults`."""
    proxy = faults.Proxy(moto[0])
    with serving.served(proxy.app()) as proxy.url:
        yield proxy


@pytest.fixture
def folder_proxy(tmp_path):
    """A folder served as a bucket behind a proxy: write to `folder`, fetch from `url`, append to `faults`."""
    folder = tmp_path / "served"
    folder.mkdir()
    proxy = faults.Proxy("")
    proxy.folder = folder
    with serving.served(static.app(folder)) as proxy.upstream, serving.served(proxy.app()) as proxy.url:
        yield proxy


@pytest.fixture
def fetch(tmp_path):
    """Fetch a URI from an endpoint into the cache of the test, and return the folder: ``fetch(uri, endpoint, …)``."""

    def fetch(uri, endpoint, *, retries=2, **more):
        settings = FetchSettings("dataset", uri, endpoint=endpoint, **{**KEYS, **more})
        return cache.fetch_to_cache(S3Source(settings, retries), tmp_path / "cache", LogProgress("dataset"))[0]

    return fetch


@pytest.fixture
def program(tmp_path):
    """Start the initializer program as a process: ``program(uri, endpoint)``."""
    started = []

    def program(uri, endpoint, role="dataset", **more):
        settings = {"STORAGE_URI": uri, "ROLE": role, "ENDPOINT": endpoint, "CACHE": str(tmp_path / "cache")}
        settings.update({name.upper(): value for name, value in {**KEYS, **more}.items()})
        env = {ENV_PREFIX + name: value for name, value in settings.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer_core.fetch"],
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
