"""Extract the source of a function as text that runs in another process; source that cannot run there is refused.

The text is not changed, not even dedented, since that would change lines of multi-line strings: an indented function
gets an ``if True:`` above it.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any, NoReturn

_LAZY = "from __future__ import annotations\n"
_BLOCK = "if True:\n"
#: Added by notebooks and gettext; other processes do not have these names.
_ADDED_TO_BUILTINS = {"_", "__IPYTHON__", "display", "get_ipython", "runfile"}
#: Names that every module has.
_OF_A_MODULE = {
    *("__annotations__", "__builtins__", "__doc__", "__file__"),
    *("__loader__", "__name__", "__package__", "__spec__"),
}
_AVAILABLE = (set(dir(builtins)) - _ADDED_TO_BUILTINS) | _OF_A_MODULE
_FIRST_LINE = re.compile(r"\s*(@|def\s)")
#: A notebook's cell, and code that was typed, have no file that a reader could open.
_FILE = re.compile(r"(?!__)[A-Za-z_][\w-]*\.py")
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_REMEDY = (
    'or send its files with code="path/to/project", or use packaging="reference" (a module that is installed in the '
    'job) or packaging="cloudpickle"'
)


def extract_source(func: Callable[..., Any]) -> tuple[str, str]:
    """Return a module's text that defines the function, and its name; without decorators that the object lacks."""
    raw = inspect.unwrap(func)
    name = getattr(func, "__qualname__", type(func).__name__)
    if not isinstance(raw, FunctionType):
        _refuse(f"{name} has no Python source", "wrap it in a function")
    if raw.__code__.co_name == "<lambda>":
        _refuse("a lambda has no name that the job could call", "define it with def")
    source, _ = _read(raw, name)
    node = _parsed(source, raw, name)
    _check_closure(raw, node, name)
    active = _active_decorators(func, node, name)
    _check_expressions(node, active, name)
    text = _block(_from_first(source, node, active))
    return _runnable(text, raw, node, name), node.name


def find_origin(func: Callable[..., Any], text: str) -> str | None:
    """Return the file and the line in it at which an extracted text begins, such as ``train.py:12``.

    Lines that were added above the function count, so that the line can be lower than that of the function. None if
    that is not possible, or the function comes from no file.
    """
    raw = inspect.unwrap(func)
    file = PurePath(raw.__code__.co_filename).name
    source, first = _read(raw, file)
    # The last lines are the same.
    line = first + 1 + source.count("\n") - text.count("\n")
    return f"{file}:{line}" if line > 0 and _FILE.fullmatch(file) else None


def _read(raw: FunctionType, name: str) -> tuple[str, int]:
    """Return the source of a function, and the number of lines above it in its file."""
    try:
        lines, first = inspect.findsource(raw)
        while first and not _FIRST_LINE.match(lines[first]):
            first -= 1  # Python 3.13 reports the line below the @ for a decorator in parentheses.
        source = "".join(inspect.getblock(lines[first:]))
    except (OSError, TypeError, SyntaxError, IndexError):
        file = raw.__code__.co_filename
        what = f"the source of {name} cannot be found: {file} is no file, such as of exec or a prompt, or is not UTF-8"
        _refuse(what, "move it to a file")
    return (source if source.endswith("\n") else f"{source}\n"), first


def _parsed(source: str, raw: FunctionType, name: str) -> ast.FunctionDef:
    """Return the definition in the source, after checking that the file has not changed since its import."""
    code = raw.__code__
    parameters = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They were shown when the file was imported.
        try:
            tree = ast.parse(_block(source))
        except (SyntaxError, ValueError):
            tree = ast.Module(body=[], type_ignores=[])
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)][:1]
    node = found[0] if found else None
    if node is None or node.name != code.co_name or parameters != _parameters(node):
        _refuse(f"the file of {name} has changed since it was imported", "import it again")
    return node


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _check_closure(raw: FunctionType, node: ast.FunctionDef, name: str) -> None:
    # A recursive function finds its name in the new module.
    around = [variable for variable in raw.__code__.co_freevars if variable != node.name]
    if around:
        _refuse(
            f"{name} uses {', '.join(around)} of the enclosing function, which its source does not contain",
            "pass it in func_args or define it in the function",
        )


