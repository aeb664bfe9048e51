"""Builds the body of the engine's API call that creates the container of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.backends.container import names
from trainer_core.backends.container.job_journal import ContainerJob
from trainer_core.backends.container.paths import CACHE_PATH, DATA_PATHS
from trainer_core.backends.container.plan import FETCH

#: File with the credentials of a step. It is in the container's own layer, readable by its user only, and emptied when
#: the job has ended.
SECRETS_PATH = "/trainjob-secrets.json"
#: A petabyte: "-1" for no limit is refused by Docker, and without a size the limit of the engine applies.
_MAX_LOG_SIZE = "1000000g"
_NO_COMMAND = "the initializer image has no entry point and no command; build it from Trainer's, or set ENTRYPOINT"
#: Initializer images and mlflow read credentials from their environment, but `docker inspect` shows arguments and
#: environment of a container. This program reads the file into the environment and then becomes the step's program.
_LOAD_SECRETS = (
    f"import json, os, sys; os.environ.update(json.load(open({SECRETS_PATH!r}))); "
    f"sys.argv[1:] or sys.exit({_NO_COMMAND!r}); os.execvp(sys.argv[1], sys.argv[1:])"
)
#: The same for the node of a function. Tracking fails no training: without the file there is no tracking server.
_LOAD_TRACKING = (
    f"import json, os, sys; path = {SECRETS_PATH!r}; "
    "os.access(path, os.R_OK) and os.environ.update(json.load(open(path))); os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True)
class CreateInputs:
    """Values that are known only when a container is created."""

    #: Volume that passes data from the initializers to the nodes.
    data_volume: str
    #: Folder or file of this machine, by role.
    copied_paths: Mapping[str, str]
    #: Configuration of the image; used for steps with credentials only.
    image_config: Mapping[str, Any]
    #: Volume with the data that jobs share; None if the job does not use it.
    cache_volume: str | None = None


def build_create_request(job: ContainerJob, step: Mapping[str, Any], inputs: CreateInputs) -> dict[str, Any]:
    """Return the body of the call that creates the container of a step.

    ``{"name": "node-0", "image": "torch", "command": ["python", "train.py"], "memory": 2**30, ...}`` →
    ``{"Image": "torch", "Entrypoint": ["python", "train.py"], "Cmd": [], "HostConfig": {"Memory": 2**30, ...}, ...}``
    """
    host = step.get("host") or names.host_name(job.name, step["name"])
    network = names.network_name(job.uid)
    # What is in the file of the credentials is of no use without them.
    env = {name: value for name, value in (step.get("env") or {}).items() if name not in step.get("tracking", ())}
    variables = {**env, **_cache_variables(step, inputs)}
    mounts = step.get("mounts") or ()
    return {
        "Image": step["image"],
        "Hostname": host,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {
            **names.job_labels(job.namespace, job.name, job.uid),
            names.STEP_LABEL: step["name"],
            names.RUN_LABEL: str(job.run),
        },
        **_command_fields(step, inputs.image_config),
        **_without_none(User=step.get("user"), WorkingDir=step.get("working_dir")),
        "HostConfig": {
            "NetworkMode": network,
            # The default of the engine may be a log driver that keeps only the last lines, or none.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _MAX_LOG_SIZE}},
            "Mounts": [mount for each in mounts for mount in _build_mounts(each, inputs)],
            "Tmpfs": {each["target"]: _tmpfs_options(each) for each in mounts if each["type"] == "tmpfs"},
            **_limit_fields(step),
        },
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [host]}}},
    }


def _cache_variables(step: Mapping[str, Any], inputs: CreateInputs) -> dict[str, str]:
    """Return the variables that tell an initializer image of this project where the cache is. Others ignore them."""
    if step["kind"] != FETCH or not inputs.cache_volume:
        return {}
    role = step["role"]
    return {"TRAINJOB_INITIALIZE_CACHE": f"{CACHE_PATH}/{role}", "TRAINJOB_INITIALIZE_TARGET": DATA_PATHS[role]}


def _command_fields(step: Mapping[str, Any], image_config: Mapping[str, Any]) -> dict[str, Any]:
    """As in Kubernetes, a command replaces the entry point of the image and drops its arguments."""
    command, args = step.get("command"), step.get("args")
    if step["kind"] == FETCH and step.get("secrets"):
        image_command = [*_to_list(image_config.get("Entrypoint")), *_to_list(image_config.get("Cmd"))]
        return {"Entrypoint": ["python3", "-c", _LOAD_SECRETS], "Cmd": image_command}
    if command and step.get("secrets"):
        # A function: its command starts with the interpreter of the image.
        return {"Entrypoint": [command[0], "-c", _LOAD_TRACKING], "Cmd": [*command, *(args or ())]}
    if command:
        return {"Entrypoint": list(command), "Cmd": list(args or ())}
    return {"Cmd": list(args)} if args else {}


def _to_list(command: str | Sequence[str] | None) -> list[str]:
    return [command] if isinstance(command, str) else list(command or ())


def _build_mounts(mount: Mapping[str, Any], inputs: CreateInputs) -> list[dict[str, Any]]:
    kind, target = mount["type"], mount["target"]
    if kind == "tmpfs" or (kind == "cache" and not inputs.cache_volume):
        return []
    if kind == "copied":
        return [_build_bind(inputs.copied_paths[mount["role"]], target)]
    if kind == "bind":
        return [{**_build_bind(mount["source"], target), "ReadOnly": bool(mount.get("read_only"))}]
    sources = {"data": inputs.data_volume, "cache": inputs.cache_volume, "scratch": None}
    source = sources[kind] if kind in sources else mount["source"]
    source_field = {"Source": source} if source else {}
    return [{"Type": "volume", **source_field, "Target": target, "ReadOnly": bool(mount.get("read_only"))}]


def _build_bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def _tmpfs_options(mount: Mapping[str, Any]) -> str:
    return f"size={mount['size']}" if mount.get("size") else ""


def _limit_fields(step: Mapping[str, Any]) -> dict[str, Any]:
    gpus = step.get("gpus")
    return _without_none(
        Memory=step.get("memory"),
        MemorySwap=step.get("memory_swap"),
        NanoCpus=step.get("nano_cpus"),
        ShmSize=step.get("shm_size"),
        CapAdd=step.get("cap_add"),
        CapDrop=step.get("cap_drop"),
        DeviceRequests=[{"Driver": "nvidia", "Count": gpus, "Capabilities": [["gpu"]]}] if gpus else None,
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
