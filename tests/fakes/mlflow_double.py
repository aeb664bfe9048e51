"""A double of an MLflow server with one run, for tests of what an Airflow task sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Mlflow:
    """What tests of Airflow need of an MLflow server: it keeps the status, the tags and the metrics of one run.

    Attributes:
        arrived: File that is created when the first point arrives.
        port: Port of the server.
    """

    def __init__(self):
        self.tags, self.status, self.authorization = {}, "RUNNING", set()
        self.metrics, self.arrived, self.port = {}, None, 0

    def answer(self, path, body):
        for each in body.get("metrics", ()):
            self.metrics.setdefault(each["key"], set()).add((each["step"], each["value"], each["timestamp"]))
            if self.arrived is not None:
                self.arrived.touch()
        for each in body.get("tags", ()):
            self.tags[each["key"]] = each["value"]
        self.status = body.get("status", self.status)
        info = {"run_id": "run-1", "experiment_id": "7", "status": self.status, "lifecycle_stage": "active"}
        latest = {
            key: max((step, time, value) for step, value, time in [*points]) for key, points in [*self.metrics.items()]
        }
        data = {
            "tags": [{"key": key, "value": value} for key, value in list(self.tags.items())],
            "metrics": [
                {"key": key, "step": step, "timestamp": time, "value": value}
                for key, (step, time, value) in latest.items()
            ],
        }
        answers = {
            "experiments/get-by-name": {"experiment": {"experiment_id": "7"}},
            "runs/search": {},
            "runs/create": {"run": {"info": info}},
            "runs/get": {"run": {"info": info, "data": data}},
        }
        return answers.get(path.partition("?")[0].removeprefix("/api/2.0/mlflow/"), {})


@contextmanager
def serve_mlflow() -> Iterator[Mlflow]:
    """Run the double on a free port of this machine."""
    mlflow = Mlflow()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            mlflow.authorization.add(self.headers.get("Authorization"))
            text = json.dumps(mlflow.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST  # noqa: N815 -- http.server's name

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    mlflow.port = listening.server_address[1]
    thread = Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield mlflow
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
