"""The status protocol of Trainer beside a training function: answers, progress lines, forwarding, proxies, tokens."""

# ruff: noqa: S310 -- the URLs are those of the server of the test

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import queue
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, strategies as st
from node_process import BARE, Node
from status_endpoint import Endpoint
from tqdm import tqdm

from trainer_core.backends import supervisor_process as supervisor
from trainer_core.model.logs import parse_progress
from trainer_core.node import progress as progress_module, status_server, trainer_status
from trainer_core.node.progress import Reporter, progress
from trainer_core.node.status_server import StatusServer
from trainer_core.packaging import serializer

URL, TOKEN, CA_CERT = trainer_status.NAMES
TIME = "2026-11-24T05:30:00Z"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("RANK", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", *trainer_status.NAMES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINJOB_PAYLOAD", "payload.json")
    monkeypatch.setattr(progress_module, "_reporter", Reporter(interval=0))
    monkeypatch.setattr(progress_module, "is_called", False)
    monkeypatch.setattr(status_server, "_PAUSE", 0.001)
    # However slow the machine is; tests of a client that never ends its request set it.
    monkeypatch.setattr(status_server, "_PATIENCE", 300.0)


def test_the_environment_is_as_before_also_when_the_socket_is_already_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(status_server, "_BARS", 0.01)
    before = dict(os.environ)
    server = StatusServer(tmp_path)
    with server:
        descriptor = server._socket.detach()
    os.close(descriptor)
    assert dict(os.environ) == before


@pytest.fixture
def server(tmp_path):
    with StatusServer(tmp_path) as server:
        yield server


@pytest.fixture
def lines(capsys):
    """What was printed since the last look, parsed."""
    return lambda: [parse_progress(line) for line in capsys.readouterr().out.splitlines()]


def connect():
    host, _, port = os.environ[URL].split("/")[2].partition(":")
    return socket.create_connection((host, int(port)), timeout=300)


def send(data):
    """Send a raw request; return the code and the JSON of the answer."""
    with connect() as connection:
        connection.sendall(data)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    return int(head.split()[1]), json.loads(body)


def request(body, path=None, token=None, method="POST"):
    path = path or "/" + os.environ[URL].split("/", 3)[3]
    token = Path(os.environ[TOKEN]).read_text() if token is None else token
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def report(**status):
    body = {"trainerStatus": {"lastUpdatedTime": TIME, **status}}
    return send(request(json.dumps(body).encode()))


def metrics(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


# ---- answers ---------------------------------------------------------------------------------------------------


def test_lightning_finds_its_callback_and_a_list_of_distributions_has_nothing_of_it(server):
    (found,) = metadata.entry_points(group="lightning.pytorch.callbacks_factory")
    assert found.value.endswith("node.lightning_callback:create")
    assert "trainjob-node" not in {each.metadata["Name"] for each in metadata.distributions()}


def test_a_report_is_answered_with_its_content(server):
    body = b'{"trainerStatus": {"progressPercentage": 7, "lastUpdatedTime": "2026-11-24T05:30:00.5+01:00"}}'
    assert send(request(body)) == (200, json.loads(body))


@pytest.mark.parametrize("body", [b"{}", b'{"trainerStatus": null}'])
def test_a_report_without_a_status_is_accepted_and_shown_nowhere(server, lines, body):
    assert send(request(body)) == (200, json.loads(body))
    assert lines() == []


@pytest.mark.parametrize("token", ["", "x" * 64, "ü", "0" * 10_000])
def test_a_report_without_the_token_is_refused_and_not_shown(server, lines, token):
    body = json.dumps({"trainerStatus": {"lastUpdatedTime": TIME, "progressPercentage": 50}}).encode()
    code, answer = send(request(body, token=token))
    assert (code, answer["status"], answer["reason"], answer["code"]) == (403, "Failure", "Forbidden", 403)
    assert send(request(body).replace(b"Authorization", b"X-Else"))[0] == 403
    assert lines() == []


def test_another_path_or_method_is_not_found(server):
    assert send(request(b"{}", path="/"))[0] == 404
    assert send(request(b"{}", path=server_path() + "?x=1"))[0] == 404
    assert send(request(b"", method="GET")) == (
        404,
        {"status": "Failure", "message": "NotFound", "reason": "NotFound", "code": 404},
    )


def server_path():
    return "/" + os.environ[URL].split("/", 3)[3]


def test_a_body_over_64_kilobytes_is_refused_before_it_is_read(server):
    assert send(request(b" " * 65_537))[0] == 413
    assert send(request(b'{"trainerStatus": null}'.ljust(65_536)))[0] == 200
    head = request(b"").replace(b"Content-Length: 0", b"Content-Length: " + b"9" * 30)
    assert send(head)[0] == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"\xff",
        b"[" * 60_000,
        b'{"trainerStatus": 5}',
        b'{"trainerStatus": {}}',
        b'{"trainerStatus": []}',
    ],
)
def test_a_body_that_is_no_report_is_invalid(server, lines, body):
    code, answer = send(request(body))
    assert (code, answer["reason"]) == (422, "Invalid")
    assert lines() == []


