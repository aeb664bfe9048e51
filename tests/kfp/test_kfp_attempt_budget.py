"""A step waits at most for its timeout, however many attempts it follows, by a scripted clock."""

from __future__ import annotations

import pytest
from scripted_attempts import PLANS, ask, create_scripted_client

from kfp_components.step.executor_input import Task
from kfp_components.step.owner_reference import Run
from kfp_components.step.sigterm import submit_job
from kfp_components.step.wait import WaitInputs, follow_attempts
from trainer_core.base.errors import WaitTimeoutError

#: Rendering the report of a step takes a quarter of a second.
SOME = [plan for plan in PLANS if plan.attempts > 1 and plan.timeout in (None, 12, 16)]
OWNER = {"key": "a/b", "slug": "job"}


@pytest.mark.parametrize("plan", SOME, ids=str)
@pytest.mark.parametrize(
    ("submits", "by_policy"), [(False, False), (True, False), (True, True)], ids=["wait", "train", "RestartPolicy"]
)
def test_all_attempts_of_a_step_share_its_timeout(task, plan, by_policy, submits):
    parsed = Task.parse(task("train").executor_input, None)
    parsed.make_output_folders()
    client = create_scripted_client(plan.run)
    request = ask(owner=OWNER, restart_policy=plan.policy if by_policy else None)
    own = {"attempts": plan.attempts, "backoff": plan.delay}
    inputs = WaitInputs(timeout=plan.timeout or 0, allow_failure=True, **(own, {})[by_policy])
    clock, run, timed_out = client.backend.clock, Run(None), False
    start = clock.now

    try:
        job = submit_job(client, request, inputs.on_kill, run)
        follow_attempts(parsed, client, job, (None, request)[submits], run, inputs)
    except WaitTimeoutError:
        timed_out = True

    assert (clock.now - start, timed_out, len(client.backend.jobs)) == plan.expect()
