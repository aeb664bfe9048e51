"""Find imports of a project that will fail where it trains, without importing anything."""

from __future__ import annotations

import ast
import functools
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from trainer_core.node.requirement import strip_options
from trainer_core.packaging.project import read_files

#: Every job has it, and images of the runtimes have the others.
_ALWAYS_THERE = frozenset(
    {
        *("trainer_core", "torch", "torchvision", "torchaudio", "torchtune", "numpy"),
        *("deepspeed", "jax", "mlx", "mpi4py", "xgboost"),
    }
)
#: Distributions whose name does not contain the name of the module.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "attr": "attrs",
    "dateutil": "python-dateutil",
}
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class _File:
    """A file that an import runs."""

    path: str
    #: Package that its relative imports start from.
    package: str
    content: bytes


@dataclass(frozen=True)
class _Import:
    line: int
    module: str
    #: Names after ``from module import``: modules of the package, or its attributes.
    names: tuple[str, ...] = ()


def find_import_problems(trainer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the imports of the function of a request's trainer that will fail where it trains."""
    code, has_image = trainer.get("code") or {}, bool(trainer.get("image"))
    if code.get("project") and not code["project"].get("archive"):
        return  # Its files are at a URI, and what the function finds there is unknown here.
    # Without files, an image may have any module.
    if code.get("project") or (code.get("kind") == "source" and not has_image):
        yield from find_missing_imports(code, trainer.get("packages", ()), has_image)


def find_missing_imports(code: Mapping[str, Any], packages: Sequence[str], has_image: bool) -> Iterator[str]:
    """Yield a line for each import that will fail, except in a ``try`` for ImportError and for type checkers."""
    files = code.get("project") or {}
    project = _Modules(read_files(files) if files else {}, files.get("roots", ()))
    waiting: list[_File] = []
    if code["kind"] == "reference":
        waiting += project.list_files(str(code["text"]).partition(":")[0])
    elif code["kind"] == "source":
        waiting.append(_File(str(code["entry"]), "", str(code["text"]).encode()))
    seen = {file.path for file in waiting}
    while waiting:
        file = waiting.pop(0)
        for each in _list_imports(file):
            top = each.module.partition(".")[0]
            what = f"code: {file.path}:{each.line} imports"
            if project.has(top):
                missing = project.find_missing(each)
                if missing:
                    yield f"{what} {missing}, which does not travel; check the ignore files"
                for found in project.list_imported_files(each):
                    if found.path not in seen:
                        seen.add(found.path)
                        waiting.append(found)
            elif not has_image and not _is_installed(top, packages):
                yield (
                    f"{what} {top}, which does not travel and is neither installed here nor in packages_to_install; "
                    "add it to code or packages_to_install"
                )


class _Modules:
    """The modules among the files of a project."""

    def __init__(self, files: Mapping[str, bytes], roots: Iterable[str]) -> None:
        self._files = files
        self._roots = list(roots)
        folders = [path.split("/")[:-1] for path in files if path.endswith(".py")]
        self._folders = {"/".join(parts[:count]) for parts in folders for count in range(1, len(parts) + 1)}

    def has(self, name: str) -> bool:
        """Return whether a file or folder of the project is the module."""
        return any(self._is_module(path) for path in self._get_paths(name))

    def find_missing(self, each: _Import) -> str | None:
        parts = each.module.split(".")
        names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((name for name in names if not self.has(name)), None)

    def list_files(self, name: str) -> list[_File]:
        """Return the files that an import of the module runs."""
        found = []
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ".".join(parts[:count])
            for path in self._get_paths(module):
                for file, package in ((f"{path}.py", module.rpartition(".")[0]), (f"{path}/__init__.py", module)):
                    if file in self._files:
                        found.append(_File(file, package, self._files[file]))
        return found

    def list_imported_files(self, each: _Import) -> list[_File]:
        """Return the files of an import, with the modules among the names after ``import``."""
        modules = [each.module, *(f"{each.module}.{name}" for name in each.names)]
        return [file for module in modules for file in self.list_files(module)]

    def _get_paths(self, name: str) -> Iterator[str]:
        for root in self._roots:
            yield "/".join(filter(None, (root, *name.split("."))))

    def _is_module(self, path: str) -> bool:
        # A compiled module has the name of its platform between name and suffix.
        return (
            f"{path}.py" in self._files
            or path in self._folders
            or any(file.startswith(f"{path}.") and file.endswith((".so", ".pyd")) for file in self._files)
        )


def _list_imports(file: _File) -> list[_Import]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They belong to the import of the module.
        try:
            tree = ast.parse(file.content)
        except (SyntaxError, ValueError):
            return []
    return sorted(_walk(tree, file.package), key=lambda each: each.line)


def _walk(node: ast.AST, package: str) -> Iterator[_Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _Import(node.lineno, alias.name)
    elif isinstance(node, ast.ImportFrom):
        module = _to_absolute(node, package)
        if module:
            yield _Import(node.lineno, module, tuple(alias.name for alias in node.names))
    elif isinstance(node, ast.Try) and any(_handles_import_error(handler) for handler in node.handlers):
        for child in (*node.handlers, *node.orelse, *node.finalbody):
            yield from _walk(child, package)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _walk(child, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, package)


def _to_absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    parents = parts[: len(parts) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def _handles_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _is_installed(module: str, packages: Sequence[str]) -> bool:
    if module in sys.stdlib_module_names or module in _ALWAYS_THERE or module == "__future__":
        return True
    names = [_normalize(match[0]) for match in map(_REQUIREMENT_NAME.match, packages) if match]
    # A requirement without a name, such as a URL, may contain anything.
    texts = map(strip_options, packages)
    is_unnamed = any("://" in package and "@" not in package.partition("://")[0] for package in texts)
    wanted = _normalize(_DISTRIBUTIONS.get(module, module))
    if is_unnamed or any(wanted in name for name in names):
        return True
    sites = [each for each in sys.path if each.endswith("-packages")]
    # The second takes a second.
    return PathFinder.find_spec(module, sites) is not None or module in _list_installed_modules()


@functools.cache
def _list_installed_modules() -> frozenset[str]:
    """Return the modules of distributions, and those in the folders of projects that are installed as editable."""
    return frozenset({*metadata.packages_distributions(), *_list_editable_modules()})


def _list_editable_modules() -> Iterator[str]:
    links = (link for site in sys.path if site.endswith("-packages") for link in Path(site).glob("*.pth"))
    for link in links:
        # A line is also code, or the folder of another user: Python cannot import from there, either.
        with suppress(OSError):
            for line in link.read_text(errors="replace").splitlines():
                with suppress(OSError, ValueError):
                    yield from (each.stem for each in (Path(line).iterdir() if line.startswith("/") else ()))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
