"""RuntimePatch entries → what they change of the pods of a PyTorchJob; what it has no place for is refused. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.cluster import runtimes
from trainer_core.errors import UnsupportedError
from trainer_core.options.scheduling import VOLCANO_QUEUE

__all__ = ["pod_patches", "queue"]


def pod_patches(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what patches lay over the pod template of the job that trains, in order.

    Raises:
        UnsupportedError: A patch changes something else, or names what the runtime has not.
    """
    trainer = runtimes.trainer_job(runtime) or {}
    found = [pod for patch in patches for pod in _of(patch, trainer, runtimes.name(runtime))]
    volumes = runtimes.volumes(runtime, trainer)
    for pod in found:
        volumes |= {volume.get("name") for volume in (pod.get("spec") or {}).get("volumes") or ()}
    for pod in found:
        _check_pod(pod.get("spec") or {}, trainer, volumes, runtimes.name(runtime))
    return found


def queue(patches: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the queue of Volcano that patches name, None where they name none."""
    named = [_annotations(patch)[VOLCANO_QUEUE] for patch in patches if VOLCANO_QUEUE in _annotations(patch)]
    return named[-1] if named else None


def _of(patch: Mapping[str, Any], trainer: Mapping[str, Any], runtime: str) -> Iterator[dict[str, Any]]:
    template = _template(patch)
    place = f"runtimePatches[{patch.get('manager')}]"
    wrong = [f"metadata.{key}" for key in (template.get("metadata") or {}) if key != "annotations"]
    wrong += [f"metadata.annotations[{key}]" for key in _annotations(patch) if key != VOLCANO_QUEUE]
    if wrong:
        raise UnsupportedError(f"{place}: {wrong[0]} is of a JobSet, and a PyTorchJob has none; leave it out")
    for job in (template.get("spec") or {}).get("replicatedJobs") or ():
        if job.get("name") != trainer.get("name"):
            raise UnsupportedError(
                f"{place}: a PyTorchJob has pods of one kind only, those of {trainer.get('name')!r} of runtime "
                f"{runtime!r}; {job.get('name')!r} cannot be changed"
            )
        if (job.get("template") or {}).get("metadata"):
            raise UnsupportedError(
                f"{place}.replicatedJobs[{job['name']}].template.metadata is of a Job, and a PyTorchJob has none; "
                "give the metadata of the pods: template.spec.template.metadata"
            )
        pod = ((job.get("template") or {}).get("spec") or {}).get("template")
        if pod:
            yield pod


def _check_pod(pod: Mapping[str, Any], trainer: Mapping[str, Any], volumes: set[str], runtime: str) -> None:
    has = runtimes.pod_spec(trainer)
    for kind in ("containers", "initContainers"):
        known = [each["name"] for each in has.get(kind) or ()]
        for container in pod.get(kind) or ():
            if container.get("name") not in known:
                raise UnsupportedError(
                    f"runtimePatches: {kind} of runtime {runtime!r} have no {container.get('name')!r}; there are "
                    f"{', '.join(known) or 'none'}"
                )
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes:
                    raise UnsupportedError(
                        f"runtimePatches: container {container['name']!r} mounts volume {mount.get('name')!r}, which "
                        "neither the runtime nor the patch has; add it to volumes"
                    )


def _annotations(patch: Mapping[str, Any]) -> Mapping[str, str]:
    return (_template(patch).get("metadata") or {}).get("annotations") or {}


def _template(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    return template
