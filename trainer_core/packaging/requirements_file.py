"""Read the packages that a project needs from its requirements.txt, pyproject.toml or uv.lock.

The request contains what the file says when it is packaged: a retry installs the same. The versions are exact where the
file has exact versions, as a uv.lock always has. Where a file says which index has a package, and what its hashes are,
the requirement has ``--index-url=`` and ``--hash=`` behind it; `node.packages` installs by them.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from trainer_core.base import validation
from trainer_core.base.secrets import has_credentials
from trainer_core.node.requirement import HASH, INDEX, strip_options
from trainer_core.packaging.project import Project

_COMMENT = re.compile(r"(^|\s+)#.*$")
#: The project itself, which travels as files.
_ITSELF = re.compile(r"(-e\s+|--editable[ =]\s*)?\.(/)?")
_OPTION = re.compile(r"(-[a-zA-Z]|--[\w-]+)[ =]?\s*(.*)")
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
#: A version such as ``2.6.0+cpu``, which the public index does not take.
_LOCAL_VERSION = re.compile(r"==[^;,\s]+\+")
_DEFAULT_INDEX = "https://pypi.org/simple"
_LOCKED_FOLDERS = ("editable", "directory", "virtual")
_MAX_DEPTH = 10
#: What says in Poetry's table where a package comes from.
_SOURCE_KEYS = frozenset({"path", "git", "url", "source"})


def is_requirements_file(path: str) -> bool:
    """Return whether a path has the name of a file that `read_packages` reads."""
    path = split_extras(path)[0]
    return "://" not in path and (path.endswith(".txt") or Path(path).name in ("pyproject.toml", "uv.lock"))


def split_extras(path: str) -> tuple[str, list[str]]:
    """Return the path of a file and the extras behind it: ``uv.lock[gpu]`` → ``uv.lock``, ``["gpu"]``."""
    path, _, extras = path.partition("[")
    return path, [each.strip() for each in extras.rstrip("]").split(",") if each.strip()]


@dataclass
class Packages:
    """What a job installs."""

    folder: Path
    #: The files that travel: local packages are among them.
    project: Project | None
    requirements: list[str] = field(default_factory=list)
    #: The indexes that files name for all their packages.
    index_urls: list[str] = field(default_factory=list)
    extra_urls: list[str] = field(default_factory=list)
    #: Folders of local packages: the name, and what they need.
    local: dict[Path, tuple[str, list[str]]] = field(default_factory=dict)


def read_packages(
    given: str | Sequence[str],
    index_urls: Sequence[str],
    folder: Path,
    project: Project | None = None,
    *,
    has_index: bool = False,
) -> Packages:
    """Return the packages that a trainer names; `has_index`: its environment variables name indexes for pip."""
    packages = Packages(folder.resolve(), project)
    for entry in [given] if isinstance(given, str) else given:
        if is_requirements_file(entry):
            name, extras = split_extras(entry)
            path = folder / name
            found = list(dict.fromkeys(_read_file(path, packages, extras)))
            if packages.extra_urls:
                packages.index_urls = [*(packages.index_urls or [_DEFAULT_INDEX]), *packages.extra_urls]
                packages.extra_urls = []
            _check_indexes(f"packages_to_install: {path.name}", found, packages, index_urls, has_index)
            validation.check_packages(f"packages_to_install ({path.name})", found)
            packages.requirements += found
        elif entry.startswith(("./", "../")):
            _add_local(entry, folder, "packages_to_install", packages)
        else:
            packages.requirements.append(entry)
    in_doubt = [each for each in packages.requirements if not HASH.search(each)]
    if len(packages.index_urls) > 1 and in_doubt:
        raise ValueError(
            f"packages_to_install: {strip_options(in_doubt[0])} has no hash, and pip would take it from any of several "
            f"indexes, such as {packages.index_urls[1]}; give a uv.lock, or a file with hashes"
        )
    if len(packages.index_urls) == 1:
        only = f" --index-url={packages.index_urls[0]}"
        packages.requirements = [each + only if _is_by_name(each) else each for each in packages.requirements]
    packages.index_urls = packages.index_urls or list(index_urls)
    _check_local(packages)
    return packages


def _check_indexes(
    where: str, found: Sequence[str], packages: Packages, index_urls: Sequence[str], has_index: bool
) -> None:
    """Check the indexes of a file, and packages that need one."""
    if packages.index_urls and index_urls and packages.index_urls != list(index_urls):
        raise ValueError(f"{where} names indexes, and pip_index_urls others; leave one of them out")
    local = [each for each in found if _is_by_name(each) and not HASH.search(each) and _LOCAL_VERSION.search(each)]
    if local and not (packages.index_urls or index_urls or has_index):
        raise ValueError(
            f"{where}: {local[0]} is not on the public index, and the file does not name its index; write --index-url "
            "into the file, give pip_index_urls, or give a uv.lock"
        )


def suggest_requirements(module: str, folder: Path) -> str | None:
    """Return how to install a module that a project's pyproject.toml names; None if it does not."""
    path = folder / "pyproject.toml"
    try:
        names = map(_get_name, _list_dependencies(_read_toml(path), path))
    except ValueError:
        return None
    is_named = _normalize(module.partition(".")[0]) in names
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


