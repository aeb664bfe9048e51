"""Suspended, resumed, nested: what an earlier run or an outer job left does not reach the next."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from local_jobs import PATIENCE, fails_when_told_to_stop, processes_of, returns, waits_at

from trainer_core import ActiveDeadlineSeconds, Category, Suspend
from trainer_core.testing.case import reached


def submits_another(home: str, gate: str):
    from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient

    client = TrainerClient(LocalProcessBackendConfig(home=home))
    trainer = CustomTrainer(func="local_jobs:waits_at", func_args={"gate": gate})
    ref = client.submit(client.request(runtime="python", trainer=trainer, options=[Name("inner")]))
    next(client.get_job_logs("inner", follow=True))
    print("it runs")
    return ref.to_dict()


def prints_its_run(gate: str):
    import os
    from pathlib import Path

    book = Path(os.environ["TRAINJOB_OUTPUT_PATH"]) / "runs"
    with book.open("a") as pages:
        pages.write("x")
    print(f"run {len(book.read_text())}")
    return Path(gate).read_text()


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def suspend_and_resume(client):
    client.suspend("job")
    reached(client, "job", "Suspended")
    client.resume("job")
    reached(client, "job", "Running")


def test_an_error_of_a_run_that_was_suspended_does_not_hide_the_result_of_the_next(client, running, gate):
    ref = running(fails_when_told_to_stop, {"gate": gate})
    suspend_and_resume(client)
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.status, outcome.result) == ("Complete", "the second run")


def test_a_job_can_be_suspended_again_and_again_and_keeps_its_log(client, ask, gate):
    client.submit(ask(prints_its_run, {"gate": gate}))
    lines = client.get_job_logs("job", follow=True)
    seen = [next(lines)]
    for _ in range(3):
        suspend_and_resume(client)
        seen.append(next(lines))
    Path(gate).write_text("go")
    assert seen + list(lines) == ["run 1", "run 2", "run 3", "run 4"]
    assert client.wait("job").result == "go"
    assert client.get_job("job").steps[0].restarts == 3


def test_a_deadline_does_not_count_the_time_a_job_is_suspended(client, ask, gate):
    client.submit(ask(waits_at, {"gate": gate}, options=[Suspend(), ActiveDeadlineSeconds(1)]))
    reached(client, "job", "Suspended")
    time.sleep(1.2)  # What is shown is that nothing happens while time goes by.
    assert client.get_job("job").status == "Suspended"
    client.resume("job")
    assert client.wait("job", timeout=PATIENCE).diagnosis.category == Category.DEADLINE


def test_a_job_submitted_from_inside_a_job_outlives_it(client, ask, home, gate, importable):
    outer = client.submit(ask(submits_another, {"home": str(home), "gate": gate}, name="outer"))
    assert client.wait(outer, timeout=PATIENCE).succeeded
    assert processes_of(outer.uid) == []
    client.delete_job("outer")
    assert client.get_job("inner").status == "Running"
    Path(gate).write_text("go")
    assert client.wait("inner", timeout=PATIENCE).result == "go"


def test_a_job_submitted_from_inside_a_job_has_a_result_of_its_own(client, ask, home, gate, importable, tmp_path):
    place = tmp_path / "result.json"
    args = {"home": str(home), "gate": gate}
    outer = client.submit(ask(submits_another, args, name="outer", result_uri=place.as_uri()))
    outcome = client.wait(outer, timeout=PATIENCE)
    Path(gate).write_text("go")
    client.wait("inner", timeout=PATIENCE)
    assert json.loads(place.read_text()) == outcome.result


def test_a_follower_reads_what_was_left_of_a_deleted_job_and_nothing_of_its_successor(client, ask, running, gate):
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
    print("a line of another job, long enough to lie behind what was read")


def test_a_name_that_is_free_again_can_be_used_at_once(client, ask):
    for number in range(5):
        ref = client.submit(ask(returns, {"value": number}))
        assert client.wait(ref).result == number
        client.delete_job("job")
