"""What waiting for many TrainJobs costs: our watch on one event loop, beside polling as the reference SDK does it.

Against the API double of the tests, in a process of its own. Per number of jobs, prints requests a minute, the memory
that each waiting job holds, its coroutine included (target: at most 5 KB), by how much the process has grown (with what
lists have needed for a moment; most of it does not depend on the number of jobs), CPU, and the delay from a change of
status to the wake-up of who waits for it (99th percentile; target: under 1 s). The reference polls every 2 seconds with
4 requests a job, in a thread each; it is given more jobs until it no longer keeps that pace.

    python benchmarks/watch_scale.py                     # 1,000 and 10,000 jobs; about ten minutes
    python benchmarks/watch_scale.py --jobs 200 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

FAKES = Path(__file__).parents[1] / "tests/fakes"
NAMESPACE = "bench"
JOBSET = "jobset.sigs.k8s.io/jobset-name"
AT = "bench/at"
#: Changes of status a second while it is measured, of all jobs together.
RATE = 50
POLLING_INTERVAL = 2.0
#: The reference has had enough when a round of its polling takes so much longer than it should.
TOO_SLOW = 1.25
POLLED = (10, 25, 50, 100, 200, 400, 800)


# The cluster, and what happens in it.


def serve(count: int) -> None:
    """Run the double with so many jobs, each with a pod, and do what the standard input says."""
    sys.path.insert(0, str(FAKES))
    from fake_cluster import Cluster

    with Cluster(controllers=False, namespaces=[NAMESPACE], keep=1_000_000) as cluster:
        cluster.tokens = ()
        uids = {f"job-{number}": add_job(cluster, f"job-{number}") for number in range(count)}
        say(url=cluster.url, uids=uids)
        for line in sys.stdin:
            order = json.loads(line)
            if "change" in order:
                change(cluster, list(uids), order["change"], order["seconds"])
            if "end" in order:
                for name in order["end"]:
                    set_status(cluster, name, "Complete")
            say(requests=len(cluster.requests))


def add_job(cluster: Any, name: str) -> str:
    """Add a running job with one pod, as large as real ones are."""
    request = json.dumps({"trainer": {"code": "x" * 4000}})
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {"trainjob-workflows/request": request}}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"args": ["x" * 20_000], "numNodes": 1}}
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}
    labels = {
        JOBSET: name,
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    containers = [
        {"name": "node", "image": "python", "args": ["x" * 20_000], "env": [{"name": "A", "value": "b"}] * 20}
    ]
    state = {
        "name": "node",
        "ready": True,
        "restartCount": 0,
        "image": "python",
        "imageID": "",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-node-0-0-abcde", "namespace": NAMESPACE, "labels": labels},
        "spec": {"containers": containers, "nodeName": "node-1"},
        "status": {"phase": "Running", "containerStatuses": [state], "startTime": "2026-01-01T00:00:00Z"},
    }
    cluster.add(pod)
    uid: str = cluster.add(job)["metadata"]["uid"]
    return uid


def change(cluster: Any, names: list[str], how_many: int, seconds: float) -> None:
    """Change the status of jobs chosen at random, evenly over a time."""
    begun = time.monotonic()
    for number in range(how_many):
        time.sleep(max(0.0, begun + number * seconds / how_many - time.monotonic()))
        set_status(cluster, random.choice(names), "Running")  # noqa: S311 -- not a secret


def set_status(cluster: Any, name: str, condition: str) -> None:
    """Set a condition, and say when that was: the clock is the same in all processes."""

    def edit(raw: dict[str, Any]) -> None:
        raw["metadata"]["annotations"][AT] = repr(time.monotonic())
        raw["status"] = {"conditions": [{"type": condition, "status": "True", "reason": "x", "message": "x"}]}

    cluster.update("trainjobs", name, edit, NAMESPACE)


# Who waits.


async def watch_all(url: str, uids: dict[str, str], trace: bool) -> None:
    """Wait for all jobs in one event loop, and report what it costs."""
    from trainer_core.backends.kubernetes import facts
    from trainer_core.cluster import kinds, pods, watch

    connection = connected(url)
    watched = watch.Watched(kinds.TRAINJOBS, JOBSET, facts.read, pods.read)
    ready, delays = set(), []

    async def wait(name: str, uid: str) -> None:
        with watch.subscribe(connection, watched, name, uid) as subscription:
            while True:
                await subscription.wait_async(30)
                snapshot = subscription.snapshot()
                if snapshot is None or snapshot.job is None:
                    continue
                ready.add(name)
                if AT in snapshot.job.annotations:
                    delays.append(time.monotonic() - float(snapshot.job.annotations[AT]))
                if snapshot.job.condition("Complete"):
                    return

    with watch.subscribe(connection, watched, "warm-up") as subscription:
        await subscription.wait_async(30)
    if trace:
        tracemalloc.start()
    before, begun = resident(), time.monotonic()
    tasks = [asyncio.ensure_future(wait(name, uid)) for name, uid in uids.items()]
    while len(ready) < len(uids):
        await asyncio.sleep(0.05)
    ready_after = time.monotonic() - begun
    # What the last list needed is given back.
    await asyncio.sleep(POLLING_INTERVAL)
    gc.collect()
    say(ready=ready_after, held=tracemalloc.get_traced_memory()[0] / len(uids))
    order = await asyncio.to_thread(sys.stdin.readline)
    while json.loads(order) == "measure":
        delays.clear()
        used, since = cpu(), time.monotonic()
        order = await asyncio.to_thread(sys.stdin.readline)
        share = (cpu() - used) / (time.monotonic() - since)
        say(grown=resident() - before, cpu=share, delays=delays)
        order = await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*tasks)
    say(ended=len(tasks))


def poll_all(url: str, uids: dict[str, str]) -> None:
    """Poll as the reference SDK does: a thread a job, 4 requests every 2 seconds; report what it costs."""
    from kubernetes import client

    configuration = client.Configuration(host=url)
    custom = client.CustomObjectsApi(client.ApiClient(configuration))
    core = client.CoreV1Api(client.ApiClient(configuration))
    trainer = ("trainer.kubeflow.org", "v1alpha1")
    before = resident()
    rounds: list[float] = []
    delays: list[float] = []
    over = threading.Event()

    def look(name: str) -> dict[str, Any]:
        job: dict[str, Any] = custom.get_namespaced_custom_object(*trainer, NAMESPACE, "trainjobs", name)
        try:
            custom.get_namespaced_custom_object(*trainer, NAMESPACE, "trainingruntimes", "torch-distributed")
        except client.ApiException:
            custom.get_cluster_custom_object(*trainer, "clustertrainingruntimes", "torch-distributed")
        core.list_namespaced_pod(NAMESPACE, label_selector=f"{JOBSET}={name}")
        return job

    def wait(name: str) -> None:
        last = None
        over.wait(random.uniform(0, POLLING_INTERVAL))  # noqa: S311 -- not a secret
        while not over.is_set():
            begun = time.monotonic()
            at = look(name)["metadata"]["annotations"].get(AT)
            if at != last:
                delays.append(time.monotonic() - float(at))
                last = at
            over.wait(POLLING_INTERVAL)
            rounds.append(time.monotonic() - begun)

    threads = [threading.Thread(target=wait, args=(name,)) for name in uids]
    for thread in threads:
        thread.start()
    say(ready=0, held=0)
    sys.stdin.readline()
    rounds.clear()
    delays.clear()
    used, since = cpu(), time.monotonic()
    sys.stdin.readline()
    share = (cpu() - used) / (time.monotonic() - since)
    grown = resident() - before
    say(grown=grown, cpu=share, delays=delays, round=sum(rounds) / max(1, len(rounds)))
    over.set()


def connected(url: str) -> Any:
    """Connect to the double."""
    from kubernetes.client import Configuration

    from trainer_core.cluster import connect
    from trainer_core.configs import KubernetesBackendConfig

    configuration = Configuration(host=url)
    return connect.connect(KubernetesBackendConfig(client_configuration=configuration, namespace=NAMESPACE))


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    gc.collect()
    bytes_: int = psutil.Process().memory_info().rss
    return bytes_


def cpu() -> float:
    """Return the seconds of CPU that this process has used."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def say(**facts: Any) -> None:
    """Tell the process that measures."""
    print(json.dumps(facts), flush=True)


