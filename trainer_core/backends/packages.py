"""What a training function finds installed: a short TrainJob on one node of the runtime says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_core import naming, packaging, waiting
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime, TrainerType

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

__all__ = ["of"]

_PREFIX = "package "


def installed() -> None:
    """Print each package of this interpreter. Runs in the container."""
    from importlib import metadata

    found = {f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()}
    for line in sorted(found, key=str.lower):
        print("package", line)


def of(backend: Backend, runtime: Runtime) -> list[str]:
    """Return the packages of a runtime as ``name==version``.

    Raises:
        ValueError: It brings a recipe of its own and takes no function.
        JobFailedError: The job that was to look has failed.
    """
    if runtime.trainer.trainer_type is TrainerType.BUILTIN_TRAINER:
        raise ValueError(f"Cannot get Runtime packages for BuiltinTrainer: runtime {runtime.name!r} takes no function")
    asked = TrainJobRequest.parse(
        {
            "name": naming.random_name(),
            "runtime": {"name": runtime.name, "kind": runtime.kind.value},
            "trainer": {"kind": "custom", "code": packaging.package(installed), "num_nodes": 1},
        }
    )
    ref = backend.submit(asked)
    try:
        lines = list(backend.logs(ref, "node-0", follow=True))
        left = backend.observe(ref).outcome
        if left is not None:
            waiting.outcome_or_raise(left)
    finally:
        backend.delete(ref)
    return [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)]
