"""Find imports of a project that will fail where it trains, without importing anything."""

from __future__ import annotations

import ast
import functools
import os
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
# With its extras, which are often called like what they install.
_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*( *\[[^]]*\])?")


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


def find_import_problems(trainer: Mapping[str, Any], backend: str = "local") -> Iterator[str]:
    """Yield the imports of the function of a request's trainer that will fail where it trains."""
    # The debug backend runs the function in this process, which may have any module, too.
    code, has_image = trainer.get("code") or {}, bool(trainer.get("image")) or backend == "debug"
    if code.get("project") and not code["project"].get("archive"):
        return  # Its files are at a URI, and what the function finds there is unknown here.
    python_path = None
    if backend == "local":  # Its jobs inherit it.
        python_path = str((trainer.get("env") or {}).get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    # Without files, an image may have any module.
    if code.get("project") or (code.get("kind") == "source" and not has_image):
        yield from find_missing_imports(code, trainer.get("packages", ()), has_image, python_path)


def find_missing_imports(
    code: Mapping[str, Any], packages: Sequence[str], has_image: bool, python_path: str | None = ""
) -> Iterator[str]:
    """Yield a line for each import that will fail, except those that are expected to, and those of type checkers.

    Args:
        code: The function.
        packages: What the job installs.
        has_image: It runs in an image of its own, whose modules are unknown.
        python_path: PYTHONPATH of the job. None: it runs elsewhere, in the image of a runtime. That may have what is
            not installed here, but not the files of this machine.
    """
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
            elif not has_image and not _is_given(top, packages) and _is_missing(top, python_path):
                why = "" if python_path is None else " and is neither installed here nor in packages_to_install"
                yield f"{what} {top}, which does not travel{why}; add it to code or packages_to_install"


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
    else:
        for child in _list_children(node):
            yield from _walk(child, package)


def _list_children(node: ast.AST) -> Iterable[ast.AST]:
    """Return the parts of a statement whose imports must not fail."""
    if isinstance(node, ast.Try) and any(_handles_import_error(handler) for handler in node.handlers):
        return [*node.handlers, *node.orelse, *node.finalbody]
    if isinstance(node, ast.With) and any(_suppresses_import_error(item.context_expr) for item in node.items):
        return []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return node.orelse
    return ast.iter_child_nodes(node)


def _to_absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    parents = parts[: len(parts) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def _handles_import_error(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or _names_import_error(handler.type)


def _suppresses_import_error(manager: ast.expr) -> bool:
    is_call = isinstance(manager, ast.Call) and ast.unparse(manager.func).endswith("suppress")
    return is_call and _names_import_error(manager)


def _names_import_error(expression: ast.expr) -> bool:
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _is_given(module: str, packages: Sequence[str]) -> bool:
    """Return whether each job has a module, or the packages that this one installs do."""
    if module in sys.stdlib_module_names or module in _ALWAYS_THERE or module == "__future__":
        return True
    names = [_normalize(match[0]) for match in map(_REQUIREMENT_NAME.match, packages) if match]
    # A requirement without a name, such as a URL, may contain anything.
    texts = map(strip_options, packages)
    is_unnamed = any("://" in package and "@" not in package.partition("://")[0] for package in texts)
    wanted = _normalize(_DISTRIBUTIONS.get(module, module))
    return is_unnamed or any(wanted in name for name in names)


def _is_missing(module: str, python_path: str | None) -> bool:
    sites = _list_sites()
    if python_path is not None:
        places = [*sites, *filter(None, python_path.split(os.pathsep))]
        # The second takes a second.
        return not PathFinder.find_spec(module, places) and module not in _list_installed_modules()
    others = [each for each in sys.path if each not in sites]
    spec = None if PathFinder.find_spec(module, sites) else PathFinder.find_spec(module, others)
    # A folder without __init__.py may be anything, such as what the package of this name has written.
    return spec is not None and spec.origin is not None


def _list_sites() -> list[str]:
    return [each for each in sys.path if each.endswith("-packages")]


@functools.cache
def _list_installed_modules() -> frozenset[str]:
    """Return the modules of distributions, and those in the folders of projects that are installed as editable."""
    return frozenset({*metadata.packages_distributions(), *_list_editable_modules()})


def _list_editable_modules() -> Iterator[str]:
    links = (link for site in _list_sites() for link in Path(site).glob("*.pth"))
    for link in links:
        # A line is also code, or the folder of another user: Python cannot import from there, either.
        with suppress(OSError):
            for line in link.read_text(errors="replace").splitlines():
                with suppress(OSError, ValueError):
                    yield from (each.stem for each in (Path(line).iterdir() if line.startswith("/") else ()))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
