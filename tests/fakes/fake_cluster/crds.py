"""CustomResourceDefinitions and stock runtimes from tests/fakes/api_schemas, and validation of objects by them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

from fake_cluster import structural

TRAINER_VERSIONS = ("2.0", "2.1", "2.2", "2.3")
_FOLDER = Path(__file__).parents[1] / "api_schemas"
_OTHERS = ("jobset.x-k8s.io-0.12", "kubeflow.org-1.9")


@cache
def definitions(trainer: str) -> tuple[dict[str, Any], ...]:
    """Return the definitions of a release of Trainer, of JobSet and of the Training Operator; not to be changed."""
    if trainer not in TRAINER_VERSIONS:
        raise LookupError(f"no Trainer {trainer}: there are {', '.join(TRAINER_VERSIONS)}")
    files = (f"trainer.kubeflow.org-{trainer}", *_OTHERS)
    return tuple(raw for file in files for raw in read_facts(file).values())


def definition(kind: str, trainer: str = "2.3") -> dict[str, Any]:
    return next(raw for raw in definitions(trainer) if raw["spec"]["names"]["kind"] == kind)


def schema(kind: str, trainer: str = "2.3") -> dict[str, Any]:
    (version,) = definition(kind, trainer)["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def list_violations(raw: Mapping[str, Any], trainer: str = "2.3") -> list[str]:
    """Return unknown fields, and what else a server refuses by the schema of the object's kind."""
    kept = copy.deepcopy(dict(raw))
    unknown = structural.prune(kept, schema(raw["kind"], trainer))
    errors = _validator(raw["kind"], trainer).iter_errors(kept)
    return [*(f"{path}: unknown field" for path in unknown), *(f"{each.json_path}: {each.message}" for each in errors)]


@cache
def _validator(kind: str, trainer: str) -> Draft7Validator:
    return Draft7Validator(structural.translated(schema(kind, trainer)))


def stock_runtimes() -> dict[str, dict[str, Any]]:
    """Return the runtimes that come with Trainer 2.3, by name; each call returns new objects."""
    return read_facts("runtimes-2.3")


def read_facts(file: str, folder: Path = _FOLDER) -> dict[str, Any]:
    """Return the content of a file. A part that is stored once is the same object wherever it is used."""
    return {name: _resolve(raw, folder) for name, raw in _read(folder / f"{file}.json").items()}


def _resolve(node: Any, folder: Path) -> Any:
    if isinstance(node, list):
        return [_resolve(inner, folder) for inner in node]
    if not isinstance(node, dict):
        return node
    return _shared(node["$ref"], folder) if "$ref" in node else {key: _resolve(node[key], folder) for key in node}


@cache
def _shared(name: str, folder: Path) -> Any:
    return _resolve(_shared_parts(folder)[name], folder)


@cache
def _shared_parts(folder: Path) -> dict[str, Any]:
    return _read(folder / "shared.json")


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
