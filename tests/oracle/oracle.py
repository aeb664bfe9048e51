"""Compare the answers of packaged functions with those of plain calls: ``python oracle.py SEED COUNT [--first]``.

Prints the answers that are wrong, each with the smallest module that still gives one. Each import and each call has a
process of its own, forked from this one, which has imported no module of a case.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import modules

from trainer_core.node import load_function
from trainer_core.packaging import project as projects, serializer

WAYS = ("source", "project", "cloudpickle")
REFUSED = "refused"
#: The ways out that a refusal names.
REMEDY = re.compile(r'code="path/to/project"')
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def answer(case: modules.Case, way: str, folder: Path) -> tuple[str, str]:
    """Return how a call of the case's function ended, and its value; "plain" is the call in its own module."""
    name = f"case_{folder.name}"
    data, entry = case.render()
    user = folder / "user"
    if not user.exists():
        user.mkdir(parents=True)
        for helper, text in modules.HELPERS.items():
            (user / helper).write_text(text)
        (user / f"{name}.py").write_bytes(data)
    if way == "plain":
        return _fork(lambda: _outcome(lambda: _imported(user, name, entry)()))
    packed = _fork(lambda: _packaged(user, name, entry, way))
    if packed[0] != "code":
        return packed
    place = folder / f"job of {way}"
    place.mkdir()
    return _fork(lambda: _outcome(lambda: _loaded(json.loads(packed[1]), place)()))


def find_fault(case: modules.Case, folder: Path, ways: tuple[str, ...] = WAYS, seen: Counter[str] | None = None) -> Any:
    """Return the way, the answer and the right answer if one is wrong."""
    right = answer(case, "plain", folder)
    for way in ways:
        found = answer(case, way, folder)
        if seen is not None:
            seen[f"{way} {found[0]}"] += 1
        # Refusals must not spread.
        if found[0] == REFUSED and way == "source" and case.is_self_contained and right[0] == "returned":
            return way, found, right
        if found[0] == REFUSED and "\n" not in found[1] and REMEDY.search(found[1]):
            continue
        # A module that the pickle names is not there: the job says so.
        if way == "cloudpickle" and found[0] == "raised" and found[1].startswith("ModuleNotFoundError"):
            continue
        if found != right:
            return way, found, right
    return None


def main(seed: int, count: int, only_first: bool) -> int:
    begin = time.monotonic()
    seen: Counter[str] = Counter()
    faults = []
    with tempfile.TemporaryDirectory(prefix="oracle-") as temporary:
        number = 0

        def find(case: modules.Case, ways: tuple[str, ...] = WAYS, counted: Counter[str] | None = None) -> Any:
            nonlocal number
            number += 1
            folder = Path(temporary, str(number))
            try:
                return find_fault(case, folder, ways, counted)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        for case in modules.draw(seed, count):
            fault = find(case, WAYS, seen)
            if fault is None:
                continue
            way = (fault[0],)
            while not only_first and (smaller := next((each for each in case.shrink() if find(each, way)), None)):
                case, fault = smaller, find(smaller, way)
            text = case.render()[0].decode("latin-1")
            faults.append({"way": fault[0], "found": fault[1], "right": fault[2], "case": repr(case), "module": text})
            if only_first:
                break
    seconds = round(time.monotonic() - begin, 1)
    package = str(Path(load_function.__file__).parents[1])
    result = {"seed": seed, "seconds": seconds, "package": package, "ends": dict(seen), "faults": faults}
    print(json.dumps(result, indent=1))
    return bool(faults)


def _imported(user: Path, name: str, entry: str) -> Callable[..., Any]:
    os.chdir(user)
    sys.path.insert(0, str(user))
    return getattr(importlib.import_module(name), entry)


def _packaged(user: Path, name: str, entry: str, way: str) -> tuple[str, str]:
    function = _imported(user, name, entry)
    try:
        if way == "project":
            return "code", json.dumps(serializer.package(function, {}, "source", projects.read_project(".", user)))
        return "code", json.dumps(serializer.package(function, {}, way))
    except ValueError as error:
        return REFUSED, str(error)


def _loaded(code: dict[str, Any], place: Path) -> Callable[..., Any]:
    os.chdir(place)
    return load_function.load(json.loads(serializer.payload(code)), place / "function")


def _outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "returned", show(call())
    except Exception as error:  # noqa: BLE001 -- an error of the function is its answer
        return "raised", _ADDRESS.sub("", f"{type(error).__name__}: {error}")


def show(value: Any) -> str:
    """Return a text that is equal for values of the same type and content."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"{kind}{{{', '.join(f'{show(key)}: {show(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{kind}[{', '.join(map(show, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{kind}[{', '.join(sorted(map(show, value)))}]"
    if isinstance(value, type):
        return f"type {value.__name__}"
    return f"{kind} {_ADDRESS.sub('', repr(value))}"


def _fork(task: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Return what a task returns in a process of its own."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        ended = ("crashed", "")
        with contextlib.suppress(BaseException):
            os.close(readable)
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- to the end of this process
            try:
                ended = task()
            except BaseException as error:  # noqa: BLE001 -- told to the parent
                ended = ("crashed", f"{type(error).__name__}: {error}")
            with os.fdopen(writable, "wb") as file:
                pickle.dump(ended, file)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return tuple(pickle.loads(data))  # noqa: S301 -- from the own child


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    del cloudpickle  # Imported for the forks.
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "--first" in sys.argv))
