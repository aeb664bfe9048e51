#!/usr/bin/env python
"""docs/features.md: every feature of every backend, from the results of the contract suite.

    tools/features.py                       run the suite on each backend, write results and page anew
    tools/features.py container runai       on these only; what is known of the others stays
    tools/features.py local -k deadline     these sentences only
    tools/features.py --page                the page alone, from the results that there are

A backend that cannot run here is written down with the reason, and stops none of the others.
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

from trainer_core.backends import BACKENDS
from trainer_core.client import TrainerClient
from trainer_core.testing import BackendCase, BackendContract
from trainer_core.testing.case import applies
from trainer_core.testing.features import facts, sentences
from trainer_core.testing.refusals import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "features.json"
PAGE = ROOT / "docs" / "features.md"
_SUITE = ROOT / "tests" / "contract"
_YES, _NO, _ELSEWHERE = "yes", "no", "-"
_WORDS = {"failed": "fails", "skipped": "not run"}
_UNHEARD = "skipped: the sentence came, or changed, after the suite was run"
_NO_CASE = "the contract suite had no case for it when this page was made"
_HEAD = """# Features

Every backend, and what it does. `make features` makes this page of the results of the contract suite
(`trainer_core.testing`), which is the same for every backend; nothing here is written by hand, and a test compares it
with the suite. Clusters are played by a double of the API server here, whose pods are processes of one machine.

