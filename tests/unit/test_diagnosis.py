"""Facts in, a diagnosis out."""

from __future__ import annotations

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


def test_nothing_known_is_said_honestly():
    diagnosis = diagnose(Facts())

    assert (diagnosis.category, diagnosis.reason) == (Category.INFRASTRUCTURE, "it failed and nothing says why")
