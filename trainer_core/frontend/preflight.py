"""Preflight checks of each backend: what it needs, what is missing, and what to do. `trainjob doctor` prints them."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from trainer_core.backends import backend_class
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.backends.trainer_v2 import preflight as kubernetes
from trainer_core.base.errors import TrackingError, TrainerError, UnsupportedError
from trainer_core.base.text import shorten
from trainer_core.client import TrainerClient
from trainer_core.k8s import resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import NotFoundError
from trainer_core.model import checkpoint_location
from trainer_core.model.backend_names import find_plugins
from trainer_core.model.config import (
    BackendConfig,
    ClusterConfig,
    ContainerBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
)
from trainer_core.model.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport
from trainer_core.packaging import code_location
from trainer_core.runtime_admin.validate import validate_runtime

_CHECKPOINTS = "checkpoints"
#: A person waits for the answer, and a slow server is no server that is away.
_TRACKING_SECONDS = 30.0
_LOAD_PLUGIN = """import sys
sys.path[:] = filter(None, sys.path)  # Not from the current folder.
from trainer_core.backends import backend_class
try:
    backend_class(sys.argv[1])
except Exception as error:
    sys.exit(str(error))
"""
_FAILS = "TrainJobs with the option Checkpoints fail"
_REFUSED = "TrainJobs with the option Checkpoints are refused"


def check_backend(
    config: BackendConfig, checkpoints_uri: str | None = None, code_uri: str | None = None
) -> PreflightReport:
    """Check what a backend needs, its places of checkpoints and code, and the tracking server; leave nothing behind."""
    report = _check_platform(config)
    if not report.fit:
        return report
    places = *_check_checkpoints(config, checkpoints_uri), *_check_code(config, code_uri)
    return replace(report, checks=(*report.checks, *places, *_check_tracking(), *check_plugins()))


def _check_platform(config: BackendConfig) -> PreflightReport:
    report = backend_class(config.backend).check_platform(config)
    if report is not None:
        return report
    if isinstance(config, KubernetesBackendConfig):
        return kubernetes.check_trainer_cluster(config, validate_runtime)
    if isinstance(config, LocalProcessBackendConfig):
        return PreflightReport((*_check_interpreter(), _check_home(config)))
    # Raises BackendUnavailableError for a backend that cannot be used at all.
    TrainerClient(config).list_runtimes()
    return PreflightReport(tuple(_check_interpreter()))


def check_plugins(seconds: float = 60) -> Iterator[PreflightCheck]:
    """Check that the backends of other distributions can be loaded within some seconds, each in its own process."""
    for name, point in sorted(find_plugins().items()):
        command = [sys.executable, "-c", _LOAD_PLUGIN, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            problem = done.stderr if done.returncode else ""
            problem = problem or (f"loading it ends Python with code {done.returncode}" if done.returncode else "")
        except subprocess.TimeoutExpired:
            problem = f"loading it takes more than {seconds:g} seconds"
        found = f"{point.dist.name} {point.dist.version}" if point.dist else "is installed"
        cost = "its TrainJobs fail, those of other backends run" if problem else ""
        yield PreflightCheck(f"backend {name}", LIMITED if problem else OK, shorten(problem) or found, cost)


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
    try:
        _try_folder(folder)
    except OSError as error:
        return PreflightCheck(
            "home", MISSING, f"{folder} cannot be written: {error.strerror}", "set TRAINJOB_HOME or --home"
        )
    return PreflightCheck("home", OK, str(folder))


def _try_folder(folder: Path) -> None:
    """Write a file without a name into a folder, or into the one in which the folder can be created."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(b"0")


def _check_checkpoints(config: BackendConfig, uri: str | None) -> Iterator[PreflightCheck]:
    """Check the place of checkpoints. The container engine creates its volumes itself."""
    uri = uri or getattr(config, "checkpoints_uri", None)
    if uri is None and isinstance(config, LocalProcessBackendConfig):
        uri = StateFolder(config.state_home).checkpoints.as_uri()
    if uri is None:
        return
    if checkpoint_location.is_bucket(uri):
        yield _check_bucket(uri, isinstance(config, LocalProcessBackendConfig))
    elif isinstance(config, ClusterConfig):
        yield _check_claim(checkpoint_location.split_uri(uri, ("pvc",))[0], ApiClient(Connection(config)))
    elif not (isinstance(config, ContainerBackendConfig) and uri.startswith("pvc://")):
        yield _check_checkpoint_folder(Path(checkpoint_location.split_uri(uri, ("file",))[1]), config)


