"""Finds a container engine: the configured one, else the first that answers at its default address."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer_core.backends.container.engine import Engine
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.secrets import mask_credentials
from trainer_core.base.text import missing_extra
from trainer_core.model.config import ContainerBackendConfig

DOCKER, PODMAN = "docker", "podman"
_MISSING_LIBRARY = missing_extra("the container backend (Docker or Podman)", "docker", "containers")
_SOCKET = "unix://"


@dataclass(frozen=True)
class EngineCandidate:
    """An address at which an engine may answer."""

    #: Where the address comes from: a setting, an environment variable or a default.
    source: str
    address: str


@dataclass(frozen=True)
class ConnectionAttempt:
    """A candidate that was tried, and the result: product and version, or the problem."""

    candidate: EngineCandidate
    result: str


def list_candidates(config: ContainerBackendConfig, env: Mapping[str, str], home: Path) -> list[EngineCandidate]:
    """Return the addresses to try, in this order. Pure."""
    if config.container_host:
        return [EngineCandidate("container_host", config.container_host)]
    product = config.container_runtime
    for kind, variable in ((DOCKER, "DOCKER_HOST"), (PODMAN, "CONTAINER_HOST")):
        if product in (None, kind) and env.get(variable):
            return [EngineCandidate(variable, env[variable])]
    candidates: list[EngineCandidate] = []
    if product in (None, DOCKER):
        candidates += _to_candidates(DOCKER, _list_docker_sockets(env, home))
    if product in (None, PODMAN):
        candidates += _to_candidates(PODMAN, _list_podman_sockets(env, home))
    return candidates


def _list_docker_sockets(env: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    yield "system", Path("/var/run/docker.sock")
    if env.get("XDG_RUNTIME_DIR"):
        yield "rootless", Path(env["XDG_RUNTIME_DIR"], "docker.sock")
    yield "Docker Desktop", home / ".docker" / "run" / "docker.sock"
    yield "Docker Desktop", home / ".docker" / "desktop" / "docker.sock"
    colima = Path(env["COLIMA_HOME"]) if env.get("COLIMA_HOME") else home / ".colima"
    yield "Colima", colima / "default" / "docker.sock"
    yield "Colima", home / ".config" / "colima" / "default" / "docker.sock"
    yield "Rancher Desktop", home / ".rd" / "docker.sock"


def _list_podman_sockets(env: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    if env.get("XDG_RUNTIME_DIR"):
        yield "rootless", Path(env["XDG_RUNTIME_DIR"], "podman", "podman.sock")
    yield "system", Path("/run/podman/podman.sock")
    machine = home / ".local" / "share" / "containers" / "podman" / "machine"
    yield "machine", machine / "podman.sock"
    yield "machine", machine / "qemu" / "podman.sock"
    if env.get("TMPDIR"):
        yield "machine", Path(env["TMPDIR"], "podman", "podman-machine-default-api.sock")


def _to_candidates(kind: str, paths: Iterator[tuple[str, Path]]) -> list[EngineCandidate]:
    return [EngineCandidate(f"{kind}, {source}", f"{_SOCKET}{path}") for source, path in paths]


def find_engine(config: ContainerBackendConfig) -> tuple[Engine | None, list[ConnectionAttempt]]:
    """Return the first engine that answers, and all attempts. The engine belongs to the last attempt."""
    attempts: list[ConnectionAttempt] = []
    for candidate in list_candidates(config, os.environ, Path.home()):
        try:
            engine = _connect_candidate(candidate)
            if config.container_runtime in (None, engine.product):
                return engine, [*attempts, ConnectionAttempt(candidate, f"{engine.product} {engine.version}")]
            engine.close()
            attempts.append(ConnectionAttempt(candidate, f"is {engine.product}, not {config.container_runtime}"))
        except BackendUnavailableError as error:
            attempts.append(ConnectionAttempt(candidate, str(error.args[0])))
    return None, attempts


def check_library() -> None:
    """Raise an error that names the extra if the engines' client, which brings requests, is not installed."""
    if find_spec("docker") is None:
        raise BackendUnavailableError(_MISSING_LIBRARY, transient=False)


def connect_engine(config: ContainerBackendConfig) -> Engine:
    check_library()
    engine, attempts = find_engine(config)
    if engine is None:
        tried = mask_credentials(
            "; ".join(f"{each.candidate.source} {each.candidate.address} ({each.result})" for each in attempts)
        )
        raise BackendUnavailableError(
            f"no container engine answers; tried {tried}. Start Docker, or run `systemctl --user start podman.socket`, "
            "or set container_host, DOCKER_HOST or CONTAINER_HOST"
        )
    return engine


def _connect_candidate(candidate: EngineCandidate) -> Engine:
    address = candidate.address
    if address.startswith(_SOCKET):
        path = Path(address.removeprefix(_SOCKET))
        if not path.exists():
            raise BackendUnavailableError("no such socket")
        _check_socket(path)
    return Engine(address, tls=_get_tls_settings(candidate))


def _check_socket(path: Path) -> None:
    """Check that a process listens on a socket. The docker library would leave a socket open if none does."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except PermissionError as error:
        raise BackendUnavailableError(
            "permission denied; join the group of the socket, or use a rootless engine"
        ) from error
    except OSError as error:
        raise BackendUnavailableError(f"no process listens: {error.strerror}") from error


def _get_tls_settings(candidate: EngineCandidate) -> Any:
    """Return the TLS settings of Docker's environment variables, for the engine that DOCKER_HOST names."""
    if candidate.source != "DOCKER_HOST":
        return False
    from docker.utils import kwargs_from_env

    return kwargs_from_env().get("tls", False)
