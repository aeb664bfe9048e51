"""Validation of RuntimePatch entries: the runtime must have the jobs, containers and volumes that they name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.k8s import runtimes
from trainer_core.model.request import VOLCANO_QUEUE

#: Format of a domain-prefixed path, as the API server validates it.
_MANAGER = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
)
#: Containers whose environment admission rejects in patches; trainer and initializers set it.
_NO_ENV = tuple(runtimes.CONTAINER_BY_ANCESTOR.values())


def check_patches(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> None:
    for patch in patches:
        manager = patch.get("manager")
        if not isinstance(manager, str) or not _MANAGER.fullmatch(manager):
            raise InvalidRequestError(
                f"runtimePatches: manager {manager!r} must be a domain and a path, such as example.com/team"
            )
        _check_queue(patch, runtime)
    for path, name, pod in _walk_pods(patches):
        job = runtimes.find_replicated_job(runtime, name)
        if job is None:
            known = ", ".join(each["name"] for each in runtimes.list_replicated_jobs(runtime))
            raise UnsupportedError(
                f"{path}: runtime {runtimes.get_name(runtime)!r} has no replicated job {name!r}; its jobs are {known}"
            )
        _check_pod(path, job, pod)
    _check_volumes(patches, runtime)


def list_volume_mounts(patches: Sequence[Mapping[str, Any]], job: str, container: str) -> list[dict[str, Any]]:
    return [
        mount
        for _, name, pod in _walk_pods(patches)
        for each in pod.get("containers") or ()
        if (name, each.get("name")) == (job, container)
        for mount in each.get("volumeMounts") or ()
    ]


def _check_queue(patch: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    annotations = (_get_template(patch).get("metadata") or {}).get("annotations") or {}
    if VOLCANO_QUEUE not in annotations:
        return
    if not annotations[VOLCANO_QUEUE]:
        raise InvalidRequestError(f"annotation {VOLCANO_QUEUE} must not be empty; set it to a Volcano queue")
    if (runtime["spec"].get("podGroupPolicy") or {}).get("volcano") is None:
        raise UnsupportedError(
            f"gang scheduling: runtime {runtimes.get_name(runtime)!r} has no podGroupPolicy.volcano, so queue "
            f"{annotations[VOLCANO_QUEUE]!r} would be ignored; use a runtime with podGroupPolicy.volcano"
        )


def _check_pod(path: str, job: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    pod_spec = runtimes.get_pod_spec(job)
    for kind in ("containers", "initContainers"):
        known = [each["name"] for each in pod_spec.get(kind) or ()]
        for container in pod.get(kind) or ():
            name = container.get("name")
            if name not in known:
                # Admission accepts a name of the other kind, which adds a container without an image.
                raise UnsupportedError(
                    f"{path}.{kind}: the runtime has no container {name!r} there; it has {', '.join(known) or 'none'}"
                )
            if container.get("env") and name in _NO_ENV:
                raise UnsupportedError(
                    f"{path}.{kind}[{name}].env is rejected by admission; set env of the trainer or initializer"
                )


def _check_volumes(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> None:
    """Check that every mounted volume exists; otherwise the pods cannot be created."""
    volumes = {job["name"]: runtimes.list_volumes(runtime, job) for job in runtimes.list_replicated_jobs(runtime)}
    for _, name, pod in _walk_pods(patches):
        volumes[name].update(volume.get("name") for volume in pod.get("volumes") or ())
    for path, name, pod in _walk_pods(patches):
        for container in [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]:
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes[name]:
                    raise UnsupportedError(
                        f"{path}: container {container.get('name')!r} mounts volume {mount.get('name')!r}, which "
                        "is neither in the runtime nor in the patch; add it to volumes"
                    )


def _walk_pods(patches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield dotted path, replicated job and pod spec of each pod that is patched."""
    for patch in patches:
        for job in (_get_template(patch).get("spec") or {}).get("replicatedJobs") or ():
            path = f"runtimePatches[{patch.get('manager')}].replicatedJobs[{job.get('name')}]"
            yield path, job.get("name"), runtimes.get_pod_spec(job)


def _get_template(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    return template
