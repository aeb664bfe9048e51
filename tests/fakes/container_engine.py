"""The container engine of this machine, for tests: found once, and an image on it that needs no registry."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pytest

from trainer_core import TrainerClient
from trainer_core.backends.container import detect
from trainer_core.backends.container.engine import Engine
from trainer_core.configs import ContainerBackendConfig, TrainingRuntimeSource
from trainer_core.errors import BackendUnavailableError

#: Debian with Python 3.11 and pip; `container-engine image` makes it.
IMAGE = "localhost/trainjob-base:test"
RUNTIMES = Path(__file__).parent.parent / "containers" / "runtimes"


@cache
def _found() -> tuple[Engine | None, str]:
    try:
        engine = detect.connect(ContainerBackendConfig())
    except BackendUnavailableError as error:
        return None, str(error)
    if not engine.has_image(IMAGE):
        return None, f"the engine at {engine.address} has no image {IMAGE}; `container-engine image` makes it"
    return engine, ""


def engine() -> Engine:
    """Return the engine, or skip the test with what was tried."""
    found, reason = _found()
    if found is None:
        pytest.skip(f"needs a container engine: {reason}")
    return found


def namespace(folder: Path) -> str:
    """Return a namespace for the state that a test keeps in a folder."""
    return f"test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def config(folder: Path, **settings) -> ContainerBackendConfig:
    """Return a configuration whose jobs are a test's own."""
    sources = TrainingRuntimeSource(sources=[str(RUNTIMES)])
    given = {"runtime_source": sources, "namespace": namespace(folder), "container_host": engine().address, **settings}
    return ContainerBackendConfig(**given)


def client(folder: Path, **settings) -> TrainerClient:
    """Return a client whose jobs are a test's own."""
    return TrainerClient(config(folder, **settings))
