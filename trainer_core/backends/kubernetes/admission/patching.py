"""What RuntimePatch entries may name: jobs, containers and volumes that the runtime has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.cluster import runtimes
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.options.scheduling import VOLCANO_QUEUE

__all__ = ["check", "mounts"]

#: As the API server reads a domain-prefixed path.
_MANAGER = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
)
#: Their environment comes from the trainer and the initializers; admission refuses it in patches.
_NO_ENV = tuple(runtimes.CONTAINERS.values())


def check(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> None:
    """Refuse patches of what the runtime has not.

    Raises:
        InvalidRequestError: A manager is none.
        UnsupportedError: A patch names what the runtime has not, or what no patch can change.
    """
    for patch in patches:
        manager = patch.get("manager")
        if not isinstance(manager, str) or not _MANAGER.fullmatch(manager):
            raise InvalidRequestError(
                f"runtimePatches: manager {manager!r} is not a domain and a path; write one such as example.com/team"
            )
        _check_queue(patch, runtime)
    for place, name, pod in _pods(patches):
        job = runtimes.job(runtime, name)
        if job is None:
            known = ", ".join(each["name"] for each in runtimes.jobs(runtime))
            raise UnsupportedError(
                f"{place}: runtime {runtimes.name(runtime)!r} has no replicated job {name!r}; it has {known}"
            )
        _check_pod(place, job, pod)
    _check_volumes(patches, runtime)


def mounts(patches: Sequence[Mapping[str, Any]], job: str, container: str) -> list[dict[str, Any]]:
    """Return the volume mounts that patches give to a container."""
    return [
        mount
        for _, name, pod in _pods(patches)
        for found in pod.get("containers") or ()
        if (name, found.get("name")) == (job, container)
        for mount in found.get("volumeMounts") or ()
    ]


def _check_queue(patch: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    annotations = (_template(patch).get("metadata") or {}).get("annotations") or {}
    if VOLCANO_QUEUE not in annotations:
        return
    if not annotations[VOLCANO_QUEUE]:
        raise InvalidRequestError(f"{VOLCANO_QUEUE} is empty; name a queue of Volcano")
    if (runtime["spec"].get("podGroupPolicy") or {}).get("volcano") is None:
        raise UnsupportedError(
            f"gang scheduling: runtime {runtimes.name(runtime)!r} has no podGroupPolicy volcano, so the queue "
            f"{annotations[VOLCANO_QUEUE]!r} would not be used; use a runtime that has it"
        )


def _check_pod(place: str, job: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    has = runtimes.pod_spec(job)
    for kind in ("containers", "initContainers"):
        known = [each["name"] for each in has.get(kind) or ()]
        for container in pod.get(kind) or ():
            name = container.get("name")
            if name not in known:
                # A name of the other kind passes admission and adds a container without an image.
                raise UnsupportedError(
                    f"{place}.{kind}: the runtime has no {name!r} among them; it has {', '.join(known) or 'none'}"
                )
            if container.get("env") and name in _NO_ENV:
                raise UnsupportedError(
                    f"{place}.{kind}[{name}].env: admission refuses it there; give env to the trainer or initializer"
                )


def _check_volumes(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> None:
    """Pods cannot be made whose containers mount a volume that is not there."""
    volumes = {job["name"]: runtimes.volumes(runtime, job) for job in runtimes.jobs(runtime)}
    for _, name, pod in _pods(patches):
        volumes[name].update(volume.get("name") for volume in pod.get("volumes") or ())
    for place, name, pod in _pods(patches):
        for container in [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]:
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes[name]:
                    raise UnsupportedError(
                        f"{place}: container {container.get('name')!r} mounts volume {mount.get('name')!r}, which "
                        "neither the runtime nor the patch has; add it to volumes"
                    )


def _pods(patches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Where it stands, the job's name and the patch of its pods, for each job of each patch."""
    for patch in patches:
        for job in (_template(patch).get("spec") or {}).get("replicatedJobs") or ():
            place = f"runtimePatches[{patch.get('manager')}].replicatedJobs[{job.get('name')}]"
            yield place, job.get("name"), runtimes.pod_spec(job)


def _template(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    return template
