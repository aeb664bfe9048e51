"""Containers with control groups, and an engine whose disk is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from own_engine import PATIENCE, OwnEngine, wait_until

from trainer_core import Category, CustomTrainer, TrainerClient
from trainer_core.testing.training_functions import run_forever

pytestmark = pytest.mark.slow
_LABEL = "trainjob-workflows.managed=true"
_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def disk():
    """The disk of the engine: 60 MB of memory."""
    if os.geteuid() != 0 or shutil.which("podman") is None or not os.access(_GROUPS / "cgroup.procs", os.W_OK):
        pytest.skip("needs root, Podman and control groups of version 1")
    folder = Path(tempfile.mkdtemp(prefix="trainjob-"))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "none", folder], check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.fixture(scope="module")
def client(disk, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    own = OwnEngine(disk, CONTAINER_ENGINE_CGROUPS="enabled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINJOB_HOME", str(home))
        client = TrainerClient(own.config)
        own.prepare(client.backend._engine)
        yield client
        for job in client.list_jobs():
            client.delete_job(job.name)
        # Without their engine, they would wait for it.
        wait_until(lambda: not list(home.rglob("*.lock")), "the supervisors exit")
    own.end()


def train(client, func, **options):
    trainer = CustomTrainer(func=func, **options)
    return client.get_job_ref(client.train(runtime="python", trainer=trainer))


def inspect(client):
    (each,) = client.backend._engine.list_containers(_LABEL)
    return client.backend._engine.inspect_container(each["Id"])


def wait_for_process(client):
    """Return the container and the process id of a job that runs."""
    listed = wait_until(lambda: client.backend._engine.list_containers(_LABEL), "the container is created")
    wait_until(lambda: inspect(client)["State"]["Running"], "the training runs")
    return listed[0]["Id"], inspect(client)["State"]["Pid"]


def takes_memory():
    bytearray(b"1") * 2**29


def test_a_function_that_the_kernel_kills_for_lack_of_memory_is_out_of_memory_whatever_the_engine_reports(client):
    ref = train(client, takes_memory, resources_per_node={"memory": "200Mi"})
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    state = inspect(client)["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (137, False)
    assert (diagnosis.category, diagnosis.step) == (Category.OUT_OF_MEMORY, "node-0")
    client.delete_job(ref)


@pytest.mark.parametrize("deed", ["suspend", "delete_job"])
def test_a_paused_container_is_continued_and_stopped(client, deed):
    ref = train(client, run_forever)
    container, pid = wait_for_process(client)
    client.backend._engine._api.pause(container)
    getattr(client, deed)(ref)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its process has ended")
    client.delete_job(ref)


def fill(file):
    with suppress(OSError):
        while True:
            file.write(bytes(2**12))


def test_what_can_be_removed_of_a_job_is_removed_from_a_full_disk(client, disk):
    ref = train(client, run_forever)
    _, pid = wait_for_process(client)
    with (disk / "full").open("wb", buffering=0) as file:
        fill(file)
    client.delete_job(ref)
    (disk / "full").unlink()
    assert not Path(f"/proc/{pid}").exists()
    assert client.backend._engine.list_containers(_LABEL) == []
    assert client.list_jobs() == []
