"""The patch of a step's pod, and TaskConfig: what is set on a task and goes to one of them, or to both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_backend.quantities import QuantityError, canonical_quantity
from kfp_backend.settings import Installation
from kfp_backend.values import marshal, number_text, to_value

FIELDS = (
    "RESOURCES",
    "ENV",
    "KUBERNETES_AFFINITY",
    "KUBERNETES_TOLERATIONS",
    "KUBERNETES_NODE_SELECTOR",
    "KUBERNETES_VOLUMES",
)
_WORKSPACE = "kfp-workspace"
_PARAMETER = re.compile(r"\$.inputs.parameters\['(.+?)'\]")
_WHOLE_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['(.+?)']}}")


class PodError(Exception):
    """A pod cannot be made of a task's settings."""


class NullParameterError(Exception):
    """A parameter of the DAG around a task is null."""


@dataclass
class PodSpec:
    """The main container of a step's pod, and what is mounted into it."""

    image: str
    #: The task's own command and arguments, with input parameters resolved.
    arguments: list[str]
    environment: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, Any] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)
    node_selector: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    affinity: dict[str, Any] | None = None
    #: activeDeadlineSeconds of the pod; 0 for none.
    deadline: float = 0.0
    #: Argument ``--executor_input`` of the launcher.
    executor_input: str = ""
    #: Argument ``--component_spec`` of the launcher.
    component_spec: str = ""


@dataclass
class Settings:
    """A task's settings, and how values in them are resolved."""

    component: Mapping[str, Any]
    container: Mapping[str, Any]
    kubernetes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    installation: Installation
    run_name: str
    #: Returns the value of a parameter source; raises NullParameterError where that is null.
    resolve: Callable[[Mapping[str, Any]], Any]
    #: The same for the name of an object, which must be a text that is not empty.
    resolve_name: Callable[[Mapping[str, Any]], str]


def build_pod(settings: Settings) -> tuple[PodSpec, dict[str, Any]]:
    """Return the pod of a step, and the value of its TaskConfig inputs (initPodSpecPatch, extendPodSpecPatch)."""
    to_config, to_pod = _destinations(settings.component)
    container = settings.container
    pod = PodSpec(
        image=_resolve_in_pod(container["image"], settings.inputs),
        arguments=[
            *_resolve_arguments(container.get("command", ()), settings.inputs),
            *_resolve_arguments(container.get("args", ()), settings.inputs),
        ],
        deadline=float(settings.kubernetes.get("activeDeadlineSeconds", 0)),
    )
    config: dict[str, Any] = {
        "affinity": None,
        "tolerations": None,
        "nodeSelector": None,
        "env": None,
        "volumes": None,
        "volumeMounts": None,
        "resources": {},
    }
    environment = [*_own_environment(settings), *_referred_environment(settings)]
    resources = _resources(container.get("resources", {}), settings.inputs)
    volumes = [*_workspace(settings), *_claims(settings), *_secrets_and_config_maps(settings)]
    selector, tolerations, affinity = _selector(settings), _tolerations(settings), _affinity(settings)
    if "ENV" in to_config:
        config["env"] = environment
    if "RESOURCES" in to_config:
        config["resources"] = resources
    if "KUBERNETES_VOLUMES" in to_config and volumes:
        config["volumes"] = [volume for volume, _ in volumes]
        config["volumeMounts"] = [mount for _, mount in volumes]
    for field_name, key, value in (
        ("KUBERNETES_NODE_SELECTOR", "nodeSelector", selector),
        ("KUBERNETES_TOLERATIONS", "tolerations", tolerations),
        ("KUBERNETES_AFFINITY", "affinity", affinity),
    ):
        if field_name in to_config:
            config[key] = value
    pod.environment = environment if "ENV" in to_pod else []
    pod.resources = resources if "RESOURCES" in to_pod else {}
    if "KUBERNETES_VOLUMES" in to_pod:
        pod.volumes = [volume for volume, _ in volumes]
        pod.volume_mounts = [mount for _, mount in volumes]
    pod.node_selector = selector if "KUBERNETES_NODE_SELECTOR" in to_pod else None
    pod.tolerations = tolerations if "KUBERNETES_TOLERATIONS" in to_pod else None
    pod.affinity = affinity if "KUBERNETES_AFFINITY" in to_pod else None
    return pod, to_value(config)


