"""Progress reaches the run of a job while another process only reads its log, as Airflow's triggerer does."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from trainer_core import CustomTrainer, MlflowServer, Tracking
from trainer_core.errors import TrackingError
from trainer_core.tracking import connections, run_sender
from trainer_core.tracking.connections import get_report_api
from trainer_core.tracking.reporter import RunReporter
from trainer_core.tracking.run_sender import RunSender, get_run_sender

TIMEOUT = 60
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
        self.has_sent, self.has_failed = threading.Event(), threading.Event()
        self._ref = type("Ref", (), {"name": "job"})

    def find_server(self):
        return MlflowServer("http://mlflow.example")

    def send(self, points):
        if self.error is not None:
            self.has_failed.set()
            raise self.error
        self.sent += points
        self.has_sent.set()


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


def test_an_error_that_was_not_foreseen_delays_the_points_of_its_own_job_only(monkeypatch, caplog):
    monkeypatch.setattr(run_sender, "_INTERVAL_SECONDS", 0.01)
    sender, broken, next_one = RunSender(), Reporter(RuntimeError("a bug")), Reporter()
    sender.put(broken, POINTS)
    assert broken.has_failed.wait(TIMEOUT)
    sender.put(next_one, POINTS)
    assert next_one.has_sent.wait(TIMEOUT)
    broken.error = None

    assert broken.has_sent.wait(TIMEOUT)
    assert broken.sent == next_one.sent == POINTS
    assert "RuntimeError: a bug" in caplog.text


def test_a_run_whose_completion_fails_keeps_no_other_run_and_no_flush_waiting():
    sender, completed = RunSender(), []
    sender.bind("broken", lambda: 1 / 0)
    sender.bind("next", lambda: completed.append("next"))

    assert sender.flush(TIMEOUT)
    assert completed == ["next"]


def track_in_child(completed):
    get_run_sender().bind("job", lambda: get_report_api(MlflowServer("http://mlflow.example")))
    completed.put(get_run_sender().flush(TIMEOUT))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_tracks_while_its_parent_holds_the_locks_of_tracking():
    is_held, release = threading.Event(), threading.Event()

    def hold():
        with connections._lock, get_run_sender()._changed:
            is_held.set()
            release.wait()

    get_run_sender().bind("of-parent", hold)
    assert is_held.wait(TIMEOUT)
    context = multiprocessing.get_context("fork")
    completed = context.Queue()
    child = context.Process(target=track_in_child, args=(completed,))
    child.start()
    try:
        assert completed.get(timeout=TIMEOUT)
    finally:
        release.set()
        child.kill()
        child.join()
