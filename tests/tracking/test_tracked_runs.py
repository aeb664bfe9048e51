"""Each TrainJob is one run of a real MLflow server, read with the real mlflow client."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time

import pytest

from trainer_core import (
    CustomTrainer,
    FileDatasetInitializer,
    Initializer,
    LocalProcessBackendConfig,
    Name,
    Tracking,
    TrackingError,
    TrainerClient,
)
from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.logs import LogChunk
from trainer_core.model.request import Owner
from trainer_core.testing.training_functions import wait_for_resource_report
from trainer_core.tracking import mlflow_api, reporter as reporting, server, submission
from trainer_core.tracking.reporter import RunReporter
from trainer_core.tracking.server import MlflowServer

BUSY = (503, {}, b'{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "busy"}')


def fit(epochs: int = 3, nested: dict | None = None):
    import time

    from trainer_core import progress

    for epoch in range(epochs):
        progress(step=epoch + 1, total=epochs, metrics={"loss": 1 / (epoch + 1)})
        time.sleep(0.55)  # Reports are half a second apart.
    return {"accuracy": 0.9, "artifacts": {"model": "s3://models/digits"}}


def succeed():
    return {"accuracy": 0.5}


def diverge_at_the_end():
    from trainer_core import progress

    progress(step=1, total=1, metrics={"accuracy": 0.95, "loss": 0.5})
    return {"accuracy": float("nan")}


def log_in(api_token: str, max_tokens: int):
    raise ValueError(f"cannot log in with {api_token}")


def return_two_metrics():
    return {"accuracy": 0.5, "f1": 0.25}


def fail():
    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})
    raise ValueError("no such feature: colour")


def log_with_mlflow(python: str):
    import subprocess

    # The client ends its run itself, as `with mlflow.start_run()` does.
    code = "import mlflow\nwith mlflow.start_run():\n    mlflow.log_metrics({'own': 7, 'loss': 0.25})"
    subprocess.run([python, "-c", code], check=True)
    return {"accuracy": 0.75}


def log_what_mlflow_refuses(arguments: dict):
    from trainer_core import progress

    names = ["acc@1", "acc_1", "top5 (%)", "y" * 300, "", "loss"]
    progress(step=1, total=1, metrics=dict.fromkeys(names, 0.25))
    return {**dict.fromkeys(names, 0.75), "artifacts": {"best@1": "s3://models/digits"}}


def log_each_step_twice(python: str):
    """Report progress before and after mlflow, which takes seconds to import, logs the same metric."""
    import json
    import subprocess

    from trainer_core import progress

    code = "import json, mlflow, sys\nmlflow.start_run()\nprint(flush=True)\nfor line in sys.stdin:\n    "
    code += "mlflow.log_metric('loss', 0.5, step=json.loads(line))\n    print(flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([python, "-c", code], **pipes) as logger:
        logger.stdout.readline()
        for step in range(1, 9):
            progress(step=step, metrics={"loss": 0.5})
            logger.stdin.write(json.dumps(step) + "\n")
            logger.stdout.readline()


def print_long_log(steps: int):
    """Print the progress of a job that ran for hours."""
    for step in range(1, steps + 1):
        print(f'[trainjob:progress] {{"step": {step}, "metrics": {{"loss": 0.5}}, "t": {1_700_000_000_000 + step}}}')
        print("epoch", step)


def start_twice(folder: str):
    import os
    import time
    from pathlib import Path

    from trainer_core import progress

    is_first = not Path(folder, "started").exists()
    progress(step=1, metrics={"loss": 1.0 if is_first else 0.5})
    Path(folder, "started").touch()
    while is_first:
        time.sleep(0.05)
    return {"run": os.environ["MLFLOW_RUN_ID"]}


def show_commands_with(word: str):
    from pathlib import Path

    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        # The argument is the word backwards, for the command of this process may have it.
        if word[::-1].encode() in command:
            found.append(command.decode())
    return found


def show_environment():
    import os

    return {name: value for name, value in os.environ.items() if name.startswith(("MLFLOW_", "WANDB_", "COMET_"))}


def build(client, func, experiment, owner=None, func_args=None, **tracking):
    return client.build_request(
        runtime="python",
        trainer=CustomTrainer(func, func_args=func_args),
        options=[Tracking(experiment=experiment, **tracking)],
        owner=owner,
    )


def test_a_job_has_one_run_with_params_tags_curves_and_its_end(client, tracked, experiment, read_runs):
    arguments = {"epochs": 3, "nested": {"depth": 2}}
    ref = client.submit(build(client, fit, experiment, func_args=arguments, tags={"team": "vision"}))
    outcome = client.wait(ref)

    (run,) = read_runs()

    assert (run["name"], run["status"]) == (ref.name, "FINISHED")
    assert run["params"] == {"epochs": "3", "nested.depth": "2", "trainjob.runtime": "python"}
    assert run["tags"]["team"] == "vision"
    assert run["tags"]["trainjob.uid"] == ref.uid
    assert run["tags"]["trainjob.artifact.model"] == "s3://models/digits"
    assert run["metrics"]["accuracy"] == 0.9
    assert [(step, round(value, 3)) for step, value, _ in run["history"]["loss"]] == [(1, 1), (2, 0.5), (3, 0.333)]
    times = [timestamp for *_, timestamp in run["history"]["loss"]]
    assert times == sorted(times)
    assert times[-1] <= run["end"]
    assert outcome.succeeded
    assert client.get_run(ref).url.endswith(f"/runs/{run['id']}")


def test_a_run_does_not_claim_a_metric_that_the_function_returned_as_nan(client, tracked, experiment, read_runs):
    client.wait(client.submit(build(client, diverge_at_the_end, experiment)))

    (run,) = read_runs()

    assert math.isnan(run["metrics"]["accuracy"])
    assert run["history"]["accuracy"][0][1] == 0.95
    assert run["metrics"]["loss"] == 0.5


def test_the_use_of_resources_is_in_the_system_metrics_of_the_run(client, tracked, experiment, read_runs):
    trainer = CustomTrainer(wait_for_resource_report, env={"TRAINJOB_RESOURCE_INTERVAL": "0.2"})
    name = client.train(runtime="python", trainer=trainer, options=[Tracking(experiment=experiment)])
    outcome = client.wait(name)

    (run,) = read_runs()

    memory = [value for _, value, _ in run["history"]["system/system_memory_usage_megabytes"]]
    assert max(memory) >= round(outcome.resource_use.memory_peak / 1e6, 1)
    assert 0 <= run["metrics"]["system/cpu_utilization_percentage"] <= 100
    times = [timestamp for *_, timestamp in run["history"]["system/cpu_utilization_percentage"]]
    assert times == sorted(set(times))


def test_the_progress_of_a_fetch_is_no_metric_of_the_run(client, tracked, experiment, read_runs, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2")
    initializer = Initializer(dataset=FileDatasetInitializer((tmp_path / "data").as_uri()))
    name = client.train(
        runtime="python",
        trainer=CustomTrainer(fit),
        initializer=initializer,
        options=[Tracking(experiment=experiment)],
    )
    client.wait(name)

    (run,) = read_runs()

    assert "loss" in run["history"]
    assert "files" not in run["history"]


def test_several_waiters_and_later_looks_store_each_point_once(client, tracked, experiment, read_runs, tmp_path):
    ref = client.submit(build(client, fit, experiment))
    others = [TrainerClient(client.config) for _ in range(3)]
    waiters = [threading.Thread(target=each.wait, args=(ref,)) for each in others]
    for each in waiters:
        each.start()
    for each in waiters:
        each.join()
    client.get_job_outcome(ref)

    (run,) = read_runs()

    assert [step for step, *_ in run["history"]["loss"]] == [1, 2, 3]
    assert len(run["history"]["accuracy"]) == 1


def test_mlflow_inside_the_training_logs_to_the_same_run(
    client, tracked, experiment, read_runs, mlflow_python, monkeypatch
):
    # On a busy machine mlflow is imported for longer than the interval of the reports.
    monkeypatch.setenv("TRAINJOB_RESOURCE_INTERVAL", "0")
    ref = client.submit(build(client, log_with_mlflow, experiment, func_args={"python": mlflow_python}))
    assert client.wait(ref).succeeded

    (run,) = read_runs()

    assert run["status"] == "FINISHED"
    assert run["metrics"] == {"own": 7, "loss": 0.25, "accuracy": 0.75}


def test_a_metric_that_the_training_logs_at_each_step_is_not_doubled(
    client, tracked, experiment, read_runs, mlflow_python, monkeypatch
):
    monkeypatch.setattr(reporting, "_FIRST_SECONDS", 0.1)
    monkeypatch.setattr(reporting, "_INTERVAL_SECONDS", 5.0)
    ref = client.submit(build(client, log_each_step_twice, experiment, func_args={"python": mlflow_python}))
    assert client.wait(ref).succeeded

    (run,) = read_runs()

    assert [step for step, *_ in run["history"]["loss"]] == [*range(1, 9)]
    assert "progress/loss" in run["history"]


def test_names_that_mlflow_refuses_are_made_acceptable_and_the_run_is_complete(
    client, tracked, experiment, read_runs, caplog
):
    arguments = {"t%": 1, "a//b": 2, "x" * 251: 3, "x" * 250: 4, "steps": 2**80, "c": {"d": 5}, "c.d": 6}
    tags = {"a@b": "user", "a_b": "other"}
    request = build(client, log_what_mlflow_refuses, experiment, func_args={"arguments": arguments}, tags=tags)
    client.wait(client.submit(request))

    (run,) = read_runs()

    assert run["status"] == "FINISHED"
    metrics = {name: [point[1] for point in points] for name, points in run["history"].items() if name[:6] != "system"}
    assert metrics.pop("acc_1") == metrics.pop("top5 ___") == metrics.pop("loss") == metrics.pop("_") == [0.25, 0.75]
    assert [*metrics.values()] == [[0.25, 0.75]] * 2
    assert {run["params"][name] for name in ("arguments.t_", "arguments.a/b")} == {"1", "2"}
    assert {"3", "4", str(2**80)} <= set(run["params"].values())
    assert (run["params"]["arguments.c.d"], run["params"]["arguments.c.d-2"]) == ("5", "6")
    assert (run["tags"]["trainjob.artifact.best_1"], run["tags"]["a_b"]) == ("s3://models/digits", "other")
    assert json.loads(run["tags"]["trainjob.renamed.params"])["arguments.t%"] == "arguments.t_"
    assert caplog.text.count("MLflow takes no metrics of such names") == 1


def test_arguments_named_like_secrets_are_masked_also_where_the_diagnosis_quotes_them(
    client, tracked, experiment, read_runs
):
    request = build(client, log_in, experiment, func_args={"api_token": "hunter22", "max_tokens": 512})
    client.wait(client.submit(request))

    (run,) = read_runs()

    assert (run["params"]["api_token"], run["params"]["max_tokens"]) == ("***", "512")
    assert "cannot log in with ***" in run["tags"]["trainjob.diagnosis"]
    assert "hunter22" not in json.dumps(run)


def test_steps_that_mlflow_does_not_have_are_changed_with_one_warning(caplog):
    steps = (2**63 - 1, 2**63, 2**80, -(2**80), 1.5, 2.0)
    lines = [("node-0", f'[trainjob:progress] {{"step": {step}, "metrics": {{"loss": 1}}}}') for step in steps]
    reporter = RunReporter(None, TrainJobRef("local", "/home", "job", "uid"), None)

    points = reporter.build_points(LogChunk(lines))

    assert [step for *_, step in points] == [2**63 - 1, 2**63 - 1, 2**63 - 1, -(2**63) + 1, 1, 2]
    assert len(caplog.records) == 1


def test_a_point_that_the_server_refuses_is_dropped_and_not_its_batch(client, relay, experiment, read_runs, caplog):
    def refuse(path):
        body = relay.bodies[-1]
        is_refused = "log-batch" in path and b'"key": "f1"' in body
        return (400, {}, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no f1"}') if is_refused else None

    relay.respond = refuse
    client.wait(client.submit(build(client, return_two_metrics, experiment, uri=relay.uri)))

    (run,) = read_runs()
    assert (run["status"], run["metrics"]) == ("FINISHED", {"accuracy": 0.5})
    assert run["tags"]["trainjob.reported"]
    assert caplog.text.count("the run lacks f1") == 1


@pytest.mark.parametrize("by", ["wait", "reap"])
def test_a_later_process_continues_where_a_killed_one_was_and_the_status_comes_first(
    client, relay, experiment, read_runs, by, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    ref = client.submit(build(client, print_long_log, experiment, func_args={"steps": 3500}, uri=relay.uri))
    client.flush_tracking(60)
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    untracked.wait(ref)
    batches = [0]

    def break_off(path):
        batches[0] += b'"key": "loss"' in relay.bodies[-1]
        return (400, {}, b"{}") if batches[0] > 4 else None

    relay.respond = break_off
    client.wait(ref)
    (unfinished,) = read_runs()
    relay.respond = lambda path: None
    relay.bodies.clear()
    {"wait": lambda: client.wait(ref), "reap": client.end_abandoned_runs}[by]()

    (run,) = read_runs()
    sent = [json.loads(body) for body in relay.bodies if b'"loss"' in body]
    # The sender of an earlier test may still have points of another run.
    again = [
        point
        for body in sent
        if body.get("run_id") == run["id"]
        for point in body.get("metrics", ())
        if point["key"] == "loss"
    ]
    assert unfinished["status"] == run["status"] == "FINISHED"
    assert [step for step, *_ in run["history"]["loss"]] == [*range(1, 3501)]
    assert len(again) + len(unfinished["history"]["loss"]) == 3500


@pytest.mark.parametrize(("cancel", "status"), [(False, "FAILED"), (True, "KILLED")])
def test_a_job_that_did_not_succeed_ends_its_run_with_its_diagnosis(
    client, tracked, experiment, read_runs, cancel, status
):
    ref = client.submit(
        build(client, fit if cancel else fail, experiment, func_args={"epochs": 100} if cancel else None)
    )
    if cancel:
        client.cancel(ref)
    client.wait(ref)

    (run,) = read_runs()

    assert run["status"] == status
    assert ("cancelled" if cancel else "no such feature: colour") in run["tags"]["trainjob.diagnosis"]


def test_a_retry_that_attaches_keeps_the_run_and_the_next_attempt_is_nested(client, tracked, experiment, read_runs):
    owner = Owner(key="dag/run/train/-1", generation="1")
    first = client.submit(build(client, fail, experiment, owner))
    again = client.submit(build(client, fail, experiment, owner))
    client.wait(first)
    second = client.submit(build(client, fail, experiment, owner))
    client.wait(second)

    runs = read_runs()

    assert again == first
    assert [run["tags"]["trainjob.uid"] for run in runs] == [first.uid, second.uid]
    assert "mlflow.parentRunId" not in runs[0]["tags"]
    assert runs[1]["tags"]["mlflow.parentRunId"] == runs[0]["id"]


def test_the_next_attempt_keeps_the_curve_of_the_previous_one_whose_waiter_was_killed(
    client, tracked, experiment, read_runs
):
    owner = Owner(key="dag/run/train/-1", generation="1")
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    untracked.wait(client.submit(build(client, fail, experiment, owner)))
    client.wait(client.submit(build(client, fail, experiment, owner)))
    client.flush_tracking(60)

    first, second = read_runs()

    assert (first["status"], second["status"]) == ("FAILED", "FAILED")
    assert [point[:2] for point in first["history"]["loss"]] == [[1, 0.5]]
    assert first["tags"]["trainjob.reported"] == first["tags"]["trainjob.uid"]


def test_a_job_that_starts_again_has_the_same_run(client, tracked, experiment, read_runs, tmp_path):
    ref = client.submit(build(client, start_twice, experiment, func_args={"folder": str(tmp_path)}))
    while not (tmp_path / "started").exists():
        time.sleep(0.05)
    client.suspend(ref)
    client.wait_for_job_status(ref, {"Suspended"}, polling_interval=1)
    client.resume(ref)
    outcome = client.wait(ref)

    (run,) = read_runs()
    assert (run["id"], run["status"]) == (outcome.result["run"], "FINISHED")
    assert [value for _, value, _ in run["history"]["loss"]][-1] == 0.5


def test_a_run_that_the_training_ended_too_early_gets_the_status_of_its_job(
    client, tracked, experiment, read_runs, ask
):
    ref = client.submit(build(client, fail, experiment))
    ask("terminate", run=client.get_run(ref).id)
    early = read_runs()[0]["status"]
    client.wait(ref)

    assert (early, read_runs()[0]["status"]) == ("FINISHED", "FAILED")


def test_a_cleared_task_has_a_new_run_and_the_old_one_is_killed(client, tracked, experiment, read_runs):
    old = client.submit(build(client, fit, experiment, Owner(key="task", generation="1"), {"epochs": 100}))
    new = client.submit(build(client, fit, experiment, Owner(key="task", generation="2"), {"epochs": 1}))
    client.wait(new)

    runs = read_runs()

    assert [(run["tags"]["trainjob.uid"], run["status"]) for run in runs] == [
        (old.uid, "KILLED"),
        (new.uid, "FINISHED"),
    ]


class Killed(BaseException):
    """The submitter ends here."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submitter_killed_at_any_request_leaves_no_second_run(client, relay, experiment, read_runs, when):
    owner = Owner(key="task", generation="1")
    request = build(client, succeed, experiment, owner, uri=relay.uri)
    for kill_point in range(20):
        if not _submit_until_killed(client, request, kill_point, when):
            break
    client.wait(client.submit(request))

    assert kill_point >= 3
    assert [run["status"] for run in read_runs()] == ["FINISHED"]


