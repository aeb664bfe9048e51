"""A container job whose project is too large for its arguments and travels through S3 storage."""

from __future__ import annotations

import json
import os

import container_engine
import pytest
from aiohttp import web
from s3_storage import serving
from s3_storage.memory import MemoryStorage

from trainer_core import CustomTrainer, Owner

PROGRAM = """
from pathlib import Path

def measure():
    return len(Path("noise.bin").read_bytes())
"""
#: What a service of the machine gives its containers, as ECS and EKS do.
CREDENTIALS = {
    "AccessKeyId": "of-containers",
    "SecretAccessKey": "secret-of-containers",
    "Expiration": "2099-01-01T00:00:00Z",
}


@pytest.fixture
def storage(monkeypatch):
    """Storage that containers reach, whose credentials the submitter has in its environment."""
    storage = MemoryStorage()
    variables = {"AWS_ACCESS_KEY_ID": "of-submitter", "AWS_SECRET_ACCESS_KEY": "secret-of-submitter"}
    with serving.served(storage.app(), host=container_engine.get_own_address()) as storage.url:
        for name, value in {**variables, "AWS_ENDPOINT_URL": storage.url}.items():
            monkeypatch.setenv(name, value)
        yield storage


@pytest.fixture
def credentials_url():
    """URL at which containers get their own credentials."""

    async def give_credentials(request):
        return web.json_response(CREDENTIALS)

    app = web.Application()
    app.router.add_get("/", give_credentials)
    with serving.served(app, host=container_engine.get_own_address()) as url:
        yield url


@pytest.fixture
def project(tmp_path):
    """Folder of a program that counts 1,000,000 bytes beside it, which do not compress."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "noise.bin").write_bytes(os.urandom(1_000_000))
    return folder


def test_each_container_fetches_a_large_project_from_the_bucket_and_inspect_shows_no_credentials(
    sandbox, storage, credentials_url, project
):
    client = sandbox.client(code_uri="s3://bucket/code")
    variables = {"AWS_ENDPOINT_URL": storage.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": credentials_url}
    trainer = CustomTrainer("train:measure", code=project, num_nodes=2, env=variables)
    request = client.build_request(runtime="python", trainer=trainer, owner=Owner(key="train"))
    ref = client.submit(request)
    outcome = client.wait(ref)

    assert outcome.result == 1_000_000, outcome.diagnosis
    assert client.submit(request) == ref
    stored, fetched = storage.requests[:2], storage.requests[2:]
    assert [method for method, _ in stored] == ["HEAD", "PUT"]
    # A fetch is repeated where the network of a container drops its connection, as while other containers start.
    assert {method for method, _ in fetched} == {"GET"}
    assert len(fetched) >= 2
    assert storage.signers == {"of-submitter", "of-containers"}
    visible = json.dumps(
        [
            *[sandbox.engine.inspect_container(step.pod_name) for step in client.get_job(ref).steps],
            *sandbox.engine.list_containers(sandbox.label),
            *sandbox.engine.list_volumes(sandbox.label),
        ]
    )
    assert "s3://bucket/code" in visible
    assert "secret-of" not in visible
