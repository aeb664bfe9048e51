"""RestartPolicy in a step: it submits the next attempt if the backend cannot start the training again."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from kfp_driver import request_for


@pytest.fixture
def killed(tmp_path):
    """Make a request with a policy, whose training is killed with its supervisor a number of times."""

    def make(times, **policy):
        args = {"marker": str(tmp_path / "deaths"), "times": times, "with_supervisor": True}
        request = request_for(definitions.be_killed, args)
        return {**request, "checkpoints": {"every_steps": 1}, "restart_policy": {"delay": 0, **policy}}

    return make


@pytest.mark.parametrize("fields", [{}, {"job_name": "shared"}])
def test_a_step_starts_the_training_again_from_its_checkpoint(task, client, killed, fields):
    training = task("train", request=killed(1), metric_name="accuracy", **fields)

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert "restart 1 of 3 follows" in finished.stdout
    assert (training.output("metric"), training.output("resumed_from"), len(client.list_jobs())) == (0.8, 2, 2)
    assert training.output("job")["name"].endswith("-1")


def test_a_step_that_waits_for_a_submitted_job_stops_at_the_budget_whatever_attempts_says(task, client, killed):
    submitted = task("submit", "submitted", request=killed(9, max_restarts=1))
    submitted.run()
    waiting = task("wait", job=submitted.output("job"), attempts=5, backoff=0)

    finished = waiting.run()

    assert (finished.returncode, len(client.list_jobs())) == (1, 2)
    assert "the budget of RestartPolicy is used up (max_restarts=1)" in finished.stdout
