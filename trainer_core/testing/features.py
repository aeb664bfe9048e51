"""A pytest plug-in that writes down which sentence of the contract holds on which backend.

For the table of features in the documentation, and for that of a backend of your own::

    pytest tests/contract -p trainer_core.testing.features --features results.json --only-backend mine

What a run has nothing to say of is left in the file as it is, so that backends can be run one by one.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from trainer_core.testing.case import BackendCase

__all__ = ["facts", "pytest_addoption", "pytest_configure", "sentences"]

#: The worst of several runs of one sentence, with different values, is what is said of it.
_WORST = ("failed", "skipped", "passed")


def facts(case: BackendCase) -> dict[str, bool]:
    """Return the facts in which backends may differ, as a case has them."""
    return {item.name: getattr(case, item.name) for item in fields(case) if item.type == "bool"}


def sentences(contract: type[Any]) -> dict[str, Any]:
    """Return the tests of a contract by their names, in the order in which its parts and they are written."""
    parts = [part for part in contract.__mro__ if part.__module__.startswith(f"{__package__}.")]
    return {name: test for part in parts for name, test in vars(part).items() if name.startswith("test_")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plug-in."""
    group = parser.getgroup("trainjob-workflows")
    group.addoption("--features", type=Path, help="JSON file of the results of the contract suite, by backend")
    group.addoption("--only-backend", action="append", default=[], help="run the contract of this backend only")


def pytest_configure(config: pytest.Config) -> None:
    """Write results where that is asked for."""
    if config.getoption("--features"):
        config.pluginmanager.register(_Results(config.getoption("--features"), config.getoption("--only-backend")))


class _Results:
    """What a run has said of each backend so far."""

    def __init__(self, path: Path, only: Sequence[str]) -> None:
        self._path = path
        self._only = only
        self._found: dict[str, Any] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if self._only and getattr(_case(item), "name", None) not in self._only]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, Any]:
        report = yield
        case = _case(item)
        if case is not None and (report.when == "call" or not report.passed):
            self._note(item, case, report)
        return report

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        for name, found in self._found.items():
            before = known.get(name, {})
            known[name] = {**before, **found, "sentences": {**before.get("sentences", {}), **found["sentences"]}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")

    def _note(self, item: Any, case: BackendCase, report: pytest.TestReport) -> None:
        found = self._found.setdefault(case.name, {"facts": facts(case), "options": [], "sentences": {}})
        client = item.funcargs.get("client")
        if client is not None:
            found["options"] = sorted(client.backend.accepts)
        said = _said(report)
        before = found["sentences"].get(item.originalname, said)
        found["sentences"][item.originalname] = min(before, said, key=lambda each: _WORST.index(each.split(":")[0]))


def _case(item: Any) -> BackendCase | None:
    found = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return found if isinstance(found, BackendCase) else None


def _said(report: pytest.TestReport) -> str:
    """``passed``, ``skipped: why`` or ``failed: why``, in one line."""
    why = ""
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        why = f": {text.removeprefix('Skipped: ')}"
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = f": {crash.message}" if crash else ": it ended with an error"
    return f"{report.outcome}{why}".splitlines()[0]
