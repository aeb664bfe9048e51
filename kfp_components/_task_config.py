"""Task configuration → request: what is set on the KFP task reaches the pods that train.

KFP keeps it from the step's own pod where it must, and hands it to the component in the executor input
(kfp.md 1.5), in Kubernetes' own spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError

if TYPE_CHECKING:
    from trainer_core.options import RuntimePatch

__all__ = ["pass_on"]

#: The replicated job that trains, and its container, in every runtime of Trainer.
_NODE = "node"
#: Fields of pods, as KFP and as RuntimePatch spell them.
_OF_PODS = {
    "nodeSelector": "node_selector",
    "affinity": "affinity",
    "tolerations": "tolerations",
    "volumes": "volumes",
}


def pass_on(data: dict[str, Any], task_config: Mapping[str, Any] | None, client: TrainerClient) -> None:
    """Write the configuration of a task into a request.

    Raises:
        InvalidRequestError: The backend or the request has no place for it.
    """
    given = {key: value for key, value in _set(task_config or {}).items() if value}
    if not given:
        return
    backend = client.backend
    if "RuntimePatch" not in backend.accepts:
        raise InvalidRequestError(
            f"task_config: {', '.join(sorted(given))} of the KFP task cannot reach a job of the "
            f"{backend.name} backend; take it off the task, or give the backend's name to train_task as text"
        )
    _set_trainer(data, given)
    if pods := _pods(given):
        job_spec: dict[str, Any] = {"spec": {"runtimePatches": list(data.get("patches") or ())}}
        _patch(pods)(job_spec, None, backend)
        data["patches"] = job_spec["spec"]["runtimePatches"]


def _pods(given: Mapping[str, Any]) -> dict[str, Any]:
    pods = {ours: given[theirs] for theirs, ours in _OF_PODS.items() if theirs in given}
    if mounts := given.get("volumeMounts"):
        pods["mounts"] = mounts
    return pods


def _set(value: Any) -> Any:
    """Leave out what is null: the driver writes every field of the types it uses."""
    if isinstance(value, Mapping):
        return {key: _set(item) for key, item in value.items() if item is not None}
    return [_set(item) for item in value] if isinstance(value, list) else value


def _set_trainer(data: dict[str, Any], given: Mapping[str, Any]) -> None:
    resources = given.get("resources") or {}
    # A TrainJob knows one number of each: what the task may use at most counts more than what it asks for.
    per_node = {**resources.get("requests", {}), **resources.get("limits", {})}
    env = {entry["name"]: _env_value(entry) for entry in given.get("env", ())}
    if not per_node and not env:
        return
    if not data.get("trainer"):
        raise InvalidRequestError("task_config: resources and env of the KFP task need a request with a trainer")
    trainer = data["trainer"]
    if per_node:
        trainer["resources_per_node"] = {**(trainer.get("resources_per_node") or {}), **per_node}
    if env:
        trainer["env"] = {**(trainer.get("env") or {}), **env}


def _env_value(entry: Mapping[str, Any]) -> Any:
    """The text of a variable, or a reference to its Secret: the secret itself is never read here."""
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if "secretKeyRef" not in source:
        raise InvalidRequestError(
            f"task_config: env {entry['name']} comes from {', '.join(source)}, which cannot reach a TrainJob; "
            "use a text or kubernetes.use_secret_as_env"
        )
    return {key: source["secretKeyRef"][key] for key in ("name", "key")}


def _patch(fields: dict[str, Any]) -> RuntimePatch:
    from trainer_core import options  # Only for tasks on which something is set.

    mounts = fields.pop("mounts", None)
    containers = [options.ContainerPatch(_NODE, volume_mounts=mounts)] if mounts else None
    pod = options.PodTemplatePatch(spec=options.PodSpecPatch(**fields, containers=containers))
    job = options.ReplicatedJobPatch(_NODE, options.JobTemplatePatch(spec=options.JobSpecPatch(pod)))
    jobs = options.JobSetTemplatePatch(spec=options.JobSetSpecPatch([job]))
    return options.RuntimePatch(options.TrainingRuntimeSpecPatch(jobs))
