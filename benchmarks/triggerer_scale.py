"""What deferred tasks cost a triggerer: our triggers in one event loop, beside polling as KubernetesPodTrigger does it.

Against the API double of the tests, in a process of its own; every job runs, so that its log is read, too. Prints, for
so many deferred tasks: requests a minute (of which for logs), the memory that the process grew by for each trigger,
CPU, and the delay from the end of a job to the event of its trigger (99th percentile; target: under 1 s).

The stand-in for KubernetesPodTrigger asks for its job every 2 seconds, with a new client for each look, as that trigger
does; it reads no logs, and there is no TLS, which would cost it more than anything else. It is given more tasks until
it no longer keeps its pace.

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

from watch_scale import NAMESPACE, POLLING_INTERVAL, Child, child, cpu, polled, resident, say

POLLED = (50, 100, 200, 400, 800, 1600)
#: Jobs that end while it is measured, a second.
RATE = 10


# Who waits: a triggerer's event loop.


async def wait(way: str, url: str, uids: dict[str, str]) -> None:
    """Wait for all jobs in one event loop, and report what it costs."""
    fired: dict[str, float] = {}
    make = ours(url) if way == "ours" else polling(url)

    async def one(name: str, uid: str) -> None:
        await make(name, uid)
        fired[name] = time.monotonic()

    warm_up = asyncio.create_task(one(*next(iter(uids.items()))))
    await asyncio.sleep(3)
    rounds.clear()
    before = resident()
    begun = time.monotonic()
    tasks = [warm_up, *(asyncio.create_task(one(*each)) for each in list(uids.items())[1:])]
    await asyncio.sleep(3)
    while way == "ours" and not all_listed():
        await asyncio.sleep(0.5)
    grown = resident() - before
    say(ready=time.monotonic() - begun)
    await asyncio.to_thread(sys.stdin.readline)
    used, since = cpu(), time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    share = (cpu() - used) / (time.monotonic() - since)
    await asyncio.to_thread(sys.stdin.readline)
    say(fired=fired, grown=grown, cpu=share, round=sum(rounds) / max(1, len(rounds)), xcoms=Comms.sent)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def all_listed() -> bool:
    """Whether all triggers have heard of their job."""
    from trainer_core.cluster import watch

    watchers = list(watch._registry._watchers.values())
    return not any(each.missing for watcher in watchers for each in list(watcher._everybody()))


class Comms:
    """Takes XComs as a supervisor does."""

    sent = 0

    def send(self, message: Any) -> Any:
        """Count a message; there are no XComs yet."""
        from airflow.sdk.execution_time.comms import XComResult

        Comms.sent += 1
        return XComResult(key=message.key, value=None)


def ours(url: str) -> Any:
    """Make TrainJobTriggers, from plain data as a triggerer does."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="triggerer-scale-")
    import logging

    from airflow.sdk.execution_time import task_runner
    from kubernetes.client import Configuration

    from airflow_provider.testing.tasks import StandInTaskInstance
    from airflow_provider.triggers.trainjob import TrainJobTrigger
    from trainer_core import TrainJobRef

    del Configuration  # Loaded before memory is measured, whichever way is measured.
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
    """Write a kubeconfig for the double, and return its path."""
    path = Path(tempfile.mkdtemp(prefix="triggerer-scale-")) / "config"
    named = {"clusters": [{"name": "x", "cluster": {"server": url}}], "users": [{"name": "x", "user": {}}]}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config", **named, "contexts": [context], "current-context": "x"})
    )
    return str(path)


#: How long each round of polling took.
rounds: list[float] = []


