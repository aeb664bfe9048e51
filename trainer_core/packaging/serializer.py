"""Package a function (source, reference or pickle) as a JSON document, with the programs that load it. No shell."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import inspect
import json
import keyword
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainer_core.base.secrets import redact
from trainer_core.model import func_args
from trainer_core.node import files, load_function
from trainer_core.packaging import project_functions, source_extraction
from trainer_core.packaging.project import Project

#: The program of each node process, relative to the folder of `ship`.
BOOTSTRAP = "trainer_core/node/bootstrap.py"
_MODES = ("source", "reference", "cloudpickle")
#: Tells `bootstrap` that its package travelled with the job.
_MARKER = "trainer_core/SHIPPED"
_INIT_MODULE = '''"""What a training function can import from trainer_core where the package is not installed."""

from trainer_core.node.checkpoints import checkpoint_path, checkpoints
from trainer_core.node.hyperparameters import get_hyperparameters
from trainer_core.node.paths import dataset_path, model_path, output_path
from trainer_core.node.progress import progress, report_metrics
from trainer_core.node.trainer_status import update_trainjob_status

__all__ = [
    "checkpoint_path", "checkpoints", "dataset_path", "get_hyperparameters", "model_path", "output_path", "progress",
    "report_metrics", "update_trainjob_status",
]
'''


def package(
    func: Callable[..., Any] | str,
    args: Mapping[str, Any] | None = None,
    mode: str = "source",
    project: Project | None = None,
) -> dict[str, Any]:
    if mode not in _MODES:
        raise ValueError(f"packaging={redact(mode)} is unknown; known are {', '.join(_MODES)}")
    if project is not None:
        return _package_with_project(func, args, mode, project)
    if isinstance(func, str):
        return _code("reference", *_named(func, mode), func_args.check_json(args), {})
    _check_function(func, mode)
    text, entry = _SERIALIZERS[mode](func)
    code = _code(mode, text, entry, func_args.check_func_args(func, args), func_args.declared_types(func))
    origin = source_extraction.find_origin(func, text) if mode == "source" else None
    return {**code, "origin": origin} if origin else code


def _package_with_project(
    func: Callable[..., Any] | str, args: Mapping[str, Any] | None, mode: str, project: Project
) -> dict[str, Any]:
    reference = func if isinstance(func, str) else project_functions.find_reference(func, project)
    if reference is None or (mode == "cloudpickle" and not isinstance(func, str)):
        return {**package(func, args, mode), "project": project.pack(project_functions.list_roots(project))}
    text, entry = _named(reference, mode)
    module = project_functions.find_module(reference, project, func)
    signature = func if callable(func) else project_functions.read_signature(reference, module)
    if signature is None:
        code = _code("reference", text, entry, func_args.check_json(args), {})
    else:
        _check_function(signature, mode)
        plain, types = func_args.check_func_args(signature, args), func_args.declared_types(signature)
        code = _code("reference", text, entry, plain, types)
    return {**code, "project": module.project.pack(module.roots)}


def payload(code: Mapping[str, Any]) -> str:
    """Return the JSON text that a backend delivers at TRAINJOB_PAYLOAD for packaged code."""
    names = ("kind", "text", "entry", "args", "digest", "origin", "project")
    fields = {key: code[key] for key in names if code.get(key) is not None}
    if "project" in fields:
        # The files travel either in the payload or through their object.
        left_out = "archive" if fields["project"].get("uri") else "uri"
        fields["project"] = {key: value for key, value in fields["project"].items() if key != left_out}
    return json.dumps(fields, allow_nan=False)


@cache
def shipped_files() -> Mapping[str, str]:
    """Return the files that travel with every job: text by relative path, in a fixed order."""
    files_of_node = sorted(Path(__file__).parents[1].joinpath("node").glob("*.py"))
    shipped = {f"trainer_core/node/{file.name}": file.read_text(encoding="utf-8") for file in files_of_node}
    return MappingProxyType({"trainer_core/__init__.py": _INIT_MODULE, _MARKER: "", **shipped})


@cache
def compute_kit_digest() -> str:
    """Return the name of the files that travel with every job: other files have another one."""
    return hashlib.sha256(json.dumps(list(shipped_files().items())).encode()).hexdigest()[:16]


def ship(folder: Path) -> Path:
    """Write the files of every job, for this user only, where missing or damaged; return the bootstrap program."""
    for parent in (folder, folder / "trainer_core", folder / "trainer_core/node"):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in (folder / "trainer_core", folder / "trainer_core/node"):
        # A file, so that Python stores no compiled files: one that a full disk has cut would break all later jobs.
        parent.joinpath("__pycache__").touch(mode=0o600)
    for relative, text in shipped_files().items():
        path, data = f"{folder}/{relative}", text.encode()
        if not _is_equal(path, data):
            files.replace(Path(path), data)
    return folder / BOOTSTRAP


def _is_equal(path: str, data: bytes) -> bool:
    """Compare a file with its content. Without `Path`: a submit calls it for 33 files."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read() == data
    except FileNotFoundError:
        return False


