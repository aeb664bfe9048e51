from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp_backend import Backend, Installation, unsupported
from kfp_driver import DrivenTask

from trainer_core import LocalProcessBackendConfig, TrainerClient


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerClient]:
    """A client of the local backend with a temporary home, which components use too; no job outlives the test."""
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    client = TrainerClient(LocalProcessBackendConfig())
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.fixture
def task(tmp_path: Path, client: TrainerClient) -> Callable[..., DrivenTask]:
    """Make a task of a component: ``task("train", "task-1", request=…)``."""

    def make(
        component: str,
        name: str = "task-1",
        artifacts: dict[str, Path] | None = None,
        facts: dict[str, dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> DrivenTask:
        return DrivenTask(component, tmp_path / "run" / name, parameters, artifacts or {}, facts or {})

    return make


@pytest.fixture
def make_backend(tmp_path: Path) -> Callable[..., Backend]:
    """Make a double of a KFP installation: ``make_backend(publish_logs=False)``."""
    if reason := unsupported():
        pytest.skip(reason)
    return lambda **settings: Backend(tmp_path / "kfp", Installation(**settings), seed=1)
