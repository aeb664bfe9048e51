"""Stands in for the driver and launcher of a KFP backend: makes executor inputs, runs the component's own program."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kfp_components.step import entrypoint
from trainer_core import CustomTrainer
from trainer_core.client import backend_for
from trainer_core.definition import request_builder

REPOSITORY = Path(__file__).parents[2]
#: Id of the run, unless a test gives another one.
RUN_ID = "id-of-the-run"
COMPONENTS = REPOSITORY / "kfp_components" / "components"


def document(component: str) -> dict[str, Any]:
    """The committed YAML of a component."""
    return yaml.safe_load((COMPONENTS / f"{component}.yaml").read_text())


def component_spec(component: str) -> dict[str, Any]:
    (spec,) = document(component)["components"].values()
    return spec


def container(component: str) -> dict[str, Any]:
    (executor,) = document(component)["deploymentSpec"]["executors"].values()
    return executor["container"]


def request_for(func: Any, func_args: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    trainer = CustomTrainer(func=func, func_args=func_args, **fields)
    return request_builder.build_request_data(backend=backend_for("local"), runtime="python", trainer=trainer)


def compiled(pipeline: Any, folder: Path) -> list[dict[str, Any]]:
    """What a pipeline compiles to: itself, and what it asks of Kubernetes, if anything."""
    from kfp import compiler

    compiler.Compiler().compile(pipeline, str(folder / "pipeline.yaml"))
    return list(yaml.safe_load_all((folder / "pipeline.yaml").read_text()))


@dataclass
class DrivenTask:
    """One task of a run: what its component is given, and where its outputs go."""

    component: str
    #: Of this task; equal for the retries of a task.
    folder: Path
    #: Input parameters; those left out are not in the executor input at all.
    parameters: dict[str, Any]
    artifacts: dict[str, Path]
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def executor_input(self) -> str:
        outputs = component_spec(self.component).get("outputDefinitions", {})
        declared = component_spec(self.component)["inputDefinitions"].get("parameters", {})
        run = {name: value for name, value in (("run_id", RUN_ID), ("task_name", "task")) if name in declared}
        inputs = {
            "parameterValues": _as_a_struct({**run, **self.parameters}),
            "artifacts": {
                name: _artifacts(name, str(path), self.facts.get(name)) for name, path in self.artifacts.items()
            },
        }
        places = {
            "parameters": {name: {"outputFile": str(self._output(name))} for name in outputs.get("parameters", {})},
            "artifacts": {
                # KFP adds its log to the outputs of every task.
                name: _artifacts(name, str(self.artifact(name)))
                for name in (*outputs.get("artifacts", {}), "executor-logs")
            },
            "outputFile": str(self.folder / "outputs" / "executor_output.json"),
        }
        return json.dumps({"inputs": inputs, "outputs": places})

    @property
    def command(self) -> list[str]:
        spec = container(self.component)
        (python, *rest), (target, placeholder, *options) = spec["command"], spec["args"]
        assert (python, placeholder) == ("python3", "{{$}}")
        return [sys.executable, *rest, target, self.executor_input, *options]

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in this process: to start another one takes most of a second."""
        arguments = self.command[3:]
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = entrypoint.main(arguments)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def start(self) -> subprocess.Popen[str]:
        """Start its command in a separate process, and return at once."""
        environ = {**os.environ, "PYTHONUNBUFFERED": ""}  # Lines must arrive at once without it, too.
        return subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)

    def artifact(self, name: str) -> Path:
        return self.folder / "artifacts" / name

    def output(self, name: str) -> Any:
        """An output parameter as the backend reads it."""
        values = self.executor_output().get("parameterValues", {})
        if name in values:
            return values[name]
        kind = component_spec(self.component)["outputDefinitions"]["parameters"][name]["parameterType"]
        text = self._output(name).read_text()
        return text if kind == "STRING" else json.loads(text)

    def outputs(self) -> set[str]:
        files = {path.name for path in (self.folder / "outputs").iterdir()} - {"executor_output.json"}
        return files | self.executor_output().get("parameterValues", {}).keys()

    def executor_output(self) -> dict[str, Any]:
        return json.loads((self.folder / "outputs" / "executor_output.json").read_text())

    def metadata(self, name: str) -> dict[str, Any]:
        return self.executor_output()["artifacts"][name]["artifacts"][0]["metadata"]

    def _output(self, name: str) -> Path:
        return self.folder / "outputs" / name


def _artifacts(name: str, uri: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    held = {"name": name, "type": {"schemaTitle": "system.Artifact"}, "uri": uri, "metadata": metadata or {}}
    return {"artifacts": [held]}


def _as_a_struct(value: Any) -> Any:
    """Every number becomes a float, as in a protobuf Struct."""
    if isinstance(value, dict):
        return {key: _as_a_struct(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_a_struct(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
