"""Client of a container engine: the configured one, else the first that answers at its default address.

Docker and Podman serve the same API; their differences are handled here.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from trainer_core.backends.container.job_journal import parse_time
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.secrets import mask_credentials
from trainer_core.base.text import missing_extra
from trainer_core.model.config import ContainerBackendConfig

DOCKER, PODMAN = "docker", "podman"
_MISSING_LIBRARY = missing_extra("the container backend (Docker or Podman)", "docker", "containers")
_SOCKET = "unix://"

_TIMEOUT_SECONDS = 60
#: For pulls, which send progress messages in between.
_PULL_TIMEOUT_SECONDS = 600
_MAX_FILE_BYTES = 2**28
_NOT_FOUND, _CONFLICT = 404, 409
_HEADER_BYTES, _BLOCK_BYTES = 8, 65_536
#: Oldest API version with everything that is used here: Docker 20.10, Podman 4.
_MIN_API_VERSION = "1.41"

#: Part of a container's log: the number of the stream (1 stdout, 2 stderr), and a timestamp, a space and the text.
Frame: TypeAlias = tuple[int, bytes]


class EngineRequestError(BackendUnavailableError):
    """The engine refused a request; `reason` is its message, on one line."""

    def __init__(self, reason: str, address: str) -> None:
        super().__init__(f"container engine at {mask_credentials(address)} refused the request: {reason}")
        self.reason = reason


class EngineNotFoundError(EngineRequestError):
    """The object does not exist (HTTP status 404)."""


class EngineConflictError(EngineRequestError):
    """The name or the object is in use (HTTP status 409)."""


class Engine:
    """Connection to a container engine."""

    def __init__(self, address: str, tls: Any = False) -> None:
        self.address = address
        self._tls = tls
        # A ping instead of the version: for its version, Podman runs several programs, which take half a second.
        with closing(self._connect(_MIN_API_VERSION)) as api, self._translate_errors():
            response = api.get(f"{api.base_url}/_ping", timeout=_TIMEOUT_SECONDS)
            response.raise_for_status()
        self._ping_headers: Mapping[str, str] = response.headers
        self._api = self._connect(self.api_version or _MIN_API_VERSION)
        weakref.finalize(self, self._api.close)

    def close(self) -> None:
        self._api.close()

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine, so that containers can mount its folders."""
        return self.address.startswith(("unix://", "npipe://"))

    @property
    def hostname(self) -> str:
        """Name of the host on which the engine runs, as far as this process knows it."""
        return socket.gethostname() if self.is_local else urlsplit(self.address).hostname or self.address

    @property
    def product(self) -> str:
        """``podman`` or ``docker``."""
        return "podman" if "Libpod-Api-Version" in self._ping_headers else "docker"

    @property
    def version(self) -> str:
        server = self._ping_headers.get("Server", "").partition(" ")[0]
        return server.partition("/")[2] or "?"

    @property
    def api_version(self) -> str:
        """Newest API version that the engine supports; empty if it does not report one."""
        return self._ping_headers.get("Api-Version", "")

    def get_info(self) -> dict[str, Any]:
        with self._translate_errors():
            return dict(self._api.info())

    @cached_property
    def _clock_offset(self) -> timedelta:
        """How far the engine's clock is ahead of this machine's; zero if both are the same clock."""
        if self.is_local and sys.platform == "linux":
            # On other systems a local engine runs in a virtual machine with its own clock.
            return timedelta()
        before = datetime.now(timezone.utc)
        engine_time = self.get_info().get("SystemTime")
        after = datetime.now(timezone.utc)
        if not engine_time or before <= parse_time(engine_time) <= after:
            return timedelta()
        return parse_time(engine_time) - after

    def now(self) -> datetime:
        """Return the time of the engine's clock, by which starts, ends and deadlines are measured."""
        return datetime.now(timezone.utc) + self._clock_offset

    def list_volumes(self, *labels: str) -> list[dict[str, Any]]:
        """Return the volumes that have all these labels (``key=value``). The first one should be the rarest."""
        with self._translate_errors():
            # Podman returns the volumes that have any of several labels.
            volumes = self._api.volumes(filters={"label": [labels[0]]}).get("Volumes") or ()
        wanted = [label.partition("=") for label in labels]
        return [each for each in volumes if all((each["Labels"] or {}).get(key) == value for key, _, value in wanted)]

    def inspect_volume(self, name: str) -> dict[str, Any]:
        with self._translate_errors():
            return dict(self._api.inspect_volume(name))

    def get_or_create_volume(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        from docker.errors import APIError, NotFound

        with self._translate_errors():
            try:
                return dict(self._api.create_volume(name, labels=dict(labels)))
            except APIError as error:
                try:
                    # Podman returns an error if two clients create the volume at the same moment.
                    return dict(self._api.inspect_volume(name))
                except NotFound:
                    raise error from None

    def remove_volume(self, name: str) -> None:
        """Remove a volume. If it does not exist, this succeeds."""
        with self._translate_errors(), _ignore_not_found():
            # Podman removes another volume whose name begins with this one if no volume has this name.
            self._api.inspect_volume(name)
            self._api.remove_volume(name)

    def list_networks(self, *labels: str) -> list[dict[str, Any]]:
        """Return the networks that have all these labels (``key=value``)."""
        with self._translate_errors():
            return list(self._api.networks(filters={"label": list(labels)}))

    def ensure_network(self, name: str, labels: Mapping[str, str]) -> None:
        with self._translate_errors():
            if any(network["Name"] == name for network in self._api.networks(names=[name])):
                return
            self._api.create_network(name, labels=dict(labels), check_duplicate=True)

    def remove_network(self, name: str) -> None:
        """Remove a network. If it does not exist, this succeeds."""
        with self._translate_errors(), _ignore_not_found():
            self._api.remove_network(name)

    def has_image(self, image: str) -> bool:
        return self.get_image_id(image) is not None

    def get_image_id(self, image: str) -> str | None:
        """Return the digest of an image's content; None if the engine does not have it."""
        try:
            with self._translate_errors():
                return str(self._api.inspect_image(image)["Id"])
        except EngineNotFoundError:
            return None

    def get_image_config(self, image: str) -> dict[str, Any]:
        """Return the configuration of an image: entry point, arguments, user."""
        with self._translate_errors():
            return dict(self._api.inspect_image(image).get("Config") or {})

    def pull_image(self, image: str) -> None:
        api = self._connect(self.api_version or _MIN_API_VERSION, _PULL_TIMEOUT_SECONDS)
        with self._translate_errors(), closing(api):
            # Without a tag the library would pull all tags.
            tag = None if "@" in image or ":" in image.rpartition("/")[2] else "latest"
            for line in api.pull(image, tag=tag, stream=True, decode=True):
                if line.get("error"):
                    raise EngineRequestError(_to_one_line(line["error"]), self.address)

    def _connect(self, version: str, timeout: int = _TIMEOUT_SECONDS) -> Any:
        import docker  # 300 ms, which processes that only refer to this backend do not pay

        ssh = self.address.startswith("ssh://")
        with self._translate_errors():
            return docker.APIClient(self.address, version=version, timeout=timeout, tls=self._tls, use_ssh_client=ssh)

    def list_containers(self, *labels: str) -> list[dict[str, Any]]:
        """Return summaries of all containers that have all these labels, including those that have exited."""
        with self._translate_errors():
            return list(self._api.containers(all=True, filters={"label": list(labels)}))

    def inspect_container(self, container: str) -> dict[str, Any]:
        with self._translate_errors():
            return dict(self._api.inspect_container(container))

    def create_container(self, name: str, body: Mapping[str, Any]) -> str:
        with self._translate_errors():
            return str(self._api.create_container_from_config(dict(body), name)["Id"])

    def start_container(self, container: str) -> None:
        with self._translate_errors():
            self._api.start(container)

    def stop_container(self, container: str, grace_seconds: int) -> None:
        """Send SIGTERM to a container, and SIGKILL after the grace period. If it is not running, this succeeds."""
        from docker.errors import APIError

        with self._translate_errors(), _ignore_not_found():
            try:
                self._api.stop(container, timeout=grace_seconds)
            except APIError:
                # Podman stops no container that is paused.
                self._api.unpause(container)
                self._api.stop(container, timeout=grace_seconds)

    def remove_container(self, container: str, force: bool = True) -> None:
        """Remove a container and its anonymous volumes. If it does not exist, this succeeds."""
        with self._translate_errors(), _ignore_not_found():
            self._api.remove_container(container, v=True, force=force)

    def rename_container(self, container: str, name: str) -> None:
        with self._translate_errors():
            self._api.rename(container, name)

    def stream_log(self, container: str, since: int, tail: int | None = None) -> Iterator[Frame]:
        # Requested directly: the library's method for logs does not close the connection if reading stops early.
        url = f"{self._api.base_url}/v{self._api.api_version}/containers/{container}/logs"
        params = {"stdout": True, "stderr": True, "timestamps": True, "tail": tail or "all", "since": since or None}
        with (
            self._translate_errors(),
            self._api.get(url, params=params, stream=True, timeout=_TIMEOUT_SECONDS) as response,
        ):
            if not response.ok:
                error = EngineNotFoundError if response.status_code == _NOT_FOUND else EngineRequestError
                raise error(_to_one_line(response.text), self.address)
            yield from _split_frames(response.iter_content(_BLOCK_BYTES))

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return a file of a container, running or not; None if the file does not exist."""
        try:
            with self._translate_errors():
                stream, _ = self._api.get_archive(container, path)
                with closing(stream):
                    data = b"".join(_limit_size(stream, _MAX_FILE_BYTES))
        except EngineNotFoundError:
            return None
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                file = next((archive.extractfile(member) for member in archive if member.isfile()), None)
                return file.read() if file is not None else None
        except tarfile.TarError as error:
            # Podman on a full disk, which has begun to answer.
            raise EngineRequestError(f"{path} cannot be read: {error}", self.address) from error

    def write_file(self, container: str, path: str, data: bytes, owner: int = 0, mode: int = 0o400) -> None:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size, member.mode, member.uid, member.gid = len(data), mode, owner, owner
        self._write_member(container, "/", member, data)

    def share_volume(self, container: str, path: str) -> None:
        """Let every user create files in a volume that is mounted at a path, as in /tmp."""
        member = tarfile.TarInfo(".")
        member.type, member.mode = tarfile.DIRTYPE, 0o1777
        self._write_member(container, path, member)

    def _write_member(self, container: str, folder: str, member: tarfile.TarInfo, data: bytes = b"") -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as writer:
            writer.addfile(member, io.BytesIO(data))
            end = archive.tell() + 2 * tarfile.BLOCKSIZE
        # Without the padding that tarfile adds: Podman's reader exits at the end of an archive, and the request fails
        # with "broken pipe" if something follows.
        with self._translate_errors():
            self._api.put_archive(container, folder, archive.getvalue()[:end])

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert the errors of the docker library, and of the libraries below it."""
        import requests
        import urllib3
        from docker.errors import APIError, DockerException

        try:
            yield
        except APIError as error:
            kinds = {_NOT_FOUND: EngineNotFoundError, _CONFLICT: EngineConflictError}
            kind = kinds.get(error.status_code or 0, EngineRequestError)
            raise kind(_to_one_line(error.explanation or str(error)), self.address) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError) as error:
            raise BackendUnavailableError(
                f"container engine at {mask_credentials(self.address)} does not answer "
                f"({mask_credentials(_to_one_line(error))}); check that it is running"
            ) from error


