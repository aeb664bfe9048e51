#!/usr/bin/env python
"""Write tests/fakes/api_schemas from the CustomResourceDefinitions and runtimes of upstream releases.

    tools/api_schemas.py FOLDER

FOLDER holds YAML files, also gzipped, in one folder per release with ``v`` and the version in its name, at any depth.
Runtimes are in folders called ``runtimes``. tests/fakes/api_schemas/README.md names the releases.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

INTO = Path(__file__).resolve().parents[1] / "tests" / "fakes" / "api_schemas"
KINDS = ("ClusterTrainingRuntime", "JobSet", "PyTorchJob", "TrainJob", "TrainingRuntime")
_Files = dict[str, dict[str, Any]]
#: Keywords that document a field and validate nothing.
_TEXTS = {"description", "example", "externalDocs", "title"}
#: Length of the JSON from which a repeated part is stored once.
_WORTH_SHARING = 200


def read_objects(folder: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield path, release (``2.3``) and content of each object of the YAML files."""
    for path in sorted(folder.rglob("*.yaml*")):
        versions = re.findall(r"v(\d+\.\d+)", str(path.parent.relative_to(folder)))
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        for raw in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if versions and isinstance(raw, dict):
                yield path, versions[-1], raw


def collect_facts(folder: Path) -> tuple[_Files, _Files]:
    """Return the definitions and the runtimes, by file name and by the name of the object."""
    definitions: _Files = {}
    runtimes: _Files = {}
    for path, release, raw in read_objects(folder):
        if raw.get("kind") == "CustomResourceDefinition" and raw["spec"]["names"]["kind"] in KINDS:
            file = definitions.setdefault(f"{raw['spec']['group']}-{release}", {})
            file[raw["spec"]["names"]["kind"]] = reduce_definition(raw)
        elif raw.get("kind") == "ClusterTrainingRuntime" and path.parent.name == "runtimes":
            runtimes.setdefault(f"runtimes-{release}", {})[raw["metadata"]["name"]] = raw
    return definitions, runtimes


def reduce_definition(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a CustomResourceDefinition without printer columns, annotations and descriptions."""
    versions = []
    for version in raw["spec"]["versions"]:
        schema = {"openAPIV3Schema": reduce_schema(version["schema"]["openAPIV3Schema"])}
        kept = {key: version[key] for key in ("name", "served", "storage", "subresources") if key in version}
        versions.append({**kept, "schema": schema})
    spec = {key: raw["spec"][key] for key in ("group", "names", "scope")}
    return {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "metadata": {"name": raw["metadata"]["name"]},
        "spec": {**spec, "versions": versions},
    }


def reduce_schema(schema: Any) -> Any:
    """Return a schema without descriptions. A property may well be called ``description``."""
    if not isinstance(schema, dict):
        return schema
    reduced: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            reduced[key] = {name: reduce_schema(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties", "not"):
            reduced[key] = reduce_schema(value)
        elif key in ("allOf", "anyOf", "oneOf"):
            reduced[key] = [reduce_schema(inner) for inner in value]
        elif key not in _TEXTS:
            reduced[key] = value
    return reduced


class Shared:
    """The parts that occur more than once, such as the pod template, each under a name."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.parts: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._taken: Counter[str] = Counter()
        self._occurrences: Counter[str] = Counter()
        self._count(files)

    def _count(self, node: Any) -> None:
        if isinstance(node, dict):
            text = to_json(node)
            self._occurrences[text] += 1
            if self._occurrences[text] > 1:
                return
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            self._count(inner)

    def refer(self, node: Any, key: str = "") -> Any:
        """Return a node with a ``$ref`` in place of each shared part; a part is called like the key it first has."""
        if isinstance(node, list):
            return [self.refer(inner, key) for inner in node]
        if not isinstance(node, dict):
            return node
        text = to_json(node)
        if len(text) < _WORTH_SHARING or self._occurrences[text] == 1:
            return {name: self.refer(inner, name) for name, inner in node.items()}
        if text not in self._names:
            self._taken[key] += 1
            name = self._names[text] = f"{key}-{self._taken[key]}"
            self.parts[name] = {name: self.refer(inner, name) for name, inner in node.items()}
        return {"$ref": self._names[text]}


def to_json(node: Any) -> str:
    """Return compact JSON. The order of keys is kept: a server reports violations in this order."""
    return json.dumps(node, separators=(",", ":"))


def write(folder: Path, into: Path) -> list[Path]:
    """Write the facts of upstream files, and return the written files."""
    definitions, runtimes = collect_facts(folder)
    shared = Shared(definitions)
    files = {name: shared.refer(definition) for name, definition in definitions.items()}
    written = []
    for name, content in {**files, **runtimes, "shared": shared.parts}.items():
        lines = ",\n".join(f"{to_json(key)}:{to_json(value)}" for key, value in sorted(content.items()))
        path = into / f"{name}.json"
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, default=INTO, help="where to write; default: tests/fakes/api_schemas")
    arguments = parser.parse_args()
    for path in write(arguments.folder, arguments.into):
        print(f"{path.stat().st_size:7} {path.name}")


if __name__ == "__main__":
    main()
