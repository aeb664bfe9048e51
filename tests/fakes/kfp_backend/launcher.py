"""The launcher: downloads inputs, runs the task's program, and publishes what it left."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

from kfp_backend.container import Container, ProgramEnd
from kfp_backend.kubelet import MAX_ARGUMENT, expand, substitute
from kfp_backend.metadata_store import Execution, MetadataStore
from kfp_backend.object_store import BucketConfig, ObjectStore, ObjectStoreError, local_path
from kfp_backend.task_config import PodSpec
from kfp_backend.values import (
    ConversionError,
    marshal,
    marshal_randomly,
    number_text,
    parse_json,
    parse_output_parameter,
)

_LOGS = "executor-logs"
_WORKSPACE_ARTIFACTS = "/kfp-workspace/.artifacts"
#: Fields that protojson knows, by the spellings that it reads.
_OUTPUT_FIELDS = {"parameterValues": "parameterValues", "parameter_values": "parameterValues", "artifacts": "artifacts"}
_ARTIFACT_FIELDS = {
    "name": "name",
    "uri": "uri",
    "type": "type",
    "metadata": "metadata",
    "properties": "properties",
    "customProperties": "customProperties",
    "custom_properties": "customProperties",
    "customPath": "customPath",
    "custom_path": "customPath",
}


class LauncherError(Exception):
    """The launcher ends with an exit code that is not 0."""


@dataclass
class StepEnd:
    """How one try of a step has ended."""

    #: Why the launcher failed; empty after success.
    error: str = ""
    #: How the program has ended; None if it was not started.
    program: ProgramEnd | None = None
    #: What the launcher wrote to its stdout: the program's output.
    log: str = ""
    #: The program's command and arguments, all placeholders replaced.
    arguments: list[str] = field(default_factory=list)
    outputs: dict[str, Any] | None = None
    artifacts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        return not self.error


class Launcher:
    """Runs one try of one task.

    Args:
        execution: Registered by the driver.
        root: URI that all outputs of the run are below.
        publish_logs: Option ``--publish_logs``.
        random: Decides on white space in JSON and on the order of placeholders.
    """

    def __init__(
        self,
        execution: Execution,
        root: str,
        publish_logs: bool,
        store: MetadataStore,
        objects: ObjectStore,
        random: Random,
    ) -> None:
        self._execution = execution
        self._bucket = BucketConfig.parse(root)
        self._publish_logs = publish_logs
        self._store = store
        self._objects = objects
        self._random = random

    def execute(
        self, pod: PodSpec, container: Container, argo_variables: Mapping[str, str], retry: int | None
    ) -> StepEnd:
        """Run a try, and publish its outputs."""
        end = StepEnd()
        try:
            self._execute(pod, container, argo_variables, retry or 0, end)
        except (LauncherError, ObjectStoreError, ConversionError, OSError) as error:
            end.error = end.error or str(error)
        end.log = container.output
        if end.program is None or not end.program.terminated:
            self._publish(end)
        return end

    def _execute(
        self, pod: PodSpec, container: Container, argo_variables: Mapping[str, str], retry: int, end: StepEnd
    ) -> None:
        executor_input, component, arguments = _read_command(pod, container.environment, argo_variables)
        self._make_folders(executor_input, container)
        if self._publish_logs and _LOGS in executor_input["outputs"]["artifacts"]:
            (log,) = executor_input["outputs"]["artifacts"][_LOGS]["artifacts"]
            log["uri"] = f"{log['uri']}-{retry}"
        end.arguments = self._compile_arguments(executor_input, component, arguments)
        self._download(executor_input, container)
        self._make_folders(executor_input, container)
        end.program = container.run(end.arguments, waits_for_output=self._publish_logs)
        self._write_log(executor_input, container)
        if end.program.terminated:
            # The launcher has no handler of SIGTERM: it is gone before its program.
            end.error = "terminated"
            return
        if end.program.output_left_open:
            end.error = "the program has ended, but a process that it started keeps its output: the step never ends"
            return
        written: dict[str, Any] = {}
        if end.program.code != 0:
            end.error = f"exit status {end.program.code}"
        else:
            try:
                written = _read_executor_output(container.host_path(executor_input["outputs"]["outputFile"]))
            except ConversionError as error:
                end.error = f"failed to unmarshall ExecutorOutput: {error}"
        if end.error:
            self._upload_log(executor_input, container, end)
            return
        end.outputs = self._collect_parameters(executor_input, component, written, container)
        try:
            self._upload(executor_input["outputs"]["artifacts"], written.get("artifacts", {}), container, end)
        except (LauncherError, ObjectStoreError, ConversionError, OSError):
            end.outputs, end.artifacts = None, {}
            raise

    # Command.

    def _compile_arguments(
        self, executor_input: Mapping[str, Any], component: Mapping[str, Any], arguments: list[str]
    ) -> list[str]:
        """Replace ``{{$}}`` by JSON, then all other placeholders in the result, in any order (compileCmdAndArgs)."""
        completed = copy.deepcopy(dict(executor_input))
        for name, declared in component.get("inputDefinitions", {}).get("parameters", {}).items():
            if "defaultValue" in declared:
                completed["inputs"]["parameterValues"].setdefault(name, declared["defaultValue"])
        try:
            placeholders = list(_placeholders(completed).items())
        except LauncherError:
            # compileCmdAndArgs overwrites this error: nothing but {{$}} is replaced then.
            placeholders = []
        text = marshal_randomly(completed, self._random)
        program, *rest = (argument.replace("{{$}}", text) for argument in arguments)
        self._random.shuffle(placeholders)
        for placeholder, value in placeholders:
            rest = [argument.replace(placeholder, value) for argument in rest]
        return [program, *rest]

    # Inputs.

    def _download(self, executor_input: Mapping[str, Any], container: Container) -> None:
        """Download all input artifacts (downloadArtifacts); unknown schemes fail before any download."""
        found = executor_input["inputs"]["artifacts"]
        for given in found.values():
            if given["artifacts"] and not given["artifacts"][0]["uri"].startswith("oci://"):
                self._bucket_of(given["artifacts"][0]["uri"])
        for artifact in [each for given in found.values() for each in given["artifacts"]]:
            if artifact.get("metadata", {}).get("_kfp_workspace") is True:
                continue
            try:
                target = container.host_path(_path_of(artifact))
            except ObjectStoreError:
                continue
            if artifact["uri"].startswith("oci://"):
                target.mkdir(parents=True, exist_ok=True)
                continue
            config = self._bucket_of(artifact["uri"])
            self._objects.download(config, config.key(artifact["uri"]), target)

    def _bucket_of(self, uri: str) -> BucketConfig:
        if uri.startswith(self._bucket.prefixed_bucket):
            return self._bucket
        return BucketConfig.parse_artifact(uri)

    def _make_folders(self, executor_input: Mapping[str, Any], container: Container) -> None:
        outputs = executor_input["outputs"]
        paths = [place["outputFile"] for place in outputs["parameters"].values()]
        paths += [_path_of(artifact) for given in outputs["artifacts"].values() for artifact in given["artifacts"]]
        for path in paths:
            container.host_path(path).parent.mkdir(parents=True, exist_ok=True)

    # Outputs.

    def _collect_parameters(
        self,
        executor_input: Mapping[str, Any],
        component: Mapping[str, Any],
        written: Mapping[str, Any],
        container: Container,
    ) -> dict[str, Any]:
        """Return output parameters: those of executor_output.json, and the files of all others."""
        values = dict(written.get("parameterValues", {}))
        declared = component.get("outputDefinitions", {}).get("parameters", {})
        for name, place in executor_input["outputs"]["parameters"].items():
            if name in values:
                continue
            kind = declared[name]["parameterType"]
            try:
                text = container.host_path(place["outputFile"]).read_text(encoding="utf-8")
                values[name] = parse_output_parameter(text, kind)
            except (OSError, ConversionError) as error:
                raise LauncherError(
                    f'failed to read output parameter name="{name}" type="{kind}" path="{place["outputFile"]}": {error}'
                ) from error
        return values

    def _write_log(self, executor_input: Mapping[str, Any], container: Container) -> None:
        if self._publish_logs and _LOGS in executor_input["outputs"]["artifacts"]:
            (log,) = executor_input["outputs"]["artifacts"][_LOGS]["artifacts"]
            container.host_path(_path_of(log)).write_text(container.output, encoding="utf-8")

    def _upload_log(self, executor_input: Mapping[str, Any], container: Container, end: StepEnd) -> None:
        artifacts = executor_input["outputs"]["artifacts"]
        self._upload({_LOGS: artifacts[_LOGS]} if _LOGS in artifacts else {}, {}, container, end)

    def _upload(
        self,
        provisioned: Mapping[str, Any],
        written: Mapping[str, Any],
        container: Container,
        end: StepEnd,
    ) -> None:
        """Upload and register output artifacts (uploadOutputArtifacts)."""
        for name, given in provisioned.items():
            for artifact in given["artifacts"]:
                listed = written.get(name, {}).get("artifacts", []) if name != _LOGS else []
                if listed:
                    _merge(listed[0], artifact)
                if self._upload_one(name, artifact, container):
                    end.artifacts.setdefault(name, []).append(artifact)
        # A null in the metadata fails the step, whatever was uploaded.
        for artifacts in end.artifacts.values():
            for artifact in artifacts:
                artifact["registered"] = self._register(artifact)

    def _upload_one(self, name: str, artifact: Mapping[str, Any], container: Container) -> bool:
        """Upload an artifact; return whether it is to be registered."""
        try:
            source = container.host_path(_path_of(artifact))
        except ObjectStoreError:
            return name != _LOGS
        if artifact["uri"].startswith("oci://"):
            return True
        key = self._bucket.key(artifact["uri"])
        try:
            self._objects.upload(source, self._bucket, key, container.follow)
        except FileNotFoundError:
            return name != _LOGS  # Components need not write their artifacts.
        return True

    def _register(self, artifact: Mapping[str, Any]) -> int:
        kind = artifact.get("type", {})
        title = kind.get("schemaTitle") or kind.get("instanceSchema") or ""
        metadata = artifact.get("metadata") or {}
        return self._store.record_artifact(str(artifact["name"]), title, artifact["uri"], metadata).id

    def _publish(self, end: StepEnd) -> None:
        self._execution.state = "COMPLETE" if end.succeeded else "FAILED"
        if end.outputs is not None:
            self._execution.outputs = end.outputs
        for name, artifacts in end.artifacts.items():
            for artifact in artifacts:
                self._execution.output_events.append((name, artifact["registered"]))
        self._store.update_dag_state(self._execution.parent)


def _read_command(
    pod: PodSpec, environment: Mapping[str, str], argo_variables: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the launcher's options and the program's arguments, as Argo, the kubelet and Linux pass them on."""

    def pass_on(text: str) -> str:
        return expand(substitute(text, argo_variables), environment)

    options = [pass_on(pod.executor_input), pass_on(pod.component_spec)]
    for option in options:
        if len(option.encode()) > MAX_ARGUMENT:
            raise LauncherError("exec /kfp-launcher/launch: argument list too long")
    arguments = []
    for number, argument in enumerate(pod.arguments):
        passed = pass_on(argument)
        # Argo's emissary passes the name of a file, which it reads back for Argo's own containers only.
        arguments.append(passed if len(passed.encode()) <= MAX_ARGUMENT else f"@/tmp/argo_arg_{number}.txt")
    return parse_json(options[0]), parse_json(options[1]), arguments


