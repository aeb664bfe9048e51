"""A function becomes shipped code, once: its source, a reference, or a pickle.

No shell ever sees any of it: the code travels as one JSON document, and the program that reads it travels beside it.
"""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import json
import keyword
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer_core import arguments, sources
from trainer_core.arguments import coerce
from trainer_core.inside import files, function

__all__ = ["BOOTSTRAP", "coerce", "package", "payload", "ship", "shipped_files"]

#: The program of every node process, below the folder that `ship` filled.
BOOTSTRAP = "trainer_core/inside/bootstrap.py"
_MODES = ("source", "reference", "cloudpickle")
#: `bootstrap` knows by this file that it lies in a folder that was shipped.
_MARKER = "trainer_core/SHIPPED"
_FACE = '''"""What a training function may import; shipped with the job, where trainer_core is not installed."""

from trainer_core.inside.paths import dataset_path, model_path, output_path
from trainer_core.inside.progress import progress
from trainer_core.inside.status import update_trainjob_status

__all__ = ["dataset_path", "model_path", "output_path", "progress", "update_trainjob_status"]
'''


def package(
    func: Callable[..., Any] | str, args: Mapping[str, Any] | None = None, mode: str = "source"
) -> dict[str, Any]:
    """Make shipped code of a function.

    Args:
        func: The function, or where to import it from as ``"module:function"``, which is always a reference.
        args: Its keyword arguments: JSON data; texts may be templates.
        mode: ``source`` (suits an image with another Python), ``reference`` (to a module that is installed there) or
            ``cloudpickle`` (carries globals and closures; needs the same Python there, and cloudpickle).

    Returns:
        ``kind``, ``text``, ``entry``, ``args``, ``types`` (declared ones, for `coerce`) and ``digest``.

    Raises:
        ValueError: The function cannot travel this way, or the arguments do not fit it; one line says what to do.
    """
    if mode not in _MODES:
        raise ValueError(f"packaging={mode!r} is unknown; known are {', '.join(_MODES)}")
    if isinstance(func, str):
        return _code("reference", *_named(func, mode), arguments.check_json(args), {})
    _check_function(func, mode)
    text, entry = _CARRIERS[mode](func)
    return _code(mode, text, entry, arguments.check(func, args), arguments.declared_types(func))


def payload(code: Mapping[str, Any]) -> str:
    """Return the JSON text that a backend delivers at TRAINJOB_PAYLOAD for code that `package` made."""
    carried = {key: code[key] for key in ("kind", "text", "entry", "args", "digest") if key in code}
    return json.dumps(carried, allow_nan=False)


def shipped_files() -> dict[str, str]:
    """Return what every job carries beside its payload: text by path below the shipped folder, in a fixed order."""
    inside = sorted(Path(__file__).parent.joinpath("inside").glob("*.py"))
    shipped = {f"trainer_core/inside/{file.name}": file.read_text(encoding="utf-8") for file in inside}
    return {"trainer_core/__init__.py": _FACE, _MARKER: "", **shipped}


def ship(folder: Path) -> Path:
    """Write what every job carries into a folder, readable by its owner only; return the path of the bootstrap.

    Doing it again, or at the same time in several processes, changes nothing.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for relative, text in shipped_files().items():
        path, data = folder / relative, text.encode("utf-8")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            files.write(path, data)
    return folder / BOOTSTRAP


def _code(kind: str, text: str, entry: str, args: dict[str, Any], types: dict[str, str]) -> dict[str, Any]:
    digest = function.digest(kind, text, entry)
    return {"kind": kind, "text": text, "entry": entry, "args": args, "types": types, "digest": digest}


def _check_function(func: Callable[..., Any], mode: str) -> None:
    name = getattr(func, "__qualname__", type(func).__name__)
    if not callable(func):
        raise ValueError(f"func must be a function or 'module:function', got {type(func).__name__}")
    if _is_async_or_generator(func):
        raise ValueError(f"{name} is async or a generator, which nothing would run; give a function that runs it")
    if mode == "cloudpickle":
        return
    if isinstance(func, functools.partial):
        raise ValueError("func is a functools.partial; give the function itself, and what it binds in func_args")
    if inspect.ismethod(func):
        raise ValueError(
            f"{name} is a method, whose object cannot travel; give a function that makes the object inside"
        )
    if inspect.isclass(func) or not (inspect.isroutine(func) or inspect.isfunction(inspect.unwrap(func))):
        kind = "a class" if inspect.isclass(func) else f"an object of {type(func).__name__}"
        raise ValueError(f"func must be a function, got {kind}; give a function that makes and calls it inside")


def _is_async_or_generator(func: Callable[..., Any]) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (func, inspect.unwrap(func)))


def _named(text: str, mode: str) -> tuple[str, str]:
    """A reference given as text, and the name in it; nothing is imported to check it."""
    if mode == "cloudpickle":
        raise ValueError(f"func {text!r} is a reference and cannot be pickled; give the function itself")
    module, _, path = text.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ValueError(f"func must be a function or 'module:function', got {text!r}")
    return text, path


def _referred(func: Callable[..., Any]) -> tuple[str, str]:
    """A reference to a function, after a check that it leads back to it."""
    module, path = str(func.__module__), str(getattr(func, "__qualname__", ""))
    if module == "__main__":
        raise ValueError(
            f"{path} is defined in the program that was started (__main__), which cannot be imported elsewhere; "
            'move it into a module, or use packaging="source"'
        )
    if not _is_importable(module):
        raise ValueError(f'{module} (of {path}) is no module that can be imported by name; use packaging="source"')
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is not func:
        raise ValueError(
            f"{module}:{path} is not the function that was given (defined inside another one, or decorated); "
            'move it to the top of the module, or use packaging="source"'
        )
    return f"{module}:{path}", path


def _is_importable(module: str) -> bool:
    """Say whether a fresh process would find the module's package; a DAG file, say, is loaded under a made-up name."""
    top = module.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)


def _pickled(func: Callable[..., Any]) -> tuple[str, str]:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        raise ValueError(
            'packaging="cloudpickle" needs cloudpickle, here and in the job: pip install cloudpickle'
        ) from None
    name = getattr(func, "__qualname__", type(func).__name__)
    module = sys.modules.get(getattr(func, "__module__", None) or "")
    # By value, with the helpers of its module: whoever has the module there uses a reference.
    by_value = module is not None and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        data = cloudpickle.dumps(func)
    except Exception as error:  # Pickling runs code of any library.
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{name} cannot be pickled ({problem}); make what it uses inside the function") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    version = "{}.{}".format(*sys.version_info[:2])
    return f"{version}:{base64.b64encode(data).decode('ascii')}", name


_CARRIERS: dict[str, Callable[[Callable[..., Any]], tuple[str, str]]] = {
    "source": sources.source_of,
    "reference": _referred,
    "cloudpickle": _pickled,
}
