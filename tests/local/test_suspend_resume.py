"""Suspend and resume, nested jobs, and names that are used again: nothing of an earlier run or outer job is visible."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from local_jobs import PATIENCE, fails_on_sigterm, keeps_children, processes_of, returns, supervisor_of, waits_at

from trainer_core import ActiveDeadlineSeconds, Category, Suspend
from trainer_core.backends.local import backend
from trainer_core.backends.local.job_store import StateFolder, write_json
from trainer_core.base.errors import JobNotFoundError
from trainer_core.testing.case import wait_for_status


def submits_another(home: str, gate: str):
    from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient

    client = TrainerClient(LocalProcessBackendConfig(home=home))
    trainer = CustomTrainer(func="local_jobs:waits_at", func_args={"gate": gate})
    ref = client.submit(client.build_request(runtime="python", trainer=trainer, options=[Name("inner")]))
    next(client.get_job_logs("inner", follow=True))
    print("it runs")
    return ref.to_dict()


def prints_run_number(gate: str):
    import os
    from pathlib import Path

    run_log = Path(os.environ["TRAINJOB_OUTPUT_PATH"]) / "runs"
    with run_log.open("a") as file:
        file.write("x")
    print(f"run {len(run_log.read_text())}")
    return Path(gate).read_text()


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def suspend_and_resume(client):
    client.suspend("job")
    wait_for_status(client, "job", "Suspended")
    client.resume("job")
    wait_for_status(client, "job", "Running")


def test_an_error_during_suspension_does_not_replace_the_result_of_the_next_run(client, running, gate):
    ref = running(fails_on_sigterm, {"gate": gate})
    suspend_and_resume(client)
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.status, outcome.result) == ("Complete", "the second run")


def test_a_job_can_be_suspended_repeatedly_and_keeps_its_log(client, ask, gate):
    client.submit(ask(prints_run_number, {"gate": gate}))
    lines = client.get_job_logs("job", follow=True)
    seen = [next(lines)]
    for _ in range(3):
        suspend_and_resume(client)
        seen.append(next(lines))
    Path(gate).write_text("go")
    assert seen + list(lines) == ["run 1", "run 2", "run 3", "run 4"]
    assert client.wait("job").result == "go"
    assert client.get_job("job").steps[0].restarts == 3
    changes = [event.reason for event in client.get_job_events("job") if event.reason in ("Suspended", "Resumed")]
    assert changes == ["Suspended", "Resumed"] * 3


def test_a_resume_waits_for_a_cancellation_that_is_being_written_and_does_not_replace_it(client, ask, home):
    ref = client.submit(ask(options=[Suspend()]))
    wait_for_status(client, "job", "Suspended")
    folder = StateFolder(home).job_folder("job")
    with ThreadPoolExecutor(1) as threads:
        with folder.lock_desired():
            resumed = threads.submit(client.resume, ref)
            write_json(folder.desired, {**folder.read_desired(), "cancel": True})
        resumed.result(PATIENCE)
    # The supervisor was not notified of what was written; this cancellation notifies it, and need not kill it.
    client.cancel(ref)
    assert client.get_job_outcome(ref).diagnosis.category == Category.DELETED
    assert client.get_job_events("job")[-1].message == "Deleted: it was cancelled"


def test_a_cancelled_job_whose_supervisor_is_killed_counts_as_cancelled(client, running, home, gate, monkeypatch):
    monkeypatch.setattr(backend, "_CANCEL_SECONDS", 0.2)
    ref = running(keeps_children, {"gate": gate})
    supervisor_of(home, "job").send_signal(signal.SIGSTOP)
    client.cancel(ref)
    diagnosis = client.get_job_outcome(ref).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.DELETED, False)
    assert processes_of(ref.uid) == []


def test_changing_a_job_that_another_process_deletes_is_a_missing_job(client, ask, home):
    ref = client.submit(ask(options=[Suspend()]))
    wait_for_status(client, "job", "Suspended")
    folder = StateFolder(home).job_folder("job")
    with ThreadPoolExecutor(1) as threads:
        with folder.lock_desired():
            resumed = threads.submit(client.resume, ref)
            aside = folder.path.rename(home / "aside")
        with pytest.raises(JobNotFoundError, match="'job' does not exist"):
            resumed.result(PATIENCE)
    aside.rename(folder.path)


def test_the_deadline_does_not_count_suspended_time(client, ask, gate):
    client.submit(ask(waits_at, {"gate": gate}, options=[Suspend(), ActiveDeadlineSeconds(1)]))
    wait_for_status(client, "job", "Suspended")
    another = client.submit(ask(waits_at, {"gate": gate}, name="another", options=[ActiveDeadlineSeconds(1)]))
    assert client.wait(another, timeout=PATIENCE).diagnosis.category == Category.DEADLINE
    assert client.get_job("job").status == "Suspended"
    client.resume("job")
    assert client.wait("job", timeout=PATIENCE).diagnosis.category == Category.DEADLINE


def test_a_job_submitted_by_a_job_survives_the_outer_job(client, ask, home, gate, importable):
    outer = client.submit(ask(submits_another, {"home": str(home), "gate": gate}, name="outer"))
    assert client.wait(outer, timeout=PATIENCE).succeeded
    assert processes_of(outer.uid) == []
    client.delete_job("outer")
    assert client.get_job("inner").status == "Running"
    Path(gate).write_text("go")
    assert client.wait("inner", timeout=PATIENCE).result == "go"


def test_a_job_submitted_by_a_job_does_not_overwrite_the_result_of_the_outer_job(
    client, ask, home, gate, importable, tmp_path
):
    place = tmp_path / "result.json"
    args = {"home": str(home), "gate": gate}
    outer = client.submit(ask(submits_another, args, name="outer", result_uri=place.as_uri()))
    outcome = client.wait(outer, timeout=PATIENCE)
    Path(gate).write_text("go")
    client.wait("inner", timeout=PATIENCE)
    assert json.loads(place.read_text()) == outcome.result


def test_following_the_log_of_a_deleted_job_does_not_continue_with_a_new_job_of_that_name(client, ask, running, gate):
    client.submit(ask(prints_two_lines, {"gate": gate}))
    lines = client.get_job_logs("job", follow=True)
    first = next(lines)
    client.delete_job("job")
    client.wait(client.submit(ask(returns_after_printing)))
    assert [first, *lines] == ["one", "two"]


def prints_two_lines(gate: str):
    from pathlib import Path

    print("one\ntwo")
    Path(gate).read_text()


def returns_after_printing():
    print("a line of another job, longer than what was read before")


def test_the_name_of_a_deleted_job_can_be_used_at_once(client, ask):
    for number in range(5):
        ref = client.submit(ask(returns, {"value": number}))
        assert client.wait(ref).result == number
        client.delete_job("job")
