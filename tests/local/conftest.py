"""Fixtures: each test has its own local backend, and no job survives the test."""

from __future__ import annotations

import multiprocessing
import os

import pytest
from local_jobs import returns

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient
from trainer_core.node.env import RESOURCE_INTERVAL


@pytest.fixture(autouse=True)
def _report_resources_late(monkeypatch):
    """Jobs inherit it. A job that takes ten seconds on a busy machine has no unexpected line in its log."""
    monkeypatch.setenv(RESOURCE_INTERVAL, "3600")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def client(home):
    client = TrainerClient(LocalProcessBackendConfig(home=home))
    yield client
    for job in client.list_jobs():
        if job.status not in ("Complete", "Failed"):
            client.delete_job(job.name)


@pytest.fixture
def gate(tmp_path):
    """A FIFO that jobs read. They wait until the test writes to it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return str(path)


@pytest.fixture
def ask(client):
    """Builds requests: ``ask(func, {args}, name=…, options=[…], **further fields of the trainer)``."""

    def ask(func=returns, args=None, name="job", options=(), runtime="python", initializer=None, **fields):
        trainer = CustomTrainer(func=func, func_args=args, **fields)
        named = [Name(name), *options]
        return client.build_request(runtime=runtime, trainer=trainer, initializer=initializer, options=named)

    return ask


@pytest.fixture
def running(client, ask):
    """Submits a job and returns its ref when its function runs."""

    def running(func, args, **more):
        ref = client.submit(ask(func, args, **more))
        assert "it runs" in client.get_job_logs(ref.name, follow=True)
        return ref

    return running


@pytest.fixture(scope="session")
def processes():
    """Multiprocessing context whose processes start in milliseconds, because the modules are imported in advance."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer_core.client", "trainer_core.backends.local.backend", "yaml"])
    return context


@pytest.fixture
def run_log(tmp_path):
    folder = tmp_path / "run-log"
    folder.mkdir()
    return folder
