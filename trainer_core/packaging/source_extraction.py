"""Extract the source of a function as text that runs in another process; source that cannot run there is refused.

The text is not changed, not even dedented, since that would change lines of multi-line strings: an indented function
gets an ``if True:`` above it. It is compiled and run here once, and its function compared with the given one.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
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
_BUILTINS = set(dir(builtins)) - _ADDED_TO_BUILTINS - _OF_A_MODULE - {"globals"}
#: A notebook's cell, and code that was typed, have no file that a reader could open.
_FILE = re.compile(r"(?!__)[A-Za-z_][\w-]*\.py")
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_READS_ANNOTATIONS = {"__annotations__", "get_annotations", "get_type_hints", "signature", "getfullargspec"}
_LAZY_FLAG = __future__.annotations.compiler_flag
#: The address of an object, or the functions around one, in its repr. Each word is tried once: reprs can be long.
_PLACE = re.compile(r" at 0x[0-9a-fA-F]+|(?<![\w.<>])[\w.<>]*<locals>\.")
_FILES = 'send its files with code="path/to/project" (command: --code .)'
_REMEDY = 'or use packaging="reference" (a module that is installed in the job) or packaging="cloudpickle"'


def extract_source(func: Callable[..., Any]) -> tuple[str, str]:
    """Return a module's text that defines the function, and its name; without decorators that the object lacks."""
    raw = inspect.unwrap(func)
    name = getattr(func, "__qualname__", type(func).__name__)
    if not isinstance(raw, FunctionType):
        _refuse(f"{name} has no Python source", "wrap it in a function")
    if raw.__code__.co_name == "<lambda>":
        _refuse("a lambda has no name that the job could call", "define it with def")
    lines, node = _read(raw, name)
    _check_closure(raw, name)
    active = _active_decorators(func, node, name)
    _check_expressions(node, active, raw, name)
    text = _runnable(_select(lines, node, active), func, node, name)
    _check_values(text, func, node, name)
    return text, node.name


def find_dynamic_names(raw: FunctionType) -> list[str]:
    """Return names of its module that a function looks up by their text, as ``eval`` and ``globals`` do."""
    scopes = list(_scopes(raw.__code__))
    used = {name for scope in scopes for name in scope.co_names} - raw.__globals__.keys()
    found = used & {"globals", "f_globals", "__globals__"}
    if used & {"eval", "exec"}:
        texts = " ".join(each for scope in scopes for each in scope.co_consts if isinstance(each, str))
        own = {raw.__code__.co_name}.union(*((*scope.co_varnames, *scope.co_cellvars) for scope in scopes))
        found |= _overridden(raw.__globals__).intersection(re.findall(r"[^\W\d]\w*", texts)) - own
    return sorted(found)


def find_unpickled_names(func: Callable[..., Any], seen: set[str] | None = None) -> list[str]:
    """Return what cloudpickle leaves out of a function: names looked up by their text, or in the body of a class."""
    raw, seen = inspect.unwrap(getattr(func, "__func__", func)), seen or set()
    if not isinstance(raw, FunctionType) or raw.__qualname__ in seen:
        return []
    seen.add(raw.__qualname__)
    module, lazy = raw.__globals__, raw.__code__.co_flags & _LAZY_FLAG
    each = [(i.opname, i.argval) for scope in _scopes(raw.__code__) for i in dis.get_instructions(scope)]
    names, carried = {argument for _, argument in each}, {name for opname, name in each if opname == "LOAD_GLOBAL"}
    found = find_dynamic_names(raw) + sorted(set(_loaded(raw.__code__, module, set())) & _overridden(module) - carried)
    found += ["sys.modules[__name__]"] if {"modules", "__name__"} <= names & {"modules", *carried} else []
    # It looks for the names of its annotations in its module.
    found += ["a dataclass with postponed annotations"] if lazy and "dataclass" in names else []
    helpers = [module[name] for name in sorted(carried & module.keys())]
    mine = [helper for helper in helpers if getattr(helper, "__module__", None) == raw.__module__]
    return found + [name for helper in mine for name in find_unpickled_names(helper, seen)]


def find_origin(func: Callable[..., Any], text: str) -> str | None:
    """Return the file and the line in it at which an extracted text begins, such as ``train.py:12``.

    Lines that were added above the function count, so that the line can be lower than that of the function. None if
    that is not possible, or the function comes from no file.
    """
    raw = inspect.unwrap(func)
    file = PurePath(raw.__code__.co_filename).name
    # The last lines are the same.
    line = _find_end(*_read(raw, file)) + 1 - text.count("\n")
    return f"{file}:{line}" if line > 0 and _FILE.fullmatch(file) else None