def _submit_until_killed(client, request, kill_point, when):
    """Submit in a forked process that is killed before or after its n-th request to the server."""
    from trainer_core.tracking.http_connection import HttpConnection

    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        return code == 9
    exchange, sent = HttpConnection._exchange, [0]

    def kill(*arguments):
        sent[0] += 1
        if sent[0] > kill_point and when == "before":
            os._exit(9)
        answer = exchange(*arguments)
        if sent[0] > kill_point:
            os._exit(9)
        return answer

    HttpConnection._exchange = kill
    try:
        client.submit(request)
        client.flush_tracking(60)
        os._exit(0)
    finally:
        os._exit(3)


def test_the_run_of_a_job_of_the_same_name_elsewhere_is_left_alone(client, relay, experiment, read_runs, tmp_path):
    elsewhere = TrainerClient(LocalProcessBackendConfig(home=str(tmp_path / "elsewhere")))
    request = build(client, succeed, experiment, Owner(key="task", generation="1"), uri=relay.uri)
    assert _submit_until_killed(elsewhere, request, 2, "after")  # Its run has no job yet.
    client.wait(client.submit(request))

    assert len(read_runs()) == 2


def test_a_job_with_the_name_of_a_deleted_one_has_a_run_of_its_own(client, relay, experiment, read_runs):
    for _ in range(2):
        ref = client.submit(build(client, succeed, experiment, uri=relay.uri))
        client.wait(ref)
        client.delete_job(ref)

    assert ["mlflow.parentRunId" in run["tags"] for run in read_runs()] == [False, False]


