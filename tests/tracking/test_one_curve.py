"""A metric has one curve and one last value, whenever the training begins to log it itself, and whoever reports."""

from __future__ import annotations

import math
import time

from hypothesis import given, settings, strategies as st

from trainer_core import CustomTrainer, Tracking
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.tracking.mlflow_api import MlflowRun
from trainer_core.tracking.run import RunWriter

REF = TrainJobRef("local", "/home", "job", "uid-1")


def report_when_asked(folder: str):
    """Print the progress of a step for each file that appears, and a file for each line."""
    import time
    from pathlib import Path

    for step in range(1, 9):
        while not Path(folder, str(step)).exists():
            time.sleep(0.05)
        line = f'{{"step": {step}, "metrics": {{"loss": 0.5}}, "t": {int(time.time() * 1000)}}}'
        print(f"[trainjob:progress] {line}", flush=True)
        Path(folder, f"{step}-done").touch()


def report_steps_backwards():
    from trainer_core import progress

    for step in (100, 10):
        progress(step=step, total=step, metrics={"loss": 1 / step})
    return {"loss": 0.5}


def submit(client, func, experiment, **arguments):
    trainer = CustomTrainer(func, func_args=arguments or None)
    return client.submit(
        client.build_request(runtime="python", trainer=trainer, options=[Tracking(experiment=experiment)])
    )


def train(folder, step):
    """Let `report_when_asked` report a step."""
    (folder / str(step)).touch()
    while not (folder / f"{step}-done").exists():
        time.sleep(0.02)


def test_mlflow_that_begins_after_our_first_reports_continues_the_curve(
    client, tracked, experiment, read_runs, ask, tmp_path
):
    ref = submit(client, report_when_asked, experiment, folder=str(tmp_path))
    client.flush_tracking(60)
    reporter, run_id = client.runs.create_reporter(ref), client.get_run(ref).id
    reporter._is_started = True  # Reports are sent when the test wants to.
    for step in range(1, 5):
        train(tmp_path, step)
        reporter.send(())
    for step in range(5, 9):
        train(tmp_path, step)
        ask("log_metric", run=run_id, name="loss", value=0.25, step=step)
        reporter.send(())
    assert client.wait(ref).succeeded

    (run,) = read_runs()
    points = [(step, value) for step, value, _ in run["history"]["loss"]]
    assert sorted(points) == [(step, 0.5 if step < 5 else 0.25) for step in range(1, 9)]


def test_the_final_value_is_the_latest_of_the_run_although_the_steps_went_back(client, tracked, experiment, read_runs):
    outcome = client.wait(submit(client, report_steps_backwards, experiment))

    (run,) = read_runs()
    assert run["metrics"] == outcome.metrics == {"loss": 0.5}
    assert {step for step, *_ in run["history"]["loss"]} == {10, 100}


class Server:
    """An MLflow server with one run: it stores equal points once, and the last point is that of the highest step."""

    def __init__(self):
        self.tags, self.points, self.status = {}, {}, "RUNNING"

    def log(self, key, value, timestamp, step):
        self.points.setdefault(key, set()).add((step, timestamp, float(value)))

    def get_latest(self, key):
        return max(self.points[key])

    def get_run(self, run_id):
        latest = {key: self.get_latest(key) for key in self.points}
        metrics = [{"key": key, "step": at, "timestamp": t, "value": v} for key, (at, t, v) in latest.items()]
        tags = [{"key": key, "value": value} for key, value in self.tags.items()]
        info = {"run_id": run_id, "experiment_id": "7", "status": self.status}
        return MlflowRun.model_validate({"info": info, "data": {"tags": tags, "metrics": metrics}})

    def get_history(self, run_id, key):
        run = {
            "data": {"metrics": [{"key": key, "step": a, "timestamp": t, "value": v} for a, t, v in self.points[key]]}
        }
        return MlflowRun.model_validate({"info": {"run_id": run_id, "experiment_id": "7"}, **run}).data.metrics

    def log_batch(self, run_id, metrics=(), params=None, tags=None):
        for each in metrics:
            self.log(**each)
        self.tags |= tags or {}
        return {}

    def post(self, path, run_id, **fields):
        self.status = fields["status"]


