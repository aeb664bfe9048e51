#!/usr/bin/env python
"""What reports of the use of resources cost: a torch job of two processes with them, and the same job without.

    benchmarks/resource_use.py [STEPS]

Runs the command of a container as a process of this machine. Yardstick: the process that reports takes at most 0.5 % of
the processor time of the job, and 5 ms for each report. The wall times of both jobs are printed, too; on a busy machine
they differ by more than that.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainer_core.model.request import Code
from trainer_core.model.resource_use import parse_resource_report
from trainer_core.node import env
from trainer_core.packaging import argv_payload, serializer

STEPS = 3000
LIMIT, REPORT_LIMIT = 0.005, 0.005


def train(steps: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.ones(512, 512)
    for step in range(steps):
        weights = (weights @ weights).clamp(0, 1)
        if step % 100 == 0:
            dist.all_reduce(weights)
    dist.destroy_process_group()


def main(steps: int = STEPS) -> int:
    """Print the ratios; return 1 if one is above its yardstick."""
    for _ in range(2):  # The first one loads torch from the disk.
        without, _, _, _ = run(steps, "0")
    wall, processor, spent, reports = run(steps, "")
    each = spent / max(1, reports)
    print(f"job        {wall:.1f} s, without reports {without:.1f} s: ratio {wall / without:.4f}")
    print(f"reports    {reports} in {spent * 1000:.1f} ms of processor time: {each * 1000:.2f} ms each (at most 5)")
    print(f"processor  {1 + spent / processor:.5f} times that of the job alone (at most {1 + LIMIT})")
    return int(reports == 0 or spent > LIMIT * processor or each > REPORT_LIMIT)


def run(steps: int, interval: str) -> tuple[float, float, float, int]:
    """Run the job.

    Returns:
        Its wall time and processor time, the processor time of the process that reports, and the number of reports.
    """
    code = Code(**serializer.package(train, {"steps": steps}))
    command = [sys.executable, *argv_payload.render_argv(code, launch="torchrun")[1:]]
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": "2",
            "PET_STANDALONE": "1",
            "OMP_NUM_THREADS": "1",
            env.TERMINATION_LOG: f"{folder}/termination-log",
            env.RESOURCE_INTERVAL: interval,
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        spent = 0.0
        with Path(folder, "log").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as job:
            while job.poll() is None:
                spent = max(spent, read_processor_seconds(job.pid))
                time.sleep(0.5)
        wall = time.monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = Path(folder, "log").read_text(encoding="utf-8", errors="replace").splitlines()
        if "result" not in json.loads(Path(folder, "termination-log").read_text(encoding="utf-8")):
            raise SystemExit("\n".join(lines))
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, spent, sum(parse_resource_report(line) is not None for line in lines)


def read_processor_seconds(pid: int) -> float:
    """Return the processor time of the child that reports: it still has the command of the launcher."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # A process ends meanwhile.
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if command[1] == b"-c" and command[3] == b"torchrun":
                return int(Path(f"/proc/{child}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return 0.0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
