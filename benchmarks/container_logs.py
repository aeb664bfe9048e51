#!/usr/bin/env python
"""What reading the log of a container costs, against `docker logs` or `podman logs` at the same address.

    benchmarks/container_logs.py [MEGABYTES ...]

Yardsticks: the ratio is at most 2, and the time grows with the size of the log and not faster. A log of which a caller
asks for 1,000 lines at a time is read a second way, by `tail_job_logs`. IMAGE is an image with Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from trainer_core import ContainerBackendConfig, CustomTrainer, TrainerClient
from trainer_core.backends.container.engine import find_engine

MEGABYTES = [5, 10, 20, 30]
LIMIT = 2.0
LINE_BYTES = 64
IMAGE = os.environ.get("IMAGE", "localhost/trainjob-base:test")


def write_log(lines: int, width: int) -> None:
    """Print lines of a width."""
    for number in range(lines):
        print(f"{number:0{width - 1}}")


def find_command(address: str) -> list[str]:
    if docker := shutil.which("docker"):
        return [docker, "--host", address, "logs"]
    if podman := shutil.which("podman"):
        return [podman, "--url", address, "logs"]
    raise SystemExit("docker and podman are not on PATH; install one of them")


def measure(read: Callable[[], int]) -> tuple[float, int]:
    begun = time.perf_counter()
    lines = read()
    return time.perf_counter() - begun, lines


def read_chunks(client: TrainerClient, name: str) -> int:
    lines, chunk = 0, client.tail_job_logs(name, job_ended=True)
    while chunk.lines:
        lines += len(chunk.lines)
        chunk = client.tail_job_logs(name, chunk.cursor, job_ended=True)
    return lines


def read_with_command(command: list[str]) -> int:
    return subprocess.run(command, check=True, capture_output=True).stdout.count(b"\n")


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or MEGABYTES
    engine, _ = find_engine(ContainerBackendConfig())
    if engine is None or not engine.has_image(IMAGE):
        print(f"skipped: no container engine has the image {IMAGE}")
        return
    command, client = find_command(engine.address), TrainerClient(ContainerBackendConfig(namespace="benchmark"))
    worst = 0.0
    for size in sizes:
        arguments = {"lines": size * 2**20 // LINE_BYTES, "width": LINE_BYTES}
        name = client.train(trainer=CustomTrainer(func=write_log, func_args=arguments, image=IMAGE))
        try:
            if not client.wait(name).succeeded:
                raise SystemExit(f"{name} failed")
            container = client.get_job(name).steps[0].pod_name
            theirs, expected = measure(lambda: read_with_command([*command, container]))  # noqa: B023 -- called at once
            ours, lines = measure(lambda: sum(1 for _ in client.get_job_logs(name, raw=True)))  # noqa: B023
            chunks, in_chunks = measure(lambda: read_chunks(client, name))  # noqa: B023
            if not lines == in_chunks == expected:
                raise SystemExit(f"{name}: {lines} and {in_chunks} lines were read, {expected} were written")
        finally:
            client.delete_job(name)
        worst = max(worst, ours / theirs)
        print(
            f"{size:3d} MB: {command[0].rpartition('/')[2]} logs {theirs:5.1f} s, get_job_logs {ours:5.1f} s "
            f"(ratio {ours / theirs:.2f}), tail_job_logs {chunks:5.1f} s (ratio {chunks / theirs:.2f})"
        )
    if worst > LIMIT:
        raise SystemExit(f"ratio {worst:.2f} is above {LIMIT:g}")


if __name__ == "__main__":
    main()
