"""Cost of waiting for local jobs: triggers on one event loop, `client.wait` in threads, and polling by each waiter.

Each way waits in a separate process. Prints the processor time of that process as a share of a core while the jobs
run, and the delay from the recorded end of a job to the end of the wait (target: median under 0.3 s).
Triggers also read the logs. Polling reads the status every 2 seconds in a thread, as a waiter does that shares nothing
with the others.

    python benchmarks/local_waiters.py                     # 500 waiters for 50 jobs; about five minutes
    python benchmarks/local_waiters.py --jobs 5 --waiters 20 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from watch_scale import Child, get_cpu_seconds, report, run_child

from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient, TrainJobRef

WAYS = ("triggers", "threads", "polling")
POLLING_INTERVAL = 2.0
#: Jobs that end a second.
RATE = 5


def wait_for_file(path: str) -> None:
    import time
    from pathlib import Path

    while not Path(path).exists():
        time.sleep(0.2)


# Process of the waiters.


def wait(way: str, home: str, refs: list[dict[str, Any]], waiters: int) -> None:
    """Wait for all jobs with some waiters for each; report the cost and the delays."""
    targets = [refs[number % len(refs)] for number in range(waiters)]
    delays: list[float] = []
    measuring = threading.Thread(target=measure_process, args=(delays, waiters))
    if way == "threads":
        client = TrainerClient(LocalProcessBackendConfig(home=Path(home)))
        threads = [threading.Thread(target=wait_in_thread, args=(client, ref, delays)) for ref in targets]
        for thread in [*threads, measuring]:
            thread.start()
    else:
        make = make_trigger(home) if way == "triggers" else make_polling(home)
        measuring.start()
        asyncio.run(wait_in_loop(make, targets, delays))
    measuring.join()


def measure_process(delays: list[float], waiters: int) -> None:
    """Report the processor time of the next interval, and the delays once all waiters have ended."""
    report(ready=True)
    sys.stdin.readline()
    used, since = get_cpu_seconds(), time.monotonic()
    sys.stdin.readline()
    report(cpu=(get_cpu_seconds() - used) / (time.monotonic() - since))
    while len(delays) < waiters:
        time.sleep(0.1)
    report(delays=delays)


def wait_in_thread(client: TrainerClient, ref: dict[str, Any], delays: list[float]) -> None:
    delays.append(get_delay(client.wait(TrainJobRef.from_dict(ref)).to_dict()))


async def wait_in_loop(make: Any, targets: list[dict[str, Any]], delays: list[float]) -> None:

    async def one(ref: dict[str, Any]) -> None:
        delays.append(get_delay(await make(ref)))

    await asyncio.gather(*map(one, targets))


def get_delay(outcome: dict[str, Any]) -> float:
    """Return the seconds since the job ended."""
    return time.time() - datetime.fromisoformat(outcome["finished_at"]).timestamp()


def make_trigger(home: str) -> Any:
    """Return a function that runs a TrainJobTrigger from its serialized form, as a triggerer does."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="local-waiters-")
    from airflow.sdk.execution_time import task_runner
    from triggerer_scale import Comms

    from airflow_provider.testing.tasks import StandInTaskInstance
    from airflow_provider.triggers.trainjob import TrainJobTrigger

    logging.disable()
    task_runner.SUPERVISOR_COMMS = Comms()  # type: ignore[assignment]

    async def run(ref: dict[str, Any]) -> dict[str, Any]:
        _, stored = TrainJobTrigger(ref, backend="local", backend_config={"home": home}).serialize()
        trigger = TrainJobTrigger(**json.loads(json.dumps(stored)))
        trigger.task_instance = StandInTaskInstance()  # type: ignore[assignment]
        outcome: dict[str, Any] = {}
        async for event in trigger.run():
            outcome = event.payload["outcome"]
        return outcome

    return run


def make_polling(home: str) -> Any:
    """Return a function that reads the status of a job until it has ended."""
    client = TrainerClient(LocalProcessBackendConfig(home=Path(home)))

    async def run(ref: dict[str, Any]) -> dict[str, Any]:
        while (outcome := (await asyncio.to_thread(client.observe, TrainJobRef.from_dict(ref))).outcome) is None:
            await asyncio.sleep(POLLING_INTERVAL)
        return outcome.to_dict()

    return run


# Measuring process.


@contextmanager
def running_jobs(count: int) -> Iterator[tuple[Path, list[TrainJobRef], list[Path]]]:
    """Start jobs, each of which ends when its file exists."""
    with tempfile.TemporaryDirectory() as folder:
        client = TrainerClient(LocalProcessBackendConfig(home=Path(folder, "home")))
        files = [Path(folder, f"end-{number}") for number in range(count)]
        names = [
            client.train(runtime="python", trainer=CustomTrainer(func=wait_for_file, func_args={"path": str(file)}))
            for file in files
        ]
        for name in names:
            client.wait_for_job_status(name, {"Running"})
        try:
            yield Path(folder, "home"), [client.get_job_ref(name) for name in names], files
        finally:
            for name in names:
                client.delete_job(name)


def measure(way: str, jobs: int, waiters: int, seconds: float) -> tuple[float, list[float]]:
    """Return the share of a core, and the delays, of one way to wait."""
    with running_jobs(jobs) as (home, refs, files), run_child("--wait", way, program=__file__) as child:
        child.send({"way": way, "home": str(home), "refs": [ref.to_dict() for ref in refs], "waiters": waiters})
        child.receive()
        time.sleep(3 * POLLING_INTERVAL)
        child.send("measure")
        time.sleep(seconds)
        share = child.request("measured")["cpu"]
        end_jobs(files)
        return share, receive_delays(child)


def end_jobs(files: list[Path]) -> None:
    for file in files:
        file.touch()
        time.sleep(1 / RATE)


def receive_delays(child: Child) -> list[float]:
    return sorted(child.receive()["delays"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50, help="number of local jobs")
    parser.add_argument("--waiters", type=int, default=500, help="number of waiters for all jobs together")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each measurement")
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("way", nargs="*", default=WAYS, help="triggers, threads, polling; all by default")
    arguments = parser.parse_args()
    if arguments.wait:
        wait(**json.loads(sys.stdin.readline()))
        return
    print(f"{'way':<9} {'waiters':>7} {'jobs':>5} {'CPU':>7} {'median ms':>10} {'p99 ms':>7}")
    for way in arguments.way:
        share, delays = measure(way, arguments.jobs, arguments.waiters, arguments.seconds)
        median, p99 = statistics.median(delays) * 1000, delays[int(len(delays) * 0.99)] * 1000
        print(
            f"{way:<9} {arguments.waiters:>7} {arguments.jobs:>5} {share:>7.1%} {median:>10.0f} {p99:>7.0f}", flush=True
        )


if __name__ == "__main__":
    main()
