"""The components delete, suspend, resume and evaluate_gate, run by their own commands."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from kfp_driver import request_for

ENDLESS = {"request": request_for(definitions.run_for_ever)}


@pytest.fixture
def job(task):
    """The ref of a job that runs."""
    training = task("submit", "submitted", run_id="run-1", **ENDLESS)
    training.run()
    return training.output("job")


def test_a_job_is_deleted_by_its_ref(task, client, job):
    deleting = task("delete", job=job)

    finished = deleting.run()

    assert (finished.returncode, client.list_jobs()) == (0, [])
    assert deleting.output("deleted") == [job["name"]]


def test_a_job_is_deleted_by_its_name(task, client, job):
    task("delete", job_name=job["name"]).run()

    assert client.list_jobs() == []


def test_deleting_again_succeeds(task, job):
    deleting = task("delete", job=job)

    codes = [deleting.run().returncode, deleting.run().returncode]

    assert codes == [0, 0]


def test_an_exit_task_deletes_what_its_run_has_submitted_and_nothing_else(task, client, job):
    task("submit", "of another run", run_id="run-2", **ENDLESS).run()
    deleting = task("delete", run_id="run-1")

    deleting.run()

    assert deleting.output("deleted") == [job["name"]]
    assert [left.labels["trainjob-workflows/kfp-run"] for left in client.list_jobs()] == ["run-2"]


def test_an_exit_task_of_a_run_that_submitted_nothing_succeeds(task, client):
    deleting = task("delete", run_id="run-1")

    assert deleting.run().returncode == 0
    assert deleting.output("deleted") == []


def test_a_job_with_a_job_name_belongs_to_no_run(task, client):
    task("submit", run_id="run-1", job_name="shared", **ENDLESS).run()

    task("delete", run_id="run-1").run()

    assert [job.name for job in client.list_jobs()] == ["shared"]


def test_a_job_to_delete_is_given_by_ref_or_by_name(task, client, job):
    finished = task("delete", job=job, job_name="another").run()

    assert finished.stderr == (
        "error: job and job_name are both given; give one of them, or none for all jobs of the run\n"
    )
    assert len(client.list_jobs()) == 1


def test_a_suspended_job_is_resumed(task, client, job):
    suspending, resuming = task("suspend", "suspend", job=job), task("resume", "resume", job=job)

    codes = [suspending.run().returncode, resuming.run().returncode]

    assert codes == [0, 0]
    assert suspending.output("status") == "Suspended"
    assert client.wait_for_job_status(job["name"], {"Running"}, timeout=300, polling_interval=1).status == "Running"


@pytest.fixture
def gate(task, tmp_path):
    """Run the gate on metrics; returns it with its outputs."""

    def run(metrics, **bounds):
        gate = task("evaluate_gate", artifacts={"metrics": tmp_path}, facts={"metrics": metrics}, **bounds)
        return gate, gate.run()

    return run


def test_a_gate_lets_pass_what_is_good_enough(gate):
    asked, _ = gate({"accuracy": 0.95, "loss": 0.1}, at_least={"accuracy": 0.95}, at_most={"loss": 0.1})

    assert (asked.output("passed"), asked.output("verdict")) == (True, "passed")


def test_a_gate_says_which_bounds_are_missed(gate):
    asked, finished = gate({"accuracy": 0.9, "loss": 0.3}, at_least={"accuracy": 0.95}, at_most={"loss": 0.1})

    assert finished.returncode == 0
    assert asked.output("passed") is False
    assert asked.output("verdict") == "accuracy is 0.9, not at least 0.95; loss is 0.3, not at most 0.1"


def test_a_gate_for_a_metric_that_is_missing_names_those_that_exist(gate):
    facts = {"display_name": "metrics", "store_session_info": "{}"}
    _, finished = gate({"loss": 0.3, "f1": 0.8, **facts}, at_least={"accuracy": 0.95})

    assert finished.stderr == "error: the job reported no metric 'accuracy'; it reported f1, loss\n"


@pytest.mark.parametrize("metrics", [{"accuracy": None}, {"accuracy": "good"}])
def test_a_metric_that_is_no_number_fails_the_gate(gate, metrics):
    _, finished = gate(metrics, at_least={"accuracy": 0.95})

    assert finished.returncode == 1
    assert finished.stderr.startswith("error: metric 'accuracy' is no number")


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_a_metric_that_is_not_finite_passes_no_gate(gate, value):
    _, finished = gate({"accuracy": value}, at_least={"accuracy": 0.95})

    assert finished.stderr == f"error: metric 'accuracy' is not a finite number but {value}\n"


def test_a_gate_without_bounds_is_refused(gate):
    _, finished = gate({"accuracy": 1.0})

    assert finished.stderr.startswith("error: give at_least or at_most")
