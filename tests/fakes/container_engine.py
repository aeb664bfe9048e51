"""The container engine of this machine for tests, and an image that needs no registry."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from functools import cache
from pathlib import Path

import pytest

from trainer_core import TrainerClient
from trainer_core.backends.container.engine import Engine, connect_engine
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.model.config import ContainerBackendConfig, TrainingRuntimeSource

#: Debian with Python 3.11 and pip; `tools/test-resources` builds it.
IMAGE = "localhost/trainjob-base:test"
RUNTIMES = Path(__file__).parent.parent / "containers" / "runtimes"
#: Other runs share the engine, and may have folders of the same names. Processes of this run inherit it.
_RUN = os.environ.setdefault("TRAINJOB_TEST_RUN", uuid.uuid4().hex)


@cache
def _find_engine() -> Engine | None:
    try:
        engine = connect_engine(ContainerBackendConfig())
    except BackendUnavailableError:
        return None
    return engine if engine.has_image(IMAGE) else None


def engine() -> Engine:
    found_engine = _find_engine()
    if found_engine is None:
        pytest.skip(f'needs a container engine with {IMAGE}: `eval "$(tools/test-resources)"`, see CONTRIBUTING.md')
    return found_engine


def namespace(folder: Path) -> str:
    return f"test-{hashlib.sha256(f'{_RUN}{folder}'.encode()).hexdigest()[:12]}"


def config(folder: Path, **settings) -> ContainerBackendConfig:
    sources = TrainingRuntimeSource(sources=[str(RUNTIMES)])
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    given = {
        "runtime_source": sources,
        "namespace": namespace(folder),
        "container_host": engine().address,
        "checkpoints_uri": checkpoints.as_uri(),
        # A job that takes ten seconds on a busy machine has no unexpected line in its log.
        "resource_interval": 3600,
    }
    return ContainerBackendConfig(**{**given, **settings})


def client(folder: Path, **settings) -> TrainerClient:
    return TrainerClient(config(folder, **settings))


def get_own_address() -> str:
    """Return the address at which containers reach this machine. Connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address
