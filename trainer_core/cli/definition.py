"""A definition in YAML → the arguments of `TrainerClient.request`, or the request itself.

Two spellings: a friendly one with the fields of the trainer and the initializer, and the request as `trainjob render`
and `TrainJobRequest.to_json` write it, which is known by its ``version``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError
from trainer_core.initializers import initializer_from_dict
from trainer_core.options import ActiveDeadlineSeconds, Annotations, Labels, Name, Suspend
from trainer_core.request import TrainJobRequest

__all__ = ["function", "options", "read", "request"]

_KNOWN = ("name", "runtime", "trainer", "initializer", "labels", "annotations", "active_deadline_seconds", "suspend")


def read(path: str) -> dict[str, Any]:
    """Read a definition from a file, or from standard input for ``-``.

    Raises:
        InvalidRequestError: It cannot be read, or is no mapping.
    """
    try:
        data = yaml.safe_load(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError(f"{path} must hold a mapping with trainer: and runtime:, got {type(data).__name__}")
    return data


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
    """Return the options that a definition's keys stand for."""
    kinds = {
        "name": Name,
        "labels": Labels,
        "annotations": Annotations,
        "active_deadline_seconds": ActiveDeadlineSeconds,
    }
    given = [kind(data[key]) for key, kind in kinds.items() if data.get(key) is not None]
    return [*given, Suspend()] if data.get("suspend") else given


def function(reference: str) -> Any:
    """Import a function by ``module:function``; the working directory comes first, as for `python -m`.

    Raises:
        InvalidRequestError: It cannot be imported.
    """
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise InvalidRequestError(f"{reference!r} must be module:function, such as train:main for main() in train.py")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise InvalidRequestError(f"{reference!r} cannot be imported from {Path.cwd()}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    return found


def _trainer(data: Any) -> Any:
    """A function named in a file is packaged from its source, unless the file says otherwise."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"trainer must be a mapping with func:, image: or config:, got {type(data).__name__}")
    named = isinstance(data.get("func"), str) and data.get("packaging", "source") != "reference"
    return {**data, "func": function(data["func"])} if named else data
