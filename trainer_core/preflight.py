"""Preflight checks of each backend: what it needs, what is missing, and what to do. `trainjob doctor` prints them."""

from __future__ import annotations

import importlib.util
import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata

from trainer_core.backends.container import preflight as container
from trainer_core.backends.trainer_v2 import preflight as kubernetes
from trainer_core.backends.training_operator import preflight as training_operator
from trainer_core.client import TrainerClient
from trainer_core.config import (
    BackendConfig,
    ContainerBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    RunaiBackendConfig,
    TrainingOperatorBackendConfig,
)
from trainer_core.k8s.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport
from trainer_core.runtime_admin.validate import validate_runtime

__all__ = ["LIMITED", "MISSING", "OK", "UNKNOWN", "PreflightCheck", "PreflightReport", "check_backend"]


def check_backend(config: BackendConfig) -> PreflightReport:
    """Check everything that a backend needs. Creates nothing.

    Args:
        config: Configuration of the backend.

    Raises:
        BackendUnavailableError: The backend cannot be used at all; the message names what is missing.
    """
    if isinstance(config, KubernetesBackendConfig):
        return kubernetes.check_trainer_cluster(config, validate_runtime)
    if isinstance(config, RunaiBackendConfig):
        from trainer_core.backends.runai import preflight as runai  # Its workload models take 50 ms to load.

        return runai.check_runai_cluster(config)
    if isinstance(config, TrainingOperatorBackendConfig):
        return training_operator.check_training_operator(config)
    if isinstance(config, LocalProcessBackendConfig):
        return PreflightReport((*_check_interpreter(), _check_home(config)))
    if isinstance(config, ContainerBackendConfig):
        return container.check_engine(config)
    # Raises BackendUnavailableError for a backend that cannot be used at all.
    TrainerClient(config).list_runtimes()
    return PreflightReport(tuple(_check_interpreter()))


def _check_interpreter() -> Iterator[PreflightCheck]:
    yield PreflightCheck("python", OK, platform.python_version())
    if importlib.util.find_spec("torch") is None:
        yield PreflightCheck("torch", LIMITED, "is not installed", "functions cannot use it: pip install torch")
    else:
        yield PreflightCheck(
            "torch", OK, next((each.version for each in metadata.distributions(name="torch")), "is installed")
        )


def _check_home(config: LocalProcessBackendConfig) -> PreflightCheck:
    folder = config.state_home
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return PreflightCheck("home", OK, str(folder))
    except OSError as error:
        return PreflightCheck(
            "home", MISSING, f"{folder} cannot be written: {error.strerror}", "set TRAINJOB_HOME or --home"
        )
