"""A definition in YAML → the arguments of `TrainerClient.request`, or the request itself.

Two spellings: a friendly one with the fields of the trainer and the initializer, and the request as
`TrainJobRequest.to_json` writes it, which is known by its ``version``.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.cli.files import documents
from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.initializers import initializer_from_dict
from trainer_core.named_options import options_from
from trainer_core.options import ActiveDeadlineSeconds, Annotations, Labels, Name, Suspend
from trainer_core.request import TrainJobRequest

__all__ = ["function", "options", "read", "request"]

#: Keys that are short for an option.
_SHORT = {
    "name": Name,
    "labels": Labels,
    "annotations": Annotations,
    "active_deadline_seconds": ActiveDeadlineSeconds,
}
_KNOWN = ("name", "runtime", "trainer", "initializer", "options", *list(_SHORT)[1:], "suspend")


def read(path: str) -> dict[str, Any]:
    """Read a definition from a file, or from standard input for ``-``.

    Raises:
        InvalidRequestError: It cannot be read, or is no mapping.
    """
    found = documents(path)
    if len(found) != 1 or not isinstance(found[0], dict):
        got = f"{len(found)} documents" if len(found) != 1 else type(found[0]).__name__
        raise InvalidRequestError(f"{path} must hold a mapping with trainer: and runtime:, got {got}")
    return found[0]


def request(client: TrainerClient, data: Mapping[str, Any]) -> TrainJobRequest:
    """Build the request of a definition.

    Raises:
        ValueError: An unknown key, or a value that cannot be right.
    """
    if "version" in data:
        return TrainJobRequest.parse(data)
    unknown = sorted(str(key) for key in data if key not in _KNOWN)
    if unknown:
        raise InvalidRequestError(f"unknown key {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    initializer = data.get("initializer")
    return client.request(
        runtime=data.get("runtime"),
        trainer=_trainer(data["trainer"]) if data.get("trainer") is not None else None,
        initializer=initializer_from_dict(initializer) if initializer else None,
        options=options(data),
    )


def options(data: Mapping[str, Any]) -> list[Any]:
    """Return the options of a definition: those under ``options``, and those that other keys are short for.

    Raises:
        ValueError: An unknown option, or a value that cannot be right.
    """
    if not isinstance(data.get("suspend") or False, bool):
        # A text such as "no" would be true.
        raise InvalidRequestError(f"suspend must be true or false, got {data['suspend']!r}")
    short = [kind(data[key]) for key, kind in _SHORT.items() if data.get(key) is not None]
    return [*short, *([Suspend()] if data.get("suspend") else []), *options_from(data.get("options"))]


def function(reference: str) -> Any:
    """Import a function by ``module:function``; the working directory comes first, as for `python -m`.

    Raises:
        InvalidRequestError: It cannot be imported.
    """
    module_name, _, path = reference.partition(":")
    if not module_name or module_name.startswith(".") or not path:
        raise InvalidRequestError(f"{reference!r} must be module:function, such as train:main for main() in train.py")
    found = _imported(module_name, reference)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            functions = [each for each, _ in inspect.getmembers(found, inspect.isfunction)]
            raise InvalidRequestError(
                f"{reference!r} cannot be imported: {error}; it has the functions {', '.join(functions) or '(none)'}"
            ) from error
    return found


def _imported(module: str, reference: str) -> Any:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"{reference!r} cannot be imported from {folder}: {error}; {_remedy(module, error.name or '')}"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidRequestError(
            f"{reference!r} cannot be imported from {folder}: {type(error).__name__}: {error}"
        ) from error
    finally:
        with suppress(ValueError):  # The module may have changed the search path.
            sys.path.remove(folder)


def _remedy(wanted: str, missing: str) -> str:
    if wanted == missing or wanted.startswith(f"{missing}."):
        return f"go to the folder where {missing} lies, or install it"
    return f"install {missing}, or import it inside the function"


def _trainer(data: Any) -> Any:
    """A function named in a file is packaged from its source, unless the file says otherwise."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"trainer must be a mapping with func:, image: or config:, got {type(data).__name__}")
    named = isinstance(data.get("func"), str) and data.get("packaging", "source") != "reference"
    return {**data, "func": function(data["func"])} if named else data
