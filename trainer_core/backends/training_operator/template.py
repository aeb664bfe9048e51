"""request + runtime → the pod template that every replica of a PyTorchJob has. Pure.

The runtime's own template is laid under what patches, DistributedConfig and the trainer say, in this order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core import shipping
from trainer_core.backends.training_operator import patching
from trainer_core.cluster import objects, runtimes
from trainer_core.configs import TrainingOperatorBackendConfig
from trainer_core.options.patches import merged
from trainer_core.request import Distributed, InitializerSource, TrainerRequest, TrainJobRequest

__all__ = ["MAIN", "VOLUME", "template"]

#: The container that the operator looks for: it gets the port at which the nodes meet.
MAIN = "pytorch"
#: Between the initializers of a pod and its training.
VOLUME = "initializer"
_WORKSPACE = "/workspace"


def template(
    request: TrainJobRequest, runtime: Mapping[str, Any], config: TrainingOperatorBackendConfig
) -> dict[str, Any]:
    """Return the pod template of a request's nodes.

    Args:
        request: A request that `admission` has judged.
        runtime: Its runtime.
        config: The images that fetch.
    """
    job = runtimes.trainer_job(runtime) or {}
    pod: dict[str, Any] = copy.deepcopy(job["template"]["spec"]["template"])
    for patch in patching.pod_patches(request.patches, runtime):
        pod = merged(pod, patch)
    pod = _fetching(pod, request, runtime, config)
    for container in pod["spec"]["containers"]:
        if container["name"] == runtimes.NODE:
            _train(container, request, runtimes.policy(runtime))
            container["name"] = MAIN
    if request.distributed is not None:
        pod = _configured(pod, request.distributed)
    # That of the replica counts; one beside it only makes the operator warn.
    pod["spec"].pop("restartPolicy", None)
    return pod


def _train(container: dict[str, Any], request: TrainJobRequest, policy: str | None) -> None:
    """Put what the trainer says into the container that trains."""
    trainer = request.trainer
    if trainer is not None:
        command, args = _command(trainer, policy)
        said = {"image": trainer.image, "command": command, "args": args}
        container.update({name: value for name, value in said.items() if value is not None})
        _give(container, trainer.resources_per_node or {}, trainer.resources_per_node or {})
    container["env"] = _laid_over(container.get("env") or [], objects.variables(objects.trainer_env(request)))


def _command(trainer: TrainerRequest, policy: str | None) -> tuple[list[str] | None, list[str] | None]:
    """Command and arguments; None leaves the runtime's."""
    if trainer.code is None:
        # Written for a container by somebody who may well mean Kubernetes' $(NAME).
        return (
            None if trainer.command is None else list(trainer.command),
            None if trainer.args is None else list(trainer.args),
        )
    launch = "torchrun" if policy == "torch" else "python"
    packages, indexes, processes = trainer.packages, trainer.pip_index_urls, trainer.num_proc_per_node
    argv = shipping.argv(trainer.code, packages, indexes, launch, processes=processes)  # type: ignore[arg-type]
    loaded = argv.index(shipping.LOADER) + 1
    return argv[:loaded], argv[loaded:]


def _configured(pod: dict[str, Any], given: Distributed) -> dict[str, Any]:
    """Lay a DistributedConfig over a pod and each of its containers."""
    for container in pod["spec"]["containers"]:
        for key, entries in (("env", given.env), ("envFrom", given.env_from)):
            if entries:
                container[key] = _laid_over(container.get(key) or [], [dict(entry) for entry in entries])
        _give(container, given.requests, given.limits)
    spec = {
        "nodeSelector": given.node_selector,
        "affinity": given.affinity,
        "tolerations": [dict(toleration) for toleration in given.tolerations],
    }
    metadata = {"labels": given.labels, "annotations": given.annotations}
    return merged(pod, {"metadata": _set(metadata), "spec": _set(spec)})


def _give(container: dict[str, Any], requests: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    given = {"requests": dict(sorted(requests.items())), "limits": dict(sorted(limits.items()))}
    if any(given.values()):
        container["resources"] = merged(container.get("resources") or {}, _set(given))


def _laid_over(old: list[Any], new: list[Any]) -> list[Any]:
    """Entries of a list and further ones; of one name the later counts."""
    named = {entry["name"]: entry for entry in (*old, *new) if "name" in entry}
    return [*named.values(), *(entry for entry in (*old, *new) if "name" not in entry)]


def _fetching(
    pod: dict[str, Any], request: TrainJobRequest, runtime: Mapping[str, Any], config: TrainingOperatorBackendConfig
) -> dict[str, Any]:
    """Let a pod fetch before it trains: each for itself, into a volume of its own."""
    found = [_initializer(role, source, request, runtime, config) for role, source in _fetched(request)]
    for role, source in objects.sources(request):
        if source.storage_uri.startswith(objects.PVC):
            pod = merged(pod, {"spec": objects.claimed(role, source.storage_uri)})
    if not found:
        return pod
    mount = {"name": VOLUME, "mountPath": _WORKSPACE}
    fetching = {
        "initContainers": [{**container, "volumeMounts": [mount]} for container in found],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }
    if not any(volume.get("name") == VOLUME for volume in pod["spec"].get("volumes") or ()):
        fetching["volumes"] = [{"name": VOLUME, "emptyDir": {}}]
    return merged(pod, {"spec": fetching})


def _fetched(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    for role, source in objects.sources(request):
        if not source.storage_uri.startswith(objects.PVC):
            yield role, source


def _initializer(
    role: str,
    source: InitializerSource,
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    config: TrainingOperatorBackendConfig,
) -> dict[str, Any]:
    """The container that fetches: that of the runtime where it has such a step, else that of the configuration."""
    name = f"{role}-initializer"
    job = runtimes.job_of(runtime, name)
    known = (runtimes.container(job, name) if job else None) or {}
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    uri = {"name": "STORAGE_URI", "value": source.storage_uri}
    said = {
        "name": name,
        "image": known.get("image") or images[role],
        "env": _laid_over(known.get("env") or [], [uri, *objects.source_env(role, source, request)]),
        # The images write no termination message; the end of the log says why they failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {**{key: known[key] for key in ("command", "args", "envFrom", "resources") if key in known}, **said}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
