"""Requests to an MLflow server go through the proxy that the environment names: a real one, which wants a login."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import psutil
import pytest

from trainer_core import CustomTrainer, Tracking, TrackingError
from trainer_core.tracking import mlflow_api
from trainer_core.tracking.http_connection import find_proxy
from trainer_core.tracking.mlflow_api import MlflowApi
from trainer_core.tracking.server import MlflowServer

LOGIN = "Basic YWRhOnMzY3IzdCB3b3Jk"  # ada:s3cr3t word


def succeed():
    return {"accuracy": 0.5}


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.seen, self.connections = [], 0

    def process_request(self, request, address):
        self.connections += 1
        super().process_request(request, address)

    def handle_error(self, *_):
        pass  # A client that is refused ends its connection.


class ProxyHandler(Quiet):
    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.is_allowed():
            return
        host, _, path = self.path.removeprefix("http://").partition("/")
        with socket.create_connection(host.split(":")) as target:
            kept = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name[:6] != "Proxy-")
            target.sendall(f"{self.command} /{path} HTTP/1.1\r\n{kept}Connection: close\r\n\r\n".encode() + body)
            answer = b"".join(iter(lambda: target.recv(65536), b""))
        head, _, content = answer.partition(b"\r\n\r\n")
        self.answer(int(head.split()[1]), content)

    do_GET = do_POST = handle_request  # noqa: N815 -- http.server's names

    def do_CONNECT(self):
        if not self.is_allowed():
            return
        with socket.create_connection(self.path.split(":")) as target:
            self.answer(200)
            self.close_connection = True
            pair = {self.connection: target, target: self.connection}
            while ready := select.select(list(pair), [], [], 60)[0]:
                for each in ready:
                    data = each.recv(65536)
                    if not data:
                        return
                    pair[each].sendall(data)

    def is_allowed(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        if self.headers.get("Proxy-Authorization") == LOGIN:
            return True
        self.answer(407, b"<html>who are you</html>")
        return False


class MlflowHandler(Quiet):
    def do_POST(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200, json.dumps({"experiments": [{"experiment_id": "7"}]}).encode())


@pytest.fixture
def serve():
    servers = []

    def _serve(handler, context=None):
        server = Server(handler)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        servers.append((server, thread))
        return server

    yield _serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy_yet(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxy(serve, monkeypatch):
    """A proxy that wants a login, which HTTP_PROXY and HTTPS_PROXY have."""
    server = serve(ProxyHandler)
    # A kept connection goes where it went.
    monkeypatch.setattr(mlflow_api, "_apis", {})
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://ada:s3cr3t%20word@127.0.0.1:{server.server_address[1]}")
    yield server
    mlflow_api._close()


@pytest.fixture
def https_server(serve, tmp_path):
    """An MLflow server with TLS: the server, its URI and its certificate."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=mlflow", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", "key", "-out", "cert", *names], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server = serve(MlflowHandler, context)
    return server, f"https://localhost:{server.server_address[1]}", str(tmp_path / "cert")


def test_a_job_is_tracked_through_a_proxy_whose_login_is_in_no_file(
    client, tracked, proxy, experiment, read_runs, tmp_path, caplog
):
    options = [Tracking(experiment=experiment)]
    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(succeed), options=options))
    client.wait(ref)

    (run,) = read_runs()
    assert run["status"] == "FINISHED"
    assert {target.startswith(f"{tracked}/api/2.0/mlflow/") for _, target, _ in proxy.seen} == {True}
    records = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert b"s3cr3t" not in b"".join(records) + caplog.text.encode()


def test_https_goes_through_a_tunnel_by_one_connection_and_the_proxy_sees_no_token(proxy, https_server):
    server, uri, certificate = https_server
    api = MlflowApi(MlflowServer(uri, token="t0ken", ca_file=certificate))
    for _ in range(2):
        assert api.list_experiment_ids() == ["7"]
    api.close()

    assert [headers["Authorization"] for *_, headers in server.seen] == ["Bearer t0ken"] * 2
    assert (proxy.connections, server.connections) == (1, 1)
    ((method, target, headers),) = proxy.seen
    assert (method, target, headers["Proxy-Authorization"]) == ("CONNECT", uri.removeprefix("https://"), LOGIN)
    assert "t0ken" not in str(headers)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refusal_of_the_proxy_names_it_without_its_login(proxy, scheme, monkeypatch):
    port = proxy.server_address[1]
    monkeypatch.setenv(f"{scheme}_proxy", f"ada:wr0ng@127.0.0.1:{port}")

    with (
        closing(MlflowApi(MlflowServer(f"{scheme}://mlflow.example"))) as api,
        pytest.raises(TrackingError, match="407") as refused,
    ):
        api.list_experiment_ids()

    assert f"proxy http://127.0.0.1:{port}" in str(refused.value)
    assert "wr0ng" not in str(refused.value)
    assert list_connections_to(port) == []


def list_connections_to(port):
    """Return the connections that this process has opened to a port and not closed."""
    connections = psutil.Process().net_connections("tcp")
    return [each for each in connections if each.raddr and each.raddr.port == port]


@pytest.mark.parametrize("address", ["socks5://ada:s3cr3t@proxy:1080", "http://ada:s3c#r3t@proxy:x", "http://:s3cr3t@"])
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(monkeypatch, address):
    monkeypatch.setenv("HTTPS_PROXY", address)

    with pytest.raises(TrackingError, match="HTTPS_PROXY or ALL_PROXY must be an http:// URL") as refused:
        find_proxy("https://mlflow.example")

    assert refused.value.__suppress_context__
    assert "r3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "excluded", "expected"),
    [
        ("http://mlflow.example", "", "http://proxy:3128"),
        ("https://mlflow.example", "", "http://every:80"),
        ("http://mlflow.example", "other.example,mlflow.example", "None"),
        ("http://mlflow.team.svc:5000", ".svc", "None"),
        ("http://mlflow.example:5000", "mlflow.example:5000", "None"),
        ("http://mlflow.example:5000", "mlflow.example:6000", "http://proxy:3128"),
        ("http://10.1.2.3:5000", "host, 10.0.0.0/8", "None"),
        ("http://11.1.2.3:5000", "10.0.0.0/8", "http://proxy:3128"),
        ("http://10.1.2.3:5000", "10.9.9.9/8", "None"),
        ("http://mlflow.example", "*", "None"),
    ],
)
def test_the_proxy_of_a_server_is_the_one_that_requests_would_take(monkeypatch, uri, excluded, expected):
    requests = pytest.importorskip("requests")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("all_proxy", "every")
    monkeypatch.setenv("NO_PROXY", excluded)

    assert str(find_proxy(uri)) == expected
    theirs = requests.utils.select_proxy(uri, requests.utils.get_environ_proxies(uri))
    assert (theirs is None) == (expected == "None")
