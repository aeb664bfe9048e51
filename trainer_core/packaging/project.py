"""Pack the files that travel with a training function. Equal trees give equal bytes, on every machine.

The file names, contents and executable bits travel; times, owners and other permissions do not.
"""

from __future__ import annotations

import base64
import fnmatch
import functools
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from trainer_core.base.secrets import mask_credentials
from trainer_core.base.text import format_size
from trainer_core.packaging.ignore_rules import Rule, parse_rules

if TYPE_CHECKING:
    from trainer_core.packaging.git_commit import GitCommit

#: A folder, a file, or a list of paths and patterns.
CodePaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: Bytes of all files; more are not even read.
_MAX_BYTES = 64_000_000
#: Folders in folders; more would exceed the stack.
_MAX_LEVELS = 100
#: Links to folders that one path may contain: folders that link to each other would have paths without number.
_MAX_LINKS = 2
_IGNORE_FILES = (".gitignore", ".trainjobignore")
#: Version control and caches, which no ignore file has to name.
_LEFT_OUT = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".bzr"),
        *("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
        *(".tox", ".nox", ".venv", "node_modules", ".DS_Store", ".terraform"),
    }
)
_LEFT_OUT_SUFFIXES = (".pyc", ".pyo")
#: Files of a folder that is an environment.
_ENVIRONMENT_FILES = ("pyvenv.cfg", "conda-meta")
#: What every state folder of the local backend has. Each job changes it, so with it no two submits would be equal.
_STATE_FOLDER_ENTRIES = ("id", "jobs", "staging", "trash")
_SECRETS = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg", "*.asc"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials", "credentials.*", "kubeconfig*", "*.kubeconfig"),
    *("secrets.*", "secret.*", "service-account*.json", "service_account*.json", "client_secret*.json"),
)
_SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".gcloud")
#: Names that match `_SECRETS` and hold none: samples, public keys, modules.
_NO_SECRETS = ("*.example", "*.sample", "*.template", "*.dist", "*.pub", "*.py", "*.pyi", "*.md", "*.rst")
_PRIVATE_KEY = re.compile(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----")
_LISTED = 3


@dataclass(frozen=True)
class Project:
    """The files of a project."""

    #: The folder to which their paths are relative.
    root: Path
    #: Content by path, with slashes.
    files: Mapping[str, bytes]
    #: Paths of the executable files.
    executable: frozenset[str] = frozenset()
    #: Folders that their paths get in the job: ``my_package`` if the root is a folder of a package.
    top: str = ""
    #: Further folders below which modules are imported, relative to the root.
    roots: tuple[str, ...] = ()

    def with_top(self, top: str) -> Project:
        """Return the project with other folders above its files."""
        return replace(self, top=top)

    def list_roots(self) -> tuple[str, ...]:
        return tuple(map(self._place, self.roots))

    def list_paths(self) -> list[str]:
        return [self._place(path) for path in sorted(self.files)]

    def read(self, path: str) -> bytes | None:
        """Return the content of the file that has this path in the job; None if there is none."""
        inside = path[len(self.top) + 1 :] if self.top else path
        return self.files.get(inside) if self._place(inside) == path else None

    def pack(self, roots: Sequence[str] = ("",)) -> dict[str, Any]:
        """Return the project as plain data: the compressed files, their digest, number and size, and import roots.

        ``{"train.py": b"x = 1"}`` → ``{"archive": "eNqr…", "digest": "9c1f…", "files": 1, "size": 5, "roots": [""]}``
        """
        content = {self._place(path): _to_json(data) for path, data in self.files.items()}
        executable = sorted(self._place(path) for path in self.executable)
        text = json.dumps({"executable": executable, "files": content}, sort_keys=True, separators=(",", ":")).encode()
        archive = base64.b64encode(zlib.compress(text, 9)).decode("ascii")
        return {
            "archive": archive,
            "digest": hashlib.sha256(text).hexdigest(),
            "files": len(self.files),
            "size": sum(map(len, self.files.values())),
            "roots": list(roots),
        }

    def _place(self, path: str) -> str:
        return f"{self.top}/{path}" if self.top else path


def check_code(code: object) -> None:
    """Check the form of the ``code`` of a trainer. Accepts None. Reads no file."""
    if code is None:
        return
    entries = code if isinstance(code, (list, tuple)) else [code]
    if not entries or not all(map(_is_path, entries)):
        raise ValueError(f"code must be a folder such as 'path/to/project', or a list of paths, got {code!r}")
    if _is_git_uri(code):
        _parse_git_uri(code)
        return
    for entry in map(str, entries):
        if "://" in entry:
            raise ValueError(
                "code must be a folder of this machine, or git+https://…@<commit id> alone, got "
                f"{mask_credentials(entry)}"
            )
        if "{" in entry:
            raise ValueError(f"code is packed when it is given and cannot be a template, got {entry!r}; write the path")


def _is_path(entry: object) -> bool:
    if not isinstance(entry, (str, os.PathLike)):
        return False
    text = str(entry)
    try:
        text.encode("utf-8", "surrogateescape")  # As in the names of files that are not UTF-8.
    except UnicodeEncodeError:
        return False
    return bool(text.strip()) and "\0" not in text


def read_project(code: CodePaths, folder: Path | None = None) -> Project:
    """Read the files that a trainer names."""
    check_code(code)
    base = Path(folder or Path.cwd()).resolve()
    if isinstance(code, (list, tuple)):
        root, entries = base, [_normalize_entry(str(entry), base) for entry in code]
    else:
        given = Path(os.fspath(code)) if isinstance(code, (str, os.PathLike)) else Path()
        if _is_git_uri(code):
            from trainer_core.packaging.git_commit import fetch_commit  # As in `_parse_git_uri`.

            given = fetch_commit(_parse_git_uri(code))
        path = _get_real_path(base / given)
        if not _call(path, path.exists):
            raise ValueError(f"code: {path} does not exist; give the folder of the project")
        root, entries = (path, [""]) if path.is_dir() else (path.parent, [path.name])
    if _is_state_folder(root):
        raise ValueError(f"code: {root} is the state folder of the local backend; use another folder for --home")
    walk = _Walk(root)
    for entry in entries:
        walk.add(entry)
    if not walk.found:
        raise ValueError(f"code: no file of {root} travels; check the path and the ignore files")
    project = Project(root, *_read_contents(root, walk))
    is_package = entries == [""] and "__init__.py" in project.files
    return project.with_top(root.name) if is_package else project


def _is_state_folder(folder: Path) -> bool:
    return all(os.path.exists(folder / name) for name in _STATE_FOLDER_ENTRIES)  # noqa: PTH110 -- never raises


def read_files(packed: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of what `Project.pack` returned: content by path."""
    data = json.loads(zlib.decompress(base64.b64decode(packed["archive"])))
    return {
        path: content.encode() if isinstance(content, str) else base64.b64decode(content["base64"])
        for path, content in data["files"].items()
    }


@dataclass
class _Walk:
    """Finds files below a root."""

    root: Path
    #: The file to read by path.
    found: dict[str, Path] = field(default_factory=dict)
    #: Paths that were written out.
    named: set[str] = field(default_factory=set)
    _rules: dict[Path, list[Rule]] = field(default_factory=dict)

    def add(self, entry: str) -> None:
        """Add a file, the files below a folder, or what matches a pattern."""
        path = self.root / entry
        if _call(path, path.exists) and not _get_real_path(path).is_relative_to(self.root):
            raise ValueError(f"code: {entry} is a link out of {self.root}; copy what it points to into the folder")
        if path.is_dir():
            self._add_folder(path, entry, (), 0)
        elif path.is_file():
            self.found[entry] = path
            self.named.add(entry)
        elif any(character in entry for character in "*?["):
            before = len(self.found)
            try:
                matches = sorted(self.root.glob(entry))
            except RecursionError:
                raise self._build_level_error() from None
            for match in matches:
                self._add_match(match)
            if len(self.found) == before:
                raise ValueError(f"code: {entry} matches no file of {self.root} that travels; check the pattern")
        else:
            raise ValueError(f"code: {path} does not exist; give a path relative to {self.root}")

    def _add_match(self, match: Path) -> None:
        name = match.relative_to(self.root).as_posix()
        parents = [parent for parent in match.parents if parent.is_relative_to(self.root) and parent != self.root]
        if len(parents) > _MAX_LEVELS:
            raise self._build_level_error()
        if any(parent.is_symlink() or self._is_left_out(parent, is_folder=True) for parent in parents):
            return
        is_folder = match.is_dir()
        if self._is_left_out(match, is_folder):
            return
        if is_folder:
            self._add_folder(match, name, (), 0)
        else:
            self._add_file(match, name)

    def _add_folder(self, folder: Path, name: str, parents: tuple[Path, ...], links: int) -> None:
        real = _get_real_path(folder)
        links += folder.is_symlink()
        if real in parents or links > _MAX_LINKS or not real.is_relative_to(self.root):
            return  # A link to a folder above, behind other links, or out of the project.
        if len(parents) > _MAX_LEVELS:
            raise self._build_level_error()
        for entry in sorted(_scan(folder), key=lambda entry: entry.name):
            path, inside = folder / entry.name, f"{name}/{entry.name}" if name else entry.name
            is_folder = entry.is_dir(follow_symlinks=False) or os.path.isdir(path)  # noqa: PTH112 -- never raises
            if self._is_left_out(path, is_folder):
                continue
            if is_folder:
                self._add_folder(path, inside, (*parents, real), links)
            else:
                self._add_file(path, inside)

    def _build_level_error(self) -> ValueError:
        advice = "name a folder in .trainjobignore, or leave it out of the pattern"
        return ValueError(f"code: {self.root} has more than {_MAX_LEVELS} levels of folders; {advice}")

    def _add_file(self, path: Path, name: str) -> None:
        real = _get_real_path(path)
        if not real.is_relative_to(self.root) or not _call(path, path.is_file):
            return
        if not _LEFT_OUT.intersection(real.relative_to(self.root).parts):
            self.found[name] = path

    def _is_left_out(self, path: Path, is_folder: bool) -> bool:
        if path.name in _LEFT_OUT or (not is_folder and path.name.endswith(_LEFT_OUT_SUFFIXES)):
            return True
        is_ignored = self._is_ignored(path, is_folder)
        if is_ignored or not is_folder:
            return is_ignored
        is_environment = any(os.path.exists(path / name) for name in _ENVIRONMENT_FILES)  # noqa: PTH110 -- never raises
        return is_environment or _is_state_folder(path)

    def _is_ignored(self, path: Path, is_folder: bool) -> bool:
        """Decide as git does: the ignore file that is the nearest to the path and has a matching rule wins."""
        for folder in path.parents:
            rules = self._get_rules(folder)
            if rules:
                name = path.relative_to(folder).as_posix()
                decision = next((rule.is_ignored for rule in rules if rule.applies_to(name, is_folder)), None)
                if decision is not None:
                    return decision
            if folder == self._top:
                break
        return False

    @functools.cached_property
    def _top(self) -> Path:
        """The folder of the uppermost ignore file: that of the repository which contains the root, else the root."""
        repositories = (folder for folder in (self.root, *self.root.parents) if (folder / ".git").exists())
        return next(repositories, self.root)

    def _get_rules(self, folder: Path) -> list[Rule]:
        if folder not in self._rules:
            self._rules[folder] = _read_rules(folder)
        return self._rules[folder]


def _read_rules(folder: Path) -> list[Rule]:
    """Return the rules of a folder, the last one first: it wins."""
    paths = [folder / name for name in _IGNORE_FILES]
    return [rule for path in paths if _call(path, path.is_file) for rule in parse_rules(_read_file(path))][::-1]


def _is_git_uri(code: object) -> TypeGuard[str]:
    return isinstance(code, str) and code.startswith("git+")


def _parse_git_uri(code: str) -> GitCommit:
    # Loads subprocess, which other DAG files need not pay for.
    from trainer_core.packaging.git_commit import parse_git_uri

    return parse_git_uri(code)


def _normalize_entry(entry: str, base: Path) -> str:
    path = Path(entry)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"code: {entry} must be a path below {base}, without '..'; give one folder, or change to it")
    return "" if path == Path() else path.as_posix()


def _get_real_path(path: Path) -> Path:
    """Return the path without links; unlike `Path.resolve`, also of a link to itself."""
    return Path(os.path.realpath(path))


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise ValueError(f"code: {folder} cannot be read: {error.strerror}; name it in .trainjobignore") from error


def _read_contents(root: Path, walk: _Walk) -> tuple[dict[str, bytes], frozenset[str]]:
    """Return content by path, and the paths of the executable files."""
    states = {name: _call(path, path.stat) for name, path in walk.found.items()}
    sizes = {name: state.st_size for name, state in states.items()}
    if sum(sizes.values()) > _MAX_BYTES:
        raise ValueError(
            f"code: {describe_size(sizes)}, and at most {format_size(_MAX_BYTES)} travel; name files in "
            ".trainjobignore, fetch data with an initializer, or install code in the image"
        )
    for name in sorted(walk.found.keys() - walk.named):
        target = _get_real_path(walk.found[name]).relative_to(root).as_posix()
        if _is_secret_name(name) or _is_secret_name(target):
            _refuse_secret(name, "has the name of a secret")
    files = {}
    for name in sorted(walk.found):
        try:
            name.encode()
        except UnicodeEncodeError:
            # With the locale C, Python may read every name as ASCII.
            advice = "rename the file" if sys.getfilesystemencoding() == "utf-8" else "set PYTHONUTF8=1, or rename it"
            raise ValueError(f"code: the name {name!r} is not UTF-8; {advice}") from None
        files[name] = _read_file(walk.found[name])
        if name not in walk.named and _PRIVATE_KEY.match(files[name]):
            _refuse_secret(name, "is a private key")
    return files, frozenset(name for name, state in states.items() if state.st_mode & 0o100)


def _is_secret_name(path: str) -> bool:
    *folders, name = path.lower().split("/")
    if any(folder in _SECRET_FOLDERS for folder in folders):
        return True
    matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRETS)
    return matches and not any(fnmatch.fnmatchcase(name, pattern) for pattern in _NO_SECRETS)


def _refuse_secret(name: str, reason: str) -> None:
    raise ValueError(
        f"code: {name} {reason}, and everyone who can read the job could read it; name it in .trainjobignore and pass "
        f"the value as a SecretRef, or write it out: code=['.', {name!r}]"
    )


def _read_file(path: Path) -> bytes:
    data: bytes = _call(path, path.read_bytes)
    return data


def _call(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except OSError as error:
        raise ValueError(f"code: {path} cannot be read: {error.strerror}; name it in .trainjobignore") from error


def _to_json(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def describe_size(sizes: Mapping[str, int]) -> str:
    """Return number, size and the largest ones of files as text."""
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_LISTED]
    listed = ", ".join(f"{name} ({format_size(sizes[name])})" for name in largest)
    return f"{len(sizes)} files have {format_size(sum(sizes.values()))} (the largest are {listed})"
