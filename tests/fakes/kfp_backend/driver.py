"""The driver: resolves a task's inputs, provisions its outputs, asks the cache, and writes the patch of its pod."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random
from typing import Any

from kfp_backend import conditions, outputs, task_config
from kfp_backend.api_server import CompiledPipeline
from kfp_backend.cache import Cache, build_fingerprint
from kfp_backend.conditions import ConditionError
from kfp_backend.kubelet import expand, substitute
from kfp_backend.metadata_store import Execution, MetadataStore, MetadataStoreError
from kfp_backend.object_store import local_path
from kfp_backend.settings import Installation
from kfp_backend.task_config import NullParameterError, PodSpec
from kfp_backend.values import ConversionError, marshal, marshal_randomly, parse_json, to_text

#: Argo passes longer arguments as ``@file``, which the driver reads for --component only.
MAX_DRIVER_ARGUMENT = 131_072
WORKSPACE = "/kfp-workspace"
_WORKSPACE_PLACEHOLDER = "{{$.workspace_path}}"
_KINDS_OF_NUMBERS = ("NUMBER_DOUBLE", "NUMBER_INTEGER")
_KINDS_OF_STRUCTS = ("STRUCT", "TASK_FINAL_STATUS", "TASK_CONFIG")


class DriverError(Exception):
    """The driver of a task fails; the task's program never starts."""


@dataclass
class Run:
    """Names of a run."""

    #: KFP's id of the run, which is also the UID in the text of the Workflow.
    id: str
    name: str
    display_name: str
    pipeline: CompiledPipeline
    #: Creation time of the Workflow, in UTC.
    create_time: str
    #: Time that a recurring run was due; that of the creation for others.
    schedule_time: str

    def argo_variables(self, namespace: str) -> dict[str, str]:
        """Return what Argo replaces in the text of all templates."""
        return {
            "workflow.uid": self.id,
            "workflow.name": self.name,
            "workflow.namespace": namespace,
            "workflow.creationTimestamp": self.create_time,
        }


@dataclass
class ContainerDecision:
    """What the driver of a container task writes for Argo."""

    execution: Execution
    #: Whether the task's condition is met.
    triggers: bool
    #: Whether outputs of an earlier execution are used.
    cached: bool = False
    #: What the step's pod runs; None where it runs nothing.
    pod: PodSpec | None = None


@dataclass
class _Task:
    """Arguments of one driver, after Argo and the kubelet have had their way with them."""

    name: str
    component_name: str
    spec: dict[str, Any]
    component: dict[str, Any]
    dag: Execution
    iteration: int | None = None
    container: dict[str, Any] = field(default_factory=dict)
    kubernetes: dict[str, Any] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Any]:
        return dict(self.component.get("inputDefinitions", {}).get("parameters", {}))


