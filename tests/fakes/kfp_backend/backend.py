"""The whole backend: creates runs, runs them to their end, keeps what they leave, and deletes Workflows later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import yaml

from kfp_backend import outputs
from kfp_backend.api_server import compile_pipeline
from kfp_backend.cache import Cache
from kfp_backend.driver import Run
from kfp_backend.metadata_store import Execution, MetadataStore
from kfp_backend.object_store import ObjectStore
from kfp_backend.objects import Objects
from kfp_backend.settings import Clock, Installation, Pod
from kfp_backend.workflow import Node, Step, Workflow


@dataclass
class RunResult:
    """A run that has ended."""

    #: Succeeded, Failed or Error.
    phase: str
    #: All tasks and iterations, in the order in which they ran.
    nodes: list[Node]
    #: Names of the run, and its pipeline.
    run: Run
    root: Execution
    store: MetadataStore
    uri: str

    def task(self, name: str) -> Node:
        """Return a task by its name, or by its path where several have the name."""
        (node,) = self.tasks(name)
        return node

    def tasks(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in (node.name, node.path)]

    def output(self, task: str, name: str) -> Any:
        execution = self.task(task).execution
        assert execution is not None, f"no driver has run for {task}"
        return execution.outputs[name]

    def artifact(self, task: str, name: str) -> dict[str, Any]:
        """Return an output artifact of a task as a consumer gets it."""
        return self.artifacts(task)[name]

    def artifacts(self, task: str) -> dict[str, dict[str, Any]]:
        execution = self.task(task).execution
        assert execution is not None, f"no driver has run for {task}"
        return {name: found.runtime_artifact() for name, found in self.store.output_artifacts(execution).items()}

    def pipeline_output(self, name: str) -> Any:
        spec = self.run.pipeline.root["dag"]["outputs"]["parameters"][name]["valueFromParameter"]
        return outputs.find_parameter(self.store, self.root, spec["producerSubtask"], spec["outputParameterKey"])

    def explain(self) -> str:
        """Return why tasks have not succeeded, with the end of their logs; for the message of an assertion."""
        bad = [node for node in self.nodes if node.phase in ("Failed", "Error")]
        return "\n".join(f"{node.path}: {node.phase}: {node.message}\n{node.log[-3000:]}" for node in bad)


class Backend:
    """An installation of KFP with one namespace.

    Args:
        folder: For buckets, claims and pods.
        installation: Settings; those of KFP's manifests by default.
        seed: Of white space in JSON and the order of placeholders.
    """

    def __init__(self, folder: Path, installation: Installation | None = None, seed: int | None = None) -> None:
        self.installation = installation or Installation()
        self.clock = Clock()
        self.store = MetadataStore()
        self.cache = Cache()
        self.buckets = ObjectStore(folder / "buckets")
        self.objects = Objects(folder / "claims")
        self._folder = folder
        self._random = Random(seed)  # noqa: S311 - nothing secret
        self._ended: list[tuple[float, str]] = []

    def run(
        self,
        pipeline: Path | Sequence[Mapping[str, Any]],
        parameters: Mapping[str, Any] | None = None,
        *,
        pods: Mapping[str, list[Pod]] | None = None,
        on_line: Callable[[Step, str], None] = lambda step, line: None,
        schedule_time: str | None = None,
    ) -> RunResult:
        documents = list(yaml.safe_load_all(pipeline.read_text())) if isinstance(pipeline, Path) else pipeline
        compiled = compile_pipeline(documents, parameters or {})
        run_id = str(uuid4())
        name = f"{compiled.name.rpartition('/')[2]}-{run_id[:5]}"
        created = datetime.fromtimestamp(self.clock.now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        run = Run(run_id, name, f"Run of {compiled.name}", compiled, created, schedule_time or created)
        if compiled.workspace is not None and "kubernetes" in compiled.workspace:
            self.objects.claims.add(f"{name}-kfp-workspace")
        uid = self._add_workflow(name)
        workflow = Workflow(
            run,
            self.installation,
            self.objects,
            self.buckets,
            self.store,
            self.cache,
            self.clock,
            self._folder / "pods" / name,
            self._random,
            pods or {},
            on_line,
        )
        phase, root = workflow.execute(uid)
        self._ended.append((self.clock.now, name))
        return RunResult(phase, workflow.nodes, run, root, self.store, workflow.driver.root)

    def delete_expired_workflows(self) -> list[str]:
        """Delete the Workflows of runs that ended longer ago than the TTL, as the persistence agent does.

        What a Workflow owns goes with it: the API server's garbage collector deletes it.
        """
        limit = self.clock.now - self.installation.workflow_ttl
        expired = [name for ended, name in self._ended if ended <= limit]
        self._ended = [each for each in self._ended if each[1] not in expired]
        if self.objects.api is not None:
            for name in expired:
                self.objects.api.delete("Workflow", name, self.installation.namespace)
        return expired

    def _add_workflow(self, name: str) -> str:
        if self.objects.api is None:
            return ""
        metadata = {"name": name, "namespace": self.installation.namespace}
        raw = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": {}}
        return str(self.objects.api.add(raw)["metadata"]["uid"])
