"""Small container components for tests of the KFP double: Python source that sees its executor input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl

#: What the source of a component finds: its inputs and outputs as KFP passes them.
_PRELUDE = """
import json, os, pathlib, sys, time
given = json.loads(sys.argv[1])
inputs, outputs = given["inputs"], given["outputs"]
parameters = inputs.get("parameterValues", {})
def artifact(name, side=outputs):
    return side["artifacts"][name]["artifacts"][0]
def path(name, side=outputs):
    found = pathlib.Path("/" + artifact(name, side)["uri"].replace("://", "/").replace("gs/", "gcs/"))
    return found
def write(name, text):
    pathlib.Path(outputs["parameters"][name]["outputFile"]).write_text(text)
def report(**content):
    file = pathlib.Path(outputs["outputFile"])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
def report_artifact(name, **fields):
    report(artifacts={name: {"artifacts": [fields]}})
"""


def run_python(source: str, *arguments: Any) -> dsl.ContainerSpec:
    """Return a container that runs Python source with the executor input as its first argument."""
    return dsl.ContainerSpec(
        image="python:3.11", command=["python3", "-c", _PRELUDE + source], args=["{{$}}", *arguments]
    )


def compiled(pipeline: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the documents that a pipeline compiles to."""
    path = folder / f"{pipeline.name}.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return list(yaml.safe_load_all(path.read_text()))
