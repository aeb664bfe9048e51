"""What is asked of an engine, in few words, with its errors in ours.

Docker and Podman speak the same API; what differs between them ends here.
"""

from __future__ import annotations

import io
import sys
import tarfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, TypeAlias

from trainer_core.backends.container.times import parsed
from trainer_core.errors import BackendUnavailableError

__all__ = ["Engine", "Frame", "NotThereError", "RefusedError", "TakenError"]

_SECONDS = 60
#: A large image takes its time, and says something meanwhile.
_PULL_SECONDS = 600
#: Bytes of a file of ours that are read at most.
_FILE_BYTES = 2**28
_NOT_FOUND, _CONFLICT = 404, 409
_HEADER_BYTES, _BLOCK_BYTES = 8, 65_536
#: Of the API; all that is asked for here has been in it since then.
_OLDEST = "1.41"


#: A piece of what a container has printed, and to which of its outputs.
Frame: TypeAlias = tuple[int, bytes]


class RefusedError(BackendUnavailableError):
    """The engine will not do it.

    Attributes:
        said: What it says of it, on one line.
    """

    def __init__(self, said: str, address: str) -> None:
        super().__init__(f"the container engine at {address} refuses: {said}")
        self.said = said


class NotThereError(RefusedError):
    """There is no such thing."""


class TakenError(RefusedError):
    """The name is in use, or the thing is."""


