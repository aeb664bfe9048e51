"""Runtimes of the local backend: files in the shape of a ClusterTrainingRuntime.

The packaged ones are ``torch-distributed`` and ``python``; those in ``<home>/runtimes`` come first.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer_core import checks
from trainer_core.errors import RuntimeNotFoundError
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = ["LocalRuntime", "get", "list_all"]

_log = logging.getLogger(__name__)
_PACKAGED = Path(__file__).parent / "runtimes"
_FRAMEWORK = "trainer.kubeflow.org/framework"


@dataclass(frozen=True)
class LocalRuntime:
    """What the local backend reads from a runtime.

    Attributes:
        name: Its name.
        framework: Its framework label; ``torch`` is started by torchrun, everything else by the interpreter.
        num_nodes: Nodes of a job that does not say.
        env: Environment of its ``node`` container; entries with ``valueFrom`` have no meaning here.
    """

    name: str
    framework: str
    num_nodes: int
    env: dict[str, str]

    def public(self) -> Runtime:
        """Return it as the API reference knows it."""
        trainer = RuntimeTrainer(
            trainer_type=TrainerType.CUSTOM_TRAINER,
            framework=self.framework,
            image="this interpreter",
            num_nodes=self.num_nodes,
            device="cpu",
            device_count=str(os.cpu_count() or 1),
        )
        trainer.set_command(("torchrun",) if self.framework == "torch" else ("python",))
        return Runtime(name=self.name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def get(home_runtimes: Path, name: str) -> LocalRuntime:
    """Return one runtime.

    Raises:
        RuntimeNotFoundError: There is none of that name; the message lists those there are.
    """
    known = list_all(home_runtimes)
    for runtime in known:
        if runtime.name == name:
            return runtime
    names = ", ".join(sorted(runtime.name for runtime in known))
    raise RuntimeNotFoundError(
        f"no runtime {name!r} on the local backend; there are {names}, or add {home_runtimes}/{name}.yaml"
    )


def list_all(home_runtimes: Path) -> list[LocalRuntime]:
    """Return every runtime; one that cannot be read is left out with a warning."""
    found: dict[str, LocalRuntime] = {}
    for folder in (home_runtimes, _PACKAGED):
        for path in sorted(folder.glob("*.yaml")):
            runtime = _load(path)
            if runtime is not None:
                found.setdefault(runtime.name, runtime)
    return list(found.values())


def _load(path: Path) -> LocalRuntime | None:
    try:
        now = path.stat()
    except OSError:
        return None
    return _load_once(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=256)
def _load_once(path: Path, *version: int) -> LocalRuntime | None:
    """Read a file unless this version of it was read before: a list of a thousand jobs asks a thousand times."""
    import yaml  # 20 ms that only those who look at runtimes shall pay

    try:
        return _parse(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("runtime %s is left out: %s: %s", path, type(error).__name__, error)
        return None


def _parse(data: dict[str, Any]) -> LocalRuntime:
    spec = data["spec"]
    metadata = data["metadata"]
    jobs = spec["template"]["spec"]["replicatedJobs"]
    node = _named_node(jobs)
    container = _named_node(node["template"]["spec"]["template"]["spec"]["containers"])
    env = {entry["name"]: str(entry["value"]) for entry in container.get("env", ()) if "value" in entry}
    checks.check_env("env", env)
    num_nodes = int(spec.get("mlPolicy", {}).get("numNodes", 1))
    checks.check_count("numNodes", num_nodes)
    return LocalRuntime(metadata["name"], metadata["labels"][_FRAMEWORK], num_nodes, env)


def _named_node(parts: list[dict[str, Any]]) -> dict[str, Any]:
    found = [part for part in parts if part["name"] == "node"]
    if not found:
        raise ValueError("nothing in it is named node")
    return found[0]
