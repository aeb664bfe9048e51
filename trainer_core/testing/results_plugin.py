"""pytest plugin that records the result of each contract test on each backend, for docs/features.md.

It also works for your own backend::

    pytest tests/contract -p trainer_core.testing.results_plugin --features results.json --only-backend mine

Results in the file that a run does not produce are kept, so that backends can be tested one by one.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from trainer_core.testing.case import BackendCase

#: A parametrized test has the worst result of its runs.
_WORST_FIRST = ("failed", "skipped", "passed")


def get_facts(case: BackendCase) -> dict[str, bool]:
    """Return the facts of a backend by name."""
    return {item.name: getattr(case, item.name) for item in fields(case) if item.type == "bool"}


def collect_tests(contract: type[Any]) -> dict[str, Any]:
    """Return the tests of a contract by name, in the order of their definition."""
    parts = [part for part in contract.__mro__ if part.__module__.startswith(f"{__package__}.")]
    return {name: test for part in parts for name, test in vars(part).items() if name.startswith("test_")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options of the plugin."""
    group = parser.getgroup("trainjob-workflows")
    group.addoption("--features", type=Path, help="JSON file for the results of the contract suite, by backend")
    group.addoption("--only-backend", action="append", default=[], help="test only this backend (repeatable)")


def pytest_configure(config: pytest.Config) -> None:
    """Record results if ``--features`` is set."""
    if config.getoption("--features"):
        config.pluginmanager.register(_Results(config.getoption("--features"), config.getoption("--only-backend")))


class _Results:
    """Collects the results of a run by backend."""

    def __init__(self, path: Path, only: Sequence[str]) -> None:
        self._path = path
        self._only = only
        self._results: dict[str, Any] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        deselected = [item for item in items if self._only and getattr(_get_case(item), "name", None) not in self._only]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, Any]:
        report = yield
        case = _get_case(item)
        if case is not None and (report.when == "call" or not report.passed):
            self._record_result(item, case, report)
        return report

    def pytest_sessionfinish(self) -> None:
        results = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        for name, new in self._results.items():
            before = results.get(name, {})
            results[name] = {**before, **new, "tests": {**before.get("tests", {}), **new["tests"]}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(
            json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    def _record_result(self, item: Any, case: BackendCase, report: pytest.TestReport) -> None:
        results = self._results.setdefault(case.name, {"facts": get_facts(case), "options": [], "tests": {}})
        client = item.funcargs.get("client")
        if client is not None:
            results["options"] = sorted(client.backend.accepts)
        result = _format_result(report)
        before = results["tests"].get(item.originalname, result)
        results["tests"][item.originalname] = min(
            before, result, key=lambda each: _WORST_FIRST.index(each.split(":")[0])
        )


def _get_case(item: Any) -> BackendCase | None:
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return case if isinstance(case, BackendCase) else None


def _format_result(report: pytest.TestReport) -> str:
    """Return ``passed``, ``skipped: reason`` or ``failed: reason`` in one line."""
    reason = ""
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = f": {text.removeprefix('Skipped: ')}"
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = f": {crash.message}" if crash else ": ended with an error"
    return f"{report.outcome}{reason}".splitlines()[0]