@pytest.mark.parametrize(
    "status",
    [
        {"lastUpdatedTime": None},
        {"lastUpdatedTime": "yesterday"},
        {"lastUpdatedTime": "2026-11-24T05:30:00"},
        {"lastUpdatedTime": 5},
        {"progressPercentage": -1},
        {"progressPercentage": 101},
        {"progressPercentage": 50.5},
        {"progressPercentage": "50"},
        {"progressPercentage": True},
        {"estimatedRemainingSeconds": -1},
        {"estimatedRemainingSeconds": 1.5},
        {"metrics": 5},
        {"metrics": [{"name": "loss"}]},
        {"metrics": ["loss"]},
        {"metrics": metrics(loss=0.5)},
        {"metrics": metrics(loss="")},
        {"metrics": metrics(loss="1" * 65)},
        {"metrics": [{"name": "", "value": "1"}]},
        {"metrics": [{"name": "x" * 65, "value": "1"}]},
        {"metrics": metrics(**{f"m{number}": "1" for number in range(257)})},
    ],
)
def test_a_status_that_trainer_would_refuse_is_invalid(server, lines, status):
    assert report(**{"progressPercentage": 1, **status})[0] == 422
    assert lines() == []


def test_the_limits_themselves_are_accepted(server):
    longest = [{"name": "x" * 64, "value": "1" * 64}]
    many = metrics(**{f"m{number}": "1" for number in range(256)})
    assert report(progressPercentage=0, estimatedRemainingSeconds=0, metrics=longest)[0] == 200
    assert report(progressPercentage=100, metrics=many)[0] == 200


def test_a_report_that_cannot_be_shown_is_an_internal_error_and_the_next_is_served(server, monkeypatch):
    monkeypatch.setattr(progress_module, "_reporter", None)
    assert report(progressPercentage=1)[0] == 500
    monkeypatch.setattr(progress_module, "_reporter", Reporter())
    assert report(progressPercentage=1)[0] == 200


# ---- progress --------------------------------------------------------------------------------------------------


def test_steps_and_metrics_of_transformers_become_progress(server, lines):
    # As its KubeflowCallback sends them: at the beginning, at a step, at the end.
    report(progressPercentage=0, metrics=metrics(total_steps="24"))
    running = metrics(
        loss="0.5", note="warm", grad_norm="nan", current_step="13", total_steps="24", current_epoch="1.62"
    )
    report(progressPercentage=54, estimatedRemainingSeconds=3, metrics=running)
    report(progressPercentage=100, estimatedRemainingSeconds=0, metrics=metrics(loss="0.25"))
    assert lines() == [
        {"step": 0, "total": 24},
        {"step": 13, "total": 24, "metrics": {"loss": 0.5, "current_epoch": 1.62}},
        {"step": 24, "total": 24, "metrics": {"loss": 0.25}, "last": {"current_epoch": 1.62}},
    ]


