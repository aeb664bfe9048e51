"""tools/api_schemas.py keeps all that a server validates with, and the double reads it back."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import yaml
from fake_cluster import crds

TOOL = Path(__file__).parents[2] / "tools" / "api_schemas.py"
FOLDER = Path(__file__).parents[1] / "fakes" / "api_schemas"


def build_pod(text):
    """Return a part that occurs several times, with properties that are called like keywords for texts."""
    return {
        **text,
        "type": "object",
        "required": ["title", "description"],
        "properties": {
            "title": {**text, "type": "string", "maxLength": 3, "enum": ["a", "b"]},
            "description": {"type": "string", "pattern": "^[a-z]{1,3}$", "default": "description"},
            "properties": {"properties": {"example": {**text, "minimum": 1}}, "not": {**text, "required": ["title"]}},
            "size": {"anyOf": [{**text, "type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
            "ports": {
                "items": {"properties": {"port": {**text, "format": "int32"}}, "type": "object"},
                "x-kubernetes-list-map-keys": ["port"],
                "x-kubernetes-list-type": "map",
            },
            "labels": {"additionalProperties": {**text, "type": "string"}, "type": "object"},
        },
        "x-kubernetes-validations": [{"message": "title is immutable", "rule": "self.title == oldSelf.title"}],
    }


def build_definition(text, *names):
    """Return a definition of TrainJob whose properties with these names are pods."""
    schema = {**text, "type": "object", "properties": {name: build_pod(text) for name in names}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trainjobs.trainer.kubeflow.org"},
        "spec": {
            "group": "trainer.kubeflow.org",
            "names": {"kind": "TrainJob", "plural": "trainjobs"},
            "scope": "Namespaced",
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def test_the_tool_drops_texts_and_nothing_else(tmp_path):
    upstream, into = tmp_path / "upstream", tmp_path / "into"
    older, newer = upstream / "older" / "v2.0.1", upstream / "trainer-v2.1.0" / "crds"
    runtimes = upstream / "trainer-v2.1.0" / "runtimes"
    for folder in (older, newer, runtimes, into):
        folder.mkdir(parents=True)
    text = {"description": "a text", "title": "a text", "example": {"type": "a text"}}
    runtime = {"kind": "ClusterTrainingRuntime", "metadata": {"name": "mine"}, "spec": {"description": "kept"}}
    definitions = {"2.0": build_definition(text, "pod"), "2.1": build_definition(text, "pod", "template")}
    (older / "trainjobs.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump(definitions["2.0"]).encode()))
    (newer / "trainjobs.yaml").write_text(yaml.safe_dump(definitions["2.1"], sort_keys=False))
    (runtimes / "mine.yaml").write_text(f"# a comment\n---\n{yaml.safe_dump(runtime)}")

    subprocess.run([sys.executable, TOOL, upstream, "--into", into], check=True, capture_output=True)

    read = {release: crds.read_facts(f"trainer.kubeflow.org-{release}", into) for release in definitions}
    assert read["2.0"] == {"TrainJob": build_definition({}, "pod")}
    assert read["2.1"] == {"TrainJob": build_definition({}, "pod", "template")}
    # A server reports violations in the order of the keys.
    assert json.dumps(read["2.1"]["TrainJob"]) == json.dumps(build_definition({}, "pod", "template"))
    assert crds.read_facts("runtimes-2.1", into) == {"mine": runtime}


def test_a_part_that_occurs_more_than_once_is_stored_once(tmp_path):
    (tmp_path / "v2.0").mkdir()
    (tmp_path / "v2.0" / "trainjobs.yaml").write_text(yaml.safe_dump(build_definition({}, "pod", "template")))

    subprocess.run([sys.executable, TOOL, tmp_path, "--into", tmp_path], check=True, capture_output=True)

    written = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert written.count("title is immutable") == 1


def test_the_facts_of_all_releases_are_small_and_have_no_descriptions():
    files = list(FOLDER.glob("*.json"))
    assert sum(path.stat().st_size for path in files) < 300_000
    assert [path.name for path in files if '"description":"' in path.read_text()] == []
