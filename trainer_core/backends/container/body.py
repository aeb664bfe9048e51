"""A step of a plan → what an engine is sent to create its container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.backends.container import names
from trainer_core.backends.container.book import Job
from trainer_core.backends.container.spec import CACHE, FETCH, PLACES

__all__ = ["SECRETS", "create"]

#: Lies in the container's own layer, for its user only, until the step has ended.
SECRETS = "/trainjob-secrets.json"
#: Neither arguments nor environment of a container are secret: `inspect` shows them to everybody who may ask. The
#: images that fetch take credentials from their environment, so this gives them one that `inspect` does not see.
_UNSEAL = f"import json, os, sys; os.environ.update(json.load(open({SECRETS!r}))); os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True)
class Places:
    """What of a container is known only where it is made.

    Attributes:
        data: The volume between initializers and nodes.
        copied: Folder or file of this machine, by role.
        image: What the image is made to run; looked at where credentials have to be handed over.
        cache: The volume of what is fetched for several jobs; None where it is not shared.
    """

    data: str
    copied: Mapping[str, str]
    image: Mapping[str, Any]
    cache: str | None = None


def create(job: Job, step: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Return the body of the call that creates a step's container."""
    host = step.get("host") or names.host(job.name, step["name"])
    network = names.network(job.uid)
    env = [f"{name}={value}" for name, value in {**(step.get("env") or {}), **_cache(step, places)}.items()]
    return {
        "Image": step["image"],
        "Hostname": host,
        "Env": env,
        "Labels": _labels(job, step),
        **_command(step, places.image),
        **_set(User=step.get("user"), WorkingDir=step.get("working_dir")),
        "HostConfig": {
            "NetworkMode": network,
            # The daemon's default may keep only the last lines, or none.
            "LogConfig": {"Type": "json-file", "Config": {}},
            "Mounts": [mount for each in step.get("mounts") or () for mount in _mounts(each, places)],
            "Tmpfs": {each["target"]: _tmpfs(each) for each in step.get("mounts") or () if each["type"] == "tmpfs"},
            **_limits(step),
        },
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [host]}}},
    }


def _cache(step: Mapping[str, Any], places: Places) -> dict[str, str]:
    """Images that know no cache fetch into the job's own volume, where they are used to."""
    if step["kind"] != FETCH or not places.cache:
        return {}
    role = step["role"]
    return {"TRAINJOB_INITIALIZE_CACHE": f"{CACHE}/{role}", "TRAINJOB_INITIALIZE_TARGET": PLACES[role]}


def _labels(job: Job, step: Mapping[str, Any]) -> dict[str, str]:
    return {
        names.MANAGED: "true",
        names.NAMESPACE: job.namespace,
        names.NAME: job.name,
        names.UID: job.uid,
        names.STEP: step["name"],
        names.RUN: str(job.run),
    }


def _command(step: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """As Kubernetes means it: a command replaces the image's entry point and drops its arguments."""
    command, args = step.get("command"), step.get("args")
    if step["kind"] == FETCH and step.get("secrets"):
        own = [*_words(image.get("Entrypoint")), *_words(image.get("Cmd"))]
        return {"Entrypoint": ["python3", "-c", _UNSEAL], "Cmd": own}
    if command:
        return {"Entrypoint": list(command), "Cmd": list(args or ())}
    return {"Cmd": list(args)} if args else {}


def _words(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _mounts(mount: Mapping[str, Any], places: Places) -> list[dict[str, Any]]:
    kind, target = mount["type"], mount["target"]
    if kind == "tmpfs" or (kind == "cache" and not places.cache):
        return []
    if kind == "copied":
        return [_bind(places.copied[mount["role"]], target)]
    if kind == "bind":
        return [{**_bind(mount["source"], target), "ReadOnly": bool(mount.get("read_only"))}]
    sources = {"data": places.data, "cache": places.cache, "scratch": None}
    source = sources[kind] if kind in sources else mount["source"]
    named = {"Source": source} if source else {}
    return [{"Type": "volume", **named, "Target": target, "ReadOnly": bool(mount.get("read_only"))}]


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def _tmpfs(mount: Mapping[str, Any]) -> str:
    return f"size={mount['size']}" if mount.get("size") else ""


def _limits(step: Mapping[str, Any]) -> dict[str, Any]:
    gpus = step.get("gpus")
    return _set(
        Memory=step.get("memory"),
        NanoCpus=step.get("nano_cpus"),
        ShmSize=step.get("shm_size"),
        CapAdd=step.get("cap_add"),
        CapDrop=step.get("cap_drop"),
        DeviceRequests=[{"Driver": "nvidia", "Count": gpus, "Capabilities": [["gpu"]]}] if gpus else None,
    )


def _set(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