def test_a_report_without_steps_is_shown_in_percent(server, lines):
    report(progressPercentage=30)
    report(metrics=metrics(loss="1e-3"))
    report(metrics=metrics(total_steps="inf", current_step="5"))
    assert lines() == [{"step": 30, "total": 100}, {"metrics": {"loss": 0.001}}, {"step": 5, "last": {"loss": 0.001}}]


def test_progress_of_the_function_itself_comes_first(server, lines):
    progress(step=1, total=3)
    assert report(progressPercentage=90)[0] == 200
    assert lines() == [{"step": 1, "total": 3}]


@pytest.fixture
def bars():
    """Three bars of tqdm: of epochs, of a download and of the batches of an epoch."""
    with (
        tqdm(total=4, initial=3, file=io.StringIO()) as epochs,
        tqdm(total=9, unit="B", file=io.StringIO()),
        tqdm(total=7, file=io.StringIO()),
    ):
        yield epochs


def test_the_outermost_bar_of_tqdm_is_shown_where_nothing_reports(bars, tmp_path, monkeypatch, lines):
    monkeypatch.setattr(status_server, "_BARS", 0.01)
    with StatusServer(tmp_path):
        while not (first := lines()):
            time.sleep(0.01)
        bars.update()
        while not (second := lines()):
            time.sleep(0.01)
    assert (first, second) == ([{"step": 3, "total": 4}], [{"step": 4, "total": 4}])


@given(epochs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_bars_one_after_the_other_count_steps_and_never_reach_the_end_of_the_job(epochs):
    server = StatusServer(Path())
    with contextlib.redirect_stdout(io.StringIO()) as log:
        for total, steps in epochs:
            with tqdm(total=total, file=io.StringIO()) as batches:
                for _ in range(min(total, steps)):
                    batches.update()
                    server._show_bar()

    shown = [parse_progress(line) for line in log.getvalue().splitlines()]
    assert shown == [{"step": step} for step in range(1, sum(map(min, epochs)) + 1)]


def test_a_bar_after_that_of_the_epochs_is_not_the_job(tmp_path, lines):
    server = StatusServer(tmp_path)
    with tqdm(total=4, file=io.StringIO()) as epochs:
        with tqdm(total=7, file=io.StringIO()):
            server._show_bar()
        epochs.update()
        server._show_bar()
    with tqdm(total=9, file=io.StringIO()):
        server._show_bar()

    assert lines() == [{"step": 0, "total": 4}, {"step": 1, "total": 4}]


def test_bars_are_not_read_where_the_function_can_report_itself(bars, tmp_path, monkeypatch, lines):
    monkeypatch.setitem(sys.modules, "trainer_core.node.progress", ModuleType("progress"))
    StatusServer(tmp_path)._show_bar()

    assert lines() == []


def test_a_bar_is_not_shown_beside_the_reports_of_a_library(bars, tmp_path, monkeypatch, lines):
    monkeypatch.setattr(status_server, "_BARS", 300.0)
    server = StatusServer(tmp_path)
    with server:
        report(progressPercentage=30)
        server._show_bar()
    assert lines() == [{"step": 30, "total": 100}]


def test_no_thread_of_the_server_runs_after_the_function(tmp_path):
    before = threading.enumerate()
    with StatusServer(tmp_path):
        assert len(threading.enumerate()) == len(before) + 1
    assert threading.enumerate() == before


# ---- clients that misbehave ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"POST", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"])
def test_a_client_that_dies_leaves_the_server_to_others(server, sent):
    with connect() as dead:
        dead.sendall(sent)
    assert report(progressPercentage=1)[0] == 200


def test_a_client_that_never_ends_its_request_leaves_the_server_to_others(server, monkeypatch):
    monkeypatch.setattr(status_server, "_PATIENCE", 0.05)
    with connect() as slow:
        slow.sendall(request(b"12345")[:-1])
        assert slow.recv(100) == b""
    monkeypatch.setattr(status_server, "_PATIENCE", 300.0)
    assert report(progressPercentage=1)[0] == 200


@pytest.mark.parametrize("sent", [b"", b"P"])
def test_clients_that_send_nothing_or_a_part_delay_no_other(server, lines, sent):
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect()).sendall(sent)
        assert report(progressPercentage=1)[0] == 200
    assert lines() == [{"step": 1, "total": 100}]


