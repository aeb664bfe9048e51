"""Derives the settings of a container from the pod template of a runtime and the patches of a request. Pure.

Volumes, user, limits, shared memory and environment are read from the fields that Kubernetes uses, so one runtime works
on a cluster and on a container engine. Fields of a runtime that only a cluster can honour are ignored; those of a
request's patch are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.base import resources
from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import runtimes
from trainer_core.model.patches import merge_patches

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- the path is the same in every container
_POD_FIELDS = frozenset({"volumes", "containers", "securityContext"})
_CONTAINER_FIELDS = frozenset({"name", "env", "volumeMounts", "securityContext"})
_SECURITY_FIELDS = frozenset({"runAsUser", "runAsGroup", "capabilities"})
_GPU = "nvidia.com/gpu"
_SUPPORTED_RESOURCES = frozenset({"cpu", "memory", _GPU})


def apply_patches(runtime: Mapping[str, Any], patches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pod spec of a runtime's nodes with the patches of a request applied."""
    job = runtimes.find_trainer_job(runtime)
    if job is None or runtimes.find_trainer_container(runtime) is None:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} has no replicated job with the label "
            f"{runtimes.ANCESTOR_LABEL}={runtimes.TRAINER} and a container {runtimes.NODE!r}; add them"
        )
    pod = runtimes.get_pod_spec(job)
    for patch in patches:
        for spec in _list_pod_patches(patch, job["name"]):
            _check_patch(spec)
            pod = merge_patches(pod, spec)
    if len(pod.get("containers") or ()) > 1 or pod.get("initContainers"):
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} has other containers than {runtimes.NODE!r}, which the container "
            "backend does not support; use another runtime, or the kubernetes backend"
        )
    return pod


def get_node_container(pod: Mapping[str, Any]) -> dict[str, Any]:
    return next(dict(each) for each in pod["containers"] if each.get("name") == runtimes.NODE)