def polling(url: str) -> Any:
    """Make what waits as KubernetesPodTrigger: a request every 2 seconds for each, by a new client."""
    from kubernetes_asyncio import client

    where = ("trainer.kubeflow.org", "v1alpha1", NAMESPACE, "trainjobs")
    configuration = client.Configuration(host=url)

    async def run(name: str, uid: str) -> None:
        del uid
        await asyncio.sleep(random.uniform(0, POLLING_INTERVAL))  # noqa: S311 -- not a secret
        while True:
            begun = time.monotonic()
            async with client.ApiClient(configuration) as api:
                job = await client.CustomObjectsApi(api).get_namespaced_custom_object(*where, name)
            if any(each["type"] == "Complete" for each in job.get("status", {}).get("conditions", ())):
                return
            await asyncio.sleep(POLLING_INTERVAL)
            rounds.append(time.monotonic() - begun)

    return run


# Who measures.


def measure(way: str, count: int, seconds: float) -> dict[str, float]:
    """Let so many jobs be waited for one way, end some, and return what it costs."""
    with child("--serve", str(count)) as cluster:
        known = cluster.hear()
        with child("--wait", way, program=__file__) as waiter:
            waiter.tell(known)
            ready = waiter.hear()["ready"]
            time.sleep(POLLING_INTERVAL)
            before = cluster.ask({})["requests"]
            waiter.tell("measure")
            time.sleep(seconds)
            after = cluster.ask({})["requests"]
            waiter.tell("measured")
            names = list(known["uids"])[1:]
            ended = end(cluster, random.sample(names, min(len(names), int(RATE * seconds))))
            time.sleep(3 * POLLING_INTERVAL)
            waiter.tell("report")
            found = waiter.hear()
    delays = sorted(found["fired"].get(name, float("inf")) - at for name, at in ended.items())
    return {
        "jobs": count,
        "ready": ready,
        "requests": (after - before) * 60 / seconds,
        "held": found["grown"] / count,
        "cpu": found["cpu"],
        "p50": delays[len(delays) // 2],
        "p99": delays[int(len(delays) * 0.99)],
        "round": found["round"],
        "xcoms": found["xcoms"],
    }


def end(cluster: Child, names: list[str]) -> dict[str, float]:
    """End jobs one after the other; return when each was told to."""
    at: dict[str, float] = {}
    for name in names:
        at[name] = time.monotonic()
        cluster.ask({"end": [name]})
        time.sleep(1 / RATE)
    return at


def show(way: str, row: dict[str, float]) -> None:
    """Print a line of the table."""
    print(
        f"{way:<8} {row['jobs']:>6.0f} {row['requests']:>13.0f} {row['held'] / 1000:>11.1f} {row['cpu']:>6.1%} "
        f"{row['p50'] * 1000:>7.0f} {row['p99'] * 1000:>7.0f}",
        flush=True,
    )


def compare(count: int, seconds: float) -> None:
    """Measure both ways and print them side by side."""
    print(f"{'way':<8} {'tasks':>6} {'requests/min':>13} {'KB/trigger':>11} {'CPU':>6} {'p50 ms':>7} {'p99 ms':>7}")
    row = measure("ours", count, seconds)
    show("ours", row)
    theirs = polled(measure, show, POLLED, seconds)
    scale = count / theirs["jobs"]
    requests, share = theirs["requests"] * scale / row["requests"], theirs["cpu"] * scale
    print(
        f"For {count:,.0f} deferred tasks, polling would need {requests:,.1f} times as many requests (ours read logs, "
        f"too) and {share / row['cpu']:,.0f} times the CPU, which is {share:,.1f} cores; its tasks hear of the end of "
        f"their job {theirs['p99'] / row['p99']:,.1f} times later (p99). One event loop holds "
        f"{theirs['jobs']:,.0f} polled tasks. Ours had heard of all jobs "
        f"after {row['ready']:.0f} s and wrote {row['xcoms']:,.0f} XComs."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="how many tasks are deferred")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure each")
    parser.add_argument("--wait", choices=["ours", "poll"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.wait:
        asyncio.run(wait(arguments.wait, **json.loads(sys.stdin.readline())))
    else:
        compare(arguments.jobs, arguments.seconds)


if __name__ == "__main__":
    main()
