"""Facts in, a diagnosis out."""

from __future__ import annotations

import signal

import pytest

from trainer_core.diagnosis import Facts, StepFacts, diagnose
from trainer_core.outcome import Category


def test_an_exception_is_the_users_and_a_retry_does_not_help():
    step = StepFacts("node-0", 1, "host", "ValueError", "bad shape\nmore", "Traceback …", ["a", "b"])
    diagnosis = diagnose(Facts(steps=[step]))

    assert (diagnosis.category, diagnosis.reason) == (Category.USER_CODE, "ValueError: bad shape")
    assert (diagnosis.step, diagnosis.node, diagnosis.exit_code) == ("node-0", "host", 1)
    assert (diagnosis.traceback, diagnosis.log_tail, diagnosis.retryable) == ("Traceback …", ("a", "b"), False)


def test_the_step_with_an_exception_of_its_own_is_the_cause():
    peers = [StepFacts("node-1", 1), StepFacts("node-0", 1, error_type="KeyError", error_message="'x'")]

    assert diagnose(Facts(steps=peers)).step == "node-0"


def test_a_step_killed_from_outside_can_be_retried():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", -9)]))

    assert (diagnosis.category, diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert "SIGKILL" in diagnosis.reason


def test_a_worker_that_torchrun_saw_killed_can_be_retried():
    tail = ["W1120 …", "  traceback : Signal 9 (SIGKILL) received by PID 4242", "===="]

    assert diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=tail)])).category is Category.INFRASTRUCTURE


@pytest.mark.parametrize(
    "step", [StepFacts("node-0", 1, error_type="MemoryError"), StepFacts("node-0", -9, out_of_memory=True)]
)
def test_lack_of_memory_has_its_own_category(step):
    assert diagnose(Facts(steps=[step])).category is Category.OUT_OF_MEMORY


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_in_native_code_is_the_users_and_a_retry_does_not_help(name):
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", -signal.Signals[name])]))

    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert f"crashed with {name}" in diagnosis.reason


def test_a_worker_that_torchrun_saw_crash_is_the_users():
    tail = ["  traceback : Signal 11 (SIGSEGV) received by PID 4242"]

    assert diagnose(Facts(steps=[StepFacts("node-0", 1, log_tail=tail)])).category is Category.USER_CODE


@pytest.mark.parametrize(("code", "means"), [(126, "cannot be executed"), (127, "was not found")])
def test_exit_codes_of_a_shell_are_explained(code, means):
    assert means in diagnose(Facts(steps=[StepFacts("node-0", code)])).reason


def test_the_exit_code_that_the_function_chose_is_told_though_torchrun_ends_with_another():
    left = StepFacts("node-0", 1, error_type="SystemExit", error_message="3")
    assert diagnose(Facts(steps=[left])).exit_code == 3


def test_what_a_step_said_is_told_with_its_exit_code():
    step = StepFacts("node-0", 2, message="usage: train [-h]")

    assert diagnose(Facts(steps=[step])).reason == "it ended with exit code 2: usage: train [-h]"


def test_a_message_stands_alone_where_there_is_no_exit_code():
    assert diagnose(Facts(steps=[StepFacts("node-0", message="it was full")])).reason == "it was full"


@pytest.mark.parametrize(
    ("step", "category"),
    [
        (StepFacts("node-1", -15, preempted="a job of higher priority needs its place"), Category.PREEMPTED),
        (StepFacts("node-1", node_lost="its machine is gone"), Category.NODE_LOST),
    ],
)
def test_the_step_that_lost_its_machine_is_the_cause_of_what_its_peers_raised(step, category):
    diagnosis = diagnose(Facts(steps=[StepFacts("node-0", 1, error_type="DistBackendError"), step]))

    assert (diagnosis.category, diagnosis.step, diagnosis.retryable) == (category, "node-1", True)


@pytest.mark.parametrize(
    ("facts", "category", "retryable"),
    [
        (Facts(rejected="denied"), Category.REJECTED, False),
        (Facts(unschedulable="no machine"), Category.SCHEDULING, True),
        (Facts(image_error="not found"), Category.IMAGE, False),
        (Facts(image_error="registry is away", passing=True), Category.IMAGE, True),
        (Facts(infrastructure_error="no volume"), Category.INFRASTRUCTURE, True),
        (Facts(deadline_error="ran too long"), Category.DEADLINE, False),
    ],
)
def test_what_keeps_a_job_from_running_has_its_category(facts, category, retryable):
    assert (diagnose(facts).category, diagnose(facts).retryable) == (category, retryable)


def test_what_keeps_a_step_from_running_names_the_step():
    diagnosis = diagnose(Facts(steps=[StepFacts("node-3", node="gpu-7")], unschedulable="no machine"))

    assert (diagnosis.step, diagnosis.node, diagnosis.reason) == ("node-3", "gpu-7", "no machine")


@pytest.mark.parametrize(
    ("step", "code", "helps"), [("dataset-initializer", 75, True), ("dataset-initializer", 1, False)]
)
def test_an_initializer_says_by_its_exit_code_whether_a_retry_helps(step, code, helps):
    diagnosis = diagnose(Facts(steps=[StepFacts(step, code, log_tail=["dataset: the storage wants fewer requests"])]))

    assert (diagnosis.category, diagnosis.retryable) == (Category.INITIALIZER, helps)


def test_the_exit_code_of_an_initializer_means_nothing_at_a_node():
    assert not diagnose(Facts(steps=[StepFacts("node-0", 75)])).retryable


def test_an_initializer_gives_its_last_line_as_reason():
    step = StepFacts("dataset-initializer", 1, log_tail=["fetching", "dataset: /x does not exist", ""])
    diagnosis = diagnose(Facts(steps=[step]))

    assert (diagnosis.category, diagnosis.reason) == (Category.INITIALIZER, "dataset: /x does not exist")


def test_cancelling_stands_above_everything_it_caused():
    facts = Facts(steps=[StepFacts("node-0", -15)], cancelled=True)

    assert diagnose(facts).category is Category.DELETED


def test_a_passed_deadline_names_its_seconds():
    diagnosis = diagnose(Facts(deadline_seconds=60))

    assert diagnosis.category is Category.DEADLINE
    assert "60 s" in diagnosis.reason


def test_what_it_runs_in_could_not_be_made():
    assert diagnose(Facts(image_error="installing x failed")).category is Category.IMAGE


def test_where_nothing_else_is_known_the_systems_words_are_told():
    diagnosis = diagnose(Facts(message="jobset failed"))

    assert (diagnosis.category, diagnosis.reason, diagnosis.retryable) == (
        Category.INFRASTRUCTURE,
        "it failed: jobset failed",
        True,
    )


def test_nothing_known_is_said_honestly():
    diagnosis = diagnose(Facts())

    assert (diagnosis.category, diagnosis.reason) == (Category.INFRASTRUCTURE, "it failed and nothing says why")


def test_what_torchrun_tells_of_a_failure_does_not_push_out_the_functions_own_lines():
    told = [
        "E1121 17:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:999] failed (exitcode: 3) local_rank: 0",
        *(f"  torchrun line {number}" for number in range(40)),
    ]
    step = StepFacts("node-0", 1, log_tail=["epoch 1", "the last of mine", *told])

    assert diagnose(Facts(steps=[step])).log_tail == ("epoch 1", "the last of mine")