class Process:
    """A process that reports the log of the job to its run."""

    def __init__(self, server, log):
        self.writer, self.log = RunWriter(server, "run", "job"), log
        self.writer.load()
        self.position = self.writer.cursor.get("line", 0)

    def read(self, **how):
        points, self.position = self.log[self.position :], len(self.log)
        step = points[-1][3] if points else self.writer.step
        self.writer.send(points, {"line": self.position}, step, **how)

    def report(self):
        self.writer.begin_report()
        self.read()

    def finish(self, outcome):
        self.writer.load()
        self.writer.end(outcome)
        self.read(job_ended=True, is_whole=True)
        self.writer.complete(outcome, len(self.log))


#: Of each step: which of two processes report before mlflow logs it and after, and which one is killed then.
STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 1)), st.sets(st.integers(0, 1)), st.none() | st.integers(0, 1)),
    min_size=1,
    max_size=8,
)


def play(steps, begin, final, finisher=0):
    """Play a training that reports the loss at each step, and logs it with mlflow too from one step on."""
    server, log = Server(), []
    processes = [Process(server, log), Process(server, log)]
    theirs = set()
    for step, (early, late, killed) in enumerate(steps, 1):
        log.append(("loss", 1 / step, 10 * step, step))
        for number in early:
            processes[number].report()
        if step >= begin:
            theirs.add((step, 10 * step + 1, 2.0))
            server.log("loss", 2.0, 10 * step + 1, step)
        for number in late:
            processes[number].report()
        if killed is not None:
            processes[killed] = Process(server, log)
    outcome = Outcome(ref=REF.to_dict(), status="Complete", metrics=final, finished_at="1970-01-01T00:00:00Z")
    processes[finisher].finish(outcome)
    return server, theirs


@settings(max_examples=200, derandomize=True, deadline=None)
@given(steps=STEPS, begin=st.integers(1, 9), finisher=st.integers(0, 1))
def test_a_metric_that_the_training_begins_to_log_itself_has_one_point_a_step(steps, begin, finisher):
    server, theirs = play(steps, begin, {"loss": 7.0}, finisher)

    stored = server.points["loss"]
    at = [step for step, *_ in stored]
    assert theirs <= stored
    # The final value is one more point, where it is ours to send.
    assert sorted(at) == sorted({*at} | ({max(at)} if not theirs else set())) + ([] if theirs else [len(steps)])
    assert server.get_latest("loss")[2] == (2.0 if theirs else 7.0)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(steps=STEPS, finisher=st.integers(0, 1))
def test_a_curve_that_only_the_reports_have_is_whole_whichever_process_sends_it(steps, finisher):
    server, _ = play(steps, math.inf, {}, finisher)

    assert server.points["loss"] == {(step, 10 * step, 1 / step) for step in range(1, len(steps) + 1)}


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    curve=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10**9), st.floats(-10, 10)), max_size=8),
    step=st.integers(0, 20),
    value=st.floats(-10, 10) | st.none(),
)
def test_the_final_value_is_the_last_by_the_rule_of_the_server(curve, step, value):
    server = Server()
    metrics = {} if value is None else {"loss": value}
    outcome = Outcome(ref=REF.to_dict(), status="Complete", metrics=metrics, result={"loss": value}, finished_at=None)
    writer = RunWriter(server, "run", "job")
    writer.load()
    writer.end(outcome)
    writer.send([("loss", each, t, at) for at, t, each in curve], {}, step, job_ended=True, is_whole=True)
    writer.complete(outcome, step)

    found = [max(points) for points in server.points.values()]
    assert [str(last) for *_, last in found] == [str(float("nan" if value is None else value))] * len(found)
    assert bool(found) == bool(curve or value is not None)
