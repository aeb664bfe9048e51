"""Tracking keeps the limits of the server, shares one connection, and costs nothing where it is not configured."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from contextlib import closing
from uuid import uuid4

import pytest
from clock import Clock

from trainer_core import CustomTrainer, MlflowServer, Tracking
from trainer_core.tracking import http_connection
from trainer_core.tracking.mlflow_api import MlflowApi, get_report_api
from trainer_core.tracking.registries import open_registry
from trainer_core.tracking.reporter import RunReporter, RunSender

WITHOUT_A_URI = """
import sys
from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient

def train():
    return 1

client = TrainerClient(DebugBackendConfig())
client.wait(client.train(runtime="python", trainer=CustomTrainer(train)))
print(sorted(name for name in sys.modules if name.startswith("trainer_core.tracking")))
"""

WITH_A_SLOW_SERVER = """
import socket, threading, time
from trainer_core import MlflowServer
from trainer_core.tracking.mlflow_api import get_submit_api

def drip():
    connection, _ = listener.accept()
    is_connected.set()
    while True:
        connection.sendall(b"H")
        time.sleep(0.05)

listener, is_connected = socket.create_server(("127.0.0.1", 0)), threading.Event()
api = get_submit_api(MlflowServer(f"http://127.0.0.1:{listener.getsockname()[1]}"))
for target in (drip, api.list_experiment_ids):
    threading.Thread(target=target, daemon=True).start()
is_connected.wait()
"""


def finish_with_odd_values(**arguments: str):
    from trainer_core import progress

    progress(step=1, metrics={"loss": float("nan"), "f1": 0.25})
    return {"accuracy": 0.5, "loss": float("nan"), "gain": float("inf")}


def fit_and_save():
    import trainer_core

    path = trainer_core.output_path() / "model.bin"
    path.write_bytes(b"weights")
    return {"accuracy": 0.9, "artifacts": {"model": path.as_uri()}}


def submit(client, func, experiment, func_args=None, **tracking):
    options = [Tracking(experiment=experiment, **tracking)]
    trainer = CustomTrainer(func, func_args=func_args)
    return client.submit(client.build_request(runtime="python", trainer=trainer, options=options))


def test_a_server_that_still_answers_does_not_hold_the_end_of_the_process():
    subprocess.run([sys.executable, "-c", WITH_A_SLOW_SERVER], timeout=30, check=True)


def test_hundreds_of_params_long_values_and_values_that_are_no_numbers_arrive(client, tracked, experiment, read_runs):
    arguments = {f"argument_{number}": str(number) for number in range(250)}
    ref = submit(client, finish_with_odd_values, experiment, {**arguments, "long": "x" * 7000})
    client.wait(ref)

    (run,) = read_runs()
    assert run["status"] == "FINISHED"
    assert {name: run["params"][name] for name in arguments} == arguments
    assert run["params"]["long"] == "x" * 6000
    assert run["metrics"]["accuracy"] == 0.5
    assert [point[1] for point in run["history"]["f1"]] == [0.25]


def test_100_000_points_are_sent_in_batches_that_the_server_takes(relay):
    relay.respond = lambda path: (200, {}, b"{}")
    points = [
        {"key": "loss", "value": 1 / 3, "timestamp": 1_700_000_000_000 + step, "step": step} for step in range(100_000)
    ]
    with closing(MlflowApi(MlflowServer(relay.uri))) as api:
        api.log_batch("run", points)

    batches = [json.loads(body)["metrics"] for body in relay.bodies]
    assert max(map(len, batches)) <= 1000
    assert max(map(len, relay.bodies)) <= 1_000_000
    assert [point["step"] for batch in batches for point in batch] == list(range(100_000))


def test_all_waits_of_a_process_share_one_thread_and_one_connection(client, relay, experiment):
    ref = submit(client, fit_and_save, experiment, uri=relay.uri)
    client.wait(ref)
    reporters = [RunReporter(client.backend, ref, None) for _ in range(30)]
    relay.clients.clear()
    relay.seen.clear()
    before = set(threading.enumerate())
    sender = RunSender()
    for each in reporters:
        each._is_started = True
        sender.watch(each)
    threads = set(threading.enumerate()) - before
    for each in reporters:
        sender._report(each)
    for each in reporters:
        each.stop()

    assert len(threads) == 1
    assert len([path for _, path, _ in relay.seen if "runs/get" in path]) == 30
    assert len(relay.clients) == 1


def test_a_process_sends_at_most_200_requests_a_second(relay, monkeypatch):
    relay.respond = lambda path: (200, {}, b"{}")
    clock = Clock(0)
    monkeypatch.setattr(http_connection, "time", clock)
    api = get_report_api(MlflowServer(relay.uri))
    for _ in range(101):
        api.post("runs/log-batch")
    api.close()

    assert clock.now == pytest.approx(0.5)


def test_a_connection_that_the_server_closed_while_it_was_idle_loses_no_run(relay):
    relay.hangs_up = True
    relay.respond = lambda path: (200, {}, b'{"run": {"info": {"run_id": "1", "experiment_id": "1"}}}')
    with closing(MlflowApi(MlflowServer(relay.uri))) as api:
        api.create_run("1", "first", {}, 1)
        select.select([api._connection._connection.sock], [], [], 60)

        assert api.create_run("1", "second", {}, 1) == "1"


def test_nothing_of_tracking_is_loaded_where_no_uri_is_configured(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_A_URI)

    done = subprocess.run([sys.executable, str(program)], check=True, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "[]"


class Step:
    """A KFP step that keeps what it writes."""

    def __init__(self):
        self.written = {}

    def write(self, name, value):
        self.written[name] = value


@pytest.mark.parametrize("kind", ["folder", "server"])
def test_a_component_and_a_client_promote_to_the_same_champion(
    client, experiment, kind, tmp_path, request, monkeypatch
):
    from kfp_components.step.executor_input import Artifact
    from kfp_components.step.promote import promote

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = str(tmp_path / "registry") if kind == "folder" else request.getfixturevalue("mlflow_uri")
    ref = submit(client, fit_and_save, experiment)
    client.wait(ref)
    model, step = f"digits-{uuid4().hex}", Step()
    (tmp_path / "model").write_text("better")

    first = client.promote(ref, model=model, metric="accuracy", registry=uri)
    artifact = Artifact("model", (tmp_path / "model").as_uri(), {"job": "of-a-pipeline"})
    promote(step, model=artifact, metric=0.95, registry=uri, run_id="1", model_name=model)
    again = client.promote(ref, model=model, metric="accuracy", registry=uri)
    same = Artifact("model", client.get_job_outcome(ref).artifacts["model"], {"job": ref.name, "uid": ref.uid})
    promote(repeated := Step(), model=same, metric=0.9, registry=uri, run_id="1", model_name=model, mode="max")

    with open_registry(uri) as registry:
        champion = registry.get_champion(model)
        assert len(registry.list_versions(model)) == 2
    assert repeated.written["version"] == first.version
    assert (first.promoted, again.promoted, step.written["promoted"]) == (True, True, True)
    assert (champion.version, champion.metric) == (step.written["version"], 0.95)
