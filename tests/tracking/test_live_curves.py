"""Progress reaches the run of a job while another process only reads its log, as Airflow's triggerer does."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time

import pytest
from clock import Clock

from trainer_core import CustomTrainer, MlflowServer, Tracking
from trainer_core.base.errors import BackendUnavailableError, TrackingError
from trainer_core.tracking import mlflow_api, reporter as reporting
from trainer_core.tracking.mlflow_api import get_report_api, get_submit_api
from trainer_core.tracking.reporter import RunReporter, RunSender, get_run_sender

TIMEOUT = 600


def send_pending(sender):
    """Send what is queued, due or not."""
    due = [each for _, _, each in sorted(sender._schedule)]
    sender._schedule.clear()
    sender._scheduled.clear()
    for each in due:
        sender._report(each)


SERVER = MlflowServer("http://mlflow.example")
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

    def __init__(self, error=None, lookup_error=None):
        super().__init__(type("Backend", (), {"name": "local"}), None, None)
        self.server, self.lookups, self.lookup_error = SERVER, 0, lookup_error
        self.sent, self.reports, self.error = [], 0, error
        self.has_sent, self.has_failed = threading.Event(), threading.Event()
        self._ref = type("Ref", (), {"name": "job"})

    def find_server(self):
        self.lookups += 1
        if self.lookup_error is not None:
            raise self.lookup_error
        return self.server

    def send(self, points):
        self.reports += 1
        if self.error is not None:
            self.has_failed.set()
            raise self.error
        self.sent += points
        self.has_sent.set()


def test_progress_in_the_log_reaches_the_run_while_the_job_runs(client, submitted, read_runs, monkeypatch):
    monkeypatch.setattr(reporting, "_INTERVAL_SECONDS", 0.05)
    send, cursor, run = client.runs.get_progress_sender(submitted), {}, {"history": {}}
    while "loss" not in run["history"]:
        chunk = client.tail_job_logs(submitted, cursor)
        send(cursor, chunk)
        cursor = chunk.cursor
        (run,) = read_runs()

    assert (run["status"], [point[:2] for point in run["history"]["loss"]]) == ("RUNNING", [[1, 0.5]])


def test_a_server_that_is_away_gets_the_points_when_it_is_back(relay, reporter, sender, read_runs, monkeypatch):
    monkeypatch.setattr(reporting, "_PAUSE_SECONDS", 0.0)
    relay.respond = lambda path: (503, {}, b"{}")
    sender.put(reporter, POINTS)
    send_pending(sender)
    relay.respond = lambda path: None
    for _ in range(2):  # Points of a new metric follow with the next report.
        send_pending(sender)

    (run,) = read_runs()
    assert [point[:2] for point in run["history"]["loss"]] == [[1, 0.5], [2, 0.25]]


def test_a_server_that_is_away_is_not_asked_for_each_job(sender):
    away, next_one = Reporter(TrackingError("away", transient=True)), Reporter()
    for each in (away, next_one):
        sender.put(each, POINTS)
    send_pending(sender)

    assert next_one.sent == []


@pytest.mark.parametrize("field", ["error", "lookup_error"])
def test_a_backend_that_is_away_delays_its_own_points_only(sender, field):
    away, next_one = Reporter(**{field: BackendUnavailableError("away")}), Reporter()
    for each in (away, next_one):
        sender.put(each, POINTS)
    send_pending(sender)
    sent_first = ([*away.sent], [*next_one.sent])
    setattr(away, field, None)
    send_pending(sender)

    assert sent_first == ([], POINTS)
    assert away.sent == POINTS


def test_a_job_that_is_not_tracked_is_looked_up_once(sender):
    untracked = Reporter()
    untracked.server = None
    for _ in range(2):
        sender.put(untracked, POINTS)
        send_pending(sender)

    assert (untracked.lookups, untracked.sent) == (1, [])


def test_a_server_that_stays_away_is_asked_less_and_less_often_until_it_is_back(sender, monkeypatch):
    clock, reporter = Clock(), Reporter(TrackingError("away", transient=True))
    monkeypatch.setattr(reporting, "time", clock)

    def list_requests(seconds):
        """Return after how many seconds the server is asked."""
        start, asked, reporter.reports = clock.now, [], 0
        sender.put(reporter, POINTS)
        for clock.now in range(start, start + seconds):
            send_pending(sender)
            asked += [clock.now - start] * (reporter.reports - len(asked))
        return asked

    assert list_requests(1000) == [0, 10, 30, 70, 150, 310, 610, 910]
    clock.now, reporter.error = clock.now + 300, None
    assert list_requests(10) == [0]
    reporter.error = TrackingError("away", transient=True)
    assert list_requests(20) == [0, 10]


def test_a_run_that_takes_no_points_gets_no_further_ones(sender, caplog):
    deleted = Reporter(TrackingError("run 1 was deleted"))
    sender.put(deleted, POINTS)
    send_pending(sender)
    deleted.error = None
    sender.put(deleted, POINTS)
    send_pending(sender)

    assert deleted.sent == []
    assert caplog.text.count("run 1 was deleted") == 1


def test_a_full_queue_drops_points_and_says_so_once(sender, monkeypatch, caplog):
    monkeypatch.setattr(reporting, "_MAX_POINTS", 3)
    reporter = Reporter()
    for _ in range(3):
        sender.put(reporter, POINTS)
    send_pending(sender)

    assert reporter.sent == POINTS
    assert caplog.text.count("lag behind") == 1


def test_one_job_is_reported_every_five_seconds_and_each_of_many_every_ten(sender, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(reporting, "time", clock)
    for _ in range(200):
        sender.put(Reporter(), POINTS)
    due = sorted(seconds - clock.now for seconds, *_ in sender._schedule)

    assert (due[0], due[50], due[100], due[199]) == (5.0, 7.5, 10.0, 10.0)


def test_a_queue_that_was_sent_has_room_again(sender, monkeypatch):
    monkeypatch.setattr(reporting, "_MAX_POINTS", len(POINTS))
    reporter = Reporter()
    for _ in range(3):
        sender.put(reporter, POINTS)
        send_pending(sender)

    assert reporter.sent == POINTS * 3


def test_a_job_that_is_watched_and_has_points_is_reported_once_at_a_time(sender):
    reporter = Reporter()
    reporter._is_started = True
    sender.watch(reporter)
    sender.put(reporter, POINTS)
    for _ in range(2):
        send_pending(sender)

    assert reporter.reports == 2


def test_the_runs_of_submitted_jobs_come_before_reports(monkeypatch):
    monkeypatch.setattr(reporting, "_INTERVAL_SECONDS", 3600.0)
    sender, reporter = RunSender(), Reporter()
    sender.put(reporter, POINTS)
    sender.bind("job", lambda: None)

    assert sender.flush(TIMEOUT)
    assert reporter.sent == []


def test_a_flush_waits_for_no_other_job_and_ends_with_its_own():
    sender, release = RunSender(), threading.Event()
    sender.bind("slow", lambda: release.wait(TIMEOUT))
    waits = [sender.flush(0, uid) for uid in ("other", "slow", None)]
    flush = threading.Thread(target=sender.flush, args=(3600.0, "slow"), daemon=True)
    flush.start()
    while not sender._changed._waiters:
        pass
    release.set()
    flush.join(TIMEOUT)

    assert waits == [True, False, False]
    assert not flush.is_alive()


def test_a_sender_that_had_nothing_to_send_for_a_while_sends_again():
    sender, threads = RunSender(), []
    for _ in range(2):
        sender.bind("job", lambda: threads.append(threading.current_thread()))
        assert sender.flush(TIMEOUT)
        threads[-1].join(TIMEOUT)
        assert not threads[-1].is_alive()


def test_an_error_that_was_not_foreseen_delays_the_points_of_its_own_job_only(monkeypatch, caplog):
    monkeypatch.setattr(reporting, "_INTERVAL_SECONDS", 0.01)
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


def track_in_child(inherited, results):
    apis = []
    get_run_sender().bind("job", lambda: apis.append(get_report_api(SERVER)))
    results.put((get_run_sender().flush(TIMEOUT), apis[0] is inherited))


def test_a_submit_has_a_connection_and_a_timeout_of_its_own(monkeypatch):
    monkeypatch.setattr(mlflow_api, "_apis", {})
    monkeypatch.setattr(mlflow_api, "_SUBMIT_TIMEOUT", 2.0)
    monkeypatch.setattr(mlflow_api, "_REPORT_TIMEOUT", 5.0)
    apis = {get_api(SERVER) for get_api in (get_submit_api, get_report_api) * 2}

    assert sorted(api.timeout for api in apis) == [2.0, 5.0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_tracks_while_its_parent_holds_the_locks_of_tracking():
    inherited, is_held, release = get_report_api(SERVER), threading.Event(), threading.Event()

    def hold():
        with mlflow_api._lock, get_run_sender()._changed:
            is_held.set()
            release.wait()

    get_run_sender().bind("of-parent", hold)
    assert is_held.wait(TIMEOUT)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=track_in_child, args=(inherited, results))
    child.start()
    try:
        # It must not send by the connection of its parent.
        assert results.get(timeout=TIMEOUT) == (True, False)
    finally:
        release.set()
        child.kill()
        child.join()


def print_points():
    for step in range(1, 41):  # `progress` prints not each of so many in so short a time.
        print(f'[trainjob:progress] {{"step": {step}, "metrics": {{"loss": 0.5}}, "t": {1_700_000_000_000 + step}}}')


@pytest.fixture
def ended(client, relay, experiment):
    """The ref of a job that has ended, whose run has no points yet."""
    options = [Tracking(experiment=experiment, uri=relay.uri)]
    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(print_points), options=options))
    get_run_sender().flush(TIMEOUT)
    while client.observe(ref).outcome is None:
        time.sleep(0.05)
    return ref


def read_log(client, ref, *, cursor, lines):
    """Read the log from a cursor on; return that cursor and the chunk."""
    return cursor, client.backend.tail(ref, cursor, False, lines)


@pytest.fixture
def triggerer(client, ended, sender, monkeypatch):
    """Starts a process that reads a job's log: a function that queues parts of it, and sends them."""
    monkeypatch.setattr(reporting, "get_run_sender", lambda: sender)

    def start():
        reporter = RunReporter(client.backend, ended, None)

        def report(*parts):
            for part in parts:
                reporter.queue(*part)
            for _ in range(2):  # Points of a new metric follow with the next report.
                send_pending(sender)

        return report

    return start