def _check_checkpoint_folder(folder: Path, config: BackendConfig) -> PreflightCheck:
    try:
        if isinstance(config, ContainerBackendConfig) and not folder.is_dir():
            return PreflightCheck(_CHECKPOINTS, LIMITED, f"{folder} is not a folder", f"{_REFUSED}; create it")
        _try_folder(folder)
    except OSError as error:
        return PreflightCheck(_CHECKPOINTS, LIMITED, f"{folder} cannot be written: {error.strerror}", _FAILS)
    return PreflightCheck(_CHECKPOINTS, OK, str(folder))


def _check_bucket(uri: str, nodes_share_environment: bool) -> PreflightCheck:
    from trainer_core.client import saved_checkpoints  # Only for buckets.

    try:
        saved_checkpoints.try_bucket(uri)
    except OSError as error:
        if nodes_share_environment:
            return PreflightCheck(_CHECKPOINTS, LIMITED, str(error), _FAILS)
        hint = "checked with the AWS_* variables of this command; nodes have those of their trainer"
        return PreflightCheck(_CHECKPOINTS, UNKNOWN, str(error), hint)
    return PreflightCheck(_CHECKPOINTS, OK, uri)


def _check_claim(name: str, api: ApiClient) -> PreflightCheck:
    what = f"claim {name!r}"
    try:
        modes = set(api.get(resources.VOLUME_CLAIMS, name)["spec"]["accessModes"])
    except NotFoundError:
        return PreflightCheck(_CHECKPOINTS, LIMITED, f"{what} does not exist", f"{_FAILS}; create it")
    except TrainerError as error:
        return PreflightCheck(_CHECKPOINTS, UNKNOWN, str(error))
    found = f"{what}, {', '.join(sorted(modes))}"
    if modes <= resources.SINGLE_NODE_MODES:
        return PreflightCheck(_CHECKPOINTS, LIMITED, found, f"{_REFUSED} if they have several nodes")
    return PreflightCheck(_CHECKPOINTS, OK, found)


def _check_code(config: BackendConfig, uri: str | None) -> Iterator[PreflightCheck]:
    uri = uri or getattr(config, "code_uri", None)
    if uri is None:
        return
    left = None
    has_folders = isinstance(config, (LocalProcessBackendConfig, ContainerBackendConfig))
    try:
        code_location.check_scheme(uri, ("file",) if has_folders else ())
        if checkpoint_location.is_bucket(uri):
            left = code_location.try_bucket(uri)
        else:
            _try_folder(Path(checkpoint_location.split_uri(uri, ("file",))[1]))
    except UnsupportedError as error:
        found = str(error)
    except OSError as error:
        found = f"{uri} cannot be written: {error.strerror or error}"
    else:
        yield PreflightCheck("code", OK, f"{uri}; {left}, one byte, cannot be deleted by this user" if left else uri)
        return
    yield PreflightCheck("code", LIMITED, found, "TrainJobs with large code are refused")


def _check_tracking() -> Iterator[PreflightCheck]:
    """Check that the server of ``MLFLOW_TRACKING_URI`` answers, and that its experiment can be used."""
    if not os.environ.get("MLFLOW_TRACKING_URI", "").strip():
        return
    from trainer_core.tracking.mlflow_api import MlflowApi  # Only where a tracking URI is configured.
    from trainer_core.tracking.server import MlflowServer

    untracked = "TrainJobs have no runs"
    try:
        server = MlflowServer.from_environment()
        if server is None:
            raise ValueError("MLFLOW_TRACKING_URI is not the http(s) address of an MLflow server")
        api = MlflowApi(server, _TRACKING_SECONDS)
        try:
            api.find_experiment_id(server.experiment or "trainjob")
        finally:
            api.close()
    except (TrackingError, ValueError) as error:
        yield PreflightCheck("tracking", LIMITED, str(error), untracked)
    else:
        yield PreflightCheck("tracking", OK, f"{server.uri} answers")
