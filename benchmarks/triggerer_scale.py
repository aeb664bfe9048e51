"""Cost of deferred tasks in a triggerer: TrainJobTrigger on one event loop, beside polling as KubernetesPodTrigger.

Runs against the fake API server of the tests, in a separate process; every job runs, so its log is read as well. Prints
requests a minute, the growth of the process for each trigger, CPU, and the delay from the end of a job to the event of
its trigger (99th percentile; target: under 1 s).

The stand-in for KubernetesPodTrigger reads its job every 2 seconds, with a new client each time, as that trigger does.
It reads no logs, and there is no TLS, which would be its largest cost. It gets more tasks until it falls behind.

    python benchmarks/triggerer_scale.py                     # 10,000 deferred tasks; about five minutes
    python benchmarks/triggerer_scale.py --jobs 500 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from watch_scale import (
    NAMESPACE,
    POLLING_INTERVAL,
    Child,
    get_cpu_seconds,
    get_resident_bytes,
    measure_polling,
    report,
    run_child,
)

POLLED_COUNTS = (50, 100, 200, 400, 800, 1600)
#: Jobs that end a second during the measurement.
RATE = 10


# Process with the event loop of a triggerer.


async def wait(way: str, url: str, uids: dict[str, str]) -> None:
    """Wait for all jobs in one event loop; report the cost."""
    fired: dict[str, float] = {}
    make = ours(url) if way == "ours" else polling(url)

    async def one(name: str, uid: str) -> None:
        await make(name, uid)
        fired[name] = time.monotonic()

    warm_up = asyncio.create_task(one(*next(iter(uids.items()))))
    await asyncio.sleep(3)
    rounds.clear()
    before = get_resident_bytes()
    began = time.monotonic()
    tasks = [warm_up, *(asyncio.create_task(one(*each)) for each in list(uids.items())[1:])]
    await asyncio.sleep(3)
    while way == "ours" and not all_listed():
        await asyncio.sleep(0.5)
    grown = get_resident_bytes() - before
    report(ready=time.monotonic() - began)
    await asyncio.to_thread(sys.stdin.readline)
    used, since = get_cpu_seconds(), time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    share = (get_cpu_seconds() - used) / (time.monotonic() - since)
    await asyncio.to_thread(sys.stdin.readline)
    report(fired=fired, grown=grown, cpu=share, round=sum(rounds) / max(1, len(rounds)), xcoms=Comms.sent)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def all_listed() -> bool:
    """Return whether every subscription has the state of its job."""
    from trainer_core.k8s import informer

    return not any(each.jobs.waiting_for_list for each in list(informer._informers.values()))


class Comms:
    """Receives XComs as a task supervisor does."""

    sent = 0

    def send(self, message: Any) -> Any:
        from airflow.sdk.execution_time.comms import XComResult

        Comms.sent += 1
        return XComResult(key=message.key, value=None)


def ours(url: str) -> Any:
    """Return a function that runs a TrainJobTrigger from its serialized form, as a triggerer does."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="triggerer-scale-")
    import logging

    from airflow.sdk.execution_time import task_runner
    from kubernetes.client import Configuration

    from airflow_provider.testing.tasks import StandInTaskInstance
    from airflow_provider.triggers.trainjob import TrainJobTrigger
    from trainer_core import TrainJobRef

    del Configuration  # Imported before memory is measured, in both measurements.
    logging.disable()
    task_runner.SUPERVISOR_COMMS = Comms()  # type: ignore[assignment]
    config = {"config_file": kubeconfig(url), "namespace": NAMESPACE}

    async def run(name: str, uid: str) -> None:
        ref = TrainJobRef("kubernetes", NAMESPACE, name, uid).to_dict()
        _, stored = TrainJobTrigger(ref, backend="kubernetes", backend_config=config).serialize()
        trigger = TrainJobTrigger(**json.loads(json.dumps(stored)))
        trigger.task_instance = StandInTaskInstance()  # type: ignore[assignment]
        async for event in trigger.run():
            if "outcome" not in event.payload:
                raise SystemExit(f"{name}: {event.payload}")

    return run


def kubeconfig(url: str) -> str:
    """Write a kubeconfig for the fake API server, and return its path."""
    path = Path(tempfile.mkdtemp(prefix="triggerer-scale-")) / "config"
    named = {"clusters": [{"name": "x", "cluster": {"server": url}}], "users": [{"name": "x", "user": {}}]}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config", **named, "contexts": [context], "current-context": "x"})
    )
    return str(path)


