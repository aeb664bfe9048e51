"""What the local backend adds to the training itself: against plain torchrun, and against plain Python.

Prints the ratio of wall times for a trivial 2-process torch job (target: at most 1.25), and the seconds added to a
plain Python function (target: at most 0.3). Medians over alternating rounds, so that both see the same machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TORCH_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def meet() -> None:
    """Form the process group, and part."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()


def nothing() -> None:
    """Return."""


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ours(client: TrainerClient, runtime: str, trainer: CustomTrainer) -> None:
    outcome = client.wait(client.train(runtime=runtime, trainer=trainer))
    if not outcome.succeeded:
        raise SystemExit(str(outcome.diagnosis))


def compare(mine: Callable[[], object], plain: list[str]) -> tuple[float, float]:
    """Return the median seconds of both, run in turn."""
    measured = []
    for _ in range(ROUNDS):
        measured.append((seconds(mine), seconds(lambda: subprocess.run(plain, check=True, stderr=subprocess.DEVNULL))))
    first, second = zip(*measured, strict=True)
    return statistics.median(first), statistics.median(second)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = TrainerClient(LocalProcessBackendConfig(home=Path(folder, "home")))
        script = Path(folder, "script.py")

        script.write_text(TORCH_SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29531"]
        trainer = CustomTrainer(func=meet, num_proc_per_node=2)
        backend, plain = compare(lambda: ours(client, "torch-distributed", trainer), [*torchrun, str(script)])
        print(f"2-process torch job: backend {backend:.2f} s, torchrun {plain:.2f} s, ratio {backend / plain:.2f}")

        script.write_text("def nothing(): pass\nnothing()\n")
        backend, plain = compare(
            lambda: ours(client, "python", CustomTrainer(func=nothing)), [sys.executable, str(script)]
        )
        print(f"plain python: backend {backend:.2f} s, python {plain:.2f} s, added {backend - plain:.2f} s")


if __name__ == "__main__":
    main()
