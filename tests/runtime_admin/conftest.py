"""The runtimes and CRD schemas of Trainer 2.3.0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

CRDS = Path(os.environ.get("TRAINJOB_CRD_DIR") or Path(__file__).parents[3] / "shared" / "crds")
TRAINER = CRDS / "trainer-v2.3.0"


@pytest.fixture(scope="session")
def crds():
    if not TRAINER.is_dir():
        pytest.skip(f"{TRAINER} is absent; set TRAINJOB_CRD_DIR")
    return TRAINER


@pytest.fixture(scope="session")
def stock(crds):
    """The runtimes that Trainer installs, by name."""
    files = (crds / "runtimes").glob("*.yaml")
    return {each["metadata"]["name"]: each for each in map(_read, files)}


@pytest.fixture(scope="session")
def schema(crds):
    """Return a function that lists violations of the ClusterTrainingRuntime schema, including unknown fields."""
    crd = _read(crds / "crds" / "trainer.kubeflow.org_clustertrainingruntimes.yaml")
    schema = _refuse_unknown_fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    validator = Draft202012Validator(schema)
    return lambda runtime: [f"{error.json_path}: {error.message}" for error in validator.iter_errors(runtime)]


def _read(path):
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def _refuse_unknown_fields(schema):
    """Return the schema with unknown fields refused, as fieldValidation=Strict does."""
    if isinstance(schema, list):
        return [_refuse_unknown_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _refuse_unknown_fields(value) for key, value in schema.items() if key != "default"}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