def _read(raw: FunctionType, name: str) -> tuple[list[str], ast.FunctionDef]:
    """Return the lines of a file and the definition in it, after checking that it compiles to what was imported."""
    code = raw.__code__
    try:
        lines = inspect.findsource(raw)[0]
        tree, module = _parse("".join(lines), code.co_flags & _LAZY_FLAG)
    except (OSError, TypeError, SyntaxError, ValueError):
        file = code.co_filename
        what = f"the source of {name} cannot be found: {file} is no file, such as of exec or a prompt, or is not UTF-8"
        _refuse(f"{what}, or has changed since it was imported", "move it to a file, import it again")
    place = code.co_name, code.co_firstlineno
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    firsts = [min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in nodes]
    found = [node for node, first in zip(nodes, firsts, strict=True) if (node.name, first) == place]
    same = [_facts(each) for each in _scopes(module) if (each.co_name, each.co_firstlineno) == place]
    # pytest rewrites the asserts of its tests.
    is_rewritten = any(each.startswith("@") for scope in _scopes(code) for each in scope.co_varnames)
    if not found or not (is_rewritten or _facts(code) in same):
        _refuse(f"the file of {name} has changed since it was imported, or its import rewrites it", "import it again")
    return lines, found[0]


@functools.lru_cache(maxsize=1)
def _parse(text: str, flags: int) -> tuple[ast.Module, CodeType]:
    """Return the tree and the code of a whole file: its imports have an influence on the bytecode of its functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They were shown when the file was imported.
        tree = ast.parse(text)
    return tree, _compiled(tree, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # Cells of a notebook may await.


def _facts(value: Any) -> Any:
    """Return what is equal for functions, code and values that are the same, wherever they come from."""
    if isinstance(value, FunctionType):
        return _facts(value.__code__), _defaults(value)
    if isinstance(value, CodeType):
        numbers = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        flags = value.co_flags & ~(inspect.CO_NESTED | _LAZY_FLAG)
        names = value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        code = value.co_code, getattr(value, "co_exceptiontable", b"")
        return numbers, flags, names, code, [_facts(each) for each in value.co_consts]
    return type(value), sorted(map(repr, value)) if isinstance(value, frozenset) else _PLACE.sub("", repr(value))


def _defaults(func: Callable[..., Any]) -> Any:
    by_name = getattr(func, "__kwdefaults__", None) or {}
    return [_facts(each) for each in func.__defaults__ or ()], {name: _facts(each) for name, each in by_name.items()}


def _check_closure(raw: FunctionType, name: str) -> None:
    # A recursive function finds its name in the new module.
    around = [variable for variable in raw.__code__.co_freevars if variable != raw.__code__.co_name]
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


def _check_expressions(node: ast.FunctionDef, decorators: list[ast.expr], raw: FunctionType, name: str) -> None:
    """Refuse decorators and defaults that use names defined outside the function."""
    for decorator in decorators:
        if _outside_names(_compiled(ast.Expression(decorator), "eval"), raw):
            made_by = f"@{ast.unparse(decorator)}"
            _refuse(
                f"{name} is decorated with {made_by}, which its source does not contain",
                "decorate a function in its body",
            )
    defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
    for default in defaults:
        if _outside_names(_compiled(ast.Expression(default), "eval"), raw):
            what = f"a default value of {name} is {ast.unparse(default)}, which is defined outside it"
            _refuse(what, "write the value itself, or use None and set it in the body")


def _runnable(text: str, func: Callable[..., Any], node: ast.FunctionDef, name: str) -> str:
    """Return the text of the module, with postponed annotations where their names may be missing."""
    raw = inspect.unwrap(func)
    missing = [*_outside_names(_compiled(_LAZY + text, "exec"), raw, func), *_own_names(node), *find_dynamic_names(raw)]
    if missing:
        _refuse(
            f"{name} uses {', '.join(dict.fromkeys(missing))}, defined outside it, which its source does not contain",
            f"{_FILES}, or import or define it in the function",
        )
    if raw.__code__.co_flags & _LAZY_FLAG:
        return _LAZY + text
    unknown = _outside_names(_compiled(text, "exec"), raw, func)
    nodes = list(ast.walk(node))
    words = {getattr(each, "attr", getattr(each, "id", "")) for each in nodes}
    # The decorator of a class reads its annotations, such as @dataclass.
    decorated = [each.body for each in nodes if isinstance(each, ast.ClassDef) and each.decorator_list]
    is_read = _READS_ANNOTATIONS & words or any(isinstance(each, ast.AnnAssign) for body in decorated for each in body)
    if unknown and is_read:
        what = f"{name} reads annotations in it, while some use {', '.join(unknown)}, defined outside it"
        _refuse(what, "put those in quotes")
    return _LAZY + text if unknown or not (is_read or _plainly_annotated(node)) else text


def _check_values(text: str, func: Callable[..., Any], node: ast.FunctionDef, name: str) -> None:
    """Refuse a function with other default values or wrappers than its text gives it."""
    defined: dict[str, Any] = {"__name__": __name__}
    exec(_compiled(text, "exec"), defined)  # noqa: S102 -- as its import did; it contains only names of builtins
    (*given, raw), (*built, plain) = _layers(func), _layers(defined[node.name])
    if list(map(_facts, given)) != list(map(_facts, built)) or _defaults(raw) != _defaults(plain):
        what = f"{name} has other default values than its def, such as __defaults__ that were set later"
        _refuse(what, "write them in the def")


def _layers(func: Callable[..., Any]) -> list[Any]:
    return [func, *_layers(func.__wrapped__)] if hasattr(func, "__wrapped__") else [func]


def _plainly_annotated(node: ast.FunctionDef) -> bool:
    """Return whether every Python version evaluates the annotations alike: None and names of builtins."""
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    annotations = [*(a.annotation for a in arguments if a is not None), node.returns]
    return all(
        a is None or isinstance(a, ast.Constant) or (isinstance(a, ast.Name) and a.id in _BUILTINS) for a in annotations
    )


def _select(lines: list[str], node: ast.FunctionDef, decorators: list[ast.expr]) -> str:
    """Return the source from the first of these decorators on, or from the def if there are none."""
    first = (decorators[0] if decorators else node).lineno - 1
    while decorators and not lines[first].lstrip().startswith("@"):
        first -= 1  # An expression in parentheses may start below its @.
    text = "".join(lines[first : _find_end(lines, node)]).removesuffix("\n") + "\n"
    return _BLOCK + text if text[0].isspace() else text


def _find_end(lines: list[str], node: ast.FunctionDef) -> int:
    """Return the number of a definition's last line, comments at its end included."""
    return max(node.end_lineno or 0, node.lineno - 1 + len(inspect.getblock(lines[node.lineno - 1 :])))