def _path_of(artifact: Mapping[str, Any]) -> str:
    """Return the path of an artifact in the container (retrieveArtifactPath)."""
    if artifact.get("customPath") is not None:
        return str(artifact["customPath"])
    return local_path(artifact["uri"])


def _placeholders(executor_input: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of all placeholders (getPlaceholders)."""
    inputs, outputs = executor_input["inputs"], executor_input["outputs"]
    found: dict[str, str] = {}
    for name, given in inputs["artifacts"].items():
        for artifact in given["artifacts"][:1]:
            found[f"{{{{$.inputs.artifacts['{name}'].uri}}}}"] = artifact["uri"]
            try:
                path = _path_of(artifact)
            except ObjectStoreError:
                continue
            if artifact.get("metadata", {}).get("_kfp_workspace") is True:
                path = str(PurePosixPath(_WORKSPACE_ARTIFACTS, path.lstrip("/")))
            found[f"{{{{$.inputs.artifacts['{name}'].path}}}}"] = path
    for name, given in outputs["artifacts"].items():
        for artifact in given["artifacts"][:1]:
            found[f"{{{{$.outputs.artifacts['{name}'].uri}}}}"] = artifact["uri"]
            found[f"{{{{$.outputs.artifacts['{name}'].path}}}}"] = _path_of(artifact)
    for name, value in inputs["parameterValues"].items():
        if value is None:
            raise LauncherError("failed to get placeholders: unknown PipelineSpec Value type")
        found[f"{{{{$.inputs.parameters['{name}']}}}}"] = _placeholder_text(value)
    for name, place in outputs["parameters"].items():
        found[f"{{{{$.outputs.parameters['{name}'].output_file}}}}"] = place["outputFile"]
    return found


def _placeholder_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number_text(value, exponent=False)
    return value if isinstance(value, str) else marshal(value, escape_html=True)


def _read_executor_output(path: Path) -> dict[str, Any]:
    """Read executor_output.json as protojson does; a missing file is an empty one (getExecutorOutputFile)."""
    if not path.exists():
        return {}
    written = _known_fields(parse_json(path.read_text(encoding="utf-8")), _OUTPUT_FIELDS)
    for name, given in written.get("artifacts", {}).items():
        listed = _known_fields(given, {"artifacts": "artifacts"}).get("artifacts") or []
        written["artifacts"][name] = {"artifacts": [_known_fields(each, _ARTIFACT_FIELDS) for each in listed]}
    return written


def _known_fields(message: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ConversionError(f"unexpected token {message!r}")
    unknown = sorted(set(message) - set(fields))
    if unknown:
        raise ConversionError(f'unknown field "{unknown[0]}"')
    return {fields[name]: value for name, value in message.items() if value is not None}


def _merge(written: Mapping[str, Any], artifact: dict[str, Any]) -> None:
    """Take URI, metadata and path from executor_output.json (mergeRuntimeArtifacts)."""
    artifact["uri"] = written.get("uri") or artifact["uri"]
    if "metadata" in written:
        artifact["metadata"] = {**(artifact.get("metadata") or {}), **written["metadata"]}
    if written.get("customPath"):
        artifact["customPath"] = written["customPath"]
