"""Status, steps and events of a job, as a function of its journal and containers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from container_jobs import (
    add_entry,
    at,
    build_job,
    build_request,
    end,
    exited,
    job_to_restart,
    new,
    running,
    with_containers,
)

from trainer_core.backends.container import job_journal, names, observations, outcome
from trainer_core.backends.container.engine import EngineRequestError
from trainer_core.backends.container.paths import RESULT_PATH
from trainer_core.backends.container.reconcile import Fail, Start, next_action
from trainer_core.lifecycle.diagnosis import Facts, diagnose
from trainer_core.model.jobs import Category

TWO_NODES = build_request(trainer={"num_nodes": 2})


def steps(job):
    return [(step.name, step.status) for step in observations.build_train_job(job, None).steps]


def raw_container(step="node-0", run=0, **state):
    """Return a container in the format of the engine."""
    labels = {names.STEP_LABEL: step, names.RUN_LABEL: str(run)}
    fields = {"Status": "exited", "StartedAt": "2026-01-01T00:00:00.123456789Z", "ExitCode": 0, **state}
    return {
        "Id": "1",
        "Name": f"/digits-{step}",
        "Created": "2026-01-01T00:00:00Z",
        "State": fields,
        "Config": {"Labels": labels},
    }


def claim(job):
    """Return the claim of a job in the format of the engine."""
    labels = {
        **names.job_labels("default", "digits", job.uid),
        names.KIND_LABEL: names.JOB_KIND,
        names.CONTENT_LABEL: json.dumps(dict(job.claim)),
    }
    return {"Name": names.claim_volume("default", "digits"), "Labels": labels}


@pytest.mark.parametrize(
    ("containers", "status"),
    [
        ((), "Created"),
        ((new("node-0"),), "Created"),
        ((running("node-0"),), "Running"),
        # The job ends when its end is recorded, not when its containers exit.
        ((exited("node-0"), exited("node-1")), "Running"),
    ],
)
def test_a_job_is_running_from_its_first_start_until_its_end_is_recorded(containers, status):
    assert observations.get_status(with_containers(build_job(TWO_NODES), *containers)) == status


def test_the_end_that_is_recorded_is_the_status_of_the_job_in_its_namespace():
    job = observations.build_train_job(replace(end(build_job(TWO_NODES)), namespace="team"), None)
    assert (job.name, job.namespace, job.status, job.num_nodes) == ("digits", "team", "Failed", 2)
    assert job.reason == "Deleted: it was cancelled"


@pytest.mark.parametrize(
    ("container", "status", "exit_code", "finished"),
    [
        (new("node-0"), "Pending", None, None),
        (running("node-0"), "Running", None, None),
        (exited("node-0", 0, finished=5), "Succeeded", 0, at(5)),
        (exited("node-0", 3, finished=5), "Failed", 3, at(5)),
    ],
)
def test_a_step_has_the_status_and_the_end_of_its_container(container, status, exit_code, finished):
    (step,) = observations.build_train_job(with_containers(build_job(), container), None).steps
    assert (step.status, step.exit_code, step.finished) == (status, exit_code, finished)


def test_stopped_nodes_of_a_suspended_job_are_pending():
    job = add_entry(
        with_containers(build_job(TWO_NODES), exited("node-0", -15), running("node-1")), job_journal.SUSPEND
    )
    assert observations.get_status(job) == "Suspended"
    assert steps(job) == [("node-0", "Pending"), ("node-1", "Running")]


def test_a_resumed_job_has_the_status_created():
    job = with_containers(build_job(TWO_NODES), exited("node-0", -15), exited("node-1", -15))
    job = add_entry(add_entry(job, job_journal.SUSPEND), job_journal.RESUME)
    assert (observations.get_status(job), job.run) == ("Created", 1)
    assert steps(job) == [("node-0", "Pending"), ("node-1", "Pending")]


def test_the_outcome_does_not_change_when_containers_exit_later():
    job = end(with_containers(build_job(TWO_NODES), running("node-0")))
    outcome = observations.observe_job(job, None).outcome
    assert outcome.diagnosis.category is Category.DELETED
    assert observations.observe_job(with_containers(job, exited("node-0")), None).outcome == outcome


def test_events_are_listed_oldest_first():
    failed = replace(exited("node-0", 1, finished=3), started=at(1))
    job = with_containers(build_job(TWO_NODES), failed, running("node-1", started=2))
    job = add_entry(job, job_journal.NOTE, reason="Pulling", message="i is pulled for node-0")
    events = observations.list_events(end(job))
    assert [event.reason for event in events] == ["Created", "Pulling", "Started", "Started", "Ended", "Failed"]
    assert [event.type for event in events][-2:] == ["Warning", "Warning"]


@pytest.mark.parametrize(
    ("copied", "message"),
    [
        ({"log": ["3 files", "dataset: 3 MB"]}, "dataset: 3 MB"),
        ({"log": []}, "the data is available"),
        ({"log": ["3 files"], "error": "OSError: no"}, "OSError: no"),
    ],
)
def test_the_event_of_a_copy_has_its_last_line_or_its_error(copied, message):
    times = {"started": at(0).isoformat(), "finished": at(1).isoformat()}
    job = add_entry(build_job(), job_journal.COPIED, step="dataset-initializer", **times, **copied)
    assert observations.list_events(job)[-1].message == message


def test_a_job_that_is_started_again_has_an_event_with_the_delay_and_the_reason():
    created, restarting = observations.list_events(job_to_restart())
    assert (created.reason, restarting.reason) == ("Created", "Restarting")
    why = "NodeLost: it is gone; a restart that is not counted follows"
    assert restarting.message == f"TrainJob is started again in 10 s: {why}"


def test_a_note_does_not_change_the_next_action():
    job = build_job(TWO_NODES)
    noted = add_entry(job, job_journal.NOTE, reason="Pulling", message="")
    assert isinstance(next_action(noted, at(0)), Start)
    assert noted.decisions == job.decisions


@pytest.mark.parametrize(("engine_code", "code"), [(0, 0), (3, 3), (137, -9), (143, -15), (255, 255)])
def test_an_exit_code_above_128_is_a_signal(engine_code, code):
    job = job_journal.parse_job([claim(build_job())], [raw_container(ExitCode=engine_code)])
    assert job.containers[0].exit_code == code


def test_a_container_that_never_started_has_no_exit_code():
    job = job_journal.parse_job([claim(build_job())], [raw_container(Status="created", StartedAt=job_journal.NEVER)])
    (container,) = job.containers
    assert (container.is_new, container.exit_code, container.started) == (True, None, None)


@pytest.mark.parametrize("step", ["node-0", "dataset-initializer"])
def test_a_container_whose_end_the_engine_has_not_seen_did_not_succeed(step):
    raw = raw_container(step, Status="created", ExitCode=0)
    job = job_journal.parse_job([claim(build_job())], [raw])
    (container,) = job.containers
    facts = outcome.collect_facts(job, Prints(), Fail(containers=[container]))

    assert (container.succeeded, container.failed, container.exit_code) == (False, True, None)
    assert f"digits-{step}: the engine does not know how the container ended" in str(facts.infrastructure_error)
    assert diagnose(facts).retryable


def test_journal_entries_without_a_claim_are_no_job():
    entry = {
        "Name": names.entry_volume("u" * 32, 0),
        "Labels": {names.UID_LABEL: "u" * 32, names.KIND_LABEL: job_journal.END, names.CONTENT_LABEL: "{}"},
    }
    assert job_journal.parse_job([], []) is None
    assert job_journal.parse_jobs([with_content(entry)]) == []


def with_content(entry):
    text = '{"at": "2026-01-01T00:00:00+00:00", "data": {}}'
    return {**entry, "Labels": {**entry["Labels"], names.CONTENT_LABEL: text}}


def test_the_names_of_two_jobs_never_collide():
    job = replace(build_job(), name="a-node-0")
    assert names.container_name("default", job.name, "node-0", 0) != names.container_name("default", "a", "node-0", 1)
    assert names.claim_volume("a-b", "c") != names.claim_volume("a", "b-c")


class NoLog:
    """An engine with neither logs nor files."""

    def read_file(self, container, path):
        return None

    def now(self):
        return at(60)

    def stream_log(self, *_):
        return iter(())


def test_a_result_that_the_engine_does_not_return_is_noted_in_the_outcome():
    class Engine(NoLog):
        def read_file(self, container, path):
            raise EngineRequestError("input/output error", "unix:///podman.sock")

    job = with_containers(build_job(), exited("node-0"))
    ended = outcome.build_complete_entry(job, Engine())["outcome"]
    assert (ended["status"], ended["result"]) == ("Complete", None)
    assert ended["result_note"].startswith("the result cannot be read from container digits-node-0: ")
    assert "input/output error" in ended["result_note"]


def test_a_copy_that_failed_is_diagnosed_with_its_error_and_log():
    result = {"step": "model-copy", "error": "No space left on device", "log": ["copying"]}
    facts = outcome.collect_facts(
        add_entry(build_job(), job_journal.COPIED, **result), engine=None, failure=Fail(copy_step="model-copy")
    )
    assert [(step.name, step.exit_code, step.message, step.log_tail) for step in facts.steps] == [
        ("model-copy", 1, "No space left on device", ["copying"])
    ]


def test_a_failed_container_is_diagnosed_by_what_the_engine_says_of_it():
    failed = replace(exited("node-0", 1), message="exec: no such file")
    facts = outcome.collect_facts(build_job(), NoLog(), Fail(containers=[exited("node-1", 3, finished=9), failed]))

    assert [(step.name, step.exit_code, step.message) for step in facts.steps] == [
        ("node-0", 1, "exec: no such file"),
        ("node-1", 3, ""),
    ]


@pytest.mark.parametrize(("data", "written"), [(b"[1]", True), (None, False)])
def test_a_result_is_written_to_its_uri_if_there_is_one(tmp_path, data, written):
    class Engine(NoLog):
        def read_file(self, container, path):
            return data if path == RESULT_PATH else b'{"result": [1]}'

    job = build_job(build_request(trainer={"result_uri": str(tmp_path / "results" / "result.json")}))
    ended = outcome.build_complete_entry(with_containers(job, exited("node-0")), Engine())["outcome"]

    assert (tmp_path / "results" / "result.json").exists() is written
    assert (ended["result"], ended.get("result_note")) == ([1], None)


class Prints(NoLog):
    """An engine whose containers print lines and leave a termination record."""

    def __init__(self, *lines, record=None):
        self.lines, self.record = lines, record

    def read_file(self, container, path):
        return self.record

    def stream_log(self, *_):
        return iter([(1, f"2026-01-01T00:00:0{n}.0Z {line}\n".encode()) for n, line in enumerate(self.lines)])


def test_a_failed_container_is_diagnosed_with_its_exception_and_the_end_of_its_log():
    record = {"error": {"type": "ValueError", "message": "bad shape", "traceback": "Traceback …"}}
    engine = Prints("epoch 1", "epoch 2", record=json.dumps(record).encode())
    killed = replace(exited("node-0", -9), out_of_memory=True)
    (step,) = outcome.collect_facts(build_job(), engine, Fail(containers=[killed])).steps

    assert (step.error_type, step.error_message, step.traceback) == ("ValueError", "bad shape", "Traceback …")
    assert (step.log_tail, step.node, step.out_of_memory) == (["epoch 1", "epoch 2"], "digits-node-0", True)


def test_an_initializer_that_takes_too_long_is_diagnosed_with_its_time_and_the_end_of_its_log():
    job = with_containers(build_job(initializer_timeout=90), running("dataset-initializer"))
    (step,) = outcome.collect_facts(job, Prints("fetching"), Fail(timed_out_step="dataset-initializer")).steps

    assert (step.name, step.error_type, step.log_tail) == ("dataset-initializer", "TimeoutError", ["fetching"])
    assert step.error_message.startswith("it did not end within 90")
    assert outcome.collect_facts(build_job(), NoLog(), Fail(timed_out_step="node-0")).steps[0].log_tail == []


def test_a_deadline_and_containers_that_were_removed_are_the_reason_of_a_failure():
    assert outcome.collect_facts(build_job(), NoLog(), Fail(deadline_seconds=0)).deadline_seconds == 0
    facts = outcome.collect_facts(build_job(), NoLog(), Fail(removed_steps=("node-0", "node-1")))
    assert facts.infrastructure_error == "node-0, node-1: the container was removed from the engine"
    assert [step.name for step in facts.steps] == ["node-0", "node-1"]


def test_a_job_ends_when_its_last_container_does_and_a_failure_never_before_its_start():
    job = with_containers(build_job(TWO_NODES), exited("node-0", finished=7), exited("node-1", finished=3))
    assert outcome.build_complete_entry(job, NoLog())["outcome"]["finished_at"].startswith("2026-01-01T00:00:07")
    late = with_containers(build_job(), running("node-0", started=5))
    assert outcome.build_failed_entry(late, Facts(cancelled=True), at(2))["outcome"]["finished_at"].startswith(
        "2026-01-01T00:00:05"
    )


def test_the_outcome_of_a_failed_job_has_the_memory_that_it_had_and_that_of_the_next_attempt():
    job = build_job(build_request(trainer={"resources_per_node": {"memory": "8Gi"}}, more_memory={"limit": "32Gi"}))
    memory = outcome.build_failed_entry(job, Facts(cancelled=True), at(2))["outcome"]["memory"]
    assert memory == {"amount": "8Gi", "asked": "8Gi", "next": "12Gi"}


def test_a_result_that_cannot_be_written_is_noted_and_kept(tmp_path):
    (tmp_path / "file").touch()
    job = build_job(build_request(trainer={"result_uri": f"file://{tmp_path}/file/result.json"}))
    job = with_containers(job, exited("node-0"))
    ended = outcome.build_complete_entry(job, Prints(record=b'{"result": [1]}'))["outcome"]

    assert ended["result"] == [1]
    assert f"the result could not be written to file://{tmp_path}/file/result.json: " in ended["result_note"]
