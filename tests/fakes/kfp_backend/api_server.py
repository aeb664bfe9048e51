"""CreateRun: what the API server makes of a compiled pipeline before the first driver starts."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_backend.values import marshal, to_value

ROOT = "root"
#: Images of tasks that the driver carries out itself, without a pod.
_DUMMY_IMAGES = ("argostub/createpvc", "argostub/deletepvc")
_KINDS: dict[str, type | tuple[type, ...]] = {
    "NUMBER_DOUBLE": (int, float),
    "NUMBER_INTEGER": (int, float),
    "STRING": str,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}


class InvalidRunError(Exception):
    """The API server refuses to create the run."""


@dataclass
class CompiledPipeline:
    """A pipeline as Argo gets it."""

    name: str
    #: Parameters of the run, with defaults filled in.
    parameters: dict[str, Any]
    #: Settings of the run's workspace claim; None without one.
    workspace: Mapping[str, Any] | None
    #: Component specification of the root DAG.
    root: dict[str, Any] = field(default_factory=dict)
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The key of each component: for one with a container, the hash of the container.
    keys: dict[str, str] = field(default_factory=dict)
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    importers: dict[str, dict[str, Any]] = field(default_factory=dict)
    kubernetes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def component(self, name: str) -> dict[str, Any]:
        """Return the component specification that the tasks of a component get."""
        return self.components[self.keys[name]]

    def container(self, name: str) -> dict[str, Any] | None:
        """Return the container of a component; None for a DAG or an importer."""
        return self.containers.get(self.keys[name])


def compile_pipeline(documents: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> CompiledPipeline:
    """Return a pipeline, ready to run (RunWorkflow and argocompiler.Compile)."""
    spec = to_value(copy.deepcopy(documents[0]))
    platform = to_value(copy.deepcopy(documents[1])) if len(documents) > 1 else {}
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    given = to_value(parameters)
    _validate(declared, given)
    for name, parameter in declared.items():
        if name not in given and "defaultValue" in parameter:
            given[name] = parameter["defaultValue"]
        elif name not in given and parameter.get("isOptional"):
            given[name] = None
    workspace = kubernetes.get("pipelineConfig", {}).get("workspace")
    pipeline = CompiledPipeline(spec["pipelineInfo"]["name"], given, workspace)
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    settings = kubernetes.get("deploymentSpec", {}).get("executors", {})
    _Visitor(pipeline, spec, executors, settings).visit(ROOT, spec["root"], None)
    pipeline.root = pipeline.components[ROOT]
    return pipeline


def _validate(declared: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for name, parameter in declared.items():
        if name not in given:
            if not parameter.get("isOptional") and "defaultValue" not in parameter:
                raise InvalidRunError(
                    f"parameter {name} is not optional, yet has neither default value nor user provided value"
                )
            continue
        kind = parameter["parameterType"]
        fits = isinstance(given[name], _KINDS.get(kind, ()))
        if not fits or (isinstance(given[name], bool) and kind != "BOOLEAN"):
            raise InvalidRunError(f"input parameter {name} requires type {kind}, got {given[name]!r}")
    if unknown := sorted(set(given) - set(declared)):
        raise InvalidRunError(f"parameter(s) provided are not required by pipeline: {', '.join(unknown)}")


@dataclass
class _Visitor:
    """Visits components depth first, tasks in alphabetic order, each component once."""

    pipeline: CompiledPipeline
    spec: Mapping[str, Any]
    executors: Mapping[str, Any]
    settings: Mapping[str, Any]
    visited: set[str] = field(default_factory=set)

    def visit(self, name: str, component: dict[str, Any], around: Mapping[str, Any] | None) -> None:
        if name in self.visited:
            return
        self.visited.add(name)
        label = component.get("executorLabel")
        if label:
            self._visit_executor(name, component, label)
            return
        tasks = component["dag"]["tasks"]
        for _, task in sorted(tasks.items()):
            if "retryPolicy" not in task and around is not None and "retryPolicy" in around:
                task["retryPolicy"] = around["retryPolicy"]
            reference = task["componentRef"]["name"]
            self.visit(reference, self.spec["components"][reference], task)
            if self._has_condition_and_no_driver(task, reference):
                raise InvalidRunError("triggerPolicy.condition on importer task is not supported")
            if "artifactIterator" in task:
                raise InvalidRunError("artifact iterator not implemented yet")
        _add_implicit_dependencies(tasks)
        self._save(name, name, component)

    def _visit_executor(self, name: str, component: dict[str, Any], label: str) -> None:
        executor = self.executors[label]
        if label in self.settings:
            self.pipeline.kubernetes[name] = self.settings[label]
        if "importer" in executor:
            self.pipeline.importers[name] = executor["importer"]
            self._save(name, name, component)
            return
        container = executor["container"]
        if container["image"] in _DUMMY_IMAGES:
            raise InvalidRunError(f"{container['image']} is not part of this double: create the claim in the test")
        # The compiler keeps specifications by the hash of the container alone: the first one that is saved wins.
        key = hashlib.sha256(marshal(container).encode()).hexdigest()
        self.pipeline.containers.setdefault(key, container)
        self._save(name, key, component)

    def _save(self, name: str, key: str, component: dict[str, Any]) -> None:
        self.pipeline.keys[name] = key
        self.pipeline.components.setdefault(key, component)

    def _has_condition_and_no_driver(self, task: Mapping[str, Any], reference: str) -> bool:
        return reference in self.pipeline.importers and bool(task.get("triggerPolicy", {}).get("condition"))


def _add_implicit_dependencies(tasks: Mapping[str, dict[str, Any]]) -> None:
    """A task depends on those whose outputs it takes."""
    for task in tasks.values():
        producers = set(task.get("dependentTasks", ()))
        for kind, source in (("parameters", "taskOutputParameter"), ("artifacts", "taskOutputArtifact")):
            for given in task.get("inputs", {}).get(kind, {}).values():
                if source in given:
                    producers.add(given[source]["producerTask"])
        task["dependentTasks"] = sorted(producers)