def test_a_submit_waits_only_for_the_request_that_creates_the_run(client, relay, experiment, read_runs):
    submitted = threading.Event()

    def respond(path):
        is_needed = path.endswith("runs/create") or "experiments/" in path
        return None if is_needed or submitted.wait(300) else BUSY

    relay.respond = respond
    ref = client.submit(build(client, succeed, experiment, func_args={}, uri=relay.uri))
    submitted.set()
    client.flush_tracking(60)

    (run,) = read_runs()
    assert (run["tags"]["trainjob.uid"], run["params"]) == (ref.uid, {"trainjob.runtime": "python"})
    client.wait(ref)


@pytest.mark.parametrize("by", ["wait", "submit", "reap"])
def test_the_next_process_sends_what_a_killed_submitter_did_not_send(
    client, relay, experiment, read_runs, by, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    request = build(client, succeed, experiment, Owner(key="task", generation="1"), uri=relay.uri)
    assert _submit_until_killed(client, request, 2, "after")  # Once its run was created.
    assert _submit_until_killed(client, request, 2, "before")  # Once its job was created.
    (job,) = client.find_jobs(request)
    ref = client.get_job_ref(job.name)
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    untracked.wait(ref)
    unfinished = read_runs()
    looks = {
        "wait": lambda: client.wait(ref),
        "submit": lambda: client.submit(request) and client.flush_tracking(60),
        "reap": client.end_abandoned_runs,
    }
    looks[by]()

    (run,) = read_runs()
    assert [each["params"] for each in unfinished] == [{}, {}]
    assert run["id"] == client.get_run(ref).id
    assert (run["tags"]["trainjob.uid"], run["params"]) == (ref.uid, {"trainjob.runtime": "python"})


def test_a_job_that_was_deleted_and_submitted_again_keeps_its_run(client, relay, experiment, read_runs):
    request = build(client, succeed, experiment, uri=relay.uri)
    searching, again = threading.Event(), threading.Event()

    def respond(path):
        if "runs/search" in path:
            searching.set()
            again.wait(300)

    relay.respond = respond
    deleted = client.submit(request)
    assert searching.wait(300)
    client.backend.delete(deleted)  # The client would report it first.
    ref = client.submit(request)
    again.set()
    client.wait(ref)

    runs = {run["id"]: run["status"] for run in read_runs()}
    assert runs[client.get_run(ref).id] == "FINISHED"


def test_submitters_at_the_same_time_leave_one_run(client, tracked, experiment, read_runs):
    request = build(client, succeed, experiment, Owner(key="task", generation="1"))
    barrier = threading.Barrier(4)
    refs = []

    def submit():
        other = TrainerClient(client.config)
        barrier.wait()
        refs.append(other.submit(request))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    client.wait(refs[0])

    assert len({ref.uid for ref in refs}) == 1
    assert [run["status"] for run in read_runs()] == ["FINISHED"]


def test_a_server_that_is_away_at_submit_is_made_up_for_later(client, relay, experiment, read_runs):
    relay.respond = lambda path: BUSY
    ref = client.submit(build(client, fit, experiment, func_args={"epochs": 3}, uri=relay.uri))
    relay.respond = lambda path: None
    client.wait(ref)

    (run,) = read_runs()

    assert run["status"] == "FINISHED"
    assert [step for step, *_ in run["history"]["loss"]] == [1, 2, 3]
    assert run["params"]["epochs"] == "3"


def test_a_server_that_fails_now_and_then_loses_nothing(client, relay, experiment, read_runs):
    count = iter(range(10_000))
    relay.respond = lambda path: BUSY if "log-batch" in path and next(count) % 2 else None
    client.wait(client.submit(build(client, fit, experiment, uri=relay.uri)))

    (run,) = read_runs()

    assert (run["status"], [step for step, *_ in run["history"]["loss"]]) == ("FINISHED", [1, 2, 3])


def test_a_server_that_is_gone_fails_no_job_and_the_next_look_ends_the_run(
    client, relay, experiment, read_runs, caplog
):
    ref = client.submit(build(client, succeed, experiment, uri=relay.uri))
    relay.respond = lambda path: (400, {}, b"{}")

    outcome = client.wait(ref)
    unfinished = read_runs()
    relay.respond = lambda path: None
    client.get_job_outcome(ref)

    assert outcome.succeeded
    assert f"; `trainjob wait {ref.name}` or `trainjob reap` completes it after that" in caplog.text
    assert caplog.messages[-1].endswith("is complete now")
    assert [run["status"] for run in unfinished] == ["RUNNING"]
    assert [run["status"] for run in read_runs()] == ["FINISHED"]


def test_a_server_that_is_away_is_reported_once_and_costs_the_end_of_a_job_no_time(client, experiment, caplog):
    uri = "http://127.0.0.1:9"  # No server of another test can get this port.
    client.runs.server = MlflowServer(uri, experiment=experiment)
    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(succeed)))
    untracked = TrainerClient(client.config)
    untracked.wait(ref)
    begin = time.monotonic()
    client.runs.report_outcome(client.wait(ref))
    seconds = time.monotonic() - begin

    (warning,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert uri in warning
    assert f"`trainjob wait {ref.name}` or `trainjob reap` completes it" in warning
    assert seconds < 15  # 20 s, if the end were tried again or reported twice.


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"<html>",
        b"[1]",
        b'{"experiment": "1"}',
        b'{"experiment": {"experiment_id": "1"}, "runs": 5}',
        b'{"experiment": {"experiment_id": "1"}, "runs": [{"info": {"run_id": [], "experiment_id": "1"}}]}',
    ],
)
def test_a_server_that_is_no_mlflow_fails_no_job(client, relay, experiment, answer, caplog):
    relay.respond = lambda path: (200, {}, answer)

    outcome = client.wait(client.submit(build(client, succeed, experiment, uri=relay.uri)))

    assert outcome.succeeded
    assert "does not answer like an MLflow server" in caplog.text