def _read_file(path: Path, packages: Packages, extras: Sequence[str]) -> Iterator[str]:
    extras = list(map(_normalize, extras))
    if path.name == "uv.lock":
        yield from sorted(_read_uv_lock(path, packages, extras))
    elif path.name == "pyproject.toml":
        yield from _read_pyproject(path, extras)
    elif extras:
        _check_extras(path, extras, {})
    else:
        yield from _read_lines(path, 0, packages)


def _read_lines(path: Path, depth: int, packages: Packages) -> Iterator[str]:
    """Yield the requirements of a requirements.txt and of those that it includes."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"packages_to_install: {path} includes itself; remove the -r")
    text = _read_text(path).replace("\\\n", " ")
    for number, raw in enumerate(text.splitlines(), 1):
        line = " ".join(_COMMENT.sub("", raw).split()).replace("--hash ", "--hash=")
        where = f"packages_to_install: {path.name}:{number}"
        if not line or _ITSELF.fullmatch(line):
            continue
        option = _OPTION.fullmatch(line)
        name, value = (option[1], option[2]) if option else ("", line)
        if name in ("-r", "--requirement"):
            yield from _read_lines(path.parent / value, depth + 1, packages)
        elif name in ("-i", "--index-url", "--extra-index-url"):
            _check_index(value, f"{where}: {name}")
            (packages.extra_urls if name == "--extra-index-url" else packages.index_urls).append(value)
        elif name in ("-e", "--editable") or _get_local(line):
            _add_local(_get_local(value) or value, path.parent, where, packages)
        else:
            _check_line(line, where)
            yield line


def _check_line(line: str, where: str) -> None:
    option = next((word for word in HASH.sub("", line).split() if word.startswith("-")), None)
    if option is None:
        return
    # Not quoted: a URL may contain a password.
    name = option.partition("=")[0]
    remedies = {
        "--find-links": "give pip_index_urls",
        "-f": "give pip_index_urls",
        "-c": "write the versions into the file",
        "--constraint": "write the versions into the file",
    }
    raise ValueError(f"{where}: {name} is not supported; {remedies.get(name, 'remove it')}")


def _check_index(url: str, where: str) -> None:
    if has_credentials(url) or "${" in url:
        raise ValueError(
            f"{where} has a user, password or token, which would be readable in the job; write the URL without, and "
            "give the one with it as env={'PIP_EXTRA_INDEX_URL': SecretRef(name, key)}"
        )
    if not re.fullmatch(r"https?://\S+", url):
        raise ValueError(f"{where} is no index that the job can reach; give an http(s) URL")


def _get_name(requirement: str) -> str:
    return _normalize(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_by_name(requirement: str) -> bool:
    """Return whether an index is asked for a requirement, and it names none itself."""
    return not INDEX.search(requirement) and "/" not in strip_options(requirement).partition(";")[0]


def _get_local(requirement: str) -> str | None:
    """Return the path of this machine that a requirement of a file is; None if it is something else."""
    head = strip_options(requirement).partition(";")[0].strip()
    path = re.sub(r"^[\w.-]+\s*(\[[^]]*\])?\s*@\s*", "", head)
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    is_path = "://" not in path and ("/" in path or path in (".", "..") or path.endswith(_ARCHIVES))
    return path if is_path else None


def _add_local(path: str, base: Path, where: str, packages: Packages, *, is_locked: bool = False) -> None:
    """Let a package of this machine travel: it must be a folder of the project, which is imported from there."""
    # uv export writes paths relative to the workspace, also into the file of a member.
    places = [each / path for each in (base.resolve(), *base.resolve().parents)]
    folder = next((each for each in places if each.exists()), places[0]).resolve()
    if folder == packages.folder or folder in packages.local:
        return
    project = packages.project
    if project is None or not folder.is_dir() or not folder.is_relative_to(project.root):
        raise ValueError(
            f"{where}: {path} is on this machine only; give code a folder that contains it as a folder of modules, or "
            "name a package of an index"
        )
    inside = folder.relative_to(project.root).as_posix()
    files = [each[len(inside) + 1 :] for each in project.files if each.startswith(f"{inside}/")]
    root = "/src" if any(re.fullmatch(r"src/.+\.py", each) for each in files) else ""
    if not root and not any(re.fullmatch(r"(?!setup\.py)[^/]+\.py|[^/]+/__init__\.py", each) for each in files):
        raise ValueError(f"{where}: no module in {inside} or {inside}/src travels; check code and the ignore files")
    pyproject = folder / "pyproject.toml"
    named = _get_table(_read_toml(pyproject), "project") if pyproject.is_file() else {}
    if not is_locked and (not named or "dependencies" in (named.get("dynamic") or ())):
        raise ValueError(f"{where}: {inside} has no pyproject.toml with its dependencies; write them there")
    packages.local[folder] = (
        str(named.get("name")),
        [] if is_locked else [str(each) for each in named.get("dependencies") or ()],
    )
    packages.project = replace(project, roots=(*project.roots, f"{inside}{root}"))


def _check_local(packages: Packages) -> None:
    """Check that all is named that local packages need, since nothing installs them."""
    names = {*map(_get_name, packages.requirements), *(_normalize(name) for name, _ in packages.local.values())}
    for name, needed in packages.local.values():
        missing = next((each for each in needed if ";" not in each and _get_name(each) not in names), None)
        if missing:
            raise ValueError(
                f"packages_to_install: {name} travels as files and needs {missing}, which is not listed; add it, or "
                "give a uv.lock"
            )


def _get_table(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a table inside of another one; an empty one if it is none."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, Mapping) else {}
    return data


def _list_tables(data: Mapping[str, Any], *keys: str) -> list[Mapping[str, Any]]:
    listed = _get_table(data, *keys[:-1]).get(keys[-1])
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []


def _list_dependencies(data: Mapping[str, Any], path: Path) -> list[str]:
    dependencies = _get_table(data, "project").get("dependencies")
    if not isinstance(dependencies, list):
        raise ValueError(f"packages_to_install: {path} has no list dependencies in [project]; write one, or list them")
    return [str(each) for each in dependencies]


def _read_pyproject(path: Path, extras: Sequence[str]) -> list[str]:
    """Return the dependencies of a project, of which no table of a tool says where they come from."""
    data = _read_toml(path)
    table = _get_table(data, "project", "optional-dependencies")
    optional = {_normalize(extra): needed for extra, needed in table.items()}
    name = _normalize(str(_get_table(data, "project").get("name", "")))
    itself = [f"{name}[{','.join(extras)}]"] if extras else []
    dependencies = list(_expand([*_list_dependencies(data, path), *itself], name, optional, path))
    source = next(_find_sources(data, path, set(map(_get_name, dependencies))), None)
    if source is not None:
        raise ValueError(
            f"packages_to_install: {path.name}: {source} says where packages come from, which only its tool reads; "
            "give the uv.lock, or a requirements.txt with hashes (uv export, poetry export)"
        )
    return dependencies


def _expand(requirements: Sequence[str], name: str, optional: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield requirements, with those of the named extras in place of the project itself.

    No index may be asked for the project: it would give what someone else has registered by this name.
    """
    seen: list[tuple[str, frozenset[str]]] = []
    queue = [(each, frozenset[str]()) for each in reversed(requirements)]
    while queue:
        each, markers = queue.pop()
        head, _, marker = each.partition(" ;" if "://" in each else ";")
        joined = markers | {marker.strip()} if marker.strip() else markers
        if _get_name(each) != name:
            yield head.strip() + _format_markers([joined]) if markers else each
            continue
        found = re.search(r"\[(.*?)]", head.partition("@")[0])
        for extra in reversed(list(map(_normalize, re.findall(r"[\w.-]+", found[1] if found else "")))):
            _check_extras(path, [extra], optional)
            # The same or a wider one has given it, also in a cycle.
            if not any(extra == other and given <= joined for other, given in seen):
                seen.append((extra, joined))
                queue += [(str(needed), joined) for needed in reversed(optional[extra])]