def _compiled(tree: Any, mode: str, flags: int = 0) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They were shown when the file was imported.
        code = compile(tree, "<function>", mode, flags, dont_inherit=True)
    assert isinstance(code, CodeType)  # noqa: S101 -- for mypy; compile() returns an AST only with a flag
    return code


def _own_names(node: ast.FunctionDef) -> list[str]:
    """Return names that any module has and that differ in the job. The name of a logger is no part of an answer."""
    nodes = list(ast.walk(node))
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    loggers = [argument for call in calls if ast.unparse(call.func).endswith("etLogger") for argument in call.args]
    names = [each.id for each in nodes if isinstance(each, ast.Name) and each not in loggers]
    relative = [f"from {'.' * each.level} import" for each in nodes if isinstance(each, ast.ImportFrom) and each.level]
    return [each for each in names if each in _OF_A_MODULE] + relative


def _outside_names(code: CodeType, raw: FunctionType, func: Callable[..., Any] | None = None) -> list[str]:
    """Return names that the code looks up in its module, and which it does not define or which differ there."""
    module, own = raw.__globals__, raw.__code__.co_name
    known = _OF_A_MODULE | (_BUILTINS - _overridden(module))
    known |= {own} if func is not None and _is_itself(func, raw) else set()
    every = [i for scope in _scopes(code) for i in dis.get_instructions(scope)]
    shared = {i.argval for i in every if i.opname == "STORE_GLOBAL"} - module.keys()
    return list(dict.fromkeys(name for name in _loaded(code, module, shared) if name not in known))


def _overridden(module: Mapping[str, Any]) -> set[str]:
    """Return names of a module that are no builtins, or other ones."""
    home = getattr(module.get("open"), "__globals__", {}).get("__name__", "")  # Notebooks have an own `open`.
    spared = _OF_A_MODULE | ({"open"} if str(home).startswith("IPython.") else set())
    return {name for name, value in module.items() if value is not getattr(builtins, name, module)} - spared


def _is_itself(func: Callable[..., Any], raw: FunctionType) -> bool:
    """Return whether the function's name leads to it, with nothing in it that its text does not set."""
    name = raw.__code__.co_name
    # While a decorator packages it, the name is not set yet.
    found: Any = raw.__globals__.get(name, func if raw.__qualname__ == name else None)
    with contextlib.suppress(KeyError, ValueError):
        found = dict(zip(raw.__code__.co_freevars, raw.__closure__ or (), strict=True))[name].cell_contents
    is_found = found is func or (not isinstance(found, FunctionType) and inspect.unwrap(found) is raw)
    return is_found and not vars(func).keys() - {"__wrapped__"}


def _loaded(code: CodeType, module: Mapping[str, Any], shared: set[str]) -> Iterator[str]:
    """Yield names that a scope, or one in it, looks up in its module and has not certainly stored before.

    A name that the module lacks needs to be stored anywhere only: else it is missing here and there.
    """
    instructions, entries = list(dis.get_instructions(code)), getattr(dis.Bytecode(code), "exception_entries", ())
    stored = {i.argval for i in instructions if i.opname == "STORE_NAME"} - module.keys()
    jumps = [(i.offset, i.argval) for i in instructions if i.opcode in _JUMPS] + [(e.start, e.target) for e in entries]
    for each in instructions:
        if isinstance(each.argval, CodeType):
            yield from _loaded(each.argval, module, set(shared))
        elif each.opname in _LOADS and each.argval not in stored | shared:
            yield each.argval
        elif each.opname in ("STORE_NAME", "STORE_GLOBAL") and not any(a <= each.offset < b for a, b in jumps):
            (stored if each.opname == "STORE_NAME" else shared).add(each.argval)


def _scopes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _scopes(constant)


def _refuse(what: str, remedy: str) -> NoReturn:
    remedies = remedy if _FILES in remedy else f"{remedy}, or {_FILES}"
    raise ValueError(f"{what}; {remedies}, {_REMEDY}")
