"""The real torch: a distributed checkpoint that two processes saved is loaded by four."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer_core.node import env

pytestmark = pytest.mark.slow

#: torch is imported once: the ranks are forks.
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

FULL = torch.arange(32.0).reshape(8, 4)

def start(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group-{world}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    from trainer_core import checkpoints
    return checkpoints(), mesh

def save(rank, world):
    store, mesh = start(rank, world)
    with store.save(5) as folder:
        dcp.save({"weight": distribute_tensor(FULL, mesh, [Shard(0)])}, checkpoint_id=folder)

def load(rank, world):
    store, mesh = start(rank, world)
    last = store.latest()
    state = {"weight": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])}
    dcp.load(state, checkpoint_id=last.path)
    local = state["weight"].to_local()
    assert (last.step, last.world_size, len(local)) == (5, 2, 2)
    assert torch.equal(local, FULL[2 * rank : 2 * rank + 2])

def run(function, world):
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                function(rank, world)
                code = 0
            finally:
                sys.stdout.flush()
                if code:
                    import traceback
                    traceback.print_exc()
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

print(run(save, 2), run(load, 4), flush=True)
"""


def test_a_distributed_checkpoint_of_two_processes_is_loaded_by_four(tmp_path):
    root = tmp_path / "base" / "train" / "g-0"
    variables = {env.CHECKPOINT_PATH: str(root), env.CHECKPOINTS: "{}", "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert "[0, 0] [0, 0, 0, 0]" in done.stdout, done.stdout + done.stderr
    names = {path.name for path in (root / "step-000000000005").iterdir()}
    assert names == {"manifest.json", ".metadata", "__0_0.distcp", "__1_0.distcp"}
