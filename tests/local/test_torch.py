"""torchrun on this machine: several nodes and processes, one result, one port for each job."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from local_jobs import PATIENCE, gone, kill, processes_of, supervisor_of, waits_at

from trainer_core import Category
from trainer_core.backends.local import ports

pytest.importorskip("torch", reason="torch is not installed")


def sums_the_ranks():
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    sizes = {name: int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")}
    dist.destroy_process_group()
    return {"total": total.item(), "rank": int(os.environ["RANK"]), **sizes}


def fails_on_the_last_rank():
    import os
    import time

    if os.environ["RANK"] == "1":
        raise ValueError("the last rank has enough")
    time.sleep(600)


def kills_itself():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def test_two_nodes_of_two_processes_work_together_and_rank_0_reports(client, ask):
    request = ask(sums_the_ranks, runtime="torch-distributed", num_nodes=2, num_proc_per_node=2)
    outcome = client.wait(client.submit(request), timeout=PATIENCE)
    assert outcome.result == {
        "total": 1 + 2 + 3 + 4,
        "rank": 0,
        "WORLD_SIZE": 4,
        "LOCAL_WORLD_SIZE": 2,
        "GROUP_WORLD_SIZE": 2,
    }
    job = client.get_job("job")
    assert [(step.name, step.status) for step in job.steps] == [("node-0", "Succeeded"), ("node-1", "Succeeded")]


def test_an_error_on_any_rank_is_the_diagnosis_and_ends_all_the_others(client, ask):
    ref = client.submit(ask(fails_on_the_last_rank, runtime="torch-distributed", num_nodes=2))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.USER_CODE, "node-1")
    assert diagnosis.reason == "ValueError: the last rank has enough"
    assert "raise ValueError" in diagnosis.traceback
    assert processes_of(ref.uid) == []


def test_a_worker_that_was_killed_is_told_from_one_that_failed(client, ask):
    ref = client.submit(ask(kills_itself, runtime="torch-distributed"))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert "SIGKILL" in diagnosis.reason


def test_a_killed_supervisor_takes_the_workers_of_torchrun_along(client, running, home, gate):
    ref = running(waits_at, {"gate": gate}, runtime="torch-distributed")
    processes = processes_of(ref.uid)
    kill(supervisor_of(home, "job"))
    assert client.wait(ref, timeout=PATIENCE).diagnosis.category == Category.INFRASTRUCTURE
    assert len(processes) >= 2
    assert gone(processes)


def test_a_reserved_port_is_given_to_nobody_else(tmp_path):
    with ExitStack() as stack:
        reserved = [stack.enter_context(ports.reserved(tmp_path)) for _ in range(200)]
        assert len(set(reserved)) == len(reserved)


def test_jobs_at_the_same_time_reserve_different_ports(tmp_path):
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        taken = threads.map(lambda _: stack.enter_context(ports.reserved(tmp_path)), range(100))
        assert len(set(taken)) == 100


def test_a_port_that_somebody_uses_is_not_reserved(tmp_path, monkeypatch):
    with socket.socket() as busy, socket.socket() as probe:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        # Only these two to choose from.
        monkeypatch.setattr(ports.random, "sample", lambda *_: [busy.getsockname()[1], free])
        with ports.reserved(tmp_path) as port:
            assert port == free


def test_a_port_is_free_again_when_its_job_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(ports.random, "sample", lambda *_: [21_987])
    for _ in range(2):
        with ports.reserved(tmp_path) as port:
            assert port == 21_987
