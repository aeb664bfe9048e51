#!/usr/bin/env python
"""What tracking adds to a submit, measured against a real MLflow server on loopback; and what one promotion takes.

    benchmarks/tracking.py [NUMBER OF SUBMITS]

Needs `make install-mlflow`. Yardsticks: a tracked submit takes at most 30 ms more, a promotion at most 150 ms.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from trainer_core import CustomTrainer, LocalProcessBackendConfig, MlflowServer, Owner, TrainerClient
from trainer_core.tracking.registry import Candidate, open_registry

PYTHON = Path(__file__).resolve().parents[1] / ".venv-mlflow" / "bin" / "python"


def train() -> dict[str, float]:
    """Do nothing."""
    return {"accuracy": 0.5}


def main(number: int = 10) -> int:
    """Print the medians; return 1 if one is above its yardstick."""
    if not PYTHON.exists():
        print("tracking: no MLflow server is installed: make install-mlflow")
        return 0
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as uri:
        config = LocalProcessBackendConfig(home=f"{folder}/home")
        plain = measure_submits(TrainerClient(config), "plain", number)
        tracked = measure_submits(TrainerClient(config, MlflowServer(uri)), "tracked", number)
        with open_registry(uri) as registry:
            candidates = [Candidate(f"job-{each}", "s3://models/m", "accuracy", each) for each in range(number)]
            promotion = measure(
                [lambda each=each: registry.promote_candidate(each, model="digits") for each in candidates]
            )
    added = tracked - plain
    print(f"submit     {plain * 1000:6.1f} ms, tracked {tracked * 1000:6.1f} ms: {added * 1000:+.1f} ms (at most 30)")
    print(f"promote    {promotion * 1000:6.1f} ms (at most 150)")
    return int(added > 0.030 or promotion > 0.150)


def measure_submits(client: TrainerClient, name: str, number: int) -> float:
    """Return the median time of a submit; the first, which creates the experiment and loads modules, does not count."""
    requests = [
        client.build_request(runtime="python", trainer=CustomTrainer(train), owner=Owner(key=f"{name}/{each}"))
        for each in range(number + 1)
    ]
    client.submit(requests[0])
    return measure([lambda each=each: client.submit(each) for each in requests[1:]])


def measure(calls: list[Callable[[], object]]) -> float:
    """Return the median time of the calls, in seconds."""
    times = []
    for call in calls:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


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