def get_container_settings(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return mounts, shared memory, environment, user, capabilities and working directory of the training container."""
    container = get_node_container(pod)
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    converted = [_convert_mount(mount, volumes) for mount in container.get("volumeMounts") or ()]
    mounts = [mount for mount in converted if mount is not None]
    settings: dict[str, Any] = {"env": dict(_list_env(container)), "mounts": mounts}
    shared = next((mount for mount in mounts if mount["target"] == _SHARED_MEMORY), None)
    if shared:
        mounts.remove(shared)
        if shared.get("size"):
            settings["shm_size"] = shared["size"]
    settings.update(_get_security(pod, container))
    if container.get("workingDir"):
        settings["working_dir"] = container["workingDir"]
    return settings


def get_limits(requested: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource limits of a container. Requested amounts override those of the runtime."""
    unsupported = sorted(set(requested) - _SUPPORTED_RESOURCES)
    if unsupported:
        raise UnsupportedError(
            f"resources_per_node: the container backend supports cpu, memory and gpu, not {', '.join(unsupported)}; "
            "remove it, or use the kubernetes backend"
        )
    runtime_limits = ((container.get("resources") or {}).get("limits")) or {}
    amounts = {name: amount for name, amount in runtime_limits.items() if name in _SUPPORTED_RESOURCES}
    amounts.update(requested)
    limits: dict[str, Any] = {}
    if "memory" in amounts:
        limits["memory"] = int(resources.parse_quantity(amounts["memory"]))
    if "cpu" in amounts:
        limits["nano_cpus"] = int(resources.parse_quantity(amounts["cpu"]) * 10**9)
    if amounts.get(_GPU):
        limits["gpus"] = int(resources.parse_quantity(amounts[_GPU]))
    return limits


def _get_security(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Return user and capabilities. The security context of the container overrides that of the pod."""
    context = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    security: dict[str, Any] = {}
    if "runAsUser" in context:
        group = f":{context['runAsGroup']}" if "runAsGroup" in context else ""
        security["user"] = f"{context['runAsUser']}{group}"
    capabilities = context.get("capabilities") or {}
    for action in ("add", "drop"):
        if capabilities.get(action):
            security[f"cap_{action}"] = list(capabilities[action])
    return security


def _list_pod_patches(patch: Mapping[str, Any], job: str) -> Iterator[dict[str, Any]]:
    template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    if template.get("metadata"):
        raise UnsupportedError(
            "RuntimePatch: metadata of the JobSet is not supported on this backend; use the option Labels"
        )
    for replicated in (template.get("spec") or {}).get("replicatedJobs") or ():
        if replicated.get("name") != job:
            raise UnsupportedError(
                f"RuntimePatch: replicated job {replicated['name']!r} cannot be patched on this backend, only {job!r}"
            )
        inner = ((replicated.get("template") or {}).get("spec") or {}).get("template") or {}
        if inner.get("metadata") or (replicated.get("template") or {}).get("metadata"):
            raise UnsupportedError(
                "RuntimePatch: metadata of pods is not supported on this backend; use the option Labels"
            )
        yield inner.get("spec") or {}


def _check_patch(spec: Mapping[str, Any]) -> None:
    _check_fields(spec, _POD_FIELDS, "")
    _check_fields(spec.get("securityContext") or {}, _SECURITY_FIELDS, "securityContext.")
    for container in spec.get("containers") or ():
        if container.get("name") != runtimes.NODE:
            raise UnsupportedError(f"RuntimePatch: only the container {runtimes.NODE!r} can be patched on this backend")
        _check_fields(container, _CONTAINER_FIELDS, "containers.")
        _check_fields(container.get("securityContext") or {}, _SECURITY_FIELDS, "containers.securityContext.")


def _check_fields(fields: Mapping[str, Any], supported: frozenset[str], prefix: str) -> None:
    unsupported = sorted(prefix + key for key in fields if key not in supported)
    if unsupported:
        raise UnsupportedError(
            f"RuntimePatch: {', '.join(unsupported)} needs a Kubernetes cluster; remove it on this backend"
        )


def _list_env(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            raise UnsupportedError(
                f"env {entry['name']}: {', '.join(entry['valueFrom'])} needs a Kubernetes cluster; set a value"
            )
        yield entry["name"], str(entry.get("value") or "")


def _convert_mount(mount: Mapping[str, Any], volumes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return a mount of the plan; None for the volume that every job with initializers has."""
    name, target = mount["name"], mount["mountPath"]
    if mount.get("subPath") or mount.get("subPathExpr"):
        raise UnsupportedError(f"volume {name!r}: container engines cannot mount a subPath; mount the complete volume")
    # A volume that JobSet would create from a claim template is the one between initializers and nodes.
    volume = volumes.get(name, {"claimTemplate": {}})
    read_only = {"read_only": True} if mount.get("readOnly") else {}
    if "hostPath" in volume:
        return {"type": "bind", "source": volume["hostPath"]["path"], "target": target, **read_only}
    if "persistentVolumeClaim" in volume:
        return {"type": "volume", "source": volume["persistentVolumeClaim"]["claimName"], "target": target, **read_only}
    if "emptyDir" in volume:
        return _convert_empty_dir(volume["emptyDir"] or {}, target)
    if "claimTemplate" in volume:
        return None
    kinds = ", ".join(key for key in volume if key != "name")
    raise UnsupportedError(
        f"volume {name!r}: {kinds} needs a Kubernetes cluster; use hostPath, emptyDir or persistentVolumeClaim"
    )


def _convert_empty_dir(empty: Mapping[str, Any], target: str) -> dict[str, Any]:
    if empty.get("medium") != "Memory":
        return {"type": "scratch", "target": target}
    limit = empty.get("sizeLimit")
    size = {"size": int(resources.parse_quantity(limit))} if limit else {}
    return {"type": "tmpfs", "target": target, **size}