def _check_extras(path: Path, extras: Sequence[str], known: Mapping[str, Any]) -> None:
    for extra in extras:
        if extra not in known:
            raise ValueError(
                f"packages_to_install: {path.name} has no extra {extra!r}; it has {', '.join(known) or 'none'}"
            )


def _find_sources(data: Mapping[str, Any], path: Path, names: set[str]) -> Iterator[str]:
    """Yield the entries of uv, Poetry and PDM that take packages from somewhere else than the default index."""
    uv, poetry = _get_table(data, "tool", "uv"), _get_table(data, "tool", "poetry")
    settings = path.with_name("uv.toml")  # uv reads it instead of the table.
    uv = {**uv, **_read_toml(settings)} if settings.is_file() else uv
    yield from (f"{name} in tool.uv.sources" for name in _get_table(uv, "sources") if _normalize(name) in names)
    for name, each in _get_table(poetry, "dependencies").items():
        entries = each if isinstance(each, list) else [each]
        has_source = any(isinstance(entry, Mapping) and _SOURCE_KEYS & entry.keys() for entry in entries)
        if has_source and _normalize(name) in names:
            yield f"{name} in tool.poetry.dependencies"
    for each in (
        *_list_tables(uv, "index"),
        *_list_tables(poetry, "source"),
        *_list_tables(data, "tool", "pdm", "source"),
    ):
        is_explicit = each.get("explicit") or each.get("priority") == "explicit"
        if not is_explicit and not _is_default(str(each.get("url", _DEFAULT_INDEX))):
            yield f"the index {each.get('name')}"
    yield from (f"{key} of uv" for key in ("index-url", "extra-index-url", "find-links") if uv.get(key))