def list_steps(relay):
    """Return the steps of the points in each request since the last call."""
    batches = [json.loads(body).get("metrics", []) for body in relay.bodies if body]
    relay.bodies.clear()
    return [[point["step"] for point in batch] for batch in batches if batch]


def test_the_next_process_continues_where_a_triggerer_that_was_killed_has_stopped(client, ended, triggerer, relay):
    first = read_log(client, ended, cursor={}, lines=10)
    second = read_log(client, ended, cursor=first[1].cursor, lines=10)
    triggerer()(first, second)
    assert list_steps(relay) == [[*range(1, 21)]]
    client.wait(ended)
    assert list_steps(relay) == [[*range(21, 41)]]


def test_a_triggerer_that_was_restarted_sends_what_the_one_before_had_not_sent(client, ended, triggerer, relay):
    first = read_log(client, ended, cursor={}, lines=10)
    lost = read_log(client, ended, cursor=first[1].cursor, lines=10)
    triggerer()(first)
    list_steps(relay)
    report = triggerer()
    third = read_log(client, ended, cursor=lost[1].cursor, lines=10)
    report(third)
    assert list_steps(relay) == [[*range(11, 41)]]
    report(read_log(client, ended, cursor=third[1].cursor, lines=10))
    client.wait(ended)
    # The log was read to its end after the restart, where the second reader was not yet.
    assert list_steps(relay) == [[*range(31, 41)]]


def test_points_that_a_full_queue_dropped_are_read_from_the_log(client, ended, triggerer, relay, monkeypatch):
    first = read_log(client, ended, cursor={}, lines=10)
    dropped = read_log(client, ended, cursor=first[1].cursor, lines=30)
    monkeypatch.setattr(reporting, "_MAX_POINTS", 15)
    triggerer()(first, dropped)
    assert sorted({step for steps in list_steps(relay) for step in steps}) == [*range(1, 41)]


def test_points_whose_log_cannot_be_read_are_sent_and_the_position_stays(client, ended, triggerer, relay, monkeypatch):
    first = read_log(client, ended, cursor={}, lines=10)
    second = read_log(client, ended, cursor=first[1].cursor, lines=10)
    report, tail = triggerer(), client.backend.tail

    def refuse(*_, **__):
        raise BackendUnavailableError("away")

    monkeypatch.setattr(client.backend, "tail", refuse)
    report(second)
    assert list_steps(relay) == [[*range(11, 21)]]
    monkeypatch.setattr(client.backend, "tail", tail)
    client.wait(ended)
    assert list_steps(relay) == [[*range(1, 41)]]