def test_a_backend_that_cannot_be_read_after_the_submit_fails_no_submit(client, tracked, experiment, monkeypatch):
    def refuse(ref):
        raise BackendUnavailableError("the backend cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(client.backend, "get_request", refuse)
        ref = client.submit(build(client, succeed, experiment))

    assert client.wait(ref).succeeded


def test_a_token_with_a_line_break_is_repaired_or_refused_and_never_quoted():
    environ = {"MLFLOW_TRACKING_URI": "http://mlflow.example", "MLFLOW_TRACKING_TOKEN": "hunter2\n"}

    assert MlflowServer.from_environment(environ).token == "hunter2"
    with pytest.raises(ValueError, match="token of the MLflow server has a character") as refused:
        MlflowServer("http://mlflow.example", token="hun\nter2")
    assert "ter2" not in str(refused.value)


def test_a_server_that_hangs_delays_no_job(client, relay, experiment, read_runs, monkeypatch):
    monkeypatch.setattr(mlflow_api, "_SUBMIT_TIMEOUT", 0.5)
    answering = threading.Event()

    def respond(path):
        answering.wait(300)

    relay.respond = respond
    ref = client.submit(build(client, succeed, experiment, uri=relay.uri))
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    outcome = untracked.wait(ref)
    is_hanging = not answering.is_set()
    answering.set()
    client.wait(ref)

    assert (outcome.succeeded, is_hanging) == (True, True)
    assert [run["status"] for run in read_runs()] == ["FINISHED"]


def test_a_server_that_sends_a_byte_now_and_then_delays_a_submit_by_a_limit_in_all(
    client, experiment, monkeypatch, caplog
):
    monkeypatch.setattr(submission, "_SUBMIT_SECONDS", 0.5)
    ended = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not ended.wait(0.05):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ref = client.submit(build(client, succeed, experiment, uri=uri))
        is_dripping = thread.is_alive()
        ended.set()
        thread.join()

    assert is_dripping
    assert f"TrainJob {ref.name}: its run is not complete: MLflow server {uri} takes more than 0.5 s" in caplog.text


@pytest.mark.parametrize("uri", ["databricks", "databricks://team", "sqlite:///a.db", "HTTP://mlflow.example"])
def test_a_tracking_uri_that_is_not_supported_is_named_once(uri, caplog, monkeypatch):
    monkeypatch.setattr(server, "_unsupported", set())
    for _ in range(2):
        assert MlflowServer.from_environment({"MLFLOW_TRACKING_URI": uri}) is None

    (warning,) = caplog.messages
    assert f"{uri.partition(':')[0]!r} is not supported, so nothing is tracked" in warning


def test_a_server_that_goes_away_while_a_submit_is_refused_is_no_error_of_the_run(
    client, relay, experiment, monkeypatch, caplog
):
    def refuse(request):
        raise InvalidRequestError("refused")

    relay.respond = lambda path: BUSY if "runs/delete" in path else None
    monkeypatch.setattr(client.backend, "create", refuse)
    with pytest.raises(InvalidRequestError, match="refused"):
        client.submit(build(client, succeed, experiment, uri=relay.uri))
    client.flush_tracking(60)

    assert any("runs/delete" in path for _, path, _ in relay.seen)
    assert caplog.messages == []


def test_a_tag_of_this_project_is_refused():
    with pytest.raises(ValueError, match=r"Tracking tags: trainjob\.uid is set by this project"):
        Tracking(tags={"team": "vision", "trainjob.uid": "1"})


def test_required_tracking_refuses_the_submit_while_the_server_is_away(client, relay, experiment):
    relay.respond = lambda path: BUSY
    request = build(client, succeed, experiment, uri=relay.uri, required=True)

    with pytest.raises(TrackingError, match="busy"):
        client.submit(request)

    assert client.list_jobs() == []


def test_required_tracking_without_a_server_is_refused(client, monkeypatch, experiment):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(ValueError, match="no tracking URI is configured"):
        client.submit(build(client, succeed, experiment, required=True))


def test_a_run_that_a_person_deleted_is_left_alone(client, tracked, experiment, read_runs, ask, caplog):
    ref = client.submit(build(client, succeed, experiment))
    client.flush_tracking(60)
    ask("delete", run=read_runs()[0]["id"])

    assert client.wait(ref).succeeded
    assert read_runs() == []
    assert "deleted" in caplog.text
    assert "completes it" not in caplog.text


def test_a_metric_that_the_training_logs_itself_keeps_its_curve(client, tracked, experiment, read_runs, ask):
    ref = client.submit(build(client, fit, experiment, func_args={"epochs": 2}))
    ask("log_metric", run=read_runs()[0]["id"], name="loss", value=42.0)
    client.wait(ref)

    (run,) = read_runs()

    assert [value for _, value, _ in run["history"]["loss"]] == [42]
    assert [step for step, *_ in run["history"]["progress/loss"]] == [1, 2]


def test_a_job_that_was_submitted_again_with_other_tracking_is_the_same_job(client, tracked, experiment):
    options = [[Name("same"), Tracking(experiment=experiment, tags={"try": number})] for number in ("1", "2")]
    trainer = CustomTrainer(succeed)
    refs = [client.submit(client.build_request(runtime="python", trainer=trainer, options=each)) for each in options]

    assert refs[0] == refs[1]


def test_credentials_reach_the_server_and_the_training_but_no_file(client, relay, experiment, tmp_path):
    server = MlflowServer(relay.uri, username="ada", password="s3cr3t-word", experiment=experiment)
    client.runs.server = server

    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(show_environment)))
    result = client.wait(ref).result

    assert result["MLFLOW_TRACKING_PASSWORD"] == "s3cr3t-word"
    assert {headers["Authorization"].partition(" ")[0] for *_, headers in relay.seen} == {"Basic"}
    records = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.name != "node-0.json"]
    leaking = [path.name for path in records if b"s3cr3t-word" in path.read_bytes()]
    assert leaking == [] or set(leaking) <= {"status.json", "lock"}
    assert "s3cr3t-word" not in repr(server)


