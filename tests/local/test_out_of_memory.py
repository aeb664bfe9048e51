"""Processes that the kernel kills for lack of memory in a control group with little of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from local_jobs import PATIENCE
from optional_packages import requires

from trainer_core import Category, LocalProcessBackendConfig, TrainerClient, TrainJobRef, TrainJobRequest

pytestmark = pytest.mark.slow
_LIMIT = 2**30


@pytest.fixture
def submit(processes, client, home) -> Iterator[Callable[[TrainJobRequest], TrainJobRef]]:
    """Submit a request from a control group with a gigabyte of memory, which the supervisor inherits.

    The submitter is a process of its own: the kernel kills the largest process of the group, and that is this one.
    """
    own = Path("/proc/self/cgroup").read_text()
    paths = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    is_v1 = "memory" in paths
    parent = Path(f"/sys/fs/cgroup/memory{paths['memory']}" if is_v1 else f"/sys/fs/cgroup{paths.get('', '')}")
    group = parent / f"trainjob-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(_LIMIT))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group for memory can be made: {error.strerror}")

    def submit(request: TrainJobRequest) -> TrainJobRef:
        submitter = processes.Process(target=_submit_from, args=(group, home, request))
        submitter.start()
        submitter.join(PATIENCE)
        return client.get_job_ref("job")

    yield submit
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):  # It has ended meanwhile.
            (parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def _submit_from(group: Path, home: Path, request: TrainJobRequest) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    TrainerClient(LocalProcessBackendConfig(home=home)).submit(request)


def takes_memory(where: str):
    import concurrent.futures
    import multiprocessing
    import os

    if where == "rank":
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            bytearray(os.urandom(1024)) * 2**21
        dist.all_reduce(torch.ones(1))
    if where == "function":
        bytearray(os.urandom(1024)) * 2**21
    if where == "pool":
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            pool.submit(bytearray.__mul__, bytearray(os.urandom(1024)), 2**21).result()
    if where == "nowhere":
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            pool.submit(os.abort).result()


@pytest.mark.parametrize("where", ["function", "pool"])
def test_what_the_kernel_kills_for_lack_of_memory_is_out_of_memory(client, submit, ask, where):
    diagnosis = client.wait(submit(ask(takes_memory, {"where": where})), timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.OUT_OF_MEMORY, False)
    assert diagnosis.reason.startswith("it ran out of memory")


@requires("torch")
def test_a_rank_that_the_kernel_kills_for_lack_of_memory_is_out_of_memory(client, submit, ask):
    request = ask(takes_memory, {"where": "rank"}, runtime="torch-distributed", num_proc_per_node=2)
    diagnosis = client.wait(submit(request), timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.exit_code) == (Category.OUT_OF_MEMORY, -9)
    assert diagnosis.reason.startswith("rank 1 ran out of memory")


def test_a_worker_of_a_pool_that_aborts_is_not_out_of_memory(client, submit, ask):
    diagnosis = client.wait(submit(ask(takes_memory, {"where": "nowhere"})), timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert diagnosis.reason.startswith("a process that it started crashed (Aborted)")
