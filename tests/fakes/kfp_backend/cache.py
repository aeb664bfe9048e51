"""The cache of task executions: the key of a task, and what is kept for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kfp_backend.values import marshal


class Cache:
    """Executions by pipeline and fingerprint; the newest one wins."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], int] = {}

    def add(self, pipeline: str, fingerprint: str, execution: int) -> None:
        self._entries[pipeline, fingerprint] = execution

    def find(self, pipeline: str, fingerprint: str) -> int | None:
        """Return the execution whose outputs can be used again."""
        return self._entries.get((pipeline, fingerprint))


def build_fingerprint(
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    component: Mapping[str, Any],
    container: Mapping[str, Any],
    claims: Iterable[str],
) -> str:
    """Return the key of a task (GenerateCacheKey).

    Not in it: the environment, resources, secrets, TaskConfig, and the defaults that a component fills in itself.

    Args:
        inputs: As resolved by the driver: parameters by value, artifacts by the id that their name is.
        outputs: As provisioned; their URIs do not count.
        component: Says the types of output parameters.
        container: Command and arguments count as they are before resolving, and the image as its text.
        claims: Names of mounted volume claims.
    """
    declared = component.get("outputDefinitions", {}).get("parameters", {})
    command: Sequence[str] = [*container.get("command", ()), *container.get("args", ())]
    key = {
        "inputArtifactNames": {
            name: [artifact["name"] for artifact in found["artifacts"]] for name, found in inputs["artifacts"].items()
        },
        "inputParameterValues": inputs["parameterValues"],
        "outputArtifactsSpec": {
            name: {part: found["artifacts"][0].get(part) for part in ("name", "type", "metadata")}
            for name, found in outputs["artifacts"].items()
        },
        "outputParametersSpec": {name: declared[name]["parameterType"] for name in outputs["parameters"]},
        "containerSpec": {"image": container["image"], "cmdArgs": command, "pvcNames": sorted(set(claims))},
    }
    return hashlib.sha256(marshal(key).encode()).hexdigest()
