"""When a training with the option RestartPolicy is started again."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from trainer_core.base.errors import InvalidRequestError
from trainer_core.client.waiting import check_restarts, compute_restart_delay
from trainer_core.definition.options import RestartPolicy
from trainer_core.lifecycle.restart_policy import (
    AttemptRestarts,
    EndedStart,
    add_restart,
    build_next_request,
    count_restart,
    decide_outcome,
    decide_restart,
    describe,
    get_attempt_restarts,
    is_final,
)
from trainer_core.model.jobs import AttemptMemory, Category, Diagnosis, Outcome, RestartCause, Restarts
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.restart_rules import RestartRules

LOST = EndedStart(Category.NODE_LOST, retryable=True, seconds=1.0)
BUG = EndedStart(Category.USER_CODE, exit_code=1)
END = "2026-11-24T10:00:10.000+00:00"


def rules(**settings):
    return RestartRules.parse({"no_progress": 1000, **settings})


@pytest.mark.parametrize(
    ("settings", "ended", "expected"),
    [
        ({}, LOST, "count"),
        ({}, BUG, "final"),
        ({}, replace(LOST, category=Category.SCHEDULING), "count"),
        ({"free": ["NodeLost"]}, LOST, "free"),
        ({"free": [Category.NODE_LOST]}, LOST, "free"),
        ({"free": ["UserCode"]}, BUG, "free"),
        ({"never": ["NodeLost"]}, LOST, "final"),
        ({"exit_codes": {1: "count"}}, BUG, "count"),
        ({"exit_codes": {1: "free"}, "never": ["UserCode"]}, BUG, "free"),
        ({"exit_codes": {"1": "never"}, "free": ["UserCode"]}, BUG, "final"),
        ({"exit_codes": {137: "never"}}, replace(LOST, exit_code=137), "final"),
        ({"exit_codes": {137: "never"}}, replace(LOST, exit_code=-9), "final"),
        ({"exit_codes": {129: "never"}}, replace(LOST, exit_code=-1), "final"),
        ({"exit_codes": {9: "never"}}, replace(LOST, exit_code=-9), "count"),
        ({"exit_codes": {255: "free"}}, replace(BUG, exit_code=255), "free"),
        ({"exit_codes": {255: "never"}}, replace(LOST, exit_code=0), "count"),
        ({"exit_codes": {1: "count"}, "max_restarts": 0}, BUG, "final"),
        ({"exit_codes": {1: "count"}}, EndedStart(Category.DELETED, exit_code=1), "final"),
        ({"exit_codes": {1: "free"}}, EndedStart(Category.DEADLINE, exit_code=1), "final"),
        ({}, EndedStart(Category.STOPPED_EARLY, retryable=True), "final"),
    ],
)
def test_a_cause_is_counted_free_or_final(settings, ended, expected):
    cause = decide_restart(rules(**settings), Restarts(), ended).cause
    assert {None: "final", True: "count", False: "free"}[cause and cause.counted] == expected


def run(policy, starts):
    """Return the restarts before each start, and the decision after the last one."""
    restarts, decision = Restarts(), None
    for ended in starts:
        decision = decide_restart(policy, restarts, ended)
        if decision.cause is None:
            break
        restarts = add_restart(restarts, decision.cause)
    return restarts, decision


def test_free_restarts_do_not_use_the_budget():
    preempted = EndedStart(Category.PREEMPTED, retryable=True)
    restarts, decision = run(rules(max_restarts=2, free=["Preempted"]), [preempted, LOST, preempted, LOST, LOST])
    assert (restarts.total, restarts.counted) == (4, 2)
    assert [cause.category for cause in restarts.causes] == ["Preempted", "NodeLost", "Preempted", "NodeLost"]
    assert decision.reason == "the budget of RestartPolicy is used up (max_restarts=2)"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 0, 0], 2),
        ([10, 10, 10, 10], 3),
        ([10, 20, 20, 15, 0], 4),
        ([10, 10, 20, 20, 30, 30], 6),
    ],
)
def test_starts_in_a_row_without_progress_end_the_job_even_if_they_are_free(steps, expected):
    policy = RestartRules.parse({"free": ["NodeLost"], "no_progress": 3})
    restarts, _ = run(policy, [replace(LOST, step=step) for step in steps])
    assert restarts.total == expected


@given(st.lists(st.none() | st.integers(0, 5), max_size=9))
def test_a_start_whose_step_is_unknown_neither_made_progress_nor_failed_to(steps):
    policy = RestartRules.parse({"free": ["NodeLost"], "no_progress": 3})
    restarts, decision = run(policy, [replace(LOST, step=step) for step in steps])
    known, known_decision = run(policy, [replace(LOST, step=step) for step in steps if step is not None])
    assert (restarts.step, restarts.without_progress) == (known.step, known.without_progress)
    reasons = {each.reason for each in (decision, known_decision) if each is not None and each.cause is None}
    assert len(reasons) == bool(known_decision and known_decision.cause is None)


def test_restarts_that_are_free_end_also_if_nothing_is_ever_known_of_their_steps():
    policy = RestartRules.parse({"free": ["NodeLost"], "no_progress": 3})
    restarts, decision = run(policy, [LOST] * 40)
    assert (restarts.total, restarts.without_progress) == (12, 2)
    assert "3 starts in a row made no progress" in decision.reason


def test_the_delay_doubles_up_to_five_minutes():
    restarts, _ = run(rules(max_restarts=9, delay="10s"), [LOST] * 8)
    assert [cause.delay for cause in restarts.causes] == [10, 20, 40, 80, 160, 300, 300, 300]


def test_the_causes_of_many_restarts_are_the_last_twenty():
    restarts, _ = run(rules(free=["NodeLost"]), [replace(LOST, step=step) for step in range(500)])
    assert (restarts.total, restarts.counted, restarts.seconds) == (500, 0, 500)
    assert [cause.step for cause in restarts.causes] == list(range(480, 500))


@st.composite
def histories(draw):
    categories = st.sampled_from(Category)
    steps = st.none() | st.integers(0, 50)
    codes = st.none() | st.integers(-15, 255)
    return draw(st.lists(st.builds(EndedStart, categories, st.booleans(), codes, steps), max_size=40))


policies = st.fixed_dictionaries(
    {
        "max_restarts": st.integers(0, 5),
        "no_progress": st.integers(1, 6),
        "free": st.lists(st.sampled_from(["NodeLost", "Preempted"])),
        "never": st.lists(st.sampled_from(["UserCode", "Image"])),
        "exit_codes": st.dictionaries(st.integers(1, 255), st.sampled_from(["never", "free", "count"]), max_size=5),
    }
)


@given(policies, histories())
def test_no_history_exceeds_the_budget_and_each_process_decides_the_same(settings, starts):
    policy = RestartRules.parse(settings)
    restarts, decision = run(policy, starts)
    assert restarts.counted <= min(policy.max_restarts, restarts.total)
    assert restarts.without_progress < policy.no_progress
    stored = AttemptRestarts(policy, restarts, 60, True)
    assert AttemptRestarts.parse_json(json.dumps(stored.to_dict())) == stored
    assert run(RestartRules.parse(json.loads(json.dumps(policy.to_dict()))), starts) == (restarts, decision)


def end(category=Category.NODE_LOST, attempt=None, step=None, retryable=True, is_recorded=True, **fields):
    """Return the outcome of an attempt that ran from 10:00:00 to 10:00:10."""
    diagnosis = Diagnosis(category=category, reason="it is gone", retryable=retryable)
    outcome = Outcome(
        ref={}, status="Failed", diagnosis=diagnosis, started_at="2026-11-24T10:00:00Z", finished_at=END, **fields
    )
    return decide_outcome(outcome, attempt or AttemptRestarts(rules()), step, is_recorded)


def test_an_outcome_has_the_restart_that_follows_and_the_request_of_the_next_attempt_counts_it():
    request = TrainJobRequest.parse({"name": "job", "restart_policy": {"max_restarts": 2}})
    first = end(attempt=get_attempt_restarts(request), step=7)
    assert first.restarts.following == RestartCause("NodeLost", 7, END, True, 10, 10)
    assert (str(first.diagnosis), first.diagnosis.retryable) == (
        "NodeLost: it is gone; restart 1 of 2 follows",
        True,
    )
    second = build_next_request(request, first)
    assert second.context.attempt_restarts == Restarts(1, 1, (first.restarts.following,), 10, 7)
    assert second.fingerprint() == request.fingerprint()
    assert build_next_request(second, None) == request
    last = end(attempt=get_attempt_restarts(build_next_request(second, end(attempt=get_attempt_restarts(second)))))
    assert (last.diagnosis.retryable, is_final(request, last), last.restarts.total) == (False, True, 2)
    assert Outcome.from_json(last.to_json()) == last
    assert count_restart(last) == Restarts()


def test_without_the_option_the_next_attempt_has_the_same_request():
    request = TrainJobRequest.parse({"name": "job"})
    assert build_next_request(request, None) == request
    assert is_final(request, end()) is False


def test_progress_is_a_checkpoint_where_there_are_checkpoints():
    attempt = AttemptRestarts(rules(), has_checkpoints=True)
    assert end(attempt=attempt, step=50, checkpoint=40).restarts.following.step == 40
    assert end(attempt=attempt, step=50).restarts.following.step == 0
    assert end(attempt=attempt, step=50, is_recorded=False).restarts.following.step is None
    assert end(Category.SCHEDULING, attempt=attempt, is_recorded=False).restarts.following.step == 0
    assert end(step=50, checkpoint=40).restarts.following.step == 50


def test_the_deadline_is_that_of_all_starts_together():
    attempt = AttemptRestarts(rules(), Restarts(seconds=49), active_deadline_seconds=60)
    assert end(attempt=attempt).restarts.following is not None
    spent = end(attempt=replace(attempt, earlier=Restarts(seconds=49.5)))
    assert "no time is left of active_deadline_seconds" in spent.diagnosis.reason
    assert spent.diagnosis.retryable is False
    fields = {"name": "job", "active_deadline_seconds": 60, "restart_policy": {}}
    request = TrainJobRequest.parse({**fields, "attempt_restarts": {"total": 1, "seconds": 49.2}})
    assert (request.attempt_deadline_seconds, TrainJobRequest.parse(fields).attempt_deadline_seconds) == (10, 60)


@pytest.mark.parametrize(("used", "left"), [(0, 60), (49.5, 10.5), (59.5, 1), (70, 1)])
def test_a_start_has_what_the_earlier_ones_left_of_the_deadline_and_at_least_a_second(used, left):
    attempt = AttemptRestarts(rules(), Restarts(seconds=used), active_deadline_seconds=60)
    assert attempt.seconds_left == left
    assert replace(attempt, active_deadline_seconds=None).seconds_left is None


def test_free_restarts_after_a_lack_of_gpu_memory_ask_for_no_more_memory():
    memory = AttemptMemory(amount="8Gi", asked="8Gi", next="12Gi")
    attempt = AttemptRestarts(rules(free=["OutOfMemory"]))
    of_gpu = end(Category.OUT_OF_MEMORY, attempt, retryable=False, memory=memory)
    assert (of_gpu.diagnosis.retryable, of_gpu.memory.next) == (True, None)
    assert end(Category.OUT_OF_MEMORY, attempt, memory=memory).memory == memory


def test_a_second_process_waits_no_longer_than_the_first():
    assert compute_restart_delay(end()) == 0
    unknown = replace(end(), restarts=Restarts(following=RestartCause("NodeLost", delay=3.0)))
    assert compute_restart_delay(unknown) == 3
    ahead = replace(end(), restarts=Restarts(following=RestartCause("NodeLost", at="2999-01-01T00:00:00Z", delay=3.0)))
    assert compute_restart_delay(ahead) == 3
    assert compute_restart_delay(replace(end(), restarts=Restarts())) is None


def test_restarts_are_shown_with_their_last_cause():
    causes = (RestartCause("Preempted", counted=False), RestartCause("NodeLost"))
    assert describe(rules(), Restarts()) == "0 of 3"
    assert describe(rules(), Restarts(1, 1, causes[1:])) == "1 of 3 (NodeLost)"
    assert describe(rules(), Restarts(1, 0, causes[:1])) == "0 of 3 (Preempted; 1 was free)"
    assert describe(rules(), Restarts(4, 2, causes)) == "2 of 3 (NodeLost; 2 more were free)"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        '{"rules": {}}',
        '{"rules": {"max_restarts": -1}, "earlier": {"causes": []}}',
        '{"rules": {}, "earlier": {"causes": [1]}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_record_is_no_policy(text):
    assert AttemptRestarts.parse_json(text) is None


def test_a_category_of_a_later_version_is_left_out_of_a_stored_policy():
    stored = {
        "rules": {"max_restarts": 7, "free": ["NodeLost", "Melted"], "never": ["Molten"]},
        "earlier": {"causes": []},
    }
    attempt = AttemptRestarts.parse(stored)
    assert attempt is not None
    assert attempt.rules == RestartRules(max_restarts=7, free=("NodeLost",))


INVALID = [
    ({"max_restarts": -1}, "max_restarts must be a whole number from 0 to 1000, got -1"),
    ({"max_restarts": True}, "max_restarts must be a whole number"),
    ({"max_restarts": math.nan}, "max_restarts must be a whole number"),
    ({"no_progress": 0}, "no_progress must be a whole number from 1 to 1000, got 0"),
    ({"free": "NodeLost"}, "free must be a list of categories such as"),
    ({"free": ["nodelost"]}, "free: 'nodelost' is not a category of failures; known are UserCode, "),
    ({"free": ["Deleted"]}, "free: a TrainJob is never started again after Deleted; remove it"),
    ({"free": ["NodeLost"], "never": ["NodeLost"]}, "free and never both have NodeLost; a failure is one of them"),
    ({"exit_codes": [17]}, "exit_codes must be a dict such as"),
    ({"exit_codes": {0: "free"}}, "exit_codes: a code must be a whole number from 1 to 255, got 0"),
    ({"exit_codes": {17: "ignore"}}, "exit_codes: 17 must be 'never', 'free' or 'count', got 'ignore'"),
    ({"delay": "soon"}, "delay must be a number of seconds, or a text such as"),
    ({"delay": -1}, "delay must be a number of seconds"),
]


@pytest.mark.parametrize(("settings", "message"), INVALID)
def test_an_invalid_setting_is_refused_in_one_line_by_the_option_and_the_request(settings, message):
    with pytest.raises(ValueError, match=r"^RestartPolicy ") as refused:
        RestartPolicy(**settings)
    assert str(refused.value).startswith(f"RestartPolicy {message}")
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidRequestError, match=r"^restart_policy: ") as refused:
        TrainJobRequest.parse({"name": "job", "restart_policy": settings})
    assert message in str(refused.value)


def test_an_unknown_setting_is_refused():
    with pytest.raises(InvalidRequestError, match="'limit' is unknown; known are max_restarts, free, never"):
        TrainJobRequest.parse({"name": "job", "restart_policy": {"limit": 3}})


def test_settings_can_be_templates_that_are_rendered_to_text():
    spec = {"metadata": {}, "spec": {}}
    RestartPolicy(max_restarts="{{ params.n }}", exit_codes={"17": "{{ params.rule }}"})(spec, None, None)
    rendered = {**spec["spec"]["restartPolicy"], "max_restarts": "5", "exit_codes": {"17": "free"}}
    request = TrainJobRequest.parse({"name": "job", "restart_policy": rendered})
    assert (request.policy.restart_policy.max_restarts, request.policy.restart_policy.exit_codes) == (5, {17: "free"})


def test_tokens_given_as_text_are_refused_because_the_next_attempt_would_lack_them():
    literal = {"literal_secrets": {"model.ACCESS_TOKEN": "hf_1"}}
    check_restarts(TrainJobRequest.parse({"name": "job", **literal}))
    with pytest.raises(InvalidRequestError, match=r"^RestartPolicy: tokens given as text are not stored") as refused:
        check_restarts(TrainJobRequest.parse({"name": "job", "restart_policy": {}, **literal}))
    assert "hf_1" not in str(refused.value)