def _split_frames(blocks: Iterator[bytes]) -> Iterator[Frame]:
    """Split the multiplexed log stream. Each frame has a header of 8 bytes: the stream, and the length of the frame."""
    rest = b""
    for block in blocks:
        rest, start = rest + block, 0
        while len(rest) >= start + _HEADER_BYTES:
            end = start + _HEADER_BYTES + int.from_bytes(rest[start + 4 : start + _HEADER_BYTES], "big")
            if len(rest) < end:
                break
            yield rest[start], rest[start + _HEADER_BYTES : end]
            start = end
        rest = rest[start:]


@contextmanager
def _ignore_not_found() -> Iterator[None]:
    from docker.errors import NotFound

    try:
        yield
    except NotFound:
        return


def _to_one_line(text: object) -> str:
    return " ".join(str(text).split())


def _limit_size(stream: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in stream:
        size -= len(chunk)
        if size < 0:
            raise ValueError("the file is too large")
        yield chunk


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
    sockets = {DOCKER: _list_docker_sockets(env, home), PODMAN: _list_podman_sockets(env, home)}
    return [
        EngineCandidate(f"{kind}, {source}", f"{_SOCKET}{path}")
        for kind, found in sockets.items()
        for source, path in found
        if product in (None, kind)
    ]


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