# Who measures.


class Child:
    """A process of this program that is spoken to in lines of JSON."""

    def __init__(self, *arguments: str, program: str = __file__) -> None:
        environment = {**os.environ, "PYTHONPATH": str(FAKES.parents[1])}
        self._process = subprocess.Popen(
            [sys.executable, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def hear(self) -> dict[str, Any]:
        """Return what it says next."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("a process of the benchmark has ended early")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, order: Any) -> None:
        """Say something to it."""
        if self._process.stdin:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def ask(self, order: Any) -> dict[str, Any]:
        """Say something, and return the answer."""
        self.tell(order)
        return self.hear()

    def end(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


@contextmanager
def child(*arguments: str, program: str = __file__) -> Iterator[Child]:
    """Run a process of this program, or of another that speaks the same way."""
    process = Child(*arguments, program=program)
    try:
        yield process
    finally:
        process.end()


def measure(way: str, count: int, seconds: float) -> dict[str, float]:
    """Let so many jobs be waited for one way, change some, and return what it costs."""
    with child("--serve", str(count)) as cluster:
        known = cluster.hear()
        with child("--wait", way) as waiter:
            waiter.tell(known)
            begun = waiter.hear()
            time.sleep(POLLING_INTERVAL)
            before = cluster.ask({})["requests"]
            waiter.tell("measure")
            changes = int(min(RATE, count / POLLING_INTERVAL / 2) * seconds)
            after = cluster.ask({"change": changes, "seconds": seconds})["requests"]
            time.sleep(2 * POLLING_INTERVAL)
            found = waiter.ask("report")
            if way != "poll":
                waiter.tell("end")
                cluster.ask({"end": list(known["uids"])})
                waiter.hear()
    delays = sorted(found["delays"]) or [float("nan")]
    return {
        "jobs": count,
        "ready": begun["ready"],
        "held": begun["held"] or found["grown"] / count,
        "grown": found["grown"],
        "requests": (after - before) * 60 / seconds,
        "cpu": found["cpu"],
        "p50": delays[len(delays) // 2],
        "p99": delays[int(len(delays) * 0.99)],
        "round": found.get("round", 0.0),
    }


def show(way: str, row: dict[str, float]) -> None:
    """Print a line of the table."""
    print(
        f"{way:<8} {row['jobs']:>6.0f} {row['requests']:>13.1f} {row['held'] / 1000:>7.1f} {row['grown'] / 1e6:>9.1f} "
        f"{row['cpu']:>6.1%} {row['p50'] * 1000:>7.0f} {row['p99'] * 1000:>7.0f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, action="append", help="how many jobs to wait for; may be repeated")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure each")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--wait", choices=["watch", "trace", "poll"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
    elif arguments.wait:
        known = json.loads(sys.stdin.readline())
        if arguments.wait == "poll":
            poll_all(**known)
        else:
            asyncio.run(watch_all(**known, trace=arguments.wait == "trace"))
    else:
        compare(arguments.jobs or [1_000, 10_000], arguments.seconds)


def compare(counts: list[int], seconds: float) -> None:
    """Measure both ways and print them side by side."""
    print("way        jobs  requests/min  KB/job  grown MB    CPU  p50 ms  p99 ms")
    ours = [watched(count, seconds) for count in counts]
    theirs = polled(measure, show, POLLED, seconds)
    for row in ours:
        # A quiet watch is renewed every five minutes, which a short measurement does not see.
        requests = theirs["requests"] / theirs["jobs"] * row["jobs"] / max(1.0, row["requests"])
        within = row["held"] <= 5000 and row["p99"] < 1
        print(
            f"{row['jobs']:,.0f} jobs: polling would need {requests:,.0f} times as many requests; a polled job takes "
            f"{theirs['held'] / row['held']:.0f} times the memory, and its changes are heard of "
            f"{theirs['p99'] / row['p99']:.0f} times later (p99); all jobs were known {row['ready']:.1f} s after the "
            f"first asked; {'within' if within else 'OUTSIDE'} the targets"
        )


def watched(count: int, seconds: float) -> dict[str, float]:
    """Measure the watch, and once more what it holds: counting every byte takes time that the first must not lose."""
    row = measure("watch", count, seconds)
    row["held"] = measure("trace", count, 1.0)["held"]
    show("watch", row)
    return row


def polled(
    measure: Callable[[str, int, float], dict[str, float]],
    show: Callable[[str, dict[str, float]], None],
    counts: Sequence[int],
    seconds: float,
) -> dict[str, float]:
    """Give polling more and more to wait for, and return the last that it could hold."""
    held: dict[str, float] = {}
    for count in counts:
        row = measure("poll", count, seconds)
        show("polling", row)
        if row["round"] > POLLING_INTERVAL * TOO_SLOW and held:
            print(
                f"polling no longer holds {count}: a round takes {row['round']:.1f} s instead of {POLLING_INTERVAL:.0f}"
            )
            break
        held = row
    return held


if __name__ == "__main__":
    main()
