"""A wait takes at most its timeout, however many attempts it follows: the client and the command, by a scripted clock.

`tests/kfp` and `tests/airflow` have the same table for steps, operators and sensors.
"""

from __future__ import annotations

import pytest
from scripted_attempts import PLANS, ask, create_scripted_client

from trainer_core.base.errors import WaitTimeoutError
from trainer_core.cli.output import OutputFormat
from trainer_core.cli.submit import wait_and_print
from trainer_core.model.jobs import JobFailedError
from trainer_core.model.restart_rules import RestartRules


def wait(client, ref, plan):
    client.wait(ref, plan.timeout)


def wait_for_status(client, ref, plan):
    with pytest.raises(JobFailedError):
        client.wait_for_job_status(ref, timeout=plan.timeout or 10_000, polling_interval=2)


def wait_in_command(client, ref, plan):
    wait_and_print(client, ref, plan.timeout, OutputFormat.TABLE)


def follow_by_rules(client, ref, plan):
    rules = RestartRules(plan.attempts - 1, delay=plan.delay)
    for attempt in client.attempts(ref, timeout=plan.timeout, rules=rules):
        attempt.wait()


def follow_in_command(client, ref, plan):
    wait_and_print(client, ref, plan.timeout, OutputFormat.TABLE, plan.attempts)


def run(front_end, plan, **fields):
    """Return how long a wait took, whether it timed out, and how many TrainJobs there are then."""
    client = create_scripted_client(plan.run)
    ref, clock = client.submit(ask(**fields)), client.backend.clock
    start, timed_out = clock.now, False
    try:
        front_end(client, ref, plan)
    except WaitTimeoutError:
        timed_out = True
    return clock.now - start, timed_out, len(client.backend.jobs)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("fields", [{"name": "job"}, {"owner": {"key": "a/b", "slug": "job"}}], ids=["name", "owner"])
@pytest.mark.parametrize("front_end", [wait, wait_for_status, wait_in_command])
def test_the_restarts_of_a_policy_share_the_timeout_of_a_wait(front_end, fields, plan):
    assert run(front_end, plan, restart_policy=plan.policy, **fields) == plan.expect()


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("fields", [{"name": "job"}, {"owner": {"key": "a/b", "slug": "job"}}], ids=["name", "owner"])
def test_the_attempts_of_a_wait_share_its_timeout(fields, plan):
    assert run(follow_by_rules, plan, **fields) == plan.expect()


@pytest.mark.parametrize("plan", [plan for plan in PLANS if not plan.delay], ids=str)
def test_the_attempts_of_the_command_share_its_timeout(plan):
    assert run(follow_in_command, plan, name="job") == plan.expect()


def test_a_policy_of_the_job_takes_precedence_over_the_rules_of_a_wait():
    client = create_scripted_client(1)
    ref = client.submit(ask(name="job", restart_policy={"max_restarts": 0}))
    names = [attempt.wait().job.name for attempt in client.attempts(ref, rules=RestartRules(5, delay=0))]
    assert names == ["job"]


def test_an_attempt_that_is_not_waited_for_is_the_last():
    client = create_scripted_client(1)
    ref = client.submit(ask(name="job", restart_policy={"delay": 0}))
    assert [attempt.ref for attempt in client.attempts(ref)] == [ref]
