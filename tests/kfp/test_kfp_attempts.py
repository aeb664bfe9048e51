"""Attempts: a step submits the next job after a failure that a retry can help, because KFP repeats no failed step."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from kfp_driver import request_for


@pytest.fixture
def killed(tmp_path):
    """Make a request whose training is killed a number of times, and has checkpoints."""

    def make(times):
        request = request_for(definitions.be_killed, {"marker": str(tmp_path / "deaths"), "times": times})
        return {**request, "checkpoints": {"every_steps": 1}}

    return make


def test_a_task_submits_the_next_attempt_which_continues_from_the_checkpoint(task, client, killed):
    training = task("train", request=killed(2), attempts=3, backoff=0, metric_name="accuracy")

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert "attempt 1 of 3 failed; the next one starts in 0 s" in finished.stdout
    assert "attempt 2 of 3 failed; the next one starts in 0 s" in finished.stdout
    assert (training.output("metric"), training.output("resumed_from"), training.output("checkpoint")) == (0.8, 2, 4)
    assert training.output("job")["name"] == max((job.name for job in client.list_jobs()), key=len)
    assert len(client.list_jobs()) == 3


def test_the_last_attempt_is_final(task, client, killed):
    finished = task("train", request=killed(9), attempts=2, backoff=0).run()

    assert (finished.returncode, len(client.list_jobs())) == (1, 2)


def test_a_step_that_is_run_again_goes_on_counting(task, client, killed):
    training = task("train", request=killed(9), attempts=1)
    training.run()
    again = task("train", request=killed(9), attempts=2, backoff=0)

    assert again.run().returncode == 1
    assert len(client.list_jobs()) == 2


def test_a_users_mistake_is_final(task, client):
    finished = task("train", request=request_for(definitions.fail_with_markup), attempts=3, backoff=0).run()

    assert (finished.returncode, len(client.list_jobs())) == (1, 1)


def test_a_task_that_waits_for_a_submitted_job_submits_its_next_attempt(task, client, killed):
    submitted = task("submit", "submitted", request=killed(1))
    submitted.run()
    waiting = task("wait", job=submitted.output("job"), attempts=2, backoff=0)

    finished = waiting.run()

    assert finished.returncode == 0, finished.stderr
    assert waiting.output("last_job")["name"] == f"{submitted.output('job')['name']}-1"
    assert (waiting.output("resumed_from"), len(client.list_jobs())) == (2, 2)


def test_a_job_with_a_given_name_has_no_next_attempt(task, client, killed):
    finished = task("train", request=killed(1), job_name="shared", attempts=2, backoff=0).run()

    assert (finished.returncode, len(client.list_jobs())) == (1, 1)
    assert "there is no next attempt: a job with a job_name is one job" in finished.stdout


def test_a_failed_job_does_not_fail_a_task_that_allows_it(task):
    training = task("train", request=request_for(definitions.fail_with_markup), allow_failure=True)

    finished = training.run()

    assert (finished.returncode, training.output("status"), training.output("result")) == (0, "Failed", {})


def test_of_one_failed_and_two_complete_jobs_the_best_complete_one_is_picked(task):
    good = [request_for(definitions.return_accuracy, {"accuracy": value}) for value in (0.7, 0.8)]
    trained = [
        task("train", f"task-{number}", request=request, allow_failure=True)
        for number, request in enumerate([*good, request_for(definitions.fail_with_markup)])
    ]
    for each in trained:
        assert each.run().returncode == 0
    refs = [each.output("job") for each in trained]
    best = task("best_of", "best", jobs=refs, metric_name="accuracy")

    finished = best.run()

    assert finished.returncode == 0, finished.stderr
    assert (best.output("metric"), best.output("job"), best.output("failed")) == (0.8, refs[1], [refs[2]["name"]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"attempts": 0}, "attempts must be at least 1, got 0"),
        ({"backoff": -1}, "backoff must be at least 0, got -1"),
        (
            {"allow_failure": True, "metric_name": "loss"},
            "allow_failure: a failed job has no metric; leave out metric_name",
        ),
    ],
)
def test_wrong_inputs_are_refused_before_anything_is_created(task, client, killed, inputs, message):
    finished = task("train", request=killed(0), **inputs).run()

    assert (finished.stderr, client.list_jobs()) == (f"error: {message}\n", [])