def _code(kind: str, text: str, entry: str, args: dict[str, Any], types: dict[str, str]) -> dict[str, Any]:
    digest = load_function.digest(kind, text, entry)
    return {"kind": kind, "text": text, "entry": entry, "args": args, "types": types, "digest": digest}


def _check_function(func: Callable[..., Any], mode: str) -> None:
    name = getattr(func, "__qualname__", type(func).__name__)
    if not callable(func):
        raise ValueError(f"func must be a function or 'module:function', got {type(func).__name__}")
    if _is_async_or_generator(func):
        raise ValueError(f"{name} is async or a generator, which is never run; pass a plain function that runs it")
    if mode == "cloudpickle":
        return
    if isinstance(func, functools.partial):
        raise ValueError("func is a functools.partial; pass the function itself and its bound arguments in func_args")
    if inspect.ismethod(func):
        raise ValueError(
            f"{name} is a method, whose object cannot be packaged; pass a function that creates the object in its body"
        )
    if inspect.isclass(func) or not (inspect.isroutine(func) or inspect.isfunction(inspect.unwrap(func))):
        kind = "a class" if inspect.isclass(func) else f"an object of {type(func).__name__}"
        raise ValueError(f"func must be a function, got {kind}; pass a function that creates and calls it in its body")


def _is_async_or_generator(func: Callable[..., Any]) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (func, inspect.unwrap(func)))


def _named(text: str, mode: str) -> tuple[str, str]:
    """Return a reference given as text, and the function name in it, without importing it."""
    if mode == "cloudpickle":
        raise ValueError(f"func {redact(text)} is a reference and cannot be pickled; pass the function itself")
    module, _, path = text.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ValueError(f"func must be a function or 'module:function', got {redact(text)}")
    return text, path


def _referred(func: Callable[..., Any]) -> tuple[str, str]:
    """Return a reference to a function, after checking that it leads back to the function."""
    module, path = str(func.__module__), str(getattr(func, "__qualname__", ""))
    if module == "__main__":
        raise ValueError(
            f"{path} is defined in __main__, which cannot be imported in the job; "
            'move it into a module, or use packaging="source"'
        )
    if not _is_importable(module):
        raise ValueError(f'{module} (of {path}) cannot be imported by name in the job; use packaging="source"')
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is not func:
        raise ValueError(
            f"{module}:{path} is another object than the given function (which is nested or decorated); "
            'move it to the top level of the module, or use packaging="source"'
        )
    return f"{module}:{path}", path


def _is_importable(module: str) -> bool:
    """Return whether another process can import the package of a module; a DAG file has a made-up module name."""
    top = module.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)


def _pickled(func: Callable[..., Any]) -> tuple[str, str]:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        raise ValueError(
            'packaging="cloudpickle" requires cloudpickle, here and in the job: pip install cloudpickle'
        ) from None
    name = getattr(func, "__qualname__", type(func).__name__)
    left_out = source_extraction.find_unpickled_names(func)
    if left_out:
        remedy = 'use the names themselves, in a function, or send the files with code="path/to/project"'
        raise ValueError(f"{name} looks up {', '.join(left_out)}, which its pickle would not contain; {remedy}")
    module = sys.modules.get(getattr(func, "__module__", None) or "")
    # By value, with the helpers of its module: a job that has the module uses a reference instead.
    by_value = module is not None and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        data = cloudpickle.dumps(func)
    except Exception as error:  # Pickling runs code of other libraries.
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{name} cannot be pickled ({problem}); create the objects that it uses in the function"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    version = "{}.{}".format(*sys.version_info[:2])
    return f"{version}:{base64.b64encode(data).decode('ascii')}", name


_SERIALIZERS: dict[str, Callable[[Callable[..., Any]], tuple[str, str]]] = {
    "source": source_extraction.extract_source,
    "reference": _referred,
    "cloudpickle": _pickled,
}
