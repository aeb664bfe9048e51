"""docs/features.md matches the stored results, and these have every backend and every test of the contract suite."""

from __future__ import annotations

import sys

import pytest
from blocks import ROOT

import trainer_core
from trainer_core.model.option import BaseOption
from trainer_core.testing.case import is_applicable
from trainer_core.testing.results_plugin import collect_tests, get_facts
from trainer_core.testing.validation import ALL_OPTIONS

AGAIN = "; run `make features`, or tools/features.py with the names of the backends"


@pytest.fixture
def features(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import features

    yield features
    sys.modules.pop("features")


def list_run_backends(features):
    """The case and the results of each backend that was run."""
    cases = features.load_cases()
    run = [(cases[name], found) for name, found in features.read_results().items() if "not_run" not in found]
    assert run
    return run


def test_the_page_matches_the_results(features):
    assert features.PAGE.read_text(encoding="utf-8") == features.render_page(features.read_results()), (
        f"edited by hand{AGAIN}"
    )


def test_the_results_have_exactly_the_known_backends_with_tests_or_the_reason_why_there_are_none(features):
    results = features.read_results()
    assert sorted(results) == sorted(features.list_backends()), AGAIN
    assert [name for name, found in results.items() if not found.get("tests") and not found.get("not_run")] == []


def test_the_results_of_a_backend_have_exactly_the_tests_that_apply_to_it(features):
    wanted = {
        case.name: {n for n, test in collect_tests(features.Suite).items() if is_applicable(test, case)}
        for case, _ in list_run_backends(features)
    }
    assert {case.name: set(found["tests"]) for case, found in list_run_backends(features)} == wanted, AGAIN


def test_the_facts_match_the_cases_of_the_suite(features):
    backends = list_run_backends(features)
    assert {case.name: found["facts"] for case, found in backends} == {
        case.name: get_facts(case) for case, _ in backends
    }, AGAIN


def test_no_contract_test_fails(features):
    results = {
        (case.name, name): text for case, found in list_run_backends(features) for name, text in found["tests"].items()
    }
    assert [each for each in results.items() if each[1].startswith("failed")] == []


def test_every_option_is_in_the_suite():
    public = [getattr(trainer_core, name) for name in trainer_core.__all__]
    options = {each for each in public if isinstance(each, type) and issubclass(each, BaseOption)}
    # Every backend accepts OnBackend; tests/unit/test_on_backend.py tests it on each.
    assert {type(option) for option in ALL_OPTIONS} == options - {trainer_core.OnBackend}
