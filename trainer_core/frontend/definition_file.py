"""Definition files: a TrainJob in YAML or JSON, by the fields of its trainer, or as a request with its ``version``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.base.yaml_documents import MAX_LENGTH, parse_yaml
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.definition.options import ActiveDeadlineSeconds, Annotations, Labels, Name, Suspend
from trainer_core.definition.request_builder import parse_options, select_backend
from trainer_core.model.request import TrainJobRequest
from trainer_core.packaging.requirements_file import suggest_requirements

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

#: Keys that are short for an option.
_OPTION_KEYS = {
    "name": Name,
    "labels": Labels,
    "annotations": Annotations,
    "active_deadline_seconds": ActiveDeadlineSeconds,
}
_KNOWN = ("name", "runtime", "trainer", "initializer", "options", *list(_OPTION_KEYS)[1:], "suspend")


def read_definition(path: str) -> dict[str, Any]:
    """Read a definition from a file."""
    documents = read_yaml_documents(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        got = f"{len(documents)} documents" if len(documents) != 1 else type(documents[0]).__name__
        raise InvalidRequestError(f"{path} must hold one mapping with trainer: and runtime:, got {got}")
    return documents[0]


def build_definition_request(
    client: TrainerClient, data: Mapping[str, Any], folder: Path | None = None
) -> TrainJobRequest:
    """Build the request of a definition."""
    if "version" in data:
        return TrainJobRequest.parse(select_backend(data, client.backend))
    unknown = sorted(str(key) for key in data if key not in _KNOWN)
    if unknown:
        raise InvalidRequestError(f"definition has the unknown key {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    initializer = data.get("initializer")
    return client.build_request(
        runtime=data.get("runtime"),
        trainer=_read_trainer(data["trainer"]) if data.get("trainer") is not None else None,
        initializer=initializer_from_dict(initializer) if initializer else None,
        options=collect_options(data),
        folder=folder,
    )


def collect_options(data: Mapping[str, Any]) -> list[Any]:
    """Return the options of a definition: those under ``options``, and those of the keys that are short for one."""
    if not isinstance(data.get("suspend") or False, bool):
        # A text such as "no" would be true.
        raise InvalidRequestError(f"suspend must be true or false, got {redact(data['suspend'])}")
    short = [option(data[key]) for key, option in _OPTION_KEYS.items() if data.get(key) is not None]
    if data.get("suspend"):
        short.append(Suspend())
    return [*short, *parse_options(data.get("options"))]


def import_function(reference: str) -> Any:
    """Import a function. The working directory comes first in the search path, as for ``python -m``."""
    module_name, _, path = reference.partition(":")
    if not module_name or module_name.startswith(".") or not path:
        raise InvalidRequestError(
            f"{redact(reference)} must be module:function, such as train:main for main() in train.py"
        )
    value = _import_module(module_name, reference)
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            functions = [each for each, _ in inspect.getmembers(value, inspect.isfunction)]
            raise InvalidRequestError(
                f"{redact(reference)} cannot be imported: {error}; it has the functions "
                f"{', '.join(functions) or '(none)'}"
            ) from error
    return value


def read_yaml_documents(path: str, kubernetes: bool = False) -> list[Any]:
    """Return the documents of a YAML file, without empty ones; those of Kubernetes as kubectl reads them."""
    try:
        return parse_yaml(_read_text(path), kubernetes)
    except FileNotFoundError as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {Path(path).absolute()} does not exist; give the path of a YAML file, or - for "
            "standard input"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def _read_text(path: str) -> str:
    # One character more than is valid: a device or a pipe may have no end.
    if path == "-":
        return sys.stdin.read(MAX_LENGTH + 1)
    with Path(path).open(encoding="utf-8") as file:
        return file.read(MAX_LENGTH + 1)


def _import_module(module: str, reference: str) -> Any:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"{redact(reference)} cannot be imported from {folder}: {error}; {_suggest(module, error.name or '')}"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidRequestError(
            f"{redact(reference)} cannot be imported from {folder}: {type(error).__name__}: {error}"
        ) from error
    finally:
        with suppress(ValueError):  # The module may have changed the search path.
            sys.path.remove(folder)


def _suggest(wanted: str, missing: str) -> str:
    if wanted.endswith(".py") and Path(wanted).is_file():
        return f"write the module without .py: {wanted.removesuffix('.py').replace('/', '.')}"
    if wanted == missing or wanted.startswith(f"{missing}."):
        return f"change to the folder that contains {missing}, or install it"
    named = suggest_requirements(missing, Path.cwd())
    return f"install {missing}, or import it inside the function{f' ({named})' if named else ''}"


def _read_trainer(data: Any) -> Any:
    """Import the function that a definition names, to package its source, unless it is imported where it trains."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"trainer must be a mapping with func:, image: or config:, got {type(data).__name__}")
    is_reference = data.get("packaging", "source") == "reference" or data.get("code") is not None
    needs_import = isinstance(data.get("func"), str) and not is_reference
    return {**data, "func": import_function(data["func"])} if needs_import else data
