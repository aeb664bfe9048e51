#!/usr/bin/env python
"""What tracking adds to a submit and to waits, and what one promotion takes.

    benchmarks/tracking.py [NUMBER OF SUBMITS [SECONDS OF EACH WAIT]]

Submits and promotions are measured against a real MLflow server on loopback (`make install-mlflow`), waits against a
double that counts requests. Yardsticks: a tracked submit takes at most 30 ms more (median of pairs of submits), a
promotion at most 150 ms. Waiting for 100 jobs that report twice a second takes at most 2 % of a core more than without
tracking. 10,000 such jobs cost one connection and at most 200 requests a second. The 20,000 points of a finished job
whose waiters are killed every ten seconds are stored within 60 seconds. A server that is away delays the end of a job
by at most one second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from trainer_core import (
    CustomTrainer,
    DebugBackendConfig,
    LocalProcessBackendConfig,
    MlflowServer,
    Owner,
    TrainerClient,
)
from trainer_core.backends.debug import DebugBackend, _DebugJob
from trainer_core.base.errors import WaitTimeoutError
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.logs import LogChunk
from trainer_core.model.request import TrackingRequest
from trainer_core.tracking import mlflow_api
from trainer_core.tracking.model_registry import Candidate
from trainer_core.tracking.registries import open_registry

PYTHON = Path(__file__).resolve().parents[1] / ".venv-mlflow" / "bin" / "python"
#: Progress lines a second of each job.
LINES = 2
#: Points of a long curve, and seconds after which each process that sends them is killed.
POINTS, KILL_SECONDS = 20_000, 10


def train() -> dict[str, float]:
    return {"accuracy": 0.5}


def main(number: int = 20, seconds: int = 20) -> int:
    """Print the figures; return 1 if one is above its yardstick."""
    # A busy machine makes a measurement slow, not wrong.
    mlflow_api._SUBMIT_TIMEOUT = mlflow_api._REPORT_TIMEOUT = 60.0
    if not PYTHON.exists():
        print("tracking: no MLflow server is installed: make install-mlflow")
        return 0
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as uri:
        config = LocalProcessBackendConfig(home=f"{folder}/home")
        create = measure_creations(MlflowServer(uri), number)
        clients = TrainerClient(config), TrainerClient(config, MlflowServer(uri))
        plain, added = measure_submits(*clients, number)
        with open_registry(uri) as registry:
            candidates = [Candidate(f"job-{each}", "s3://models/m", "accuracy", each) for each in range(number)]
            promotion = measure([partial(registry.promote_candidate, each, model="digits") for each in candidates])
        curve = measure_long_log(config, uri)
        away = measure_end_without_server(config)
    print(f"submit     {plain * 1000:6.1f} ms, tracked {added * 1000:+.1f} ms (at most 30)")
    print(f"           the request runs/create alone: {create * 1000:.1f} ms")
    print(f"promote    {promotion * 1000:6.1f} ms (at most 150)")
    print(f"long log   {curve:6.1f} s for {POINTS:,} points with waiters killed every {KILL_SECONDS} s (at most 60)")
    print(f"no server  {away:6.2f} s at the end of a job (at most 1)")
    with count_requests() as (uri, read_counts):
        share = measure_wait(uri, 100, seconds) - measure_wait(None, 100, seconds)
        print(f"100 jobs   {share:6.2%} of a core more than without tracking (at most 2 %)")
        read_counts()
        many = measure_reports(uri, 10_000, seconds)
        opened, rate = read_counts()
    print(f"10,000 jobs: {opened} connection, {rate} requests a second (at most 200), {many:.1%} of a core")
    slow = added > 0.030 or promotion > 0.150 or curve > 60 or away > 1
    return int(slow or share > 0.02 or opened > 1 or rate > 200)


def measure_submits(plain: TrainerClient, tracked: TrainerClient, number: int) -> tuple[float, float]:
    """Return the median time of a submit, and of what tracking adds to it.

    The first pair, which creates the experiment and loads modules, does not count. Before each submit, the job of the
    previous one has ended, and what it left to send is sent.
    """
    times: dict[TrainerClient, list[float]] = {plain: [], tracked: []}
    for each in range(number + 1):
        for client, name in ((plain, "plain"), (tracked, "tracked")):
            owner = Owner(key=f"{name}/{each}")
            request = client.build_request(runtime="python", trainer=CustomTrainer(train), owner=owner)
            begin = time.perf_counter()
            ref = client.submit(request)
            times[client].append(time.perf_counter() - begin)
            plain.wait(ref)
            tracked.flush_tracking(60)
    pairs = list(zip(times[plain], times[tracked], strict=True))[1:]
    return statistics.median(each[0] for each in pairs), statistics.median(each[1] - each[0] for each in pairs)


def print_curve() -> dict[str, float]:
    for step in range(1, 20_001):
        print(f'[trainjob:progress] {{"step": {step}, "metrics": {{"loss": 0.5}}, "t": {1_700_000_000_000 + step}}}')
        print("epoch\n" * (step % 3), end="")
    return {"loss": 0.25}


def measure_long_log(config: LocalProcessBackendConfig, uri: str) -> float:
    """Return the seconds until the run of a job has all of its points, while each waiter is killed after a while."""
    client = TrainerClient(config, MlflowServer(uri))
    ref = client.submit(
        client.build_request(runtime="python", trainer=CustomTrainer(print_curve), owner=Owner(key="long"))
    )
    client.flush_tracking(60)
    await_end(client, ref)
    api, run_id = mlflow_api.get_report_api(client.runs.server or MlflowServer(uri)), client.get_run(ref)
    begin = time.perf_counter()
    while run_id and "trainjob.reported" not in api.get_run(run_id.id).tags:
        waiter = multiprocessing.get_context("spawn").Process(target=client_wait, args=(config, uri, ref))
        waiter.start()
        waiter.join(KILL_SECONDS)
        waiter.kill()
        waiter.join()
    return time.perf_counter() - begin


def client_wait(config: LocalProcessBackendConfig, uri: str, ref: TrainJobRef) -> None:
    mlflow_api._REPORT_TIMEOUT = 60.0
    TrainerClient(config, MlflowServer(uri)).wait(ref)


def measure_end_without_server(config: LocalProcessBackendConfig) -> float:
    """Return what a server that is away adds to the wait for a job that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = MlflowServer(f"http://127.0.0.1:{closed.getsockname()[1]}")
    seconds = []
    for name, client in {"away": TrainerClient(config, server), "plain": TrainerClient(config)}.items():
        ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(train), owner=Owner(key=name)))
        await_end(client, ref)
        seconds.append(measure([partial(client.wait, ref)] * 5))
    return seconds[0] - seconds[1]


