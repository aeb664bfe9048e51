"""What a backend needs, what it has of that, and how to get the rest."""

from __future__ import annotations

import importlib.util
import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata

from trainer_core.admin.validate import findings
from trainer_core.backends.container import doctor as container
from trainer_core.backends.kubernetes import doctor as kubernetes
from trainer_core.backends.training_operator import doctor as training_operator
from trainer_core.client import TrainerClient
from trainer_core.cluster.checkup import LIMITED, MISSING, OK, UNKNOWN, Check, Report
from trainer_core.configs import (
    BackendConfig,
    ContainerBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    RunaiBackendConfig,
    TrainingOperatorBackendConfig,
)

__all__ = ["LIMITED", "MISSING", "OK", "UNKNOWN", "Check", "Report", "examine"]


def examine(config: BackendConfig) -> Report:
    """Look at everything that a backend needs. Creates nothing.

    Args:
        config: Of which backend, and where.

    Raises:
        BackendUnavailableError: The backend cannot be used at all; the message says what is missing.
    """
    if isinstance(config, KubernetesBackendConfig):
        return kubernetes.examine(config, findings)
    if isinstance(config, RunaiBackendConfig):
        from trainer_core.backends.runai import doctor as runai  # The model of its workloads takes 50 ms to load.

        return runai.examine(config)
    if isinstance(config, TrainingOperatorBackendConfig):
        return training_operator.examine(config)
    if isinstance(config, LocalProcessBackendConfig):
        return Report((*_interpreter(), _home(config)))
    if isinstance(config, ContainerBackendConfig):
        return container.examine(config)
    # Says what is missing of a backend that cannot be used at all.
    TrainerClient(config).list_runtimes()
    return Report(tuple(_interpreter()))


def _interpreter() -> Iterator[Check]:
    yield Check("python", OK, platform.python_version())
    if importlib.util.find_spec("torch") is None:
        yield Check("torch", LIMITED, "is not installed", "functions cannot use it: pip install torch")
    else:
        yield Check("torch", OK, next((each.version for each in metadata.distributions(name="torch")), "is installed"))


def _home(config: LocalProcessBackendConfig) -> Check:
    folder = config.state_home
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Check("home", OK, str(folder))
    except OSError as error:
        return Check("home", MISSING, f"{folder} cannot be written: {error.strerror}", "set TRAINJOB_HOME or --home")