#: Duration of each polling round in seconds.
rounds: list[float] = []


def polling(url: str) -> Any:
    """Return a function that waits as KubernetesPodTrigger does: a request every 2 seconds, each with a new client."""
    from kubernetes_asyncio import client

    where = ("trainer.kubeflow.org", "v1alpha1", NAMESPACE, "trainjobs")
    configuration = client.Configuration(host=url)

    async def run(name: str, uid: str) -> None:
        del uid
        await asyncio.sleep(random.uniform(0, POLLING_INTERVAL))  # noqa: S311 -- not a secret
        while True:
            began = time.monotonic()
            async with client.ApiClient(configuration) as api:
                job = await client.CustomObjectsApi(api).get_namespaced_custom_object(*where, name)
            if any(each["type"] == "Complete" for each in job.get("status", {}).get("conditions", ())):
                return
            await asyncio.sleep(POLLING_INTERVAL)
            rounds.append(time.monotonic() - began)

    return run


# Measuring process.


def measure(way: str, count: int, seconds: float) -> dict[str, float]:
    """Wait for `count` jobs in one way, end some, and return the cost."""
    with run_child("--serve", str(count)) as cluster:
        info = cluster.receive()
        with run_child("--wait", way, program=__file__) as waiter:
            waiter.send(info)
            ready = waiter.receive()["ready"]
            time.sleep(POLLING_INTERVAL)
            before = cluster.request({})["requests"]
            waiter.send("measure")
            time.sleep(seconds)
            after = cluster.request({})["requests"]
            waiter.send("measured")
            names = list(info["uids"])[1:]
            ended = end(cluster, random.sample(names, min(len(names), int(RATE * seconds))))
            time.sleep(3 * POLLING_INTERVAL)
            waiter.send("report")
            result = waiter.receive()
    delays = sorted(result["fired"].get(name, float("inf")) - at for name, at in ended.items())
    return {
        "jobs": count,
        "ready": ready,
        "requests": (after - before) * 60 / seconds,
        "held": result["grown"] / count,
        "cpu": result["cpu"],
        "p50": delays[len(delays) // 2],
        "p99": delays[int(len(delays) * 0.99)],
        "round": result["round"],
        "xcoms": result["xcoms"],
    }


def end(cluster: Child, names: list[str]) -> dict[str, float]:
    """End jobs one after the other; return the time of each request."""
    at: dict[str, float] = {}
    for name in names:
        at[name] = time.monotonic()
        cluster.request({"end": [name]})
        time.sleep(1 / RATE)
    return at


def print_row(way: str, row: dict[str, float]) -> None:
    print(
        f"{way:<8} {row['jobs']:>6.0f} {row['requests']:>13.0f} {row['held'] / 1000:>11.1f} {row['cpu']:>6.1%} "
        f"{row['p50'] * 1000:>7.0f} {row['p99'] * 1000:>7.0f}",
        flush=True,
    )


def compare(count: int, seconds: float) -> int:
    """Measure the triggers and polling, and print both; return 1 if the target is missed."""
    print(f"{'way':<8} {'tasks':>6} {'requests/min':>13} {'KB/trigger':>11} {'CPU':>6} {'p50 ms':>7} {'p99 ms':>7}")
    row = measure("ours", count, seconds)
    print_row("ours", row)
    polling_row = measure_polling(measure, print_row, POLLED_COUNTS, seconds)
    scale = count / polling_row["jobs"]
    # A short measurement may miss the few requests of a watch.
    requests, share = polling_row["requests"] * scale / max(1.0, row["requests"]), polling_row["cpu"] * scale
    print(
        f"For {count:,.0f} deferred tasks, polling would need {requests:,.1f} times as many requests (ours read logs, "
        f"too) and {share / row['cpu']:,.0f} times the CPU, which is {share:,.1f} cores; its tasks see the end of "
        f"their job {polling_row['p99'] / row['p99']:,.1f} times later (p99). One event loop holds "
        f"{polling_row['jobs']:,.0f} polled tasks. The triggers had all jobs "
        f"after {row['ready']:.0f} s and wrote {row['xcoms']:,.0f} XComs."
    )
    return int(row["p99"] >= 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="number of deferred tasks")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each measurement")
    parser.add_argument("--wait", choices=["ours", "poll"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.wait:
        asyncio.run(wait(arguments.wait, **json.loads(sys.stdin.readline())))
    else:
        sys.exit(compare(arguments.jobs, arguments.seconds))


if __name__ == "__main__":
    main()