def test_of_many_clients_the_oldest_ones_are_closed(server, monkeypatch):
    """Each has a descriptor of the training."""
    monkeypatch.setattr(status_server, "_MAX_CLIENTS", 2)
    with connect() as oldest, connect(), connect():
        assert oldest.recv(100) == b""


def test_after_each_round_the_server_rests_for_twenty_times_its_work(server, monkeypatch):
    clock, rests = itertools.count(), queue.SimpleQueue()
    monkeypatch.setattr(status_server.time, "thread_time", clock.__next__)
    monkeypatch.setattr(status_server.time, "sleep", rests.put)
    for _ in range(3):
        assert report(progressPercentage=1)[0] == 200
    assert {rests.get(timeout=300) for _ in range(3)} == {20.0}


def test_what_other_programs_send_changes_neither_result_nor_exit_code(tmp_path):
    serializer.ship(tmp_path / "shipped")
    (tmp_path / "node").mkdir()

    def train():
        import contextlib
        import os
        import socket
        import threading

        host, _, port = os.environ["KUBEFLOW_TRAINER_SERVER_URL"].split("/")[2].partition(":")
        waiting = [socket.create_connection((host, int(port))) for _ in range(3)]

        def flood():
            # An exception on stderr while the interpreter ends aborts the process (_enter_buffered_busy of CPython).
            with contextlib.suppress(OSError):
                for _ in range(200):
                    socket.create_connection((host, int(port)), timeout=0.2).sendall(b"\0" * 1000)

        threading.Thread(target=flood, daemon=True).start()
        return len(waiting)

    ended = Node(tmp_path / "node", tmp_path / "shipped").run(serializer.package(train))
    assert (ended.code, ended.result, ended.stdout) == (0, 3, "")


# ---- where it runs ---------------------------------------------------------------------------------------------


def test_the_token_is_readable_by_its_owner_only_and_removed_at_the_end(tmp_path):
    with StatusServer(tmp_path):
        token = Path(os.environ[TOKEN])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert len(token.read_text()) == 64
    assert list(tmp_path.iterdir()) == []


