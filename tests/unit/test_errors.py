"""Errors and the functions for their messages."""

from __future__ import annotations

import pickle

import pytest

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.text import MAX_MESSAGE, format_size, shorten
from trainer_core.model.jobs import JobFailedError, Outcome, TrainJobRef

OUTCOME = Outcome(ref=TrainJobRef("local", "/home", "job", "uid").to_dict(), status="Failed")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (249, "249 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (1_234_000, "1.23 MB"),
        (999_700_000, "1 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(size, text):
    assert format_size(size) == text


def test_a_message_that_is_too_long_loses_its_middle():
    line = shorten("subject\n" + "x" * 1000 + " what to do")
    assert len(line) == MAX_MESSAGE
    assert line.startswith("subject x")
    assert line.endswith("x what to do")
    assert str(InvalidRequestError(line * 2)) == shorten(line * 2)


def test_a_failure_passes_through_a_process_pool_with_its_outcome():
    error = pickle.loads(pickle.dumps(JobFailedError("TrainJob 'job' is Failed", OUTCOME)))  # noqa: S301 -- ours
    assert (str(error), error.outcome) == ("TrainJob 'job' is Failed", OUTCOME)
