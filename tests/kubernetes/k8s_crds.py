"""CRDs and runtimes of Kubeflow Trainer, and validation as strict as an API server with fieldValidation=Strict."""

from __future__ import annotations

import copy
import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trainer_core.backends.trainer_v2 import schema_compat
from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema

CRDS = Path(os.environ.get("TRAINJOB_CRD_DIR") or Path(__file__).parents[3] / "shared" / "crds")
_FILES = {
    "2.0": "older-trainer-crds/v2.0.1/trainer.kubeflow.org_trainjobs.yaml.gz",
    "2.1": "older-trainer-crds/v2.1.0/trainer.kubeflow.org_trainjobs.yaml.gz",
    "2.2": "older-trainer-crds/v2.2.1/trainer.kubeflow.org_trainjobs.yaml.gz",
    "2.3": "trainer-v2.3.0/crds/trainer.kubeflow.org_trainjobs.yaml",
}
VERSIONS = tuple(_FILES)
needs_crds = pytest.mark.skipif(not CRDS.is_dir(), reason=f"{CRDS} is absent; set TRAINJOB_CRD_DIR")


@cache
def crd(version: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of TrainJob of a Trainer version."""
    path = CRDS / _FILES[version]
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return yaml.safe_load(text)


@cache
def server(version: str = "2.3") -> TrainJobSchema:
    return schema_compat.parse_crd(crd(version))


@cache
def _runtimes() -> dict[str, dict[str, Any]]:
    files = (CRDS / "trainer-v2.3.0" / "runtimes").glob("*.yaml")
    found = [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    return {document["metadata"]["name"]: document for document in found}


def runtime(name: str) -> dict[str, Any]:
    """Return a copy of a stock runtime."""
    return copy.deepcopy(_runtimes()[name])


def stock_runtimes() -> list[str]:
    return sorted(_runtimes()) if CRDS.is_dir() else []


def problems(train_job: dict[str, Any], version: str) -> list[str]:
    """Return the validation errors of a TrainJob, including unknown fields."""
    judge = jsonschema.Draft202012Validator(_strict(schema(version)))
    return [f"{error.json_path}: {error.message}" for error in judge.iter_errors(train_job)]


def schema(version: str) -> dict[str, Any]:
    return crd(version)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def _strict(schema: Any) -> Any:
    """Return a structural schema that refuses unknown fields, except in metadata."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items() if not key.startswith("x-kubernetes")}
    if "properties" in schema and isinstance(schema["properties"], dict) and "type" in schema:
        made["additionalProperties"] = False
    return made