def test_credentials_are_in_no_list_of_processes(client, relay, experiment):
    client.runs.server = MlflowServer(relay.uri, username="ada", password="s3cr3t-word", experiment=experiment)
    trainer = CustomTrainer(show_commands_with, func_args={"word": "drow-t3rc3s"})

    assert client.wait(client.submit(client.build_request(runtime="python", trainer=trainer))).result == []


def test_a_redirect_to_another_host_gets_no_credentials(client, relay, experiment, caplog):
    relay.respond = lambda path: (307, {"Location": "http://elsewhere.invalid/api"}, b"")
    client.runs.server = MlflowServer(relay.uri, token="t0ken", experiment=experiment)

    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(succeed)))

    assert "redirects to http://elsewhere.invalid, and credentials are sent to no other server" in caplog.text
    assert client.wait(ref).succeeded


def test_a_service_account_token_that_is_renewed_is_sent(relay, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_SERVICE_ACCOUNT", tmp_path)
    api = mlflow_api.MlflowApi(MlflowServer(relay.uri, auth="kubernetes"))
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token)
        api.post("experiments/search", max_results=1)
    api.close()

    assert [headers["Authorization"] for *_, headers in relay.seen] == ["Bearer first", "Bearer second"]


def test_environment_credentials_go_to_their_own_server_only():
    environ = {"MLFLOW_TRACKING_URI": "https://mlflow.example", "MLFLOW_TRACKING_TOKEN": "t0ken"}

    assert MlflowServer.from_environment(environ).token == "t0ken"
    assert MlflowServer.from_environment(environ, uri="https://other.example").token is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("wandb", {"WANDB_RUN_ID", "WANDB_RESUME", "WANDB_PROJECT"}), ("comet", {"COMET_EXPERIMENT_KEY"})],
)
def test_other_trackers_find_their_run_by_the_environment(client, experiment, monkeypatch, kind, expected):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    ref = client.submit(build(client, show_environment, experiment, kind=kind))

    assert expected <= client.wait(ref).result.keys()


@pytest.mark.parametrize("uri", ["sqlite:///runs.db", "https://ada:pw@mlflow.example"])
def test_a_uri_that_is_no_server_or_has_credentials_is_refused(uri):
    with pytest.raises(ValueError, match="Tracking uri"):
        Tracking(uri=uri)


def test_a_kfp_step_that_has_a_run_is_the_parent_of_the_run_of_its_job(
    client, tracked, experiment, read_runs, monkeypatch
):
    from kfp_components.step.request import set_tracking

    client.wait(client.submit(build(client, succeed, experiment)))
    (step,) = read_runs()
    monkeypatch.setenv("MLFLOW_RUN_ID", step["id"])
    request = client.build_request(
        runtime="python", trainer=CustomTrainer(show_environment), options=[Name("inside-a-step")]
    )
    data = request.to_dict()
    set_tracking(data, "kfp-run")

    result = client.wait(client.submit(type(request).parse(data))).result

    own = next(run for run in read_runs() if run["id"] != step["id"])
    assert own["tags"]["mlflow.parentRunId"] == step["id"]
    assert own["tags"]["kfp.run_id"] == "kfp-run"
    assert result["MLFLOW_RUN_ID"] == own["id"]