def _active_decorators(func: Callable[..., Any], node: ast.FunctionDef, name: str) -> list[ast.expr]:
    """Return the decorators that wrap `func`: the innermost ones, as many as there are wrappers."""
    depth = 0
    while hasattr(func, "__wrapped__"):
        func, depth = func.__wrapped__, depth + 1
    if depth > len(node.decorator_list):
        _refuse(
            f"{name} is wrapped by another function, which its source does not contain",
            "call that function in its body",
        )
    return node.decorator_list[len(node.decorator_list) - depth :]


def _check_expressions(node: ast.FunctionDef, decorators: list[ast.expr], name: str) -> None:
    """Refuse decorators and defaults that use names defined outside the function."""
    for decorator in decorators:
        if _outside_names(_compiled(ast.Expression(decorator), "eval")):
            made_by = f"@{ast.unparse(decorator)}"
            _refuse(
                f"{name} is decorated with {made_by}, which its source does not contain",
                "decorate a function in its body",
            )
    defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
    for default in defaults:
        if _outside_names(_compiled(ast.Expression(default), "eval")):
            what = f"a default value of {name} is {ast.unparse(default)}, which is defined outside it"
            _refuse(what, "write the value itself, or use None and set it in the body")


def _runnable(text: str, raw: FunctionType, node: ast.FunctionDef, name: str) -> str:
    """Return the text of the module, with postponed annotations where their names may be missing."""
    missing = _outside_names(_compiled(_LAZY + text, "exec"))
    if missing:
        _refuse(
            f"{name} uses {', '.join(missing)}, defined outside it, which its source does not contain",
            "import or define it in the function",
        )
    had_it = raw.__code__.co_flags & __future__.annotations.compiler_flag
    if had_it or not _plainly_annotated(node) or _outside_names(_compiled(text, "exec")):
        return _LAZY + text
    return text


def _plainly_annotated(node: ast.FunctionDef) -> bool:
    """Return whether every Python version evaluates the annotations alike: None and names of builtins."""
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    annotations = [*(a.annotation for a in arguments if a is not None), node.returns]
    return all(
        a is None or isinstance(a, ast.Constant) or (isinstance(a, ast.Name) and a.id in _AVAILABLE)
        for a in annotations
    )


def _from_first(source: str, node: ast.FunctionDef, decorators: list[ast.expr]) -> str:
    """Return the source from the first of these decorators on, or from the def if there are none."""
    lines = source.split("\n")  # Not splitlines(): a form feed does not end a line in Python.
    offset = _block(source).count("\n") - source.count("\n")
    if not decorators:
        return "\n".join(lines[node.lineno - 1 - offset :])
    first = decorators[0].lineno - 1 - offset
    while not lines[first].lstrip().startswith("@"):
        first -= 1  # An expression in parentheses may start below its @.
    return "\n".join(lines[first:])


def _block(source: str) -> str:
    return _BLOCK + source if source[:1].isspace() else source


def _compiled(tree: Any, mode: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(tree, "<function>", mode, dont_inherit=True)
    assert isinstance(code, CodeType)  # noqa: S101 -- for mypy; compile() returns an AST only with a flag
    return code


def _outside_names(code: CodeType) -> list[str]:
    """Return names that the code, or a scope in it, looks up in its module and does not define."""
    scopes = list(_scopes(code))
    shared = {i.argval for scope in scopes for i in dis.get_instructions(scope) if i.opname == "STORE_GLOBAL"}
    shared |= _stored(code)
    found: dict[str, None] = {}
    for scope in scopes:
        available = _AVAILABLE | shared | _stored(scope)
        loads = [i.argval for i in dis.get_instructions(scope) if i.opname in _LOADS]
        found.update(dict.fromkeys(name for name in loads if name not in available))
    return list(found)


def _scopes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _scopes(constant)


def _stored(scope: CodeType) -> set[str]:
    """Return names that a module or class body defines."""
    return {i.argval for i in dis.get_instructions(scope) if i.opname == "STORE_NAME"}


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ValueError(f"{what}; {remedy}, {_REMEDY}")
