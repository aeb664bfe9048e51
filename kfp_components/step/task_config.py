"""TaskConfig of KFP → request: what is set on the KFP task of `train` reaches the pods that train.

KFP's driver writes it into the executor input, in the spelling of Kubernetes' pod spec: every field is there, null
where it is not set. With `env` come variables that the installation sets for every task: proxies, and those of the
MLflow plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_components.step.initializer_source import LOCAL_BACKENDS
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.resources import normalize_resources
from trainer_core.client import backend_for

if TYPE_CHECKING:
    from trainer_core.definition.options import RuntimePatch

#: The replicated job that trains, and its container, in every runtime of Trainer.
_NODE = "node"
#: Fields of a pod spec, and their names in `PodSpecPatch`.
_POD_FIELDS = {
    "nodeSelector": "node_selector",
    "affinity": "affinity",
    "tolerations": "tolerations",
    "volumes": "volumes",
}
#: TaskConfig fields that `container_spec.PASSTHROUGHS` applies to the step's own pod too.
_STEP_FIELDS = ("env", "volumes", "volumeMounts")
#: Variables that an installation sets for every task, without a wish of the user.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
#: Variables of the MLflow plug-in name the run of the step. The TrainJob has a run below it, and gets the variables of
#: that from its tracking.
_MLFLOW = "MLFLOW_"


def apply_task_config(data: dict[str, Any], task_config: Mapping[str, Any] | None, backend: str) -> None:
    """Write the TaskConfig of a task into a request.

    Processes of the local and debug backends run in the step's own pod, which has its environment and volumes.
    """
    config = {key: value for key, value in _remove_nulls(task_config or {}).items() if value}
    if backend in LOCAL_BACKENDS:
        config = {key: value for key, value in config.items() if key not in _STEP_FIELDS}
    env = config.pop("env", [])
    if config and "RuntimePatch" not in backend_for(backend).accepts:
        raise InvalidRequestError(
            f"task_config: {', '.join(sorted(config))} of the KFP task cannot reach a job of the "
            f"{backend} backend; take it off the task, or give the backend's name to train_task as text"
        )
    _set_env(data, env, backend)
    if resources := config.get("resources"):
        _set_resources(_require_trainer(data, "resources"), data, resources)
    if pods := _extract_pod_fields(config):
        job_spec: dict[str, Any] = {"spec": {"runtimePatches": list(data.get("patches") or ())}}
        _build_patch(pods)(job_spec, None, backend_for(backend))
        data["patches"] = job_spec["spec"]["runtimePatches"]


def list_claim_mounts(task_config: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the volume claims that the task mounts, KFP's workspace among them: path → ``claim/path in the claim``."""
    config = _remove_nulls(task_config or {})
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in config.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }
    return {
        mount["mountPath"]: f"{claims[mount['name']]}/{mount.get('subPath', '')}".rstrip("/")
        for mount in config.get("volumeMounts") or ()
        if mount["name"] in claims
    }


def _remove_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _remove_nulls(item) for key, item in value.items() if item is not None}
    return [_remove_nulls(item) for item in value] if isinstance(value, list) else value


def _require_trainer(data: dict[str, Any], what: str) -> dict[str, Any]:
    if not data.get("trainer"):
        raise InvalidRequestError(f"task_config: {what} of the KFP task need a request with a trainer")
    trainer: dict[str, Any] = data["trainer"]
    return trainer


def _set_env(data: dict[str, Any], entries: list[dict[str, Any]], backend: str) -> None:
    """Set the variables of the task on the trainer; proxies give way to the request's."""
    entries = [entry for entry in entries if not entry["name"].startswith(_MLFLOW)]
    wished = [entry for entry in entries if entry["name"] not in _PROXIES]
    if wished:
        _require_trainer(data, "env")
    if not data.get("trainer"):
        return
    own = data["trainer"].get("env") or {}
    proxies = [entry for entry in entries if entry["name"] in _PROXIES and entry["name"] not in own]
    added = [*proxies, *wished]
    values = {entry["name"]: _parse_value(entry) for entry in added}
    env = {**own, **{name: value for name, value in values.items() if value is not None}}
    if env:
        data["trainer"]["env"] = env
    # Any other reference, such as a fieldRef or an optional Secret, stays as Kubernetes spells it.
    references = [entry for entry in added if values[entry["name"]] is None]
    if not references:
        return
    if "DistributedConfig" in backend_for(backend).accepts:
        distributed = data.setdefault("distributed", {})
        distributed["env"] = [*distributed.get("env", ()), *references]
        return
    names = ", ".join(entry["name"] for entry in references if entry not in proxies)
    if names:
        raise InvalidRequestError(
            f"task_config: env {names} comes from a reference that the {backend} backend cannot "
            "resolve; use a text or kubernetes.use_secret_as_env"
        )


def _parse_value(entry: Mapping[str, Any]) -> Any:
    """Return the text of a variable, or the reference to its Secret; None for any other reference."""
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    secret = source.get("secretKeyRef") or {}
    return {"name": secret["name"], "key": secret["key"]} if secret and not secret.get("optional") else None


def _set_resources(trainer: dict[str, Any], data: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Set requests and limits of a node; what the task does not set stays as the request has it."""
    own = normalize_resources(trainer.get("resources_per_node") or {})
    limits = {**own, **normalize_resources(given.get("limits") or {})}
    # Kubernetes takes the limit as the request where a container has no request.
    requests = {**limits, **normalize_resources(given.get("requests") or {})}
    if requests == limits:
        trainer["resources_per_node"] = limits
        return
    trainer.pop("resources_per_node", None)
    data["distributed"] = {**(data.get("distributed") or {}), "requests": requests, "limits": limits}


def _extract_pod_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    pods = {ours: config[theirs] for theirs, ours in _POD_FIELDS.items() if theirs in config}
    if mounts := config.get("volumeMounts"):
        pods["mounts"] = mounts
    return pods


def _build_patch(fields: dict[str, Any]) -> RuntimePatch:
    from trainer_core.definition import options  # Only for tasks on which something is set.

    mounts = fields.pop("mounts", None)
    containers = [options.ContainerPatch(_NODE, volume_mounts=mounts)] if mounts else None
    pod = options.PodTemplatePatch(spec=options.PodSpecPatch(**fields, containers=containers))
    job = options.ReplicatedJobPatch(_NODE, options.JobTemplatePatch(spec=options.JobSpecPatch(pod)))
    jobs = options.JobSetTemplatePatch(spec=options.JobSetSpecPatch([job]))
    return options.RuntimePatch(options.TrainingRuntimeSpecPatch(jobs))
