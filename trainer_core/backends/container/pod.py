"""The pod template of a runtime, with a request's patches laid over it → the settings of a container. Pure.

Volumes, user, limits, shared memory and environment are said where Kubernetes says them, so that one runtime serves a
cluster and a laptop. What a runtime says for a cluster's scheduler has no meaning here and is passed over; what a
request asks for by a patch and cannot have is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core import resources
from trainer_core.cluster import runtimes
from trainer_core.errors import UnsupportedError
from trainer_core.options.patches import merged

__all__ = ["limits", "node", "patched", "security", "settings"]

SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- where every container has it
_POD_PATCH = frozenset({"volumes", "containers", "securityContext"})
_CONTAINER_PATCH = frozenset({"name", "env", "volumeMounts", "securityContext"})
_SECURITY = frozenset({"runAsUser", "runAsGroup", "capabilities"})
_GPU = "nvidia.com/gpu"
_ENFORCED = frozenset({"cpu", "memory", _GPU})


def patched(runtime: Mapping[str, Any], patches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pod spec of a runtime's nodes under the patches of a request.

    Raises:
        UnsupportedError: A patch asks for what only a cluster has, or the runtime's pods cannot be containers.
    """
    job = runtimes.trainer_job(runtime)
    if job is None or runtimes.trainer_container(runtime) is None:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} labels none of its replicated jobs {runtimes.ANCESTOR}="
            f"{runtimes.TRAINER} with a container {runtimes.NODE!r}; nothing in it says what trains"
        )
    pod = runtimes.pod_spec(job)
    for patch in patches:
        for spec in _pod_patches(patch, job["name"]):
            _check_patch(spec)
            pod = merged(pod, spec)
    if len(pod.get("containers") or ()) > 1 or pod.get("initContainers"):
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} has other containers beside {runtimes.NODE!r}; here a node is one "
            "container: use another runtime, or the kubernetes backend"
        )
    return pod


def node(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that trains."""
    return next(dict(each) for each in pod["containers"] if each.get("name") == runtimes.NODE)


def settings(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return mounts, shared memory, environment, user and capabilities of the container that trains.

    Raises:
        UnsupportedError: A volume, or the source of a variable, exists on clusters only.
    """
    container = node(pod)
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    mounts = [_mount(mount, volumes) for mount in container.get("volumeMounts") or ()]
    shared = next((mount for mount in mounts if mount and mount["target"] == SHARED_MEMORY), None)
    return {
        "env": dict(_env(container)),
        "mounts": [mount for mount in mounts if mount and mount is not shared],
        **({"shm_size": shared["size"]} if shared and shared.get("size") else {}),
        **security(pod, container),
        **({"working_dir": container["workingDir"]} if container.get("workingDir") else {}),
    }


def limits(asked: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a container: what the request asks for over what the runtime says.

    Raises:
        UnsupportedError: The request asks for what an engine cannot limit or hand out.
    """
    beyond = sorted(set(asked) - _ENFORCED)
    if beyond:
        raise UnsupportedError(
            f"resources_per_node: containers are given cpu, memory and gpu, not {', '.join(beyond)}; leave it out, or "
            "use the kubernetes backend"
        )
    said = ((container.get("resources") or {}).get("limits")) or {}
    amounts = {**{name: said[name] for name in said if name in _ENFORCED}, **asked}
    found: dict[str, Any] = {}
    if "memory" in amounts:
        found["memory"] = int(resources.parse_quantity(amounts["memory"]))
    if "cpu" in amounts:
        found["nano_cpus"] = int(resources.parse_quantity(amounts["cpu"]) * 10**9)
    if amounts.get(_GPU):
        found["gpus"] = int(resources.parse_quantity(amounts[_GPU]))
    return found


def security(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Return user and capabilities; the container's count before the pod's."""
    context = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    found: dict[str, Any] = {}
    if "runAsUser" in context:
        group = f":{context['runAsGroup']}" if "runAsGroup" in context else ""
        found["user"] = f"{context['runAsUser']}{group}"
    capabilities = context.get("capabilities") or {}
    for action in ("add", "drop"):
        if capabilities.get(action):
            found[f"cap_{action}"] = list(capabilities[action])
    return found


def _pod_patches(patch: Mapping[str, Any], job: str) -> Iterator[dict[str, Any]]:
    template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    if template.get("metadata"):
        raise UnsupportedError("RuntimePatch: containers have no JobSet whose metadata could be changed; use Labels")
    for replicated in (template.get("spec") or {}).get("replicatedJobs") or ():
        if replicated.get("name") != job:
            raise UnsupportedError(
                f"RuntimePatch: only the nodes can be patched here: {job!r}, not {replicated['name']!r}"
            )
        inner = ((replicated.get("template") or {}).get("spec") or {}).get("template") or {}
        if inner.get("metadata") or (replicated.get("template") or {}).get("metadata"):
            raise UnsupportedError("RuntimePatch: containers have no pod whose metadata could be changed; use Labels")
        yield inner.get("spec") or {}


def _check_patch(spec: Mapping[str, Any]) -> None:
    _only(spec, _POD_PATCH, "")
    _only(spec.get("securityContext") or {}, _SECURITY, "securityContext.")
    for container in spec.get("containers") or ():
        if container.get("name") != runtimes.NODE:
            raise UnsupportedError(f"RuntimePatch: a node has one container, {runtimes.NODE!r}; patch that")
        _only(container, _CONTAINER_PATCH, "containers.")
        _only(container.get("securityContext") or {}, _SECURITY, "containers.securityContext.")


def _only(given: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    beyond = sorted(where + key for key in given if key not in known)
    if beyond:
        raise UnsupportedError(
            f"RuntimePatch: {', '.join(beyond)} means something to a cluster only; leave it out on this backend"
        )


def _env(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            raise UnsupportedError(
                f"env {entry['name']} comes from {', '.join(entry['valueFrom'])}, which only a cluster has"
            )
        yield entry["name"], str(entry.get("value") or "")


def _mount(mount: Mapping[str, Any], volumes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """A mount in our words; None for what is there anyway."""
    name, target = mount["name"], mount["mountPath"]
    if mount.get("subPath") or mount.get("subPathExpr"):
        raise UnsupportedError(f"volume {name!r}: engines mount whole volumes, not a subPath; mount all of it")
    # One that JobSet would make of a claim template is the volume between initializers and nodes.
    volume = volumes.get(name, {"claimTemplate": {}})
    read_only = {"read_only": True} if mount.get("readOnly") else {}
    if "hostPath" in volume:
        return {"type": "bind", "source": volume["hostPath"]["path"], "target": target, **read_only}
    if "persistentVolumeClaim" in volume:
        return {"type": "volume", "source": volume["persistentVolumeClaim"]["claimName"], "target": target, **read_only}
    if "emptyDir" in volume:
        return _scratch(volume["emptyDir"] or {}, target)
    if "claimTemplate" in volume:
        return None
    kinds = ", ".join(key for key in volume if key != "name")
    raise UnsupportedError(
        f"volume {name!r} is a {kinds}, which only a cluster has; use hostPath, emptyDir or persistentVolumeClaim"
    )


def _scratch(empty: Mapping[str, Any], target: str) -> dict[str, Any]:
    if empty.get("medium") != "Memory":
        return {"type": "scratch", "target": target}
    limit = empty.get("sizeLimit")
    size = {"size": int(resources.parse_quantity(limit))} if limit else {}
    return {"type": "tmpfs", "target": target, **size}
