#!/usr/bin/env python
"""Write docs/features.md: the results of the contract suite on each backend.

    tools/features.py                       run the suite on each backend and write results and page
    tools/features.py container runai       run it on these backends only; keep the results of the others
    tools/features.py local -k deadline     run matching tests only
    tools/features.py --page                write the page from the stored results

A backend that cannot run on this machine is recorded with the reason; the other backends still run.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.testing import BackendCase, BackendContract, Searching
from trainer_core.testing.case import is_applicable
from trainer_core.testing.results_plugin import collect_tests, get_facts
from trainer_core.testing.validation import ALL_OPTIONS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "features.json"
PAGE = ROOT / "docs" / "features.md"
_SUITE = ROOT / "tests" / "contract"
_YES, _NO, _NOT_APPLICABLE = "yes", "no", "-"
_WORDS = {"failed": "fails", "skipped": "not run"}
#: Spelling of words that test names have in lower case.
_SPELLING = {"dns": "DNS", "json": "JSON", "kubernetes": "Kubernetes", "none": "None", "uri": "URI"}
_NO_RESULT = "skipped: the test was added or renamed after the last run"
_NO_CASE = "the contract suite has no BackendCase for it"
_HEAD = """# Features

What each backend does. `make features` writes this page from the results of the contract suite
(`trainer_core.testing`), which is the same for every backend. Do not edit it: a test compares it with the suite.
The Kubernetes, Run:ai and Training Operator backends run against a fake API server whose pods are local processes.

**yes**: the test passed. **-**: the test does not apply to the backend, see [Differences](#differences). **not run**,
**fails**: see the [notes](#notes).
"""


class Suite(BackendContract, Searching):
    """All tests that the page lists."""


def main(argv: Sequence[str]) -> int:
    """Run the suite and write the page; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", help="backends to run (default: all)")
    parser.add_argument("-k", dest="matching", help="run only tests that match this pytest expression")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the stored results, without running tests"
    )
    args = parser.parse_args(argv)
    for name in () if args.page else args.backends or list_backends():
        _run(name, args.matching)
    results = _select_known(read_results())
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(render_page(results), encoding="utf-8")
    return int(
        any(result.startswith("failed") for found in results.values() for result in _get_results(found).values())
    )


def load_cases() -> dict[str, BackendCase]:
    sys.path.insert(0, str(ROOT / "tests" / "fakes"))
    spec = importlib.util.spec_from_file_location("contract_conftest", _SUITE / "conftest.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(_SUITE / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {case.name: case for case in module.CASES}


def list_backends() -> list[str]:
    """Return the columns of the table: all backends, and further cases."""
    return [*OWN_BACKENDS, *(name for name in load_cases() if name not in OWN_BACKENDS)]


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def render_page(results: Mapping[str, Any]) -> str:
    backends = [name for name in list_backends() if name in results]
    known, notes = load_cases(), list[str]()
    lines = [_HEAD, *_render_summary(results, backends, notes), *_render_differences(results, backends)]
    lines += _render_options(results, backends, notes)
    for part, tests in _group_tests().items():
        lines += [f"## {_get_title(part)}", "", _get_summary_line(part), "", *_render_header("", backends)]
        lines += [
            _render_row(
                _render_test_name(test),
                [_render_cell(results[name], test, known.get(name), notes) for name in backends],
            )
            for test in tests
        ]
        lines.append("")
    lines += [
        "## Notes",
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, 1)),
        *(() if notes else ["None."]),
    ]
    return "\n".join(lines) + "\n"


def _run(name: str, matching: str | None) -> None:
    results = read_results()
    if matching is None:
        results.pop(name, None)
    if name not in load_cases():
        results[name] = {"not_run": _NO_CASE}
    RESULTS.write_text(json.dumps(results), encoding="utf-8")
    if name in load_cases():
        command = [sys.executable, "-m", "pytest", str(_SUITE), "-q", "-p", "trainer_core.testing.results_plugin"]
        # The plugin is imported before tests/conftest.py registers its package for assertion rewriting.
        command += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
        command += ["--features", str(RESULTS), "--only-backend", name, *(["-k", matching] if matching else [])]
        subprocess.run(command, cwd=ROOT, check=False)
    if name not in read_results():
        RESULTS.write_text(json.dumps({**results, name: {"not_run": "the suite did not start"}}), encoding="utf-8")


