"""Lists the Python packages that a training function can import in a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_core.base import naming
from trainer_core.lifecycle import wait_state
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.runtimes import Runtime, TrainerType
from trainer_core.packaging import serializer

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

_LINE_PREFIX = "package "


def list_interpreter_packages() -> list[str]:
    """Return the packages of this interpreter as ``name==version``, in alphabetical order."""
    from importlib import metadata

    packages = {f"{package.metadata['Name']}=={package.version}" for package in metadata.distributions()}
    return sorted(packages, key=str.lower)


def print_installed_packages() -> None:
    """Print a line for each installed package. Runs inside a job, so it uses nothing from this module."""
    from importlib import metadata

    packages = {f"{package.metadata['Name']}=={package.version}" for package in metadata.distributions()}
    for package in sorted(packages, key=str.lower):
        print("package", package)


def list_runtime_packages(backend: Backend, runtime: Runtime) -> list[str]:
    """Run a short TrainJob on one node of a runtime and return its packages as ``name==version``."""
    if runtime.trainer.trainer_type is TrainerType.BUILTIN_TRAINER:
        raise ValueError(
            f"Cannot get Runtime packages for BuiltinTrainer: runtime {runtime.name!r} cannot run a function"
        )
    request = TrainJobRequest.parse(
        {
            "name": naming.generate_name(),
            "runtime": {"name": runtime.name, "kind": runtime.kind.value},
            "trainer": {"kind": "custom", "code": serializer.package(print_installed_packages), "num_nodes": 1},
        }
    )
    ref = backend.submit(request)
    try:
        lines = list(backend.logs(ref, "node-0", follow=True))
        outcome = backend.observe(ref).outcome
        if outcome is not None:
            wait_state.raise_if_failed(outcome)
    finally:
        backend.delete(ref)
    return [line.removeprefix(_LINE_PREFIX) for line in lines if line.startswith(_LINE_PREFIX)]
