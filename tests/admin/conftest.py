"""The runtimes that Trainer 2.3.0 brings, and the schema of its CRDs."""

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
    """Trainer's own runtimes by name."""
    files = (crds / "runtimes").glob("*.yaml")
    return {each["metadata"]["name"]: each for each in map(_read, files)}


@pytest.fixture(scope="session")
def schema(crds):
    """Says what breaks the schema of ClusterTrainingRuntimes; unknown fields do, too."""
    crd = _read(crds / "crds" / "trainer.kubeflow.org_clustertrainingruntimes.yaml")
    form = _closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    form["properties"]["metadata"] = {"type": "object"}
    validator = Draft202012Validator(form)
    return lambda runtime: [f"{error.json_path}: {error.message}" for error in validator.iter_errors(runtime)]


def _read(path):
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def _closed(form):
    """The schema with unknown fields refused, as with fieldValidation=Strict."""
    if isinstance(form, list):
        return [_closed(each) for each in form]
    if not isinstance(form, dict):
        return form
    closed = {key: _closed(value) for key, value in form.items() if key != "default"}
    if "properties" in form and not form.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
