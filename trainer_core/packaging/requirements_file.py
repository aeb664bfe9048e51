"""Read the packages that a project needs from its requirements.txt, pyproject.toml or uv.lock.

The request contains what the file says when it is packaged: a retry installs the same. The versions are exact where the
file has exact versions, as a uv.lock always has.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit, urlunsplit

from trainer_core import validation

_COMMENT = re.compile(r"(^|\s+)#.*$")
#: The project itself, which travels as files.
_ITSELF = re.compile(r"(-e\s+|--editable[ =]\s*)?\.(/)?")
_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]?\s*(\S.*)")
_MAX_DEPTH = 10


def is_requirements_file(path: str) -> bool:
    """Return whether a path has the name of a file that `read_requirements` reads."""
    return path.endswith(".txt") or Path(path).name in ("pyproject.toml", "uv.lock")


def read_requirements(file: str, folder: Path) -> list[str]:
    path = folder / file
    if path.name == "uv.lock":
        found = _read_uv_lock(_read_toml(path), path)
    elif path.name == "pyproject.toml":
        found = _read_pyproject(_read_toml(path), path)
    else:
        found = list(_read_lines(path, 0))
    validation.check_packages(f"packages_to_install ({path.name})", found)
    return list(dict.fromkeys(found))


def suggest_requirements(module: str, folder: Path) -> str | None:
    """Return how to install a module that a project's pyproject.toml names; None if it does not."""
    try:
        named = read_requirements("pyproject.toml", folder)
    except ValueError:
        return None
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0].lower().replace("_", "-") for each in named}
    is_named = module.partition(".")[0].lower().replace("_", "-") in names
    return "pyproject.toml names it: add -r pyproject.toml" if is_named else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"packages_to_install: {path} cannot be read: {reason}") from error


def _read_toml(path: Path) -> Mapping[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: Mapping[str, Any] = toml.loads(_read_text(path))
    except toml.TOMLDecodeError as error:
        raise ValueError(f"packages_to_install: {path} is not TOML: {error}") from error
    return data


def _read_lines(path: Path, depth: int) -> Iterator[str]:
    """Yield the requirements of a requirements.txt and of those that it includes."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"packages_to_install: {path} includes itself; remove the -r")
    text = _read_text(path).replace("\\\n", " ")
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if not line or _ITSELF.fullmatch(line):
            continue
        included = _INCLUDE.fullmatch(line)
        if included:
            yield from _read_lines(path.parent / included[1], depth + 1)
        else:
            _check_line(line, f"packages_to_install: {path.name}:{number}")
            yield " ".join(line.split())


def _check_line(line: str, where: str) -> None:
    option = next((word for word in line.split() if word.startswith("-")), None)
    if option is None:
        return
    # Not quoted: a URL may contain a password.
    name = option.partition("=")[0]
    remedies = {
        "--index-url": "give pip_index_urls",
        "-i": "give pip_index_urls",
        "--extra-index-url": "give pip_index_urls",
        "--hash": "export the file without hashes (uv export --no-hashes)",
        "-c": "write the versions into the file",
        "--constraint": "write the versions into the file",
        "-e": "name its folder in code",
        "--editable": "name its folder in code",
    }
    raise ValueError(f"{where}: {name} is not supported; {remedies.get(name, 'remove it')}")


def _read_pyproject(data: Mapping[str, Any], path: Path) -> list[str]:
    project = data.get("project")
    dependencies = project.get("dependencies") if isinstance(project, Mapping) else None
    if not isinstance(dependencies, list):
        raise ValueError(f"packages_to_install: {path} has no list dependencies in [project]; write one, or list them")
    return [str(each) for each in dependencies]


def _read_uv_lock(data: Mapping[str, Any], path: Path) -> list[str]:
    """Return the exact versions of what the project needs, with markers; no extras or groups, as `uv sync --no-dev`."""
    packages = [each for each in data.get("package", []) if isinstance(each, Mapping)]
    projects = [each for each in packages if {"virtual", "editable"} & set(each.get("source", {}))]
    own = [each for each in projects if (each["source"].get("virtual") or each["source"].get("editable")) == "."]
    if len(own) != 1:
        raise ValueError(f"packages_to_install: {path} is not the lock file of its folder; write it by uv lock")
    markers = _collect_markers(packages, packages.index(own[0]))
    return sorted(_format_locked(packages[index], path) + _format_markers(parts) for index, parts in markers.items())


class _Visit(NamedTuple):
    """A package or one of its extras, in the order in which they are visited."""

    marker_count: int
    number: int
    package: int
    extra: str
    markers: frozenset[str]


def _collect_markers(packages: list[Mapping[str, Any]], root: int) -> dict[int, list[frozenset[str]]]:
    """Return the packages that one of them needs, by index: the smallest sets of markers that must all hold.

    A package and each of its extras are visited in the order of the size of these sets, so that none is visited again
    with a larger one.
    """
    by_name: dict[Any, list[int]] = {}
    for index, package in enumerate(packages):
        by_name.setdefault(package.get("name"), []).append(index)
    markers: dict[tuple[int, str], list[frozenset[str]]] = {}
    numbers = itertools.count()
    queue = [_Visit(0, next(numbers), root, "", frozenset())]
    while queue:
        visit = heapq.heappop(queue)
        known = markers.setdefault((visit.package, visit.extra), [])
        if any(other <= visit.markers for other in known):
            continue
        known.append(visit.markers)
        package = packages[visit.package]
        optional = package.get("optional-dependencies", {})
        for dependency in optional.get(visit.extra, []) if visit.extra else package.get("dependencies", []):
            joined = visit.markers | {dependency["marker"]} if dependency.get("marker") else visit.markers
            same_name = by_name.get(dependency.get("name"), [])
            found = [index for index in same_name if _is_meant(dependency, packages[index])]
            for index, extra in itertools.product(found, ("", *dependency.get("extra", ()))):
                heapq.heappush(queue, _Visit(len(joined), next(numbers), index, extra, joined))
    return {index: parts for (index, extra), parts in markers.items() if not extra and index != root}


def _is_meant(dependency: Mapping[str, Any], package: Mapping[str, Any]) -> bool:
    """Return whether an entry of the lock file is this dependency, which has a version only where there are several."""
    return all(dependency[key] == package.get(key) for key in ("version", "source") if dependency.get(key) is not None)


def _format_markers(alternatives: Sequence[frozenset[str]]) -> str:
    """Return the marker of a requirement: each alternative is a set of markers that must all hold."""
    if frozenset() in alternatives:
        return ""
    joined = [" and ".join(f"({part})" for part in sorted(parts)) for parts in alternatives]
    return " ; " + " or ".join(sorted(joined))


def _format_locked(package: Mapping[str, Any], path: Path) -> str:
    name, version, source = package.get("name"), package.get("version"), package.get("source", {})
    if "registry" in source and version:
        return f"{name}=={version}"
    if "git" in source:
        url = urlsplit(str(source["git"]))
        folder = parse_qs(url.query).get("subdirectory")
        place = urlunsplit((url.scheme, url.netloc, url.path, "", ""))
        return f"{name} @ git+{place}@{url.fragment}" + (f"#subdirectory={folder[0]}" if folder else "")
    if "url" in source:
        return f"{name} @ {source['url']}"
    raise ValueError(
        f"packages_to_install: {path.name}: {name} is a folder of this machine, which pip cannot install in the job; "
        "name its folder in code and give a requirements.txt"
    )