def _read_uv_lock(given: Path, packages: Packages, extras: Sequence[str]) -> Iterator[str]:
    """Yield the exact versions of what the project needs, with markers; no groups, as `uv sync --no-dev`.

    The project is the member of the workspace in whose folder the lock file is named or, if the file is there, the code
    is.
    """
    folder = given.parent.resolve()
    path = next((each / given.name for each in (folder, *folder.parents) if (each / given.name).exists()), given)
    top = path.parent.resolve()
    if top == folder and packages.folder.is_relative_to(top):
        folder = packages.folder
    entries = _list_tables(_read_toml(path), "package")
    members = {(top / _get_folder(each)).resolve(): index for index, each in enumerate(entries) if _get_folder(each)}
    # A folder without a project is part of the one above.
    places = (each for each in (folder, *folder.parents) if each in members or (each / "pyproject.toml").exists())
    own = next(places, folder)
    if own not in members:
        raise ValueError(
            f"packages_to_install: {path} is not the lock file of its folder; write it by uv lock, or give "
            "'path/to/member/uv.lock' for a member of the workspace"
        )
    _check_extras(path, extras, _get_table(entries[members[own]], "optional-dependencies"))
    markers = _collect_markers(entries, members[own], extras)
    if (
        packages.project
        and own.is_relative_to(packages.project.root)
        and "virtual" not in entries[members[own]]["source"]
    ):
        _add_local(".", own, f"packages_to_install: {path.name}", packages, is_locked=True)
    for index, parts in markers.items():
        yield from _format_locked(entries[index], _format_markers(parts), path, packages)


