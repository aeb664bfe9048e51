"""docs/guides/kfp-answers.md: every complaint has an answer, and every test it names is there."""

from __future__ import annotations

import re

import pytest
from kfp_driver import REPOSITORY

PAGE = REPOSITORY / "docs" / "guides" / "kfp-answers.md"
ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]


@pytest.fixture(scope="module")
def tests():
    sources = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    return set(re.findall(r"^def (test_\w+)", sources, flags=re.MULTILINE))


def test_the_guide_answers_thirty_problems():
    assert len(ROWS) == 30
    assert all(len(row) == 4 and row[2].strip() for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_the_tests_of_an_answer_are_there(tests, row):
    named = set(re.findall(r"`(test_\w+)`", row[3]))

    assert named
    assert named <= tests