class Driver:
    """Drives the tasks of one run.

    Args:
        run: The run.
        installation: Settings.
        store: ML Metadata.
        cache: Of task executions.
        random: Decides on white space in JSON.
    """

    def __init__(
        self, run: Run, installation: Installation, store: MetadataStore, cache: Cache, random: Random
    ) -> None:
        self._run = run
        self._installation = installation
        self._store = store
        self._cache = cache
        self._random = random
        #: The run's root: each URI that a task may write starts with it.
        self.root = f"{installation.root.rstrip('/')}/{run.pipeline.name}/{run.id}"

    def drive_root(self) -> Execution:
        """Register the run's parameters (RootDAG)."""
        parameters = self._argument("runtime_config", {"parameterValues": self._run.pipeline.parameters})
        return self._store.create("dag", "", None, inputs=parameters["parameterValues"])

    def drive_dag(
        self, name: str, spec: Mapping[str, Any], dag: Execution, iteration: int | None = None
    ) -> tuple[Execution, bool]:
        """Register a sub-DAG, a loop, or an iteration of a loop; return it and whether its condition is met (DAG)."""
        task = self._task(name, spec, dag, iteration)
        inputs = self._resolve_inputs(task, for_dag=True)
        triggers = self._triggers(task, inputs)
        outputs_spec = task.component["dag"].get("outputs", {})
        execution = self._create("dag", task, inputs, triggers)
        execution.parameter_producers = outputs_spec.get("parameters")
        execution.artifact_producers = outputs_spec.get("artifacts")
        execution.total_tasks = len(task.component["dag"]["tasks"])
        if triggers and iteration is None and "parameterIterator" in spec:
            execution.iteration_count = self._count_items(task.spec["parameterIterator"], inputs, execution)
        return execution, triggers

    def drive_container(self, name: str, spec: Mapping[str, Any], dag: Execution) -> ContainerDecision:
        """Prepare the pod of a container task (Container)."""
        task = self._task(name, spec, dag)
        inputs = self._resolve_inputs(task)
        triggers = self._triggers(task, inputs)
        provisioned = self._provision_outputs(task) if triggers else None
        claims = self._claims(task, inputs)
        fingerprint, known = "", None
        if self._installation.cache and provisioned and spec.get("cachingOptions", {}).get("enableCache"):
            fingerprint = build_fingerprint(inputs, provisioned, task.component, task.container, claims)
            known = self._cache.find(self._run.pipeline.name, fingerprint)
        execution = self._create("container", task, inputs, triggers)
        execution.fingerprint = fingerprint
        if provisioned is None:
            return ContainerDecision(execution, triggers=False)
        if known is not None:
            self._reuse(execution, provisioned, known)
            return ContainerDecision(execution, triggers=True, cached=True)
        return ContainerDecision(execution, triggers=True, pod=self._build_pod(task, inputs, provisioned))

    # Arguments of the driver.

    def _task(self, name: str, spec: Mapping[str, Any], dag: Execution, iteration: int | None = None) -> _Task:
        pipeline = self._run.pipeline
        component = spec["componentRef"]["name"]
        return _Task(
            name,
            component,
            self._argument("task", spec),
            self._argument("component", pipeline.component(component)),
            dag,
            iteration,
            self._argument("container", pipeline.container(component) or {}),
            self._argument("kubernetes_config", pipeline.kubernetes.get(component, {})),
        )

    def _argument(self, name: str, data: Mapping[str, Any]) -> Any:
        """Return an argument as the driver reads it: JSON in the text of a pod."""
        text = substitute(marshal(data, escape_html=True), self._run.argo_variables(self._installation.namespace))
        if len(text.encode()) <= MAX_DRIVER_ARGUMENT:
            environment = {"KFP_POD_NAME": "driver-pod", "KFP_POD_UID": "driver-uid", **self._installation.proxies}
            text = expand(text, environment)
        elif name != "component":
            raise DriverError(
                f"failed to unmarshal --{name}: {len(text.encode())} bytes are passed as @/tmp/argo_arg_0.txt, "
                "which is no JSON"
            )
        return parse_json(text)

    # Inputs.

    def _resolve_inputs(self, task: _Task, for_dag: bool = False) -> dict[str, Any]:
        """Return parameterValues and artifacts of a task (resolveInputs)."""
        if task.iteration is not None:
            return self._resolve_iteration(task)
        given = task.spec.get("inputs", {})
        values: dict[str, Any] = {}
        null_by_driver: set[str] = set()
        if for_dag:
            for name, declared in task.declared.items():
                if name not in given.get("parameters", {}) and declared.get("isOptional"):
                    values[name] = declared.get("defaultValue")
                    null_by_driver |= set() if "defaultValue" in declared else {name}
        self._resolve_parameters(task, given.get("parameters", {}), values)
        self._check_types(task, values, null_by_driver)
        try:
            artifacts = {
                name: {"artifacts": self._resolve_artifact(task, name, source)}
                for name, source in given.get("artifacts", {}).items()
            }
        except MetadataStoreError as error:
            raise DriverError(f"failed to resolve inputs: {error}") from error
        return {"parameterValues": values, "artifacts": artifacts}

    def _resolve_parameters(self, task: _Task, given: Mapping[str, Any], values: dict[str, Any]) -> None:
        """Add the values of given parameters; null leaves an optional one out, TaskConfig comes later."""
        for name, source in given.items():
            declared = task.declared.get(name, {})
            if "parameterExpressionSelector" in source:
                raise DriverError(f"parameter expression selector of {name!r} is not part of this double")
            if declared.get("parameterType") == "TASK_CONFIG":
                continue
            try:
                values[name] = self._resolve_parameter(task, source)
            except NullParameterError as error:
                if not declared.get("isOptional"):
                    message = f"failed to resolve inputs: the resolved input parameter is null: {error}"
                    raise DriverError(message) from None

    def _resolve_iteration(self, task: _Task) -> dict[str, Any]:
        """Return the inputs of the loop, with one item in place of all."""
        iterator = task.spec["parameterIterator"]
        values = dict(task.dag.inputs)
        source = iterator["items"].get("inputParameter") or iterator["itemInput"]
        items = outputs.read_items(values.pop(source))
        values[iterator["itemInput"]] = items[task.iteration or 0]
        self._check_types(task, values, set())
        artifacts = {name: {"artifacts": found} for name, found in self._store.input_artifacts(task.dag).items()}
        return {"parameterValues": values, "artifacts": artifacts}

    def _resolve_parameter(self, task: _Task, source: Mapping[str, Any]) -> Any:
        """Return the value of a parameter (resolveInputParameter)."""
        if "componentInputParameter" in source:
            name = source["componentInputParameter"]
            if name not in task.dag.inputs:
                raise DriverError(f"parent DAG does not have input parameter {name}")
            if task.dag.inputs[name] is None:
                raise NullParameterError(name)
            return task.dag.inputs[name]
        if "taskOutputParameter" in source:
            producer = source["taskOutputParameter"]
            try:
                return outputs.find_parameter(
                    self._store, task.dag, producer["producerTask"], producer["outputParameterKey"]
                )
            except MetadataStoreError as error:
                raise DriverError(f"failed to resolve inputs: {error}") from error
        if "taskFinalStatus" in source:
            return self._final_status(task)
        constant = source["runtimeValue"]["constant"]
        return self._resolve_constant(task, constant) if isinstance(constant, str) else constant

    def _resolve_constant(self, task: _Task, text: str) -> str:
        """Replace a placeholder that is the whole constant; only the workspace's may be a part of it."""
        if _WORKSPACE_PLACEHOLDER in text:
            return text.replace(_WORKSPACE_PLACEHOLDER, WORKSPACE)
        known = {
            "{{$.pipeline_job_name}}": self._run.display_name,
            "{{$.pipeline_job_resource_name}}": self._run.name,
            "{{$.pipeline_job_uuid}}": self._run.id,
            "{{$.pipeline_task_name}}": task.name,
            "{{$.pipeline_task_uuid}}": str(task.dag.id),
            "{{$.pipeline_job_create_time_utc}}": self._run.create_time,
            "{{$.pipeline_job_schedule_time_utc}}": self._run.schedule_time,
        }
        return known.get(text, text)

    def _final_status(self, task: _Task) -> dict[str, Any]:
        """Return the state of the exit handler's body as ML Metadata knows it: RUNNING if a launcher was killed."""
        (first, *_) = task.spec["dependentTasks"]
        try:
            producer = self._store.child(task.dag, first)
        except MetadataStoreError as error:
            raise DriverError(f"failed to resolve inputs: {error}") from error
        return {
            "state": producer.state,
            "pipelineTaskName": producer.task_name,
            "pipelineJobResourceName": self._run.name,
            "error": {},
        }

    def _resolve_artifact(self, task: _Task, name: str, source: Mapping[str, Any]) -> list[dict[str, Any]]:
        if "componentInputArtifact" in source:
            found = self._store.input_artifacts(task.dag)
            wanted = source["componentInputArtifact"]
            if wanted not in found:
                raise DriverError(
                    f"failed to resolve input artifact {name}: parent DAG does not have input artifact {wanted}"
                )
            return found[wanted]
        producer = source["taskOutputArtifact"]
        return outputs.find_artifacts(self._store, task.dag, producer["producerTask"], producer["outputArtifactKey"])

    def _check_types(self, task: _Task, values: dict[str, Any], null_by_driver: set[str]) -> None:
        """Check types without parsing; a STRING takes anything as text (handleParamTypeValidationAndConversion)."""
        iterator = task.spec.get("parameterIterator", {})
        for name, declared in task.declared.items():
            if iterator and task.iteration is None and iterator["itemInput"] == name:
                continue
            if iterator and task.iteration is not None and iterator["items"].get("inputParameter") == name:
                continue
            if name not in values:
                if not declared.get("isOptional") and "defaultValue" not in declared:
                    raise DriverError(f'neither value nor default value provided for non-optional parameter "{name}"')
                continue
            if name in null_by_driver:
                continue
            kind = declared["parameterType"]
            if kind == "STRING":
                values[name] = to_text(values[name])
            elif values[name] is None:
                raise DriverError(f'got null for input parameter "{name}"')
            elif kind not in _kinds_of(values[name]):
                raise DriverError(
                    f'input parameter "{name}" type mismatch: expect {kind}, got {type(values[name]).__name__}'
                )

    # What follows from the inputs.

    def _triggers(self, task: _Task, inputs: Mapping[str, Any]) -> bool:
        condition = task.spec.get("triggerPolicy", {}).get("condition")
        if not condition:
            return True
        try:
            return conditions.evaluate(condition, inputs["parameterValues"])
        except ConditionError as error:
            raise DriverError(str(error)) from error

    def _count_items(self, iterator: Mapping[str, Any], inputs: Mapping[str, Any], loop: Execution) -> int:
        source = iterator["items"]
        if "raw" in source:
            loop.inputs[iterator["itemInput"]] = parse_json(source["raw"])
            return len(loop.inputs[iterator["itemInput"]])
        try:
            return len(outputs.read_items(inputs["parameterValues"][source["inputParameter"]]))
        except (KeyError, ConversionError) as error:
            raise DriverError(f'iterating on item input "{iterator["itemInput"]}" failed: {error}') from error

    def _provision_outputs(self, task: _Task) -> dict[str, Any]:
        """Return where a task's outputs go: artifacts below the run's root, in a folder of this driver's own."""
        declared = task.component.get("outputDefinitions", {})
        artifacts = dict(declared.get("artifacts", {}))
        if self._installation.publish_logs:
            artifacts["executor-logs"] = {"artifactType": {"schemaTitle": "system.Artifact"}}
        task_root = f"{self.root}/{PurePosixPath(task.name, str(uuid.uuid4()))}"
        return {
            "parameters": {name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in declared.get("parameters", {})},
            "artifacts": {
                name: {
                    "artifacts": [
                        {
                            "name": name,
                            "uri": f"{task_root}/{name}",
                            "type": artifact["artifactType"],
                            **({"metadata": artifact["metadata"]} if "metadata" in artifact else {}),
                        }
                    ]
                }
                for name, artifact in artifacts.items()
            },
            "outputFile": f"{local_path(task_root)}/output_metadata.json",
        }

    def _claims(self, task: _Task, inputs: Mapping[str, Any]) -> list[str]:
        claims = [self._claim_name(task, mount) for mount in task.kubernetes.get("pvcMount", ())]
        if task_config.needs_workspace(inputs):
            claims.append(f"{self._run.name}-kfp-workspace")
        return claims

    def _claim_name(self, task: _Task, mount: Mapping[str, Any]) -> str:
        source = mount.get("pvcNameParameter") or (
            {"runtimeValue": {"constant": mount["constant"]}} if "constant" in mount else mount
        )
        return self._resolve_name(task, source)

    def _resolve_name(self, task: _Task, source: Mapping[str, Any]) -> str:
        """Return the name of an object (resolveInputParameterStr)."""
        name = self._resolve_parameter(task, source)
        if not isinstance(name, str) or not name:
            raise DriverError(f"resolving input parameter with spec {dict(source)}. Expected a non-empty string")
        return name

    def _create(self, kind: str, task: _Task, inputs: Mapping[str, Any], triggers: bool) -> Execution:
        execution = self._store.create(kind, task.name, task.dag, inputs=dict(inputs["parameterValues"]))
        execution.state = "RUNNING" if triggers else "CANCELED"
        execution.iteration_index = task.iteration
        execution.input_events = [
            (name, int(artifact["name"]))
            for name, found in inputs["artifacts"].items()
            for artifact in found["artifacts"]
        ]
        return execution

    def _reuse(self, execution: Execution, provisioned: Mapping[str, Any], known: int) -> None:
        """Give a task the outputs of an earlier execution, at their old URIs, which are not checked."""
        earlier = next(each for each in self._store.executions if each.id == known)
        available = self._store.output_artifacts(earlier)
        for name in provisioned["artifacts"]:
            if name not in available:
                raise DriverError(f"unable to find artifact with name {name} in mlmd output artifacts")
            execution.output_events.append((name, available[name].id))
        execution.outputs = dict(earlier.outputs)
        execution.state = "CACHED"

    def _build_pod(self, task: _Task, inputs: dict[str, Any], provisioned: Mapping[str, Any]) -> PodSpec:
        executor_input = {"inputs": inputs, "outputs": provisioned}
        settings = task_config.Settings(
            component=task.component,
            container=task.container,
            kubernetes=task.kubernetes,
            inputs=inputs,
            installation=self._installation,
            run_name=self._run.name,
            resolve=lambda source: self._resolve_parameter(task, source),
            resolve_name=lambda source: self._resolve_name(task, source),
        )
        try:
            pod, config = task_config.build_pod(settings)
            for name, declared in task.declared.items():
                if declared["parameterType"] == "TASK_CONFIG":
                    inputs["parameterValues"][name] = config
            pod.executor_input = marshal_randomly(executor_input, self._random)
            pod.component_spec = marshal_randomly(task.component, self._random)
        except (ConversionError, task_config.PodError, NullParameterError) as error:
            raise DriverError(f"failed to init podSpecPatch: {error}") from error
        return pod


def _kinds_of(value: Any) -> tuple[str, ...]:
    """Return the types of parameters that a value fits."""
    if isinstance(value, bool):
        return ("BOOLEAN",)
    if isinstance(value, float):
        return _KINDS_OF_NUMBERS
    if isinstance(value, list):
        return ("LIST",)
    return _KINDS_OF_STRUCTS if isinstance(value, dict) else ("STRING",)