def _format_locked(package: Mapping[str, Any], marker: str, path: Path, packages: Packages) -> Iterator[str]:
    name, source = package.get("name"), _get_table(package, "source")
    where = f"packages_to_install: {path.name}: {name}"
    if "registry" in source:
        index = str(source["registry"])
        _check_index(index, f"{where}: its index")
        option = "" if _is_default(index) else f" --index-url={index}"
        yield f"{name}=={package.get('version')}{marker}{option}{_format_hashes(package)}"
    elif "git" in source:
        url = urlsplit(str(source["git"]))
        inside = parse_qs(url.query).get("subdirectory")
        place = urlunsplit((url.scheme, url.netloc, url.path, "", ""))
        yield f"{name} @ git+{place}@{url.fragment}" + (f"#subdirectory={inside[0]}" if inside else "") + marker
    elif "url" in source:
        inside = source.get("subdirectory")
        place = f"{source['url']}#subdirectory={inside}" if inside else source["url"]
        yield f"{name} @ {place}{marker}{_format_hashes(package)}"
    elif "virtual" not in source:
        _add_local(_get_folder(package) or str(source.get("path")), path.parent, where, packages, is_locked=True)


def _is_default(url: str) -> bool:
    return url.rstrip("/") == _DEFAULT_INDEX


def _get_folder(package: Mapping[str, Any]) -> str:
    """Return the folder of a package of the lock file that is one, relative to the file; else an empty text."""
    source = _get_table(package, "source")
    return next((str(source[kind]) for kind in _LOCKED_FOLDERS if kind in source), "")


def _format_hashes(package: Mapping[str, Any]) -> str:
    """Return the hashes of the source and of the wheels that Linux, or else this machine, can install."""
    sdist, wheels = _get_table(package, "sdist"), _list_tables(package, "wheels")
    usable = [each for each in wheels if _is_usable(str(each.get("filename") or each.get("url")))]
    hashes = [each["hash"] for each in (sdist, *(usable if usable or sdist else wheels)) if each.get("hash")]
    return "".join(f" --hash={each}" for each in dict.fromkeys(hashes))


def _is_usable(wheel: str) -> bool:
    python, _, platform = wheel.rpartition(".whl")[0].rsplit("-", 3)[-3:]
    is_platform = platform == "any" or "linux" in platform or (sys.platform == "darwin" and "macosx" in platform)
    return is_platform and not python.startswith(("pp", "graalpy"))


class _Visit(NamedTuple):
    """A package or one of its extras, in the order in which they are visited."""

    marker_count: int
    number: int
    package: int
    extra: str
    markers: frozenset[str]


def _collect_markers(
    packages: list[Mapping[str, Any]], root: int, extras: Sequence[str]
) -> dict[int, list[frozenset[str]]]:
    """Return the packages that one of them needs, by index: the smallest sets of markers that must all hold.

    A package and each of its extras are visited in the order of the size of these sets, so that none is visited again
    with a larger one.
    """
    by_name: dict[Any, list[int]] = {}
    for index, package in enumerate(packages):
        by_name.setdefault(package.get("name"), []).append(index)
    markers: dict[tuple[int, str], list[frozenset[str]]] = {}
    numbers = itertools.count()
    queue = [_Visit(0, next(numbers), root, extra, frozenset()) for extra in ("", *extras)]
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
