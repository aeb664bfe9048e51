#!/usr/bin/env python
"""What the server for reports of libraries, and the option `Stalled`, cost a torch job of two processes.

    benchmarks/progress_without_code.py [SECONDS]

A thread reports steps and metrics every half second, ten times as often as transformers, and each step is a sign of
progress. Yardstick: the processor time of the server, of the requests, of these signs and of the attendant is at most
0.5 % of that of two processes that compute all the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainer_core.model.request import Code
from trainer_core.node import beats, env
from trainer_core.node.attendant import Attendant
from trainer_core.node.termination import parse_record
from trainer_core.packaging import argv_payload, serializer

SECONDS = 20
LIMIT = 0.005


def train(seconds: float) -> dict[str, float]:
    """Multiply matrices beside reports; return the processor time of both threads, in seconds."""
    import json
    import os
    import threading
    import time
    import urllib.request
    from pathlib import Path

    import torch
    import torch.distributed as dist

    from trainer_core.node import beats

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    end = torch.tensor([time.time() + seconds], dtype=torch.float64)
    dist.broadcast(end, 0)
    step = 0
    spent = {"reports": 0.0, "count": 0.0}

    def report() -> None:
        url, token = os.environ["KUBEFLOW_TRAINER_SERVER_URL"], Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"])
        while True:
            metrics = [{"name": name, "value": str(step)} for name in ("current_step", "loss", "grad_norm", "epoch")]
            status = {"metrics": metrics, "lastUpdatedTime": "2026-11-24T05:30:00Z", "progressPercentage": 1}
            headers = {"Authorization": f"Bearer {token.read_text()}"}
            request = urllib.request.Request(url, json.dumps({"trainerStatus": status}).encode(), headers)  # noqa: S310
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310
            spent.update(reports=time.thread_time(), count=spent["count"] + 1)
            time.sleep(0.5)

    if dist.get_rank() == 0:
        threading.Thread(target=report, daemon=True).start()
    weights = torch.ones(512, 512)
    while time.time() < end.item():
        step += 1
        beats.beat(step)
        weights = (weights @ weights).clamp(0, 1)
    dist.barrier()
    begun = time.thread_time()
    for _ in range(1000):
        beats.beat(step)
    spent["beats"] = (time.thread_time() - begun) / 1000 * step * dist.get_world_size()
    server = next((each for each in threading.enumerate() if "_serve" in each.name), None)
    if server is not None:
        times = Path(f"/proc/self/task/{server.native_id}/schedstat").read_text(encoding="ascii")
        spent["server"] = int(times.split()[0]) / 1e9
    return spent


def measure_check() -> float:
    """Return the processor time of one look of the attendant at two ranks, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in ("0", "1"):
            Path(folder, rank).write_bytes(beats.LAYOUT.pack(1, beats.RUN, os.getpid(), 0, 1.0))
        attendant = Attendant(Path(folder), {"after": 3600}, print)
        begun = time.process_time()
        for _ in range(100):
            attendant.check()
        return (time.process_time() - begun) / 100


def main(seconds: float = SECONDS) -> int:
    """Print the ratio; return 1 if it is above its yardstick."""
    code = Code(**serializer.package(train, {"seconds": seconds}))
    command = [sys.executable, *argv_payload.render_argv(code, launch="torchrun", is_attended=True)[1:]]
    torchrun = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_STANDALONE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "termination-log")
        variables = {env.TERMINATION_LOG: str(path), env.RESOURCE_INTERVAL: "0", env.STALLED: '{"after": 40}'}
        subprocess.run(command, env={**os.environ, **torchrun, **variables}, stdout=subprocess.DEVNULL, check=True)
        result = (parse_record(path.read_text(encoding="utf-8")) or {})["result"]
    attendant = measure_check() * seconds / 5
    ratio = (result["server"] + result["reports"] + result["beats"] + attendant) / (2 * seconds)
    print(f"server     {result['server'] * 1000:.1f} ms for {result['count']:.0f} reports")
    print(f"requests   {result['reports'] * 1000:.1f} ms")
    print(f"beats      {result['beats'] * 1000:.1f} ms")
    print(f"attendant  {attendant * 1000:.1f} ms")
    print(f"processor  {1 + ratio:.5f} times that of the job alone (at most {1 + LIMIT})")
    return int(ratio > LIMIT or result["count"] == 0)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
