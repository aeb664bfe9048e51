"""The table of features is what the contract suite found, of every backend and every sentence that there is."""

from __future__ import annotations

import sys

import pytest
from blocks import ROOT

import trainer_core
from trainer_core.options.base import BaseOption
from trainer_core.testing import BackendContract
from trainer_core.testing.case import applies
from trainer_core.testing.features import facts, sentences
from trainer_core.testing.refusals import OPTIONS

AGAIN = "; run `make features`, or tools/features.py with the names of the backends"


@pytest.fixture
def features(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import features

    yield features
    sys.modules.pop("features")


def ran(features):
    """The results of each backend that could run, beside its case."""
    cases = features.cases()
    return [(cases[name], found) for name, found in features.read().items() if "absent" not in found]


def test_the_page_is_made_of_the_results(features):
    assert features.PAGE.read_text(encoding="utf-8") == features.page(features.read()), f"written by hand{AGAIN}"


def test_it_has_every_backend_and_no_other(features):
    assert sorted(features.read()) == sorted(features.columns()), AGAIN


def test_of_each_backend_it_has_every_sentence_that_is_about_it_and_no_other(features):
    wanted = {
        case.name: {n for n, test in sentences(BackendContract).items() if applies(test, case)}
        for case, _ in ran(features)
    }
    assert {case.name: set(found["sentences"]) for case, found in ran(features)} == wanted, AGAIN


def test_the_facts_are_those_of_the_suite(features):
    for case, found in ran(features):
        assert found["facts"] == facts(case), f"{case.name}{AGAIN}"


def test_no_sentence_fails(features):
    said = {(case.name, name): text for case, found in ran(features) for name, text in found["sentences"].items()}
    assert [each for each in said.items() if each[1].startswith("failed")] == []


def test_a_backend_that_was_not_run_says_why(features):
    absent = [found["absent"] for found in features.read().values() if "absent" in found]
    assert all(absent)


def test_every_option_is_in_the_suite():
    public = [getattr(trainer_core, name) for name in trainer_core.__all__]
    options = {each for each in public if isinstance(each, type) and issubclass(each, BaseOption)}
    assert {type(option) for option in OPTIONS} == options
