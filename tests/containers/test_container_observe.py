"""What an observer sees of a job: its book and its containers, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from container_jobs import at, ended, exited, fresh, job, request, running, with_containers, written

from trainer_core.backends.container import book, names, observe, times
from trainer_core.backends.container.advance import Start, decide
from trainer_core.outcome import Category

TWO = request(trainer={"num_nodes": 2})


def steps(made):
    return [(step.name, step.status) for step in observe.train_job(made, None).steps]


def raw(step="node-0", run=0, **state):
    """A container as an engine tells of it."""
    labels = {names.STEP: step, names.RUN: str(run)}
    told = {"Status": "exited", "StartedAt": "2026-01-01T00:00:00.123456789Z", "ExitCode": 0, **state}
    return {
        "Id": "1",
        "Name": f"/digits-{step}",
        "Created": "2026-01-01T00:00:00Z",
        "State": told,
        "Config": {"Labels": labels},
    }


def claim(made):
    text = {names.TEXT: json.dumps(dict(made.made))}
    labels = {names.NAMESPACE: "default", names.NAME: "digits", names.UID: made.uid, names.KIND: names.JOB, **text}
    return {"Name": names.claim("default", "digits"), "Labels": labels}


@pytest.mark.parametrize(
    ("containers", "status"),
    [
        ((), "Created"),
        ((fresh("node-0"),), "Created"),
        ((running("node-0"),), "Running"),
        # It has ended when that is written down, and not before.
        ((exited("node-0"), exited("node-1")), "Running"),
    ],
)
def test_a_job_runs_from_its_first_start_to_the_end_that_is_written_down(containers, status):
    assert observe.status(with_containers(job(TWO), *containers)) == status


def test_a_suspended_job_shows_no_step_of_the_run_that_was_ended():
    made = written(with_containers(job(TWO), exited("node-0", -15), running("node-1")), book.SUSPEND)
    assert observe.status(made) == "Suspended"
    assert steps(made) == [("node-0", "Pending"), ("node-1", "Running")]


def test_a_resumed_job_is_created_anew():
    made = with_containers(job(TWO), exited("node-0", -15), exited("node-1", -15))
    made = written(written(made, book.SUSPEND), book.RESUME)
    assert (observe.status(made), made.run) == ("Created", 1)
    assert steps(made) == [("node-0", "Pending"), ("node-1", "Pending")]


def test_an_end_does_not_change_whatever_becomes_of_the_containers():
    made = ended(with_containers(job(TWO), running("node-0")))
    outcome = observe.observation(made, None).outcome
    assert outcome.diagnosis.category is Category.DELETED
    assert observe.observation(with_containers(made, exited("node-0")), None).outcome == outcome


def test_events_tell_what_happened_oldest_first():
    failed = replace(exited("node-0", 1, finished=3), started=at(1))
    made = with_containers(job(TWO), failed, running("node-1", started=2))
    made = written(made, book.NOTE, reason="Pulling", message="i is pulled for node-0")
    told = observe.events(ended(made))
    assert [event.reason for event in told] == ["Created", "Pulling", "Started", "Started", "Ended", "Failed"]
    assert [event.type for event in told][-2:] == ["Warning", "Warning"]


def test_a_note_changes_nothing_of_what_is_to_be_done():
    made = job(TWO)
    noted = written(made, book.NOTE, reason="Pulling", message="")
    assert isinstance(decide(noted, at(0)), Start)
    assert noted.turns == made.turns


@pytest.mark.parametrize(("told", "code"), [(0, 0), (3, 3), (137, -9), (143, -15), (255, 255)])
def test_an_exit_code_above_128_is_a_signal(told, code):
    made = book.read([claim(job())], [raw(ExitCode=told)])
    assert made.containers[0].exit_code == code


def test_a_container_that_never_started_has_no_exit_code():
    made = book.read([claim(job())], [raw(Status="created", StartedAt=times.NEVER)])
    (container,) = made.containers
    assert (container.fresh, container.exit_code, container.started) == (True, None, None)


def test_volumes_without_a_claim_are_no_job():
    entry = {"Name": names.entry("u" * 32, 0), "Labels": {names.UID: "u" * 32, names.KIND: book.END, names.TEXT: "{}"}}
    assert book.read([], []) is None
    assert book.jobs([replace_text(entry)]) == []


def replace_text(entry):
    text = '{"at": "2026-01-01T00:00:00+00:00", "data": {}}'
    return {**entry, "Labels": {**entry["Labels"], names.TEXT: text}}


def test_names_of_two_jobs_never_meet():
    made = replace(job(), name="a-node-0")
    assert names.container("default", made.name, "node-0", 0) != names.container("default", "a", "node-0", 1)
    assert names.claim("a-b", "c") != names.claim("a", "b-c")
