"""Find the function that a job calls in the files that travel with it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from trainer_core.packaging.project import Project

_LISTED = 5


@dataclass(frozen=True)
class Module:
    """A module among the files of a project."""

    #: The project, with the folders above its files that the module's name needs.
    project: Project
    path: str
    #: Folders below which the job imports modules, first the one that the module's name starts from.
    roots: tuple[str, ...]


def find_reference(func: Callable[..., Any], project: Project) -> str | None:
    """Return ``module:function`` of a function that a file of the project defines at the top level of its module."""
    name, path = getattr(func, "__module__", None) or "", getattr(func, "__qualname__", "<locals>")
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or "<locals>" in path or not _leads_to(module, path, func):
        return None
    source = Path(file).resolve()
    if not source.is_relative_to(project.root):
        return None
    if name == "__main__":
        name = getattr(getattr(module, "__spec__", None), "name", None) or source.stem
    if not _matches(name, source):
        return None
    inside = source.relative_to(project.root).as_posix()
    if inside not in project.files:
        raise ValueError(f"code: {inside} defines {path} and does not travel; check the ignore files and the patterns")
    return f"{name}:{path}"


def find_module(reference: str, project: Project, func: object = None) -> Module:
    """Return the module of a reference: that of the function if it is given, else the one nearest to the top."""
    name = reference.partition(":")[0]
    file = getattr(sys.modules.get(getattr(func, "__module__", "")), "__file__", None)
    own = Path(file).resolve().relative_to(project.root).as_posix() if file else None
    parts = name.split(".")
    for placed in _place(project, parts):
        paths = placed.list_paths()
        found: dict[str, str] = {}  # The folder from which the module is imported, by the path of its file.
        for path in paths:
            root = _get_root(path, parts)
            is_own = own is None or path == f"{placed.top}/{own}".lstrip("/")
            if root is not None and is_own and (not root or f"{root}/__init__.py" not in paths):
                found[path] = root
        if not found:
            continue
        depth = min(map(_get_depth, found.values()))
        nearest = [path for path, root in found.items() if _get_depth(root) == depth]
        preferred = [path for path in nearest if found[path] == "src"] or nearest
        if len(preferred) > 1:
            listed = ", ".join(preferred[:_LISTED])
            raise ValueError(f"func: {name} is several files of code: {listed}; give code the folder of one of them")
        path, root = preferred[0], found[preferred[0]]
        return Module(placed, path, tuple(dict.fromkeys((root, *list_roots(placed)))))
    modules = [path for path in project.list_paths() if path.endswith(f"{parts[-1]}.py")]
    hint = f"; there is {', '.join(modules[:_LISTED])}" if modules else ""
    raise ValueError(f"func: module {name} is no file of code ({project.root}){hint}; give the module's name in it")


def list_roots(project: Project) -> tuple[str, ...]:
    """Return the folders below which modules are imported: a folder ``src`` that is no package, and the top."""
    paths = project.list_paths()
    has_src = "src/__init__.py" not in paths and any(path.startswith("src/") and path.endswith(".py") for path in paths)
    return (*(("src", "") if has_src else ("",)), *project.list_roots())


def read_signature(reference: str, module: Module) -> Callable[..., Any] | None:
    """Return a function with the parameters of the one that a reference names, without importing its module."""
    name = reference.partition(":")[2]
    tree = _parse(module)
    if "." in name:
        return None
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in tree.body if isinstance(node, definitions) and node.name == name]
    if found:
        return _build_stub(found[-1], _find_enums(tree)) if not found[-1].decorator_list else None
    if _list_bound_names(tree) & {name, "*"}:
        return None
    functions = ", ".join(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    raise ValueError(f"func: {module.path} defines no {name}; it has the functions {functions or '(none)'}")


def _leads_to(module: Any, path: str, func: Callable[..., Any]) -> bool:
    found = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is func


def _matches(name: str, source: Path) -> bool:
    """Return whether a module's name is the end of its path; that of a DAG file is made up."""
    parts = source.with_suffix("").parts
    if parts[-1] == "__init__" and name.split(".")[-1] != "__init__":
        parts = parts[:-1]
    names = tuple(name.split("."))
    return parts[-len(names) :] == names


def _place(project: Project, parts: list[str]) -> Iterator[Project]:
    """Yield the project as it is, and below the folders with which the module's name starts."""
    yield project
    folders = project.root.parts
    for depth in range(1, len(parts)):
        if folders[-depth:] == tuple(parts[:depth]):
            yield project.with_top("/".join(parts[:depth]))


def _get_root(path: str, parts: list[str]) -> str | None:
    """Return the folder from which a file is imported under a name; None if it is not that module."""
    for end in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py"):
        if path == end:
            return ""
        if path.endswith(f"/{end}"):
            return path[: -len(end) - 1]
    return None


def _get_depth(root: str) -> int:
    return root.count("/") + 1 if root else 0


def _parse(module: Module) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They belong to the import of the module.
        try:
            return ast.parse(module.project.read(module.path) or b"")
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{module.path}:{line}" if line else module.path
            raise ValueError(f"func: {where} is not valid Python: {getattr(error, 'msg', error)}") from error


def _find_enums(tree: ast.Module) -> dict[str, Any]:
    """Return the enums of a module whose values can be read without running it, by name."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
            values = [each.value for each in node.body if isinstance(each, ast.Assign)]
            with suppress(ValueError):
                found[node.name] = Enum(
                    node.name, [(f"M{at}", ast.literal_eval(each)) for at, each in enumerate(values)]
                )
    return found


def _build_stub(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, Any]) -> Callable[..., Any]:
    """Return a function with the parameters of a definition. No expression of the user is evaluated."""
    arguments = node.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    for each in (argument for argument in named if argument is not None):
        if each.annotation is not None:
            each.annotation = ast.Constant(ast.unparse(each.annotation))
    arguments.defaults = list(map(_hide_default, arguments.defaults))
    arguments.kw_defaults = [None if default is None else _hide_default(default) for default in arguments.kw_defaults]
    node.body = [ast.Expr(ast.Yield(None))] if _is_generator(node) else [ast.Pass()]
    node.returns = None
    tree = ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))
    exec(compile(tree, "<signature>", "exec", dont_inherit=True), names)  # noqa: S102 -- parameters only, see above
    return names[node.name]  # type: ignore[no-any-return]


def _hide_default(default: ast.expr) -> ast.expr:
    """Return a default without its value, unless it is None."""
    return ast.Constant(None if ast.unparse(default) == "None" else ...)


def _is_generator(node: ast.AST) -> bool:
    """Return whether a function yields itself, and not only functions in it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]
    return any(isinstance(child, (ast.Yield, ast.YieldFrom)) or _is_generator(child) for child in children)


def _list_bound_names(tree: ast.Module) -> set[str]:
    """Return names that a module may have: all that it assigns, imports or defines; ``*`` for any name."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names