def test_the_environment_is_that_of_before_at_the_end(tmp_path):
    before = dict(os.environ)
    with StatusServer(tmp_path):
        assert os.environ[URL].startswith("http://127.0.0.1:")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "variables", [{"RANK": "1"}, {"TRAINJOB_STATUS_SERVER": "0"}, {URL: "http://collector.example/api/status"}]
)
def test_there_is_no_server_on_other_ranks_nor_against_the_users_will(tmp_path, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with StatusServer(tmp_path):
        assert dict(os.environ) == before


def test_a_folder_that_cannot_be_written_does_not_end_the_training(tmp_path):
    with StatusServer(tmp_path / "absent"):
        assert URL not in os.environ


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("127.0.0.1", "127.0.0.1")),
        ({"no_proxy": "a.example"}, ("a.example,127.0.0.1", "a.example,127.0.0.1")),
        ({"NO_PROXY": "B.example"}, ("B.example,127.0.0.1", "B.example,127.0.0.1")),
        ({"no_proxy": "a", "NO_PROXY": "b"}, ("a,127.0.0.1", "b,127.0.0.1")),
        ({"NO_PROXY": "*"}, ("*", "*")),
    ],
)
def test_reports_pass_by_the_proxies_and_hosts_without_proxy_stay(tmp_path, monkeypatch, variables, expected):
    for name, value in {"http_proxy": "http://127.0.0.1:1", **variables}.items():
        monkeypatch.setenv(name, value)
    with StatusServer(tmp_path):
        assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == expected
        message = urllib.request.Request(os.environ[URL], data=b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(message)


def test_a_job_that_a_training_submits_does_not_report_as_its_parent(server):
    assert URL in os.environ
    variables = supervisor.remove_job_variables(os.environ)
    assert [name for name in variables if "KUBEFLOW_TRAINER_SERVER" in name] == []


def test_the_progress_of_a_function_comes_first_in_its_own_process(tmp_path):
    serializer.ship(tmp_path / "shipped")
    (tmp_path / "node").mkdir()

    def train():
        import json
        import os
        import urllib.request
        from pathlib import Path

        from trainer_core import progress

        def send(percent):
            status = {"lastUpdatedTime": "2026-11-24T05:30:00Z", "progressPercentage": percent}
            token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()
            headers = {"Authorization": f"Bearer {token}"}
            body = json.dumps({"trainerStatus": status}).encode()
            urllib.request.urlopen(urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], body, headers))

        send(100)
        progress(step=1, total=2)
        send(50)

    ended = Node(tmp_path / "node", tmp_path / "shipped").run(serializer.package(train), BARE)
    assert ended.code == 0, ended.stderr
    steps = [parse_progress(line) for line in ended.stdout.splitlines()]
    assert steps == [{"step": 100, "total": 100}, {"step": 1, "total": 2}]


# ---- Trainer's own server --------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    """A server of Trainer's controller, with TLS, and the variables that it sets."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=trainer", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", "key", "-out", "cert", *names], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    (tmp_path / "token").write_text("controllers-token\n")
    monkeypatch.setattr(trainer_status, "_TIMEOUT", 300.0)
    monkeypatch.setattr(status_server, "_LAST_REPORT", 300.0)
    with Endpoint(context).running() as server:
        monkeypatch.setenv(URL, server.url)
        monkeypatch.setenv(TOKEN, str(tmp_path / "token"))
        monkeypatch.setenv(CA_CERT, str(tmp_path / "cert"))
        yield server


def test_a_report_reaches_trainers_server_as_it_was_sent(endpoint, tmp_path, lines):
    body = b'{"trainerStatus": {"progressPercentage":  7, "lastUpdatedTime": "2026-11-24T05:30:00Z"}}'
    with StatusServer(tmp_path):
        assert os.environ[URL].startswith("http://127.0.0.1:")
        assert CA_CERT not in os.environ
        assert send(request(body))[0] == 200
    assert endpoint.requests == [(endpoint.path, "Bearer controllers-token", body)]
    assert lines() == [{"step": 7, "total": 100}]


def test_only_the_newest_report_waits_for_a_server_that_is_slow(endpoint, tmp_path):
    endpoint.gate.clear()
    with StatusServer(tmp_path):
        report(progressPercentage=1)
        assert endpoint.arrived.acquire(timeout=300)
        assert [report(progressPercentage=percent)[0] for percent in (2, 3, 4)] == [200, 200, 200]
        endpoint.gate.set()
    assert endpoint.reported == [1, 4]


def test_an_invalid_report_is_not_passed_on(endpoint, tmp_path):
    with StatusServer(tmp_path):
        report(progressPercentage=1000)
    assert endpoint.requests == []


def test_the_status_function_of_the_sdk_reaches_trainers_server_once(endpoint, tmp_path, monkeypatch, lines):
    monkeypatch.setattr(trainer_status, "_last_sent", float("-inf"))
    with StatusServer(tmp_path):
        assert trainer_status.update_trainjob_status(100) is True
    assert endpoint.reported == [100]
    assert lines() == [{"step": 100, "total": 100}]


def test_a_server_that_is_away_delays_and_fails_nothing(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv(URL, "https://127.0.0.1:1" + endpoint.path)
    with StatusServer(tmp_path):
        assert report(progressPercentage=1)[0] == 200
    assert endpoint.requests == []
