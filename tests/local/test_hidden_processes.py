"""Processes of a job that lose its environment, leave its session or change their title are found, and end with it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from functools import partial

import psutil
import pytest
from hypothesis import given, settings, strategies as st
from local_jobs import PATIENCE, hides, kill, processes_of, returns, supervisor_of, wait_until_dead

from trainer_core import Owner
from trainer_core.backends.local.processes import find_processes, kill_job_processes, mark_process
from trainer_core.testing.case import wait_for_status

#: Does what its arguments say, one after the other; what is alive at the end prints its id.
HABITS = """
import os, subprocess, sys, time
from pathlib import Path

def clear():
    os.execve(sys.executable, [sys.executable, *sys.argv], {})

def spawn():
    os._exit(subprocess.run([sys.executable, *sys.argv], env={}).returncode)

def daemonize():
    if os.fork():
        os._exit(0)
    os.setsid()

def set_title():
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(bytes(end - start))

def run():
    os.execv("/bin/sh", ["/bin/sh", "-c", '"$0" "$@"; exit', sys.executable, *sys.argv])

while len(sys.argv) > 1:
    globals()[sys.argv.pop(1)]()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@given(habits=st.lists(st.sampled_from(["clear", "spawn", "daemonize", "set_title", "run"]), max_size=5))
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_a_process_of_a_job_is_found_and_killed_whatever_it_and_its_parents_do(tmp_path_factory, habits):
    script = tmp_path_factory.mktemp("habits") / "habits.py"
    script.write_text(HABITS)
    command, uid = [sys.executable, str(script), *habits], script.parent.name
    mark = partial(mark_process, uid)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=mark) as process:
        assert process.stdout is not None
        last = psutil.Process(int(process.stdout.readline()))
        try:
            assert last.pid in dict(find_processes([uid]))
            kill_job_processes([uid])
            assert wait_until_dead([last])
            assert dict(find_processes([uid])) == {}
        finally:
            with suppress(psutil.NoSuchProcess):
                last.kill()  # Its parents end with it.


@pytest.fixture
def request_of_task(ask):
    """Requests of one task, whose job is job-0, then job-1."""

    def request(func, args=None):
        return ask(func, args).with_fields(owner=Owner(key="run/task", slug="task", generation="1"))

    return request


@pytest.fixture
def hidden(client, request_of_task, home, gate):
    """A job that runs: its ref, its supervisor, and its processes, which have not the environment of the job."""
    ref = client.submit(request_of_task(hides, {"gate": gate}))
    assert "it runs" in client.get_job_logs(ref.name, follow=True)
    supervisor = supervisor_of(home, ref.name)
    node = psutil.Process(json.loads((home / "jobs" / ref.name / "status.json").read_text())["steps"][0]["pid"])
    processes = [node, *node.children()]
    assert processes_of(ref.uid) == []
    yield ref, supervisor, processes
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def test_cancelling_ends_hidden_processes(client, hidden):
    ref, _, processes = hidden
    assert sorted(client.backend.list_processes(ref)) == sorted(f"process {each.pid}" for each in processes)
    client.cancel(ref)
    assert wait_until_dead(processes)
    assert client.backend.list_processes(ref) == []


def test_suspending_ends_hidden_processes(client, hidden):
    ref, supervisor, processes = hidden
    client.suspend(ref)
    wait_for_status(client, ref.name, "Suspended")
    assert client.backend.list_processes(ref) == []
    assert wait_until_dead(processes)
    assert supervisor.is_running()


def test_hidden_processes_end_with_a_killed_supervisor(client, hidden):
    ref, supervisor, processes = hidden
    kill(supervisor)
    assert wait_until_dead(processes)
    assert client.wait(ref, timeout=PATIENCE).diagnosis.retryable


def test_a_retry_ends_hidden_processes_of_a_job_whose_supervisor_and_guard_were_killed(client, hidden, request_of_task):
    ref, supervisor, processes = hidden
    (guard,) = [child for child in supervisor.children() if child not in processes]
    kill(guard)
    kill(supervisor)
    assert client.wait(ref, timeout=PATIENCE).diagnosis.retryable
    assert [each.is_running() for each in processes] == [True, True]
    retry = client.submit(request_of_task(returns))
    assert wait_until_dead(processes)
    assert client.wait(retry, timeout=PATIENCE).result == 1
