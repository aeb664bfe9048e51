"""Engine discovery: which engine is used, the messages if none answers, and `trainjob doctor`."""

from __future__ import annotations

import http.server
import io
import json
import socketserver
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer_core.backends.container import engine as engine_discovery, runtimes
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.cli import main
from trainer_core.model.config import ContainerBackendConfig

HOME = Path("/home/me")


def addresses(env, **settings):
    return [each.address for each in engine_discovery.list_candidates(ContainerBackendConfig(**settings), env, HOME)]


def test_container_host_is_the_only_candidate():
    env = {"DOCKER_HOST": "tcp://other:2375"}
    assert addresses(env, container_host="unix:///mine.sock") == ["unix:///mine.sock"]


def test_environment_variables_take_precedence_over_default_sockets():
    env = {"DOCKER_HOST": "tcp://docker:2375", "CONTAINER_HOST": "unix:///podman.sock"}
    assert addresses(env) == ["tcp://docker:2375"]
    assert addresses(env, container_runtime="podman") == ["unix:///podman.sock"]


def test_docker_sockets_are_tried_before_podman_sockets():
    env = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    found = addresses(env)
    assert found[0] == "unix:///var/run/docker.sock"
    wanted = ["/run/user/1000/docker.sock", "/home/me/.colima/default/docker.sock", "/run/user/1000/podman/podman.sock"]
    order = [found.index(f"unix://{path}") for path in wanted]
    assert order == sorted(order)
    assert any("podman/machine" in address for address in found)


@pytest.mark.parametrize(("wanted", "unwanted"), [("docker", "podman.sock"), ("podman", "docker.sock")])
def test_sockets_of_the_other_product_are_not_tried(wanted, unwanted):
    found = addresses({}, container_runtime=wanted)
    assert found
    assert [each for each in found if each.endswith(unwanted)] == []


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({}, "/home/me/.docker/run/docker.sock"),  # Docker Desktop on macOS.
        ({}, "/home/me/.docker/desktop/docker.sock"),  # Docker Desktop on Linux.
        ({}, "/home/me/.rd/docker.sock"),  # Rancher Desktop.
        ({"TMPDIR": "/var/T"}, "/var/T/podman/podman-machine-default-api.sock"),  # Podman on macOS.
    ],
)
def test_an_engine_of_a_desktop_is_found_where_its_product_puts_the_socket(env, path):
    assert f"unix://{path}" in addresses(env)


def test_colima_home_sets_the_colima_socket():
    assert "unix:///colima/default/docker.sock" in addresses({"COLIMA_HOME": "/colima"})


def test_the_error_lists_the_sockets_that_were_tried_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(BackendUnavailableError) as refused:
        engine_discovery.connect_engine(ContainerBackendConfig())
    message = str(refused.value)
    assert f"docker, rootless unix://{tmp_path}/docker.sock (no such socket)" in message
    assert "podman, machine" in message
    assert "systemctl --user start podman.socket" in message
    assert len(message.splitlines()) == 1


class _Podman(http.server.BaseHTTPRequestHandler):
    """Answers the ping of a client, and takes files."""

    def do_PUT(self):
        self.server.written.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Api-Version", "1.41")
        self.send_header("Libpod-Api-Version", "5.0.0")
        answer = b'{"Id": "sha256:1"}'
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def version_string(self):
        return "Libpod/5.0.0 (linux)"

    def log_message(self, *_):
        pass

    def address_string(self):
        return "a socket"


@pytest.fixture
def podman(tmp_path):
    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    path = tmp_path / "engine.sock"
    with Server(str(path), _Podman) as server:
        server.written = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield SimpleNamespace(address=f"unix://{path}", written=server.written)
        server.shutdown()
        thread.join()


def test_product_and_version_are_read_from_the_ping(podman):
    engine = engine_discovery.connect_engine(ContainerBackendConfig(container_host=podman.address))
    assert (engine.product, engine.version, engine.is_local) == ("podman", "5.0.0", True)
    engine.close()


@pytest.mark.parametrize("variable", ["DOCKER_HOST", None])
def test_an_engine_is_asked_without_tls_unless_the_environment_says_so(monkeypatch, variable):
    for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Podman) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        address = f"tcp://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv(variable or "UNUSED", address)
        try:
            engine = engine_discovery.connect_engine(
                ContainerBackendConfig(container_host=None if variable else address)
            )
            engine.close()
        finally:
            server.shutdown()
            thread.join()
    assert engine.version == "5.0.0"


def test_nothing_follows_the_end_of_the_archive_of_a_written_file(podman):
    # Podman's reader exits at the end of the archive, and the request fails if it cannot pass on the rest.
    engine = engine_discovery.connect_engine(ContainerBackendConfig(container_host=podman.address))
    engine.write_file("container", "/secrets.json", b"{}")
    engine.close()
    (body,) = podman.written
    header, content, end = 512, 512, 1024
    assert len(body) == header + content + end
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert [(each.name, each.mode) for each in archive] == [("secrets.json", 0o400)]
        assert archive.extractfile("secrets.json").read() == b"{}"


def test_an_engine_of_another_product_is_not_used(podman):
    with pytest.raises(BackendUnavailableError, match="is podman, not docker"):
        engine_discovery.connect_engine(
            ContainerBackendConfig(container_host=podman.address, container_runtime="docker")
        )


def test_a_socket_without_a_listener_is_reported(tmp_path):
    path = tmp_path / "dead.sock"
    with socketserver.UnixStreamServer(str(path), _Podman):
        pass
    with pytest.raises(BackendUnavailableError, match=r"dead\.sock.*no process listens"):
        engine_discovery.connect_engine(ContainerBackendConfig(container_host=f"unix://{path}"))


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """Runs `trainjob doctor` for an engine and returns its exit code and its checks."""
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runtimes, "_RETRY_SECONDS", 1e9)
    monkeypatch.setattr(runtimes, "_TIMEOUT", (0.1, 0.1))

    def command(address):
        monkeypatch.setenv("DOCKER_HOST", address)
        code = main(["--backend", "container", "doctor", "-o", "json"])
        return code, {check["what"]: check for check in json.loads(capsys.readouterr().out)["checks"]}

    return command


def test_doctor_reports_missing_features_of_the_engine(doctor, podman):
    code, checks = doctor(podman.address)
    assert (code, checks["DOCKER_HOST"]["state"], checks["API"]["state"]) == (0, "ok", "ok")
    assert checks["gpu"]["state"] == "limited"
    assert "containers.conf" in checks["gpu"]["cost"]
    assert checks["runtime python"]["state"] == "ok"


def test_doctor_lists_the_addresses_without_an_engine(doctor, tmp_path):
    code, checks = doctor(f"unix://{tmp_path}/missing.sock")
    assert code == 6
    assert checks["DOCKER_HOST"]["found"].endswith("missing.sock: no such socket")
    assert checks["engine"]["state"] == "missing"


def test_the_command_reports_in_one_line_that_no_engine_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/missing.sock")
    assert main(["--backend", "container", "list"]) == 6
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainjob: no container engine answers; tried DOCKER_HOST")
