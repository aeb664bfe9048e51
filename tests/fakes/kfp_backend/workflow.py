"""Argo: runs the DAGs, pods, retries and exit hooks of a run, one task after the other, on a simulated clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kfp_backend.cache import Cache
from kfp_backend.container import Container
from kfp_backend.driver import ContainerDecision, Driver, DriverError, Run
from kfp_backend.importer import ImporterError, import_artifact
from kfp_backend.launcher import Launcher, StepEnd
from kfp_backend.metadata_store import Execution, MetadataStore
from kfp_backend.object_store import ObjectStore, ObjectStoreError
from kfp_backend.objects import Objects, PodNotStartedError
from kfp_backend.settings import Clock, Installation, Pod
from kfp_backend.task_config import PodSpec
from kfp_backend.values import ConversionError

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_EXIT = "ALL_UPSTREAM_TASKS_COMPLETED"


@dataclass
class Node:
    """A task, or an iteration of a loop, as Argo and the drivers have seen it."""

    #: Names of the DAGs around the task and its own, as ``root.for-loop-1[0].train``.
    path: str
    #: Succeeded, Failed, Error, Skipped or Omitted.
    phase: str = "Omitted"
    message: str = ""
    #: As registered; None if no driver has run.
    execution: Execution | None = None
    cached: bool = False
    decision: ContainerDecision | None = None
    tries: list[StepEnd] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def log(self) -> str:
        return self.tries[-1].log if self.tries else ""


@dataclass
class Step:
    """A step that runs: what a test may do when it sees a line of its output."""

    task: str
    container: Container
    workflow: Workflow
    evicted: bool = False

    def terminate_run(self, kill_after: float = 0.5) -> None:
        """Terminate the run, as in the UI: this step is ended, and no other one starts but exit tasks."""
        self.workflow.terminate()
        self.container.terminate(kill_after)

    def evict(self, kill_after: float = 0.5) -> None:
        """End this step only and delete its pod, as a drained node does."""
        self.evicted = True
        self.container.terminate(kill_after)


class Workflow:
    """One run.

    Args:
        run: Names, and the compiled pipeline.
        pods: What happens to the tries of a task, by the task's name; all others run to their end.
        on_line: Called with a step and a line of its output.
    """

    def __init__(
        self,
        run: Run,
        installation: Installation,
        objects: Objects,
        buckets: ObjectStore,
        store: MetadataStore,
        cache: Cache,
        clock: Clock,
        folder: Path,
        random: Random,
        pods: Mapping[str, list[Pod]],
        on_line: Callable[[Step, str], None],
    ) -> None:
        self.run = run
        self.nodes: list[Node] = []
        self.terminated = False
        self.driver = Driver(run, installation, store, cache, random)
        self._installation = installation
        self._objects = objects
        self._buckets = buckets
        self._store = store
        self._cache = cache
        self._clock = clock
        self._folder = folder
        self._random = random
        self._pods = {name: list(given) for name, given in pods.items()}
        self._on_line = on_line
        self._uid = ""
        self._count = 0

    def execute(self, uid: str) -> tuple[str, Execution]:
        """Run everything; return the phase and the root's execution."""
        self._uid = uid
        root = self.driver.drive_root()
        return self._run_dag("root", self.run.pipeline.root, root), root

    def terminate(self) -> None:
        """Start no further task, as TerminateRun does: the Workflow has a deadline of zero before any pod is ended."""
        self.terminated = True
        if self._objects.api is not None:
            namespace = self._installation.namespace
            self._objects.api.update("Workflow", self.run.name, _end_now, namespace)

    # DAGs.

    def _run_dag(self, path: str, component: Mapping[str, Any], dag: Execution) -> str:
        """Run the tasks of a DAG; what depends on a skipped task is omitted (argocompiler's DAG)."""
        tasks: dict[str, Any] = component["dag"]["tasks"]
        exit_tasks = {name for name, task in tasks.items() if task.get("triggerPolicy", {}).get("strategy") == _EXIT}
        phases: dict[str, str] = {}
        waiting = sorted(set(tasks) - exit_tasks)
        while waiting:
            # All that can start now does so before any of it ends: a failure stops what comes after.
            ready = [name for name in waiting if set(tasks[name]["dependentTasks"]) <= set(phases)]
            if _worst(phases.values()) != "Succeeded" or (self.terminated and ready):
                break
            for name in ready:
                waiting.remove(name)
                node = Node(f"{path}.{name}")
                self.nodes.append(node)
                if all(phases[needed] == "Succeeded" for needed in tasks[name]["dependentTasks"]):
                    self._run_task(node, name, tasks[name], dag)
                    self._run_exit_tasks(path, name, exit_tasks, tasks, dag, phases)
                phases[name] = node.phase
        self.nodes += [Node(f"{path}.{name}") for name in waiting]
        if waiting and self.terminated:
            return "Failed"
        return _worst(phases.values())

    def _run_exit_tasks(
        self,
        path: str,
        ended: str,
        exit_tasks: set[str],
        tasks: Mapping[str, Any],
        dag: Execution,
        phases: dict[str, str],
    ) -> None:
        """Run the exit hook of a task that has ended, whatever came of it and of the run."""
        terminated, self.terminated = self.terminated, False
        for name in sorted(exit_tasks):
            if ended in tasks[name]["dependentTasks"]:
                node = Node(f"{path}.{name}")
                self.nodes.append(node)
                self._run_task(node, name, tasks[name], dag)
                phases[name] = node.phase
        self.terminated = terminated

    def _run_task(self, node: Node, name: str, task: Mapping[str, Any], dag: Execution) -> None:
        component_name = task["componentRef"]["name"]
        component = self.run.pipeline.component(component_name)
        try:
            if component_name in self.run.pipeline.importers:
                self._import(node, name, task, component, dag)
            elif "parameterIterator" in task:
                self._run_loop(node, name, task, component, dag)
            elif "dag" in component:
                node.execution, triggers = self.driver.drive_dag(name, task, dag)
                node.phase = self._run_dag(node.path, component, node.execution) if triggers else "Skipped"
            else:
                self._run_container(node, name, task, dag)
        except (ConversionError, DriverError, ImporterError, ObjectStoreError) as error:
            node.phase, node.message = "Failed", str(error)

    def _run_loop(
        self, node: Node, name: str, task: Mapping[str, Any], component: Mapping[str, Any], dag: Execution
    ) -> None:
        """Run the iterations of a loop; each is a DAG with a separate driver."""
        loop, triggers = self.driver.drive_dag(name, task, dag)
        node.execution = loop
        if not triggers:
            node.phase = "Skipped"
            return
        phases = []
        for index in range(loop.iteration_count or 0):
            iteration = Node(f"{node.path}[{index}]")
            self.nodes.append(iteration)
            try:
                iteration.execution, _ = self.driver.drive_dag(name, task, loop, index)
                iteration.phase = self._run_dag(iteration.path, component, iteration.execution)
            except DriverError as error:
                iteration.phase, iteration.message = "Failed", str(error)
            phases.append(iteration.phase)
        node.phase = _worst(phases)

    def _import(
        self, node: Node, name: str, task: Mapping[str, Any], component: Mapping[str, Any], dag: Execution
    ) -> None:
        importer = self.run.pipeline.importers[task["componentRef"]["name"]]
        workspace = f"{self.run.name}-kfp-workspace"
        folder = self._objects.claim(workspace) if workspace in self._objects.claims else None
        node.execution = import_artifact(name, task, importer, component, dag, self._store, self._buckets, folder)
        node.phase = "Succeeded"

    # Container tasks.

    def _run_container(self, node: Node, name: str, task: Mapping[str, Any], dag: Execution) -> None:
        decision = self.driver.drive_container(name, task, dag)
        node.decision, node.execution, node.cached = decision, decision.execution, decision.cached
        if decision.pod is None:
            node.phase = "Succeeded" if decision.cached else "Skipped"
            return
        self._retry(node, name, task.get("retryPolicy"))
        if node.phase == "Succeeded" and decision.execution.fingerprint:
            self._cache.add(self.run.pipeline.name, decision.execution.fingerprint, decision.execution.id)

    def _retry(self, node: Node, name: str, policy: Mapping[str, Any] | None) -> None:
        """Run a pod until it succeeds or may not be repeated (processNodeRetries).

        The window of ``backoffMaxDuration`` begins with the first try, for all of them.
        """
        has_strategy = bool(policy)
        defaults = {"maxRetryCount": 2} if self._installation.retry_policy else {}
        policy = {**defaults, **(policy or {})}
        # Argo merges its settings into a strategy that names no policy, as KFP writes it; its own default is OnFailure.
        repeated = "Error" if self._installation.retry_policy == "OnError" else "Failed"
        window = _seconds(policy.get("backoffMaxDuration"))
        deadline = self._clock.now + window if window else None
        while True:
            planned = self._pods.get(name)
            pod = planned.pop(0) if planned else Pod()
            if node.tries and deadline is not None and self._clock.now + pod.seconds > deadline:
                self._clock.now = deadline
                node.tries.append(StepEnd(error="killed at the end of the retry window"))
                node.phase, node.message = "Failed", "Max duration limit exceeded"
                return
            self._try(node, name, pod, len(node.tries) if has_strategy else None)
            self._clock.now += pod.seconds
            retries = len(node.tries) - 1
            # A program that exits with an error is Failed; a pod that is deleted or evicted is an Error.
            if node.phase != repeated or self.terminated or retries >= int(policy.get("maxRetryCount", 0)):
                return
            if deadline is not None and self._clock.now > deadline:
                node.message = "Max duration limit exceeded"
                return
            pause = _seconds(policy.get("backoffDuration")) * float(policy.get("backoffFactor", 2)) ** retries
            if deadline is not None and self._clock.now + pause > deadline:
                node.message = "Backoff would exceed max duration limit"
                return
            self._clock.now += pause

    def _try(self, node: Node, name: str, pod: Pod, retry: int | None) -> None:
        if pod.evicted:
            node.tries.append(StepEnd(error="evicted"))
            node.phase, node.message = "Error", "pod deleted"
            return
        try:
            end, evicted = self._run_step(node, name, retry)
        except PodNotStartedError as error:
            node.tries.append(StepEnd(error=str(error)))
            node.phase, node.message = "Error", str(error)
            return
        node.tries.append(end)
        if evicted:
            node.phase, node.message = "Error", "pod deleted"
        else:
            node.phase, node.message = ("Succeeded", "") if end.succeeded else ("Failed", end.error)

    def _run_step(self, node: Node, name: str, retry: int | None) -> tuple[StepEnd, bool]:
        """Run one pod with a fresh file system; return its end, and whether it was deleted."""
        assert node.decision is not None
        assert node.decision.pod is not None
        self._count += 1
        folder = self._folder / f"pod-{self._count}"
        pod_name = f"{self.run.name}-{name}-{self._count}".replace("_", "-").lower()
        uid = self._add_pod(pod_name, node.decision.pod) or f"uid-of-{pod_name}"
        namespace = self._installation.namespace
        own = {
            **self._installation.image_environment,
            **self._installation.proxies,
            "KFP_POD_NAME": pod_name,
            "KFP_POD_UID": uid,
            "ARGO_CONTAINER_NAME": "main",
            "METADATA_GRPC_SERVICE_HOST": "metadata-grpc-service",
            **({} if retry is None else {"KFP_RETRY_INDEX": str(retry)}),
        }
        fields = {"metadata.name": pod_name, "metadata.uid": uid, "metadata.namespace": namespace}
        spec = node.decision.pod
        environment = self._objects.environment(spec, fields, own)
        container = Container(folder, environment, self._objects.mounts(spec, self._folder / f"mounts-{self._count}"))
        step = Step(name, container, self)
        container.on_line = lambda line: self._on_line(step, line)
        launcher = Launcher(
            node.decision.execution,
            self.driver.root,
            self._installation.publish_logs,
            self._store,
            self._buckets,
            self._random,
        )
        with container:
            return launcher.execute(spec, container, self.run.argo_variables(namespace), retry), step.evicted

    def _add_pod(self, name: str, pod: PodSpec) -> str:
        """Create the step's pod on the API server, owned by the Workflow; return its UID."""
        if self._objects.api is None:
            return ""
        owner = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "name": self.run.name,
            "uid": self._uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": self._installation.namespace,
            "labels": {"pipeline/runid": self.run.id, "workflows.argoproj.io/workflow": self.run.name},
            "ownerReferences": [owner],
        }
        main = {"name": "main", "image": "step", "volumeMounts": pod.volume_mounts}
        spec = {"nodeName": "steps", "containers": [main], "volumes": pod.volumes}
        raw = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        return str(self._objects.api.add(raw)["metadata"]["uid"])


def _worst(phases: Any) -> str:
    found = set(phases)
    return next((phase for phase in ("Error", "Failed") if phase in found), "Succeeded")


def _seconds(text: str | None) -> float:
    found = _SECONDS.fullmatch(text or "")
    return float(found[1]) if found else 0.0


def _end_now(workflow: dict[str, Any]) -> None:
    workflow["spec"]["activeDeadlineSeconds"] = 0
