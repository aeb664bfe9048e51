"""Application of RuntimePatch entries to the pods of a PyTorchJob, and their validation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import runtimes
from trainer_core.model.request import VOLCANO_QUEUE


def list_pod_patches(patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the patches of the pod template of the trainer job, in order."""
    name, trainer_job = runtimes.get_name(runtime), runtimes.find_trainer_job(runtime) or {}
    pods = [pod for patch in patches for pod in _get_pod_templates(patch, trainer_job, name)]
    volumes = runtimes.list_volumes(runtime, trainer_job)
    for pod in pods:
        volumes |= {volume.get("name") for volume in (pod.get("spec") or {}).get("volumes") or ()}
    for pod in pods:
        _check_pod(pod.get("spec") or {}, trainer_job, volumes, name)
    return pods


def get_volcano_queue(patches: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the Volcano queue that the last of the patches sets; None if there is none."""
    queues = [_get_annotations(patch)[VOLCANO_QUEUE] for patch in patches if VOLCANO_QUEUE in _get_annotations(patch)]
    return queues[-1] if queues else None


def _get_pod_templates(
    patch: Mapping[str, Any], trainer_job: Mapping[str, Any], runtime: str
) -> Iterator[dict[str, Any]]:
    template = _get_template(patch)
    path = f"runtimePatches[{patch.get('manager')}]"
    unsupported = [f"metadata.{key}" for key in (template.get("metadata") or {}) if key != "annotations"]
    unsupported += [f"metadata.annotations[{key}]" for key in _get_annotations(patch) if key != VOLCANO_QUEUE]
    if unsupported:
        raise UnsupportedError(
            f"{path}: {unsupported[0]} belongs to a JobSet, and a PyTorchJob creates no JobSet; remove it"
        )
    for job in (template.get("spec") or {}).get("replicatedJobs") or ():
        if job.get("name") != trainer_job.get("name"):
            raise UnsupportedError(
                f"{path}: {job.get('name')!r} cannot be changed: a PyTorchJob has only the pods of "
                f"{trainer_job.get('name')!r} of runtime {runtime!r}; remove it"
            )
        if (job.get("template") or {}).get("metadata"):
            raise UnsupportedError(
                f"{path}.replicatedJobs[{job['name']}].template.metadata belongs to a Job, and a PyTorchJob creates no "
                "Job; set the metadata of the pods instead: template.spec.template.metadata"
            )
        pod = ((job.get("template") or {}).get("spec") or {}).get("template")
        if pod:
            yield pod


def _check_pod(pod_spec: Mapping[str, Any], trainer_job: Mapping[str, Any], volumes: set[str], runtime: str) -> None:
    runtime_pod_spec = runtimes.get_pod_spec(trainer_job)
    for kind in ("containers", "initContainers"):
        known = [container["name"] for container in runtime_pod_spec.get(kind) or ()]
        for container in pod_spec.get(kind) or ():
            if container.get("name") not in known:
                raise UnsupportedError(
                    f"runtimePatches.{kind}: runtime {runtime!r} has no container {container.get('name')!r} there; it "
                    f"has {', '.join(known) or 'none'}"
                )
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes:
                    raise UnsupportedError(
                        f"runtimePatches: container {container['name']!r} mounts volume {mount.get('name')!r}, which "
                        "is neither in the runtime nor in the patch; add it to volumes"
                    )


def _get_annotations(patch: Mapping[str, Any]) -> Mapping[str, str]:
    return (_get_template(patch).get("metadata") or {}).get("annotations") or {}


def _get_template(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    return template
