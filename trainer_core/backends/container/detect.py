"""Which engine to use, and how to get to it: what was asked for, else the first that answers at the usual places."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.backends.container.engine import Engine
from trainer_core.configs import ContainerBackendConfig
from trainer_core.errors import BackendUnavailableError

__all__ = ["PODMAN", "Candidate", "Tried", "candidates", "connect", "look_for"]

DOCKER, PODMAN = "docker", "podman"
_SOCKET = "unix://"


@dataclass(frozen=True)
class Candidate:
    """A place where an engine may answer.

    Attributes:
        says: Who says so.
        address: The place.
        asked_for: Somebody has named it: another one would not be his.
    """

    says: str
    address: str
    asked_for: bool = False


@dataclass(frozen=True)
class Tried:
    """A place that was tried, and what came of it."""

    candidate: Candidate
    found: str


def candidates(config: ContainerBackendConfig, env: Mapping[str, str], home: Path) -> list[Candidate]:
    """Return where to look, in order. Pure.

    Args:
        config: Of the backend.
        env: The environment.
        home: The user's folder.
    """
    if config.container_host:
        return [Candidate("container_host", config.container_host, asked_for=True)]
    wanted = config.container_runtime
    for kind, variable in ((DOCKER, "DOCKER_HOST"), (PODMAN, "CONTAINER_HOST")):
        if wanted in (None, kind) and env.get(variable):
            return [Candidate(variable, env[variable], asked_for=True)]
    found: list[Candidate] = []
    if wanted in (None, DOCKER):
        found += _sockets(DOCKER, _docker_sockets(env, home))
    if wanted in (None, PODMAN):
        found += _sockets(PODMAN, _podman_sockets(env, home))
    return found


def _docker_sockets(env: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    yield "system", Path("/var/run/docker.sock")
    if env.get("XDG_RUNTIME_DIR"):
        yield "rootless", Path(env["XDG_RUNTIME_DIR"], "docker.sock")
    yield "Docker Desktop", home / ".docker" / "run" / "docker.sock"
    yield "Docker Desktop", home / ".docker" / "desktop" / "docker.sock"
    colima = Path(env["COLIMA_HOME"]) if env.get("COLIMA_HOME") else home / ".colima"
    yield "Colima", colima / "default" / "docker.sock"
    yield "Colima", home / ".config" / "colima" / "default" / "docker.sock"
    yield "Rancher Desktop", home / ".rd" / "docker.sock"


def _podman_sockets(env: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    if env.get("XDG_RUNTIME_DIR"):
        yield "rootless", Path(env["XDG_RUNTIME_DIR"], "podman", "podman.sock")
    yield "system", Path("/run/podman/podman.sock")
    machine = home / ".local" / "share" / "containers" / "podman" / "machine"
    yield "machine", machine / "podman.sock"
    yield "machine", machine / "qemu" / "podman.sock"
    if env.get("TMPDIR"):
        yield "machine", Path(env["TMPDIR"], "podman", "podman-machine-default-api.sock")


def _sockets(kind: str, paths: Iterator[tuple[str, Path]]) -> list[Candidate]:
    return [Candidate(f"{kind}, {says}", f"{_SOCKET}{path}") for says, path in paths]


def look_for(config: ContainerBackendConfig) -> tuple[Engine | None, list[Tried]]:
    """Return the first engine that answers, and what was tried."""
    tried: list[Tried] = []
    for candidate in candidates(config, os.environ, Path.home()):
        try:
            engine = _connect(candidate)
            if config.container_runtime in (None, engine.product):
                return engine, [*tried, Tried(candidate, f"{engine.product} {engine.version}")]
            engine.close()
            tried.append(Tried(candidate, f"is {engine.product}, not {config.container_runtime}"))
        except BackendUnavailableError as error:
            tried.append(Tried(candidate, str(error.args[0])))
    return None, tried


def connect(config: ContainerBackendConfig) -> Engine:
    """Return the engine to use.

    Raises:
        BackendUnavailableError: None answers; the message says what was tried.
    """
    try:
        import docker  # noqa: F401 -- only to say what is missing
    except ImportError as error:
        missing = BackendUnavailableError(
            "the container backend needs the docker library, for Podman, too: "
            "pip install 'trainjob-workflows[containers]'"
        )
        missing.transient = False
        raise missing from error
    engine, tried = look_for(config)
    if engine is None:
        raise BackendUnavailableError(
            f"no container engine answers; tried {'; '.join(_shown(each) for each in tried)}. Start Docker, or "
            "`systemctl --user start podman.socket`, or say where it is: container_host, DOCKER_HOST or CONTAINER_HOST"
        )
    return engine


def _shown(tried: Tried) -> str:
    return f"{tried.candidate.says} {tried.candidate.address} ({tried.found})"


def _connect(candidate: Candidate) -> Engine:
    address = candidate.address
    if address.startswith(_SOCKET):
        path = Path(address.removeprefix(_SOCKET))
        if not path.exists():
            raise BackendUnavailableError("no such socket")
        _check_that_somebody_listens(path)
    return Engine(address, tls=_tls(candidate))


def _check_that_somebody_listens(path: Path) -> None:
    try:
        # The docker library leaves a socket open that nobody answers.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except PermissionError as error:
        raise BackendUnavailableError("not permitted; be in its group, or use a rootless engine") from error
    except OSError as error:
        raise BackendUnavailableError(f"nobody answers there: {error.strerror}") from error


def _tls(candidate: Candidate) -> Any:
    """As Docker's own client takes it from the environment, for the engine that the environment names."""
    if candidate.says != "DOCKER_HOST":
        return False
    from docker.utils import kwargs_from_env

    return kwargs_from_env().get("tls", False)