class Engine:
    """A container engine that answers at an address.

    Args:
        address: Such as ``unix:///var/run/docker.sock``.
        tls: What the `docker` library needs to reach it over TLS.

    Raises:
        BackendUnavailableError: Nothing answers there.
    """

    def __init__(self, address: str, tls: Any = False) -> None:
        self.address = address
        self._tls = tls
        # Asked for its version Podman runs several programs for half a second; a ping says all that is needed.
        with closing(self._connected(_OLDEST)) as api, self._errors():
            answer = api.get(f"{api.base_url}/_ping", timeout=_SECONDS)
            answer.raise_for_status()
        self._said: Mapping[str, str] = answer.headers
        self._api = self._connected(self.speaks or _OLDEST)
        weakref.finalize(self, self._api.close)

    def close(self) -> None:
        """Give back the connections."""
        self._api.close()

    @property
    def local(self) -> bool:
        """Whether its containers can be shown folders of this machine."""
        return self.address.startswith(("unix://", "npipe://"))

    @property
    def product(self) -> str:
        """``podman`` or ``docker``."""
        return "podman" if "Libpod-Api-Version" in self._said else "docker"

    @property
    def version(self) -> str:
        """Its own version."""
        server = self._said.get("Server", "").partition(" ")[0]
        return server.partition("/")[2] or "?"

    @property
    def speaks(self) -> str:
        """The newest version of the API that it speaks; empty where it does not say."""
        return self._said.get("Api-Version", "")

    def info(self) -> dict[str, Any]:
        """Return what it says of its machine."""
        with self._errors():
            return dict(self._api.info())

    @cached_property
    def _ahead(self) -> timedelta:
        """How far its clock is ahead of this one, at least; none, as far as one can tell, on the same machine."""
        if self.local and sys.platform == "linux":
            # Elsewhere it runs in a virtual machine, whose clock is its own.
            return timedelta()
        before = datetime.now(timezone.utc)
        told = self.info().get("SystemTime")
        after = datetime.now(timezone.utc)
        if not told or before <= parsed(told) <= after:
            return timedelta()
        return parsed(told) - after

    def now(self) -> datetime:
        """Return the time by the engine's clock: starts, ends and deadlines are all told by it."""
        return datetime.now(timezone.utc) + self._ahead

    def volumes(self, *labels: str) -> list[dict[str, Any]]:
        """Return the volumes with all of these labels, ``key=value``."""
        with self._errors():
            return list(self._api.volumes(filters={"label": list(labels)}).get("Volumes") or ())

    def volume(self, name: str) -> dict[str, Any]:
        """Return one volume."""
        with self._errors():
            return dict(self._api.inspect_volume(name))

    def make_volume(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """Return the volume of that name: this one, or the one that was there before."""
        with self._errors():
            try:
                return dict(self._api.create_volume(name, labels=dict(labels)))
            except self._refusals:
                # Podman says so, where two make it at the same moment.
                return dict(self._api.inspect_volume(name))

    def remove_volume(self, name: str) -> None:
        """Remove a volume; gone already is fine."""
        with self._errors(), _gone_is_fine():
            self._api.remove_volume(name)

    def networks(self, *labels: str) -> list[dict[str, Any]]:
        """Return the networks with all of these labels."""
        with self._errors():
            return list(self._api.networks(filters={"label": list(labels)}))

    def make_network(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a network, unless there is one of that name."""
        with self._errors():
            if any(network["Name"] == name for network in self._api.networks(names=[name])):
                return
            self._api.create_network(name, labels=dict(labels), check_duplicate=True)

    def remove_network(self, name: str) -> None:
        """Remove a network; gone already is fine."""
        with self._errors(), _gone_is_fine():
            self._api.remove_network(name)

    def has_image(self, image: str) -> bool:
        """Say whether an image is there."""
        try:
            with self._errors():
                self._api.inspect_image(image)
        except NotThereError:
            return False
        return True

    def image(self, image: str) -> dict[str, Any]:
        """Return what an image is made to run."""
        with self._errors():
            return dict(self._api.inspect_image(image).get("Config") or {})

    def pull(self, image: str) -> None:
        """Fetch an image from its registry.

        Raises:
            RefusedError: It cannot be had.
        """
        with self._errors(), closing(self._connected(self.speaks or _OLDEST, _PULL_SECONDS)) as api:
            # Without a tag the library would fetch all there are.
            tag = None if "@" in image or ":" in image.rpartition("/")[2] else "latest"
            for line in api.pull(image, tag=tag, stream=True, decode=True):
                if line.get("error"):
                    raise RefusedError(_one_line(line["error"]), self.address)

    def _connected(self, version: str, seconds: int = _SECONDS) -> Any:
        import docker  # 300 ms, and everybody else names this backend without it

        ssh = self.address.startswith("ssh://")
        with self._errors():
            return docker.APIClient(self.address, version=version, timeout=seconds, tls=self._tls, use_ssh_client=ssh)

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """Return all containers with all of these labels, also those that have ended; in few words."""
        with self._errors():
            return list(self._api.containers(all=True, filters={"label": list(labels)}))

    def container(self, key: str) -> dict[str, Any]:
        """Return one container by its id or name, in many words."""
        with self._errors():
            return dict(self._api.inspect_container(key))

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container and return its id.

        Raises:
            TakenError: There is one of that name.
            NotThereError: Its image is not there.
            RefusedError: It cannot be made like this.
        """
        with self._errors():
            return str(self._api.create_container_from_config(dict(body), name)["Id"])

    def start(self, key: str) -> None:
        """Start a container that was created."""
        with self._errors():
            self._api.start(key)

    def stop(self, key: str, seconds: int) -> None:
        """Ask a container to end and see to it after some seconds; ended or gone already is fine."""
        with self._errors(), _gone_is_fine():
            self._api.stop(key, timeout=seconds)

    def remove(self, key: str, force: bool = True) -> None:
        """Remove a container and what only it has mounted; gone already is fine."""
        with self._errors(), _gone_is_fine():
            self._api.remove_container(key, v=True, force=force)

    def rename(self, key: str, name: str) -> None:
        """Give a container another name."""
        with self._errors():
            self._api.rename(key, name)

    def frames(self, key: str, since: int, tail: int | None = None) -> Iterator[Frame]:
        """Yield what a container has printed since a second: to which output, and a piece behind its time and a blank.

        Args:
            key: The container.
            since: The second.
            tail: Of how many last lines; None for all. Of lines printed in pieces Podman before 4.7 joins some then and
                loses others: only their times are to be relied on.
        """
        # The library's own way to read a log gives no hold on a connection that is to be closed before its end.
        url = f"{self._api.base_url}/v{self._api.api_version}/containers/{key}/logs"
        asked = {"stdout": True, "stderr": True, "timestamps": True, "tail": tail or "all", "since": since or None}
        with self._errors(), self._api.get(url, params=asked, stream=True, timeout=_SECONDS) as answer:
            if not answer.ok:
                refusal = NotThereError if answer.status_code == _NOT_FOUND else RefusedError
                raise refusal(_one_line(answer.text), self.address)
            yield from _payloads(answer.iter_content(_BLOCK_BYTES))

    def read(self, key: str, path: str) -> bytes | None:
        """Return a file of a container, running or not; None where there is none."""
        try:
            with self._errors():
                stream, _ = self._api.get_archive(key, path)
                with closing(stream):
                    data = b"".join(_at_most(stream, _FILE_BYTES))
        except NotThereError:
            return None
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            file = next((archive.extractfile(member) for member in archive if member.isfile()), None)
            return file.read() if file is not None else None

    def write(self, key: str, path: str, data: bytes, owner: int = 0) -> None:
        """Put a file that only its owner can read into a container."""
        made = tarfile.TarInfo(path.lstrip("/"))
        made.size, made.mode, made.uid, made.gid = len(data), 0o400, owner, owner
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as writer:
            writer.addfile(made, io.BytesIO(data))
        with self._errors():
            self._api.put_archive(key, "/", archive.getvalue())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _errors(self.address):
            yield

    @property
    def _refusals(self) -> Any:
        from docker.errors import APIError

        return APIError


def _payloads(blocks: Iterator[bytes]) -> Iterator[Frame]:
    """Both outputs of a container come in one stream, each piece behind eight bytes: which output, and its length."""
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
def _gone_is_fine() -> Iterator[None]:
    from docker.errors import NotFound

    try:
        yield
    except NotFound:
        return


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """The library's errors, and those of the libraries below it, in ours."""
    import requests
    import urllib3
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        kind = {_NOT_FOUND: NotThereError, _CONFLICT: TakenError}.get(error.status_code or 0, RefusedError)
        raise kind(_one_line(error.explanation or str(error)), address) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError) as error:
        raise BackendUnavailableError(
            f"the container engine at {address} does not answer ({_one_line(error)}); see whether it runs"
        ) from error


def _one_line(what: object) -> str:
    return " ".join(str(what).split())


def _at_most(stream: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in stream:
        size -= len(chunk)
        if size < 0:
            raise ValueError("the file is too large")
        yield chunk
