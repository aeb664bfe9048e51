"""ML Metadata as KFP's client uses it: executions, artifacts, and the events between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_backend.values import to_metadata_store


class MetadataStoreError(Exception):
    """The store has no answer."""


@dataclass
class Artifact:
    """A registered artifact."""

    #: Its number; consumers get it as the artifact's name.
    id: int
    type: str
    uri: str
    #: As the store keeps them: lists and structs are wrapped.
    metadata: dict[str, Any]

    def runtime_artifact(self) -> dict[str, Any]:
        """Return what a consumer's executor input holds (toRuntimeArtifact): the type is empty."""
        return {
            "name": str(self.id),
            "type": {"instanceSchema": ""},
            "uri": self.uri,
            "metadata": dict(self.metadata),
        }


@dataclass
class Execution:
    """One DAG, one container task or one importer of a run."""

    id: int
    #: ``"dag"``, ``"container"`` or ``"importer"``.
    type: str
    #: Name of the task in its DAG; equal for all iterations of a loop.
    task_name: str
    #: The DAG around it; None for the root.
    parent: Execution | None
    inputs: dict[str, Any]
    #: RUNNING, COMPLETE, FAILED, CACHED or CANCELED; CANCELED is a task whose condition was false.
    state: str = "RUNNING"
    iteration_index: int | None = None
    iteration_count: int | None = None
    #: Tasks of a DAG's specification; 0 for others.
    total_tasks: int = 0
    #: Of a DAG, where its output parameters come from.
    parameter_producers: Mapping[str, Any] | None = None
    #: Of a DAG, where its output artifacts come from.
    artifact_producers: Mapping[str, Any] | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    input_events: list[tuple[str, int]] = field(default_factory=list)
    output_events: list[tuple[str, int]] = field(default_factory=list)
    fingerprint: str = ""
    in_workspace: bool = False


class MetadataStore:
    """Everything that drivers and launchers have registered."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.artifacts: dict[int, Artifact] = {}

    def create(self, kind: str, task_name: str, parent: Execution | None, **properties: Any) -> Execution:
        """Register an execution that runs from now on."""
        execution = Execution(len(self.executions) + 1, kind, task_name, parent, **properties)
        self.executions.append(execution)
        return execution

    def record_artifact(self, name: str, kind: str, uri: str, metadata: Mapping[str, Any]) -> Artifact:
        kept = to_metadata_store(metadata)
        kept.setdefault("display_name", name)
        kept.setdefault("store_session_info", "{}")
        artifact = Artifact(len(self.artifacts) + 1, kind, uri, kept)
        self.artifacts[artifact.id] = artifact
        return artifact

    def children(self, dag: Execution) -> list[Execution]:
        return [execution for execution in self.executions if execution.parent is dag]

    def child(self, dag: Execution, task_name: str) -> Execution:
        found = [child for child in self.children(dag) if child.task_name == task_name]
        if len(found) > 1:
            raise MetadataStoreError(f"two tasks have the same task name {task_name!r}")
        if not found:
            raise MetadataStoreError(f"producer task, {task_name}_{dag.id}, not in tasks")
        return found[0]

    def input_artifacts(self, execution: Execution) -> dict[str, list[dict[str, Any]]]:
        """Return input artifacts by name (GetInputArtifactsByExecutionID).

        The client keeps one name for each artifact and one artifact for each name: a list shrinks to its last item.
        """
        names = {artifact: name for name, artifact in execution.input_events}
        return {name: [self.artifacts[artifact].runtime_artifact()] for artifact, name in sorted(names.items())}

    def output_artifacts(self, execution: Execution) -> dict[str, Artifact]:
        return {name: self.artifacts[artifact] for name, artifact in execution.output_events}

    def update_dag_state(self, dag: Execution | None) -> None:
        """Set a DAG's state from those of its tasks, and so on upwards (UpdateDAGExecutionsState).

        Only a launcher does so, after it has published: a task that was killed leaves its DAG RUNNING.
        """
        while dag is not None and (dag.total_tasks or dag.iteration_count is not None):
            states = [child.state for child in self.children(dag)]
            expected = dag.total_tasks if dag.iteration_count is None else dag.iteration_count
            if sum(state in ("COMPLETE", "CACHED", "CANCELED") for state in states) == expected:
                dag.state = "COMPLETE"
            elif "FAILED" in states:
                dag.state = "FAILED"
            else:
                return
            dag = dag.parent
