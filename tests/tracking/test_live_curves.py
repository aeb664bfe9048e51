"""Progress reaches the run of a job while another process only reads its log, as Airflow's triggerer does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer_core import CustomTrainer, MlflowServer, Tracking
from trainer_core.errors import TrackingError
from trainer_core.tracking import run_sender
from trainer_core.tracking.reporter import RunReporter
from trainer_core.tracking.run_sender import RunSender

POINTS = [("loss", 0.5, 1, 1), ("loss", 0.25, 2, 2)]


def train_for_ever():
    import time

    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})
    time.sleep(600)


@pytest.fixture
def submitted(client, relay, experiment):
    """The ref of a running job whose run is on the server behind the relay."""
    options = [Tracking(experiment=experiment, uri=relay.uri)]
    request = client.build_request(runtime="python", trainer=CustomTrainer(train_for_ever), options=options)
    ref = client.submit(request)
    yield ref
    client.cancel(ref)


@pytest.fixture
def sender(monkeypatch):
    """A sender whose thread does not run: a test sends when it wants to."""
    sender = RunSender()
    monkeypatch.setattr(sender, "_run", lambda: None)
    return sender


@pytest.fixture
def reporter(client, submitted):
    return RunReporter(client.backend, submitted, None)


class Reporter(RunReporter):
    """A reporter without a job, whose server answers as a test asks."""

    def __init__(self, error=None):
        super().__init__(None, None, None)
        self.sent, self.error = [], error
        self._ref = type("Ref", (), {"name": "job"})

    def find_server(self):
        return MlflowServer("http://mlflow.example")

    def send(self, points):
        if self.error is not None:
            raise self.error
        self.sent += points


def test_progress_in_the_log_reaches_the_run_while_the_job_runs(client, submitted, read_runs, monkeypatch):
    monkeypatch.setattr(run_sender, "_INTERVAL_SECONDS", 0.05)
    send, cursor, run = client.get_progress_sender(submitted), {}, {"history": {}}
    while "loss" not in run["history"]:
        chunk = client.tail_job_logs(submitted, cursor)
        send(chunk)
        cursor = chunk.cursor
        (run,) = read_runs()

    assert (run["status"], [point[:2] for point in run["history"]["loss"]]) == ("RUNNING", [[1, 0.5]])


def test_a_server_that_is_away_gets_the_points_when_it_is_back(relay, reporter, sender, read_runs, monkeypatch):
    monkeypatch.setattr(run_sender, "_PAUSE_SECONDS", 0.0)
    relay.respond = lambda path: (503, {}, b"{}")
    sender.put(reporter, POINTS)
    sender.send_pending()
    relay.respond = lambda path: None
    sender.send_pending()

    (run,) = read_runs()
    assert [point[:2] for point in run["history"]["loss"]] == [[1, 0.5], [2, 0.25]]


def test_a_server_that_is_away_is_not_asked_for_each_job(sender):
    away, next_one = Reporter(TrackingError("away", transient=True)), Reporter()
    for each in (away, next_one):
        sender.put(each, POINTS)
    sender.send_pending()

    assert next_one.sent == []


def test_a_run_that_takes_no_points_gets_no_further_ones(sender, caplog):
    deleted = Reporter(TrackingError("run 1 was deleted"))
    sender.put(deleted, POINTS)
    sender.send_pending()
    deleted.error = None
    sender.put(deleted, POINTS)
    sender.send_pending()

    assert deleted.sent == []
    assert caplog.text.count("run 1 was deleted") == 1


def test_a_full_queue_drops_points_and_says_so_once(sender, monkeypatch, caplog):
    monkeypatch.setattr(run_sender, "_MAX_POINTS", 3)
    reporter = Reporter()
    for _ in range(3):
        sender.put(reporter, POINTS)
    sender.send_pending()

    assert reporter.sent == POINTS
    assert caplog.text.count("lag behind") == 1


def test_one_job_is_reported_every_five_seconds_and_each_of_many_every_ten(sender, monkeypatch):
    monkeypatch.setattr(run_sender, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    for _ in range(200):
        sender.put(Reporter(), POINTS)
    due = sorted(seconds - 1000.0 for seconds, *_ in sender._schedule)

    assert (due[0], due[50], due[100], due[199]) == (5.0, 7.5, 10.0, 10.0)
