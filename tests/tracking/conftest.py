"""A real MLflow server, and the real mlflow client as the reader. Both run in .venv-mlflow (`make install-mlflow`)."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from patient_tracking import be_patient

from trainer_core import LocalProcessBackendConfig, TrainerClient

ROOT = Path(__file__).parents[2]
MLFLOW_PYTHON = ROOT / ".venv-mlflow" / "bin" / "python"


@pytest.fixture(scope="session")
def mlflow_python():
    """The interpreter that has mlflow."""
    if not (ROOT / ".venv-mlflow" / ".done" / "mlflow").exists():
        assert not os.environ.get("TRAINJOB_NEEDS_MLFLOW"), "CI must run the tests of tracking: make install-mlflow"
        pytest.skip("mlflow is not installed: make install-mlflow")
    return str(MLFLOW_PYTHON)


@pytest.fixture(scope="session")
def mlflow_uri(mlflow_python, tmp_path_factory):
    """The URI of an MLflow server with a SQLite database, as `mlflow server` starts it."""
    folder = tmp_path_factory.mktemp("mlflow")
    store = f"sqlite:///{folder}/mlflow.db"
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
        # What the command passes to the server; the command itself imports mlflow twice more, which takes 20 s.
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_REGISTRY_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [mlflow_python, "-m", "uvicorn", "--log-level", "warning", "mlflow.server.fastapi_app:app"]
    # The server inherits the socket: it takes half a minute to start, and another process could take a free port.
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("wb") as log:
        port, fd = listener.getsockname()[1], listener.fileno()
        server = subprocess.Popen(
            [*command, "--fd", str(fd)], cwd=folder, env=environ, stdout=log, stderr=log, pass_fds=[fd]
        )
    try:
        wait_until_healthy(server, port, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def wait_until_healthy(server, port, log):
    while server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise AssertionError(f"the MLflow server ended: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def ask(mlflow_python, mlflow_uri):
    """Ask the real mlflow client."""
    command = [mlflow_python, str(Path(__file__).with_name("mlflow_reader.py")), mlflow_uri]
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as reader:
        assert json.loads(reader.stdout.readline()) == "ready"

        def _ask(what, **question):
            reader.stdin.write(json.dumps({"what": what, **question}) + "\n")
            reader.stdin.flush()
            return json.loads(reader.stdout.readline())

        yield _ask
        # The end of its input is not enough: a process that another test has forked can hold the pipe open.
        reader.kill()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    be_patient(monkeypatch)


@pytest.fixture
def tracked(mlflow_uri, monkeypatch):
    """The server is the one that MLFLOW_TRACKING_URI names; returns its URI."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    return mlflow_uri


@pytest.fixture
def experiment(request):
    """An experiment for one test."""
    return f"{request.node.name}"


@pytest.fixture
def client(tmp_path):
    return TrainerClient(LocalProcessBackendConfig(home=str(tmp_path / "home")))


@pytest.fixture
def read_runs(ask, experiment):
    """Return the runs of the test's experiment, oldest first."""
    return lambda: ask("runs", experiment=experiment)


class Relay:
    """Stands before the server: forwards requests, and fails as a test asks."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        #: Method, path and headers of each request.
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        #: Addresses of the connections of all requests.
        self.clients: set[tuple[str, int]] = set()
        #: Called with the path; returns None to forward, or status, headers and body.
        self.respond = lambda path: None
        #: Whether each connection is closed after its first answer, without notice.
        self.hangs_up = False
        #: Called with the path; returns "before" or "after" (the server got the request) to break the connection.
        self.cut = lambda path: None
        self.uri = ""


@pytest.fixture
def relay(mlflow_uri):
    """A relay before the MLflow server."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    passing = Relay(mlflow_uri)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            passing.seen.append((self.command, self.path, dict(self.headers)))
            passing.bodies.append(body)
            passing.clients.add(self.client_address)
            cut = passing.cut(self.path)
            if cut == "before":
                self.close_connection = True
                return
            status, headers, text = passing.respond(self.path) or self.forward(body)
            if cut == "after":
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
            self.close_connection = self.close_connection or passing.hangs_up

        def forward(self, body):
            connection = http.client.HTTPConnection(passing.target.hostname, passing.target.port, timeout=300)
            kept = {name: self.headers[name] for name in ("Content-Type", "Accept") if self.headers[name]}
            connection.request(self.command, self.path, body=body, headers=kept)
            response = connection.getresponse()
            text = response.read()
            connection.close()
            return response.status, {"Content-Type": "application/json"}, text

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815 -- http.server's names

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    passing.uri = f"http://127.0.0.1:{server.server_address[1]}"
    yield passing
    server.shutdown()
    server.server_close()
    thread.join()