def await_end(client: TrainerClient, ref: TrainJobRef) -> None:
    """Wait until a job has ended, without reporting it to its run, as `TrainerClient.wait` does."""
    while client.observe(ref).outcome is None:
        time.sleep(0.1)


def measure_creations(server: MlflowServer, number: int) -> float:
    """Return the median time of the one request that a submit waits for."""
    api = mlflow_api.get_submit_api(server)
    experiment = api.get_experiment_id("trainjob")
    tags = {f"trainjob.{each}": "x" * 40 for each in range(10)}
    return measure([lambda: api.create_run(experiment, "run", tags, 1)] * number)


def measure(calls: list[Callable[[], object]]) -> float:
    times = []
    for call in calls:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class ReportingBackend(DebugBackend):
    """Jobs in memory that run for ever and report progress.

    Args:
        uri: Tracking URI. None for jobs that are not tracked.
        number: Number of jobs.
    """

    def __init__(self, uri: str | None, number: int) -> None:
        super().__init__()
        self._began = time.time()
        client = TrainerClient(DebugBackendConfig())
        request = client.build_request(runtime="python", trainer=CustomTrainer(train))
        self.refs = [TrainJobRef("debug", "", f"job-{each}", f"uid-{each}") for each in range(number)]
        for ref in self.refs:
            tracking = TrackingRequest(uri=uri, run_id=ref.uid, experiment_id="1") if uri else None
            own = request.with_fields(name=ref.name, tracking=tracking)
            self._jobs[ref.name] = _DebugJob(own, ref, 0, datetime.now(timezone.utc), Path())

    def tail(
        self,
        ref: TrainJobRef,
        cursor: Mapping[str, Any],
        job_ended: bool = False,
        max_lines: int = 1000,
        step: str | None = None,
    ) -> LogChunk:
        due, sent = int((time.time() - self._began) * LINES), cursor.get("lines", 0)
        lines = [("node-0", build_line(int(self._began * 1000), each)) for each in range(sent, due)]
        return LogChunk(lines, {"lines": due}, True)


