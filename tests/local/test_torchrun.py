"""torchrun on this machine: several nodes and processes, one result, one rendezvous port for each job."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from local_jobs import PATIENCE, kill, processes_of, supervisor_of, wait_until_dead, waits_at
from optional_packages import requires

from trainer_core import Category, Stalled
from trainer_core.backends.local import runner

pytestmark = [requires("torch"), pytest.mark.slow]


#: A project that sums the ranks; rank 0 has a DataLoader worker that is started with spawn.
PROJECT = {
    "__init__.py": "",
    "samples.py": """\
from torch.utils.data import Dataset


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index
""",
    "train.py": """\
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from .samples import Squares


def main():
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1])
    if dist.get_rank() == 0:
        loader = DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn")
        total += sum(batch.item() for batch in loader)
    dist.all_reduce(total)
    sizes = {name: int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")}
    dist.destroy_process_group()
    return {"total": total.item(), "rank": int(os.environ["RANK"]), **sizes}
""",
}


def fails_on_the_last_rank():
    import os
    import time

    if os.environ["RANK"] == "1":
        raise ValueError("the last rank fails")
    time.sleep(600)


def kills_itself():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def waits_for_ever_in_a_collective():
    import os
    import time

    import torch
    import torch.distributed as dist

    from trainer_core import progress

    dist.init_process_group("gloo")
    dist.barrier()
    progress(step=1)
    if os.environ["RANK"] == "1":
        time.sleep(3600)  # It skips the collective.
    dist.all_reduce(torch.ones(1))


def test_a_collective_that_waits_for_ever_is_noticed_and_the_stacks_of_all_ranks_say_where(client, ask):
    options = [Stalled(after="5s")]
    request = ask(waits_for_ever_in_a_collective, runtime="torch-distributed", num_proc_per_node=2, options=options)
    diagnosis = client.wait(client.submit(request), timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable, diagnosis.exit_code) == (Category.STALLED, True, 124)
    assert "after step 1; rank " in diagnosis.reason
    stacks = [line for line in client.get_job_logs("job") if "[trainjob:stack]" in line]
    assert {rank for rank in (0, 1) if any(f"rank {rank} MainThread" in line for line in stacks)} == {0, 1}
    assert any("in all_reduce" in line for line in stacks)


def test_two_nodes_of_two_processes_of_a_project_work_together_and_rank_0_reports(client, ask, tmp_path):
    package = tmp_path / "project" / "src" / "squares"
    package.mkdir(parents=True)
    for name, text in PROJECT.items():
        (package / name).write_text(text)
    project = {"code": tmp_path / "project", "num_nodes": 2, "num_proc_per_node": 2}
    outcome = client.wait(
        client.submit(ask("squares.train:main", runtime="torch-distributed", **project)), timeout=PATIENCE
    )
    assert outcome.result == {
        "total": 1 + 2 + 3 + 4 + (0 + 1 + 4 + 9),
        "rank": 0,
        "WORLD_SIZE": 4,
        "LOCAL_WORLD_SIZE": 2,
        "GROUP_WORLD_SIZE": 2,
    }
    job = client.get_job("job")
    assert [(step.name, step.status) for step in job.steps] == [("node-0", "Succeeded"), ("node-1", "Succeeded")]


def test_an_error_on_any_rank_is_diagnosed_and_ends_the_other_ranks(client, ask):
    ref = client.submit(ask(fails_on_the_last_rank, runtime="torch-distributed", num_nodes=2))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.USER_CODE, "node-1")
    assert diagnosis.reason == "ValueError: the last rank fails"
    assert "raise ValueError" in diagnosis.traceback
    assert processes_of(ref.uid) == []


def test_a_killed_worker_is_an_infrastructure_failure(client, ask):
    ref = client.submit(ask(kills_itself, runtime="torch-distributed"))
    diagnosis = client.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert "SIGKILL" in diagnosis.reason


def test_the_workers_of_torchrun_end_when_the_supervisor_is_killed(client, running, home, gate):
    ref = running(waits_at, {"gate": gate}, runtime="torch-distributed")
    processes = processes_of(ref.uid)
    kill(supervisor_of(home, "job"))
    assert client.wait(ref, timeout=PATIENCE).diagnosis.category == Category.INFRASTRUCTURE
    assert len(processes) >= 2
    assert wait_until_dead(processes)


def test_reserved_ports_are_unique(tmp_path):
    with ExitStack() as stack:
        reserved = [stack.enter_context(runner.reserve_port(tmp_path)) for _ in range(200)]
        assert len(set(reserved)) == len(reserved)


def test_a_released_port_leaves_no_file(tmp_path):
    with runner.reserve_port(tmp_path):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_concurrent_reservations_return_different_ports(tmp_path):
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        taken = threads.map(lambda _: stack.enter_context(runner.reserve_port(tmp_path)), range(100))
        assert len(set(taken)) == 100


@pytest.fixture
def free_port(tmp_path):
    """A port that is free, and that the system gives to no program that asks for any port."""
    with runner.reserve_port(tmp_path) as port:
        pass
    return port


def test_a_port_in_use_is_not_reserved(tmp_path, monkeypatch, free_port):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        # The choice is limited to these two ports.
        monkeypatch.setattr(runner.random, "sample", lambda *_: [busy.getsockname()[1], free_port])
        with runner.reserve_port(tmp_path) as port:
            assert port == free_port


def test_a_port_can_be_reserved_again_after_its_release(tmp_path, monkeypatch, free_port):
    monkeypatch.setattr(runner.random, "sample", lambda *_: [free_port])
    with runner.reserve_port(tmp_path) as port:
        assert port == free_port
