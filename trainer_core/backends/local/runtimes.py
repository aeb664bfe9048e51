"""Runtimes of the local backend: ClusterTrainingRuntimes in ``<home>/runtimes``, then those of the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer_core.backends.runtime_files import list_runtime_files, read_runtimes
from trainer_core.base import validation
from trainer_core.base.errors import BackendUnavailableError, RuntimeNotFoundError
from trainer_core.k8s.runtimes import FRAMEWORK_LABEL, NODE
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

_PACKAGED = Path(__file__).parent / "runtimes"


@dataclass(frozen=True)
class LocalRuntime:
    """The fields of a runtime that the local backend uses."""

    name: str
    #: Value of the label ``trainer.kubeflow.org/framework``.
    framework: str
    num_nodes: int
    #: Environment variables of the container ``node``. Entries with ``valueFrom`` are ignored.
    env: dict[str, str]
    #: Whether torchrun starts the processes, and not the Python interpreter: by the framework or the policy.
    is_torch: bool

    def to_public(self) -> Runtime:
        """Return the runtime as `TrainerClient.get_runtime` shows it."""
        trainer = RuntimeTrainer(
            trainer_type=TrainerType.CUSTOM_TRAINER,
            framework=self.framework,
            image="this interpreter",
            num_nodes=self.num_nodes,
            device="cpu",
            device_count=str(os.cpu_count() or 1),
        )
        trainer.set_command(("torchrun",) if self.is_torch else ("python",))
        return Runtime(name=self.name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def get_runtime(folder: Path, name: str) -> LocalRuntime:
    known = {runtime.name: runtime for runtime in list_runtimes(folder)}
    if name not in known:
        raise RuntimeNotFoundError(
            f"runtime {name!r} does not exist on the local backend; use one of {', '.join(sorted(known))}, "
            f"or create {folder}/{name}.yaml"
        )
    return known[name]


def list_runtimes(folder: Path) -> list[LocalRuntime]:
    """Return all runtimes: those of the folder, and the packaged ones whose names it does not use."""
    known: dict[str, LocalRuntime] = {}
    try:
        own = list_runtime_files(folder) if folder.is_dir() else []
    except OSError as error:
        raise BackendUnavailableError(
            f"state folder {folder} cannot be read: {error.strerror}; fix it, or set another folder as home"
        ) from error
    for path in (*own, *list_runtime_files(_PACKAGED)):
        for runtime in _read_file(path):
            known.setdefault(runtime.name, runtime)
    return list(known.values())


def _read_file(path: Path) -> tuple[LocalRuntime, ...]:
    try:
        state = path.stat()
    except OSError:
        return ()
    return _read_file_version(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _read_file_version(path: Path, *version: int) -> tuple[LocalRuntime, ...]:
    """Read a file once for each version of it: listing a thousand jobs asks for a thousand runtimes."""
    return tuple(read_runtimes(path, _parse_runtime))


def _parse_runtime(raw: Mapping[str, Any]) -> LocalRuntime:
    spec, metadata = raw["spec"], raw["metadata"]
    job = _get_named_node(spec["template"]["spec"]["replicatedJobs"], "replicatedJobs")
    container = _get_named_node(job["template"]["spec"]["template"]["spec"]["containers"], "containers")
    env = {entry["name"]: str(entry["value"]) for entry in container.get("env", ()) if "value" in entry}
    validation.check_env("env", env)
    policy, framework = spec.get("mlPolicy", {}), metadata["labels"][FRAMEWORK_LABEL]
    num_nodes = int(policy.get("numNodes", 1))
    validation.check_count("numNodes", num_nodes)
    return LocalRuntime(metadata["name"], framework, num_nodes, env, framework == "torch" or "torch" in policy)


def _get_named_node(parts: list[dict[str, Any]], field: str) -> dict[str, Any]:
    named = [part for part in parts if part["name"] == NODE]
    if not named:
        raise ValueError(f"{field} has no entry with the name {NODE!r}")
    return named[0]