@cache
def build_line(began: int, number: int) -> str:
    """Return a progress line with two metrics, as training writes it. Built once: that is not the waiter's work."""
    report = {
        "step": number,
        "metrics": {"loss": 1 / (number + 1), "accuracy": number / 1000},
        "t": began + 500 * number,
    }
    return f"[trainjob:progress] {json.dumps(report)}"


def measure_wait(uri: str | None, number: int, seconds: float) -> float:
    """Return the share of a core that waiting for jobs takes, each in a thread."""
    client = TrainerClient(DebugBackendConfig(), MlflowServer(uri) if uri else None)
    client.backend = backend = ReportingBackend(uri, number)

    def wait(ref: TrainJobRef) -> None:
        with suppress(WaitTimeoutError):
            client.wait(ref, timeout=seconds + 10)

    threads = [threading.Thread(target=wait, args=(ref,)) for ref in backend.refs]
    for each in threads:
        each.start()
    time.sleep(8)  # The first report reads the run, and names the curves.
    begin = time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - begin) / seconds
    for each in threads:
        each.join()
    return share


def measure_reports(uri: str, number: int, seconds: float) -> float:
    """Return the share of a core that reports of more jobs than there can be threads take."""
    backend = ReportingBackend(uri, number)
    client = TrainerClient(DebugBackendConfig(), MlflowServer(uri))
    client.backend = backend
    with ExitStack() as stack:
        for ref in backend.refs:  # What `wait` does in a thread of its caller.
            stack.enter_context(client.runs.report_progress(ref))("Running", None)
        begin = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - begin) / seconds


@contextmanager
def count_requests() -> Iterator[tuple[str, Callable[[], tuple[int, int]]]]:
    """Run a double of an MLflow server in another process.

    Yields:
        Its URI, and a function that returns the connections and the most requests in a second since it was called.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_double, args=(theirs,), daemon=True)
    process.start()

    def read_counts() -> tuple[int, int]:
        ours.send("read")
        counts: tuple[int, int] = ours.recv()
        return counts

    try:
        yield ours.recv(), read_counts
    finally:
        process.terminate()
        process.join()


def serve_double(pipe: Connection) -> None:
    """Answer as an MLflow server that has a run for each job, and count requests."""
    seconds: Counter[int] = Counter()
    clients: set[tuple[str, int]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seconds[int(time.monotonic())] += 1
            clients.add(self.client_address)
            run_id = parse_qs(urlsplit(self.path).query).get("run_id", [""])[0]
            tags = [{"key": "trainjob.uid", "value": run_id}]
            run = {"info": {"run_id": run_id, "experiment_id": "1"}, "data": {"tags": tags}}
            body = json.dumps({"run": run} if run_id else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 -- http.server's name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(f"http://127.0.0.1:{server.server_address[1]}")
    while pipe.recv():
        pipe.send((len(clients), max(seconds.values(), default=0)))
        seconds.clear()
        clients.clear()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Run an MLflow server with a SQLite database, and return its URI."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri, store = f"http://127.0.0.1:{port}", f"sqlite:///{folder}/mlflow.db"
    settings = {
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_REGISTRY_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": f"{folder}/artifacts",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    command = [str(PYTHON), "-m", "uvicorn", "--port", str(port), "--log-level", "error"]
    server = subprocess.Popen([*command, "mlflow.server.fastapi_app:app"], cwd=folder, env={**os.environ, **settings})
    try:
        while server.poll() is None:
            try:
                urlopen(f"{uri}/health", timeout=60).close()  # noqa: S310 -- the server above
                break
            except URLError:
                time.sleep(0.1)
        # The first request creates the database.
        urlopen(f"{uri}/api/2.0/mlflow/experiments/get?experiment_id=0", timeout=60).close()  # noqa: S310
        yield uri
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