def _select_known(results: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the results of backends and tests that do not exist any longer."""
    tests = collect_tests(Suite)
    known = {}
    for name in list_backends():
        if name in results:
            found = dict(results[name])
            if "tests" in found:
                found["tests"] = {test: result for test, result in found["tests"].items() if test in tests}
            known[name] = found
    return known


def _group_tests() -> dict[type[Any], list[str]]:
    parts: dict[type[Any], list[str]] = {}
    for name in collect_tests(Suite):
        part = next(each for each in Suite.__mro__ if name in vars(each))
        parts.setdefault(part, []).append(name)
    return parts


def _render_summary(results: Mapping[str, Any], backends: list[str], notes: list[str]) -> Iterator[str]:
    yield from ("## Summary", "", *_render_header("passed tests", backends))
    for part, tests in _group_tests().items():
        cells = []
        for name in backends:
            outcomes = [_get_results(results[name])[test] for test in tests if test in _get_results(results[name])]
            passed = sum(outcome == "passed" for outcome in outcomes)
            cells.append(f"{passed} of {len(outcomes)}" if outcomes else _render_not_run(results[name], notes))
        yield _render_row(f"[{_get_title(part)}](#{_get_title(part).lower().replace(' ', '-')})", cells)
    yield ""


def _render_differences(results: Mapping[str, Any], backends: list[str]) -> Iterator[str]:
    yield from ("## Differences", "", "Each fact is tested both ways; backends differ in nothing else.", "")
    yield from _render_header("", backends)
    for fact in get_facts(BackendCase("", lambda _: TrainerClient())):
        text = re.search(rf"^ +{fact}: (.*(?:\n {{12}}.*)*)$", BackendCase.__doc__ or "", re.MULTILINE)
        cells = [{True: _YES, False: _NO, None: ""}[results[name].get("facts", {}).get(fact)] for name in backends]
        yield _render_row(" ".join(text[1].split()) if text else fact, cells)
    yield ""


def _render_options(results: Mapping[str, Any], backends: list[str], notes: list[str]) -> Iterator[str]:
    yield from (
        "## Options",
        "",
        "A backend refuses an option that it does not support where the job is defined; the message names the option.",
        "",
    )
    yield from _render_header("", backends)
    for name in sorted(type(option).__name__ for option in ALL_OPTIONS):
        yield _render_row(f"`{name}`", [_render_option_cell(results[each], name, notes) for each in backends])
    yield ""


def _render_option_cell(found: Mapping[str, Any], option: str, notes: list[str]) -> str:
    if "not_run" in found:
        return _render_not_run(found, notes)
    return _YES if option in found["options"] else _NO


def _render_cell(found: Mapping[str, Any], test: str, case: BackendCase | None, notes: list[str]) -> str:
    if "not_run" in found or case is None:
        return _render_not_run(found, notes)
    if not is_applicable(collect_tests(Suite)[test], case):
        return _NOT_APPLICABLE
    outcome, _, reason = _get_results(found).get(test, _NO_RESULT).partition(": ")
    return f"{_WORDS[outcome]}{_add_note(reason, notes)}" if outcome in _WORDS else _YES


def _render_not_run(found: Mapping[str, Any], notes: list[str]) -> str:
    return f"not run{_add_note(found['not_run'], notes)}" if "not_run" in found else _NOT_APPLICABLE


def _add_note(reason: str, notes: list[str]) -> str:
    if reason not in notes:
        notes.append(reason)
    return f" <sup>{notes.index(reason) + 1}</sup>"


def _get_results(found: Mapping[str, Any]) -> Mapping[str, str]:
    results: Mapping[str, str] = found.get("tests", {})
    return results


def _get_title(part: type[Any]) -> str:
    return re.sub("(?<=[a-z])([A-Z])", r" \1", part.__name__).capitalize()


def _get_summary_line(part: type[Any]) -> str:
    return (inspect.getdoc(part) or "").splitlines()[0]


def _render_test_name(test: str) -> str:
    words = [_SPELLING.get(word, word) for word in test.removeprefix("test_").split("_")]
    return " ".join([words[0].capitalize(), *words[1:]])


def _render_header(first: str, backends: list[str]) -> list[str]:
    return [_render_row(first, backends), _render_row("---", ["---"] * len(backends))]


def _render_row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