def needs_workspace(inputs: Mapping[str, Any]) -> bool:
    """Return whether a task gets the run's workspace claim: a text input or an artifact says so."""
    texts = [value for value in inputs["parameterValues"].values() if isinstance(value, str)]
    firsts = [found["artifacts"][0] for found in inputs["artifacts"].values() if found["artifacts"]]
    return any("{{$.workspace_path}}" in text or "/kfp-workspace" in text for text in texts) or any(
        artifact.get("metadata", {}).get("_kfp_workspace") is True for artifact in firsts
    )


def _destinations(component: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the fields that go to TaskConfig and those that go to the pod (getTaskConfigOptions)."""
    passed = component.get("taskConfigPassthroughs", ())
    listed = {each["field"] for each in passed}
    applied = {each["field"] for each in passed if each.get("applyToTask")}
    return listed, (set(FIELDS) - listed) | applied


# Text with placeholders.


def _resolve_in_pod(text: str, inputs: Mapping[str, Any]) -> str:
    """Resolve the one placeholder of an image or a quantity (resolvePodSpecInputRuntimeParameter).

    Only a text parameter has a value there, and text around the placeholder is lost.
    """
    found = _PARAMETER.search(text)
    if not found:
        return text
    if found[1] not in inputs["parameterValues"]:
        raise PodError("executorInput did not contain container Image input parameter")
    value = inputs["parameterValues"][found[1]]
    return value if isinstance(value, str) else ""


def _resolve_arguments(arguments: Sequence[str], inputs: Mapping[str, Any]) -> Iterator[str]:
    """Resolve input parameters in command and arguments (resolveContainerArgs)."""
    for argument in arguments:
        if "$.outputs" in argument:
            yield argument
        elif argument.strip().startswith('{"IfPresent":'):
            yield from _resolve_if_present(json.loads(argument)["IfPresent"], inputs)
        else:
            yield _resolve_placeholders(argument, inputs)


def _resolve_if_present(clause: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    present = inputs["parameterValues"].get(clause["InputName"]) is not None
    chosen = clause.get("Then" if present else "Else")
    for item in [chosen] if isinstance(chosen, str) else chosen or ():
        if not isinstance(item, str):
            raise PodError("non-string item in IfPresent Then/Else array")
        yield _resolve_placeholders(item, inputs)


def _resolve_placeholders(argument: str, inputs: Mapping[str, Any]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in inputs["parameterValues"]:
            raise PodError(f'failed to resolve container args: parameter "{found[1]}" not found in executor input')
        return _argument_text(inputs["parameterValues"][found[1]])

    return _WHOLE_PARAMETER.sub(value, argument)


def _argument_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and not isinstance(value, bool):
        return number_text(value) if value == int(value) else f"{value!r}"
    return value if isinstance(value, str) else marshal(value, escape_html=True)


# Environment.


def _own_environment(settings: Settings) -> Iterator[dict[str, Any]]:
    for variable in settings.container.get("env", ()):
        yield _variable(variable["name"], variable.get("value", ""))
    yield from map(dict, settings.installation.plugin_environment)
    for name, value in settings.installation.proxies.items():
        yield _variable(name, value)


def _variable(name: str, value: str) -> dict[str, Any]:
    """A value that is empty is left out."""
    return {"name": name, "value": value} if value else {"name": name}


def _referred_environment(settings: Settings) -> Iterator[dict[str, Any]]:
    for kind, name_of, key_of, reference in (
        ("secretAsEnv", "secretName", "secretKey", "secretKeyRef"),
        ("configMapAsEnv", "configMapName", "configMapKey", "configMapKeyRef"),
    ):
        for source in settings.kubernetes.get(kind, ()):
            name = _object_name(settings, source, name_of)
            optional = {"optional": source["optional"]} if "optional" in source else {}
            for pair in source.get("keyToEnv", ()) if name else ():
                yield {
                    "name": pair["envVar"],
                    "valueFrom": {reference: {"key": pair[key_of], "name": name, **optional}},
                }
    for source in settings.kubernetes.get("fieldPathAsEnv", ()):
        yield {"name": source["name"], "valueFrom": {"fieldRef": {"fieldPath": source["fieldPath"]}}}


def _object_name(settings: Settings, source: Mapping[str, Any], key: str) -> str:
    """Return the name of a secret or config map; empty where its parameter is null, which skips the setting."""
    parameter = source.get(f"{key}Parameter")
    if parameter is None:
        return str(source[key])
    return settings.resolve_name(parameter) if not _is_null(settings, parameter) else ""


# Resources.


def _resources(resources: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for target, name, key, old_key, old_form in (
        (limits, "memory", "resourceMemoryLimit", "memoryLimit", "{}G"),
        (requests, "memory", "resourceMemoryRequest", "memoryRequest", "{}G"),
        (limits, "cpu", "resourceCpuLimit", "cpuLimit", "{}"),
        (requests, "cpu", "resourceCpuRequest", "cpuRequest", "{}"),
    ):
        text = resources.get(key) or (old_form.format(number_text(resources[old_key])) if old_key in resources else "")
        if text:
            target[name] = _quantity(_resolve_in_pod(text, inputs))
    accelerator = resources.get("accelerator", {})
    kind = accelerator.get("resourceType") or accelerator.get("type", "")
    count = accelerator.get("resourceCount") or (
        number_text(float(accelerator["count"])) if "count" in accelerator else ""
    )
    if kind and count:
        resolved = _resolve_in_pod(kind, inputs), _resolve_in_pod(count, inputs)
        if all(resolved):
            limits[resolved[0]] = _quantity(resolved[1])
    return {**({"limits": limits} if limits else {}), **({"requests": requests} if requests else {})}


def _quantity(text: str) -> str:
    try:
        return canonical_quantity(text)
    except QuantityError as error:
        raise PodError(f"{text!r}: {error}") from error


# Volumes, each with its mount.

_Volume = tuple[dict[str, Any], dict[str, Any]]


def _workspace(settings: Settings) -> Iterator[_Volume]:
    if needs_workspace(settings.inputs):
        claim = {"claimName": f"{settings.run_name}-{_WORKSPACE}"}
        yield {"name": _WORKSPACE, "persistentVolumeClaim": claim}, {"name": _WORKSPACE, "mountPath": "/kfp-workspace"}


def _claims(settings: Settings) -> Iterator[_Volume]:
    for mount in settings.kubernetes.get("pvcMount", ()):
        constant = {"runtimeValue": {"constant": mount["constant"]}} if "constant" in mount else mount
        name = settings.resolve_name(mount.get("pvcNameParameter") or constant)
        path = {"subPath": mount["subPath"]} if mount.get("subPath") else {}
        volume = {"name": name, "persistentVolumeClaim": {"claimName": name}}
        yield volume, {"name": name, "mountPath": mount["mountPath"], **path}


def _secrets_and_config_maps(settings: Settings) -> Iterator[_Volume]:
    """Volumes are named like what is in them."""
    for kind, name_of in (("secretAsVolume", "secretName"), ("configMapAsVolume", "configMapName")):
        for source in settings.kubernetes.get(kind, ()):
            name = _object_name(settings, source, name_of)
            optional = bool(source.get("optional"))
            content = (
                {"secret": {"secretName": name, "optional": optional}}
                if kind == "secretAsVolume"
                else {"configMap": {"name": name, "optional": optional}}
            )
            if name:
                yield {"name": name, **content}, {"name": name, "mountPath": source["mountPath"]}


# Placement.


def _selector(settings: Settings) -> dict[str, Any] | None:
    given = settings.kubernetes.get("nodeSelector")
    if given is None:
        return None
    if "nodeSelectorJson" not in given:
        return dict(given.get("labels", {}))
    selector: dict[str, Any] | None = _json_parameter(settings, given["nodeSelectorJson"])
    return selector


def _tolerations(settings: Settings) -> list[dict[str, Any]] | None:
    given = settings.kubernetes.get("tolerations")
    if given is None:
        return None
    found: list[dict[str, Any]] = []
    for toleration in given:
        if "tolerationJson" not in toleration:
            found.append(dict(toleration))
            continue
        value = _json_parameter(settings, toleration["tolerationJson"])
        found += value if isinstance(value, list) else [value] if value else []
    return found or None


def _affinity(settings: Settings) -> dict[str, Any] | None:
    required, preferred = [], []
    for term in settings.kubernetes.get("nodeAffinity", ()):
        if "nodeAffinityJson" in term:
            value = _json_parameter(settings, term["nodeAffinityJson"])
            if value:
                return {"nodeAffinity": value}
            continue
        expressions = {key: term[key] for key in ("matchExpressions", "matchFields") if term.get(key)}
        if not expressions:
            continue
        if "weight" in term:
            preferred.append({"weight": term["weight"], "preference": expressions})
        else:
            required.append(expressions)
    affinity: dict[str, Any] = {}
    if required:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": required}
    if preferred:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return {"nodeAffinity": affinity} if affinity else None


def _json_parameter(settings: Settings, source: Mapping[str, Any]) -> Any:
    """Return the value of a JSON parameter; None where it is null, which skips the setting."""
    return None if _is_null(settings, source) else settings.resolve(source)


def _is_null(settings: Settings, source: Mapping[str, Any]) -> bool:
    try:
        settings.resolve(source)
    except NullParameterError:
        return True
    return False