**yes**: all tests of it passed. **-**: the sentence is about other backends, see
[Where they differ](#where-they-differ). **not run**, **fails**: see the [notes](#notes).
"""


def main(argv: Sequence[str]) -> int:
    """Run what was asked for and write the page; 1 where a sentence fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", help="backends to run; all where none is named")
    parser.add_argument("-k", dest="matching", help="run the tests that match this only, as for pytest")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    asked = parser.parse_args(argv)
    for name in () if asked.page else asked.backends or columns():
        _run(name, asked.matching)
    results = _known(read())
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    return int(any(said.startswith("failed") for found in results.values() for said in _said(found).values()))


def cases() -> dict[str, BackendCase]:
    """Return the backends on which the suite of the house runs, by their names."""
    sys.path.insert(0, str(ROOT / "tests" / "fakes"))
    spec = importlib.util.spec_from_file_location("contract_conftest", _SUITE / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {case.name: case for case in module.CASES}


def columns() -> list[str]:
    """Return the backends of the table: those of this release, and what else has a case."""
    return [*BACKENDS, *(name for name in cases() if name not in BACKENDS)]


def read() -> dict[str, Any]:
    """Return the results that there are, by backend."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def page(results: Mapping[str, Any]) -> str:
    """Return the page of these results."""
    backends = [name for name in columns() if name in results]
    known, notes = cases(), list[str]()
    lines = [_HEAD, *_in_short(results, backends, notes), *_differences(results, backends)]
    lines += _options(results, backends, notes)
    for part, tests in _parts().items():
        lines += [f"## {_title(part)}", "", _first_line(part), "", *_header("", backends)]
        lines += [
            _row(_sentence(test), [_cell(results[name], test, known.get(name), notes) for name in backends])
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
    results = read()
    if matching is None:
        results.pop(name, None)
    if name not in cases():
        results[name] = {"absent": _NO_CASE}
    RESULTS.write_text(json.dumps(results), encoding="utf-8")
    if name in cases():
        command = [sys.executable, "-m", "pytest", str(_SUITE), "-q", "-p", "trainer_core.testing.features"]
        # The plug-in is loaded before tests/conftest.py could have the assertions of its package rewritten.
        command += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
        command += ["--features", str(RESULTS), "--only-backend", name, *(["-k", matching] if matching else [])]
        subprocess.run(command, cwd=ROOT, check=False)
    if name not in read():
        RESULTS.write_text(json.dumps({**results, name: {"absent": "the suite did not start"}}), encoding="utf-8")


def _known(results: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is no backend or no sentence any more."""
    tests = sentences(BackendContract)
    known = {}
    for name in columns():
        if name in results:
            found = dict(results[name])
            if "sentences" in found:
                found["sentences"] = {test: said for test, said in found["sentences"].items() if test in tests}
            known[name] = found
    return known


def _parts() -> dict[type[Any], list[str]]:
    parts: dict[type[Any], list[str]] = {}
    for name in sentences(BackendContract):
        part = next(each for each in BackendContract.__mro__ if name in vars(each))
        parts.setdefault(part, []).append(name)
    return parts


def _in_short(results: Mapping[str, Any], backends: list[str], notes: list[str]) -> Iterator[str]:
    yield from ("## In short", "", *_header("how many sentences hold", backends))
    for part, tests in _parts().items():
        shown = []
        for name in backends:
            said = [_said(results[name])[test] for test in tests if test in _said(results[name])]
            held = sum(each == "passed" for each in said)
            shown.append(f"{held} of {len(said)}" if said else _absent(results[name], notes))
        yield _row(f"[{_title(part)}](#{_title(part).lower().replace(' ', '-')})", shown)
    yield ""


def _differences(results: Mapping[str, Any], backends: list[str]) -> Iterator[str]:
    yield from ("## Where they differ", "", "Each of these is tested both ways; backends differ in nothing else.", "")
    yield from _header("", backends)
    for fact in facts(BackendCase("", TrainerClient)):
        text = re.search(rf"^ +{fact}: (.*(?:\n {{12}}.*)*)$", BackendCase.__doc__ or "", re.MULTILINE)
        shown = [{True: _YES, False: _NO, None: ""}[results[name].get("facts", {}).get(fact)] for name in backends]
        yield _row(" ".join(text[1].split()) if text else fact, shown)
    yield ""


def _options(results: Mapping[str, Any], backends: list[str], notes: list[str]) -> Iterator[str]:
    yield from (
        "## Options",
        "",
        "A backend that does not take an option refuses it by its name, where the job is defined.",
        "",
    )
    yield from _header("", backends)
    for name in sorted(type(option).__name__ for option in OPTIONS):
        yield _row(f"`{name}`", [_accepted(results[each], name, notes) for each in backends])
    yield ""


def _accepted(found: Mapping[str, Any], option: str, notes: list[str]) -> str:
    if "absent" in found:
        return _absent(found, notes)
    return _YES if option in found["options"] else _NO


def _cell(found: Mapping[str, Any], test: str, case: BackendCase | None, notes: list[str]) -> str:
    if "absent" in found or case is None:
        return _absent(found, notes)
    if not applies(sentences(BackendContract)[test], case):
        return _ELSEWHERE
    outcome, _, why = _said(found).get(test, _UNHEARD).partition(": ")
    return f"{_WORDS[outcome]}{_note(why, notes)}" if outcome in _WORDS else _YES


def _absent(found: Mapping[str, Any], notes: list[str]) -> str:
    return f"not run{_note(found['absent'], notes)}" if "absent" in found else _ELSEWHERE


def _note(why: str, notes: list[str]) -> str:
    if why not in notes:
        notes.append(why)
    return f" <sup>{notes.index(why) + 1}</sup>"


def _said(found: Mapping[str, Any]) -> Mapping[str, str]:
    return found.get("sentences", {})


def _title(part: type[Any]) -> str:
    return re.sub("(?<=[a-z])([A-Z])", r" \1", part.__name__).capitalize()


def _first_line(part: type[Any]) -> str:
    return (inspect.getdoc(part) or "").splitlines()[0]


def _sentence(test: str) -> str:
    return test.removeprefix("test_").replace("_", " ").capitalize()


def _header(first: str, backends: list[str]) -> list[str]:
    return [_row(first, backends), _row("---", ["---"] * len(backends))]


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
