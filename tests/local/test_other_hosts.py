"""Local jobs and processes of other hosts: no signal is sent, nothing is deleted, and the answer names the host."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from local_jobs import PATIENCE, kill, processes_of, returns, supervisor_of, wait_until_dead, waits_at

from trainer_core import Category, Owner, TrainJobRef
from trainer_core.backends.local import gc, host
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.base.errors import JobElsewhereError

HERE = replace(host.get_host_identity(), boot_id="boot-1", pid_namespace="pid:[1]", hostname="here", machine="m-1")
OTHER_CONTAINER = replace(HERE, hostname="container", pid_namespace="pid:[2]", machine="")
OTHER_HOST = replace(HERE, hostname="there", boot_id="boot-2", machine="m-2")
AFTER_A_REBOOT = replace(HERE, boot_id="boot-3")
CAN_UNSHARE = sys.platform == "linux" and not subprocess.run(["unshare", "-rpf", "true"], check=False).returncode


@pytest.fixture
def be_on(monkeypatch):
    """Sets the host that this process seems to run on: ``be_on(OTHER_HOST)``."""

    def be_on(identity):
        monkeypatch.setattr(host, "get_host_identity", lambda: identity)

    be_on(HERE)
    return be_on


@pytest.mark.parametrize("identity", [OTHER_CONTAINER, OTHER_HOST])
@pytest.mark.parametrize("method", ["suspend", "resume", "cancel", "delete_job"])
def test_a_job_of_another_host_is_not_changed(client, running, be_on, gate, method, identity):
    ref = running(waits_at, {"gate": gate})
    be_on(identity)
    with pytest.raises(JobElsewhereError, match=r"'job' lives on host 'here' .*nothing was changed: run the command"):
        getattr(client, method)("job")
    assert client.get_job("job").status == "Running"
    be_on(HERE)
    Path(gate).write_text("go")
    assert client.wait(ref, timeout=PATIENCE).result == "go"


def test_a_finished_job_of_another_host_can_be_read_and_deleted(client, ask, be_on):
    outcome = client.wait(client.submit(ask(returns)))
    be_on(OTHER_HOST)
    assert client.get_job_outcome("job") == outcome
    client.suspend("job")
    client.delete_job("job")
    assert client.list_jobs() == []


def lose(client, running, home, gate):
    """Submit a job and kill its supervisor."""
    ref = running(waits_at, {"gate": gate})
    processes = processes_of(ref.uid)
    kill(supervisor_of(home, "job"))
    assert wait_until_dead(processes)
    return ref


def test_a_job_of_another_host_whose_lock_is_free_is_neither_failed_nor_deleted(client, running, be_on, home, gate):
    ref = lose(client, running, home, gate)
    be_on(OTHER_HOST)
    for call in (client.observe, client.wait, client.cancel, client.delete_job):
        with pytest.raises(JobElsewhereError, match="lives on host 'here'"):
            call(ref)
    be_on(HERE)
    assert client.get_job("job").status == "Failed"


@pytest.mark.parametrize("identity", [OTHER_CONTAINER, AFTER_A_REBOOT])
def test_a_free_lock_proves_the_end_of_a_job_of_the_same_machine(client, running, be_on, home, gate, identity):
    ref = lose(client, running, home, gate)
    be_on(identity)
    assert client.wait(ref, timeout=PATIENCE).diagnosis.retryable
    client.delete_job("job")
    assert client.list_jobs() == []


def test_a_retry_on_another_host_does_not_start_a_second_job(client, ask, be_on, home, gate):
    def request():
        return ask(waits_at, {"gate": gate}).with_fields(owner=Owner(key="run/task", generation="1"))

    ref = client.submit(request())
    assert "it runs" in client.get_job_logs("job", follow=True)
    be_on(OTHER_HOST)
    assert client.submit(request()) == ref
    kill(supervisor_of(home, "job"))
    assert not StateFolder(home).job_folder("job").is_supervised()
    with pytest.raises(JobElsewhereError, match="lives on host 'here'"):
        client.submit(request())
    assert [folder.name for folder in (home / "jobs").iterdir()] == ["job"]


def test_an_old_job_of_another_host_is_not_garbage(client, running, be_on, home, gate):
    lose(client, running, home, gate)
    status = home / "jobs/job/status.json"
    os.utime(status, (0, 0))
    be_on(OTHER_HOST)
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=1) == []
    be_on(HERE)
    assert gc.remove_old_jobs(StateFolder(home), keep=0, keep_days=1) == ["job"]


@pytest.mark.skipif(not CAN_UNSHARE, reason="this user must not create a PID namespace")
def test_a_process_in_another_pid_namespace_sends_no_signal(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    program = (
        "import sys; from trainer_core import *; client = TrainerClient(LocalProcessBackendConfig(home=sys.argv[1]))\n"
        "assert client.get_job('job').status == 'Running'\n"
        "try: client.delete_job('job')\n"
        "except RuntimeError as error: print(error)"
    )
    command = ["unshare", "-rpf", "--mount-proc", sys.executable, "-c", program, str(home)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert f"'job' lives on host {host.get_host_identity().hostname!r}" in answer
    Path(gate).write_text("go")
    assert client.wait(ref, timeout=PATIENCE).result == "go"


def test_the_ref_names_the_host_and_survives_json(client, ask):
    ref = client.submit(ask(returns))
    again = TrainJobRef.from_json(ref.to_json())
    assert again.host == ref.host == client.wait(ref).job.host == client.get_job_ref("job").host
    assert again.host.startswith(f"{host.get_host_identity().hostname}/")


def test_a_ref_without_a_host_has_no_such_field():
    data = TrainJobRef("local", "/home", "job", "uid").to_dict()
    assert "host" not in data
    assert TrainJobRef.from_dict(data).host is None


@pytest.mark.parametrize("method", ["observe", "wait", "suspend", "resume", "cancel", "delete_job"])
def test_a_job_that_is_missing_in_another_state_folder_is_not_deleted(client, ask, tmp_path, method):
    ref = replace(client.submit(ask(returns)), namespace=str(tmp_path / "elsewhere"))
    with pytest.raises(JobElsewhereError, match=r"'job' lives on host .*elsewhere, which this process .*does not see"):
        getattr(client, method)(ref)


def test_a_job_that_is_missing_in_its_own_state_folder_was_deleted(client, ask):
    ref = client.submit(ask(returns))
    client.delete_job("job")
    assert client.wait(ref).diagnosis.category == Category.DELETED


def test_concurrent_processes_give_a_state_folder_one_identity(home):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: StateFolder(home).create_folders(), range(8)))
        identities = set(threads.map(lambda _: StateFolder(home).read_id(), range(8)))
    assert len(identities) == 1
    assert "" not in identities


@pytest.mark.skipif(not CAN_UNSHARE, reason="this user must not create a mount namespace")
def test_a_host_with_another_disk_at_the_same_path_does_not_call_the_job_deleted(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    program = (
        "import sys; from trainer_core import *; client = TrainerClient(LocalProcessBackendConfig(home=sys.argv[1]))\n"
        "client.list_jobs()\n"
        "try: client.wait(TrainJobRef.from_json(sys.argv[2]))\n"
        "except RuntimeError as error: print(error)"
    )
    script = 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$1" "$4"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(home), sys.executable, program, ref.to_json()]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert answer.startswith(f"TrainJob 'job' lives on host {host.get_host_identity().hostname!r} in its folder {home}")
    Path(gate).write_text("go")
    assert client.wait(ref, timeout=PATIENCE).result == "go"
