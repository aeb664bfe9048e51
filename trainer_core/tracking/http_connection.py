"""One kept HTTP connection to a tracking server, with the standard library: a plain install has no HTTP client.

Redirects are followed to the same scheme, host and port only, so that credentials reach no other server. Proxies are
those of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as the mlflow client finds them.
"""

from __future__ import annotations

import http.client
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from trainer_core.base.errors import TrackingError
from trainer_core.tracking.server import MlflowServer

_MAX_REDIRECTS = 3
_BLOCK = 1 << 20
#: Seconds to connect, with TLS: a server that is there answers sooner, however busy it is.
_CONNECT_TIMEOUT = 1.0
_TLS_CONNECT_TIMEOUT = 2.0
#: Seconds for an upload, and for a version whose files the server copies; and for a batch of many points.
_COPY_TIMEOUT, _BATCH_TIMEOUT = 600.0, 60.0
_BATCH_SIZE = 10_000
#: What creates something is not sent twice.
_CREATES = ("runs/create", "model-versions/create")


class UnreachableError(TrackingError):
    """No connection to the server can be opened, or it does not answer in time. Trying again at once does not help."""


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy; `headers` authenticate a request to it and are never part of a message."""

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


class HttpConnection:
    """Sends requests to a server, one after the other. Threads may share it.

    Attributes:
        proxy: Proxy of the last connection; None without one.
    """

    def __init__(self, server: MlflowServer, timeout: float, max_rate: float) -> None:
        self.proxy: Proxy | None = None
        self._server = server
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._pause = 1 / max_rate if max_rate else 0.0
        self._next = 0.0

    def close(self) -> None:
        """Close the connection, unless a request uses it now. The next request opens another one."""
        # At the exit of the process, a thread may wait for the server without an end, and nothing else needs the lock.
        if self._lock.acquire(blocking=False):
            self._drop()
            self._lock.release()

    def send(self, method: str, target: str, body: bytes | Path | None) -> tuple[int, bytes]:
        """Return the status and text of the answer; a path as the body sends the content of the file."""
        url = self._server.uri.rstrip("/") + target
        for _ in range(_MAX_REDIRECTS):
            status, location, text = self._send(method, url, body)
            if status not in (301, 302, 303, 307, 308):
                break
            url = self._check_redirect(urljoin(url, location))
        return status, text

    def _check_redirect(self, url: str) -> str:
        if not self._server.has_origin_of(url):
            parts = urlsplit(url)
            origin = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
            raise TrackingError(
                f"{self._server.uri} redirects to {origin}, and credentials are sent to no other server; set that "
                "address as the tracking URI"
            )
        return url

    def _send(self, method: str, url: str, body: bytes | Path | None) -> tuple[int, str, bytes]:
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        with self._lock:
            self._keep_rate()
            self._drop_if_closed()
            reused = self._connection is not None
            try:
                return self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                # A server closes an idle connection without notice.
                if not reused or path.endswith(_CREATES) or isinstance(error, TimeoutError):
                    raise self._build_error(error) from error
            try:
                return self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise self._build_error(error) from error

    def _keep_rate(self) -> None:
        if self._pause:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + self._pause

    def _exchange(self, method: str, path: str, body: bytes | Path | None) -> tuple[int, str, bytes]:
        headers = {"Accept": "application/json", **self._server.get_headers()}
        content: bytes | Iterator[bytes] | None
        if isinstance(body, Path):
            headers |= {"Content-Length": str(body.stat().st_size), "Content-Type": "application/octet-stream"}
            content = _read_blocks(body)
        else:
            headers |= {} if body is None else {"Content-Type": "application/json"}
            content = body
        connection = self._connection = self._connection or self._connect()
        parts = urlsplit(self._server.uri)
        if self.proxy is not None and parts.scheme == "http":
            # For https the connection is a tunnel, and the proxy sees no request.
            path, headers = f"http://{parts.netloc}{path}", {**headers, **self.proxy.headers}
        connection.sock.settimeout(max(self._timeout, _get_least_timeout(path, body)))
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        text = response.read()
        if response.will_close:
            self._drop()
        return response.status, response.headers.get("Location", ""), text

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._server.uri)
        self.proxy = proxy = find_proxy(self._server.uri)
        host, port = (proxy.host, proxy.port) if proxy else (str(parts.hostname), parts.port)
        if parts.scheme == "http":
            connection = http.client.HTTPConnection(host, port, timeout=min(self._timeout, _CONNECT_TIMEOUT))
        else:
            import ssl  # It takes 10 ms to load.

            context = ssl.create_default_context(cafile=self._server.ca_file)
            if self._server.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            timeout = min(self._timeout, _TLS_CONNECT_TIMEOUT)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
            if proxy is not None:
                connection.set_tunnel(str(parts.hostname), parts.port or 443, proxy.headers)
        try:
            connection.connect()
        except OSError as error:
            # Before Python 3.11.4, the answer of a proxy that refuses a tunnel keeps the socket open.
            traceback.clear_frames(error.__traceback__)
            raise
        return connection

    def _drop_if_closed(self) -> None:
        """Drop the connection if the server has closed it meanwhile: what creates something cannot be sent twice."""
        if self._connection is not None and self._connection.sock is not None:
            poller = select.poll()
            poller.register(self._connection.sock, select.POLLIN)
            if poller.poll(0):  # No request is pending, so this is its end.
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _build_error(self, error: Exception) -> TrackingError:
        reason = str(error) or type(error).__name__
        through = f" through the proxy {self.proxy}" if self.proxy else ""
        # A connection that breaks is opened again with success where the server restarts, or a load balancer drops it.
        is_broken = isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.HTTPException))
        kind = TrackingError if is_broken else UnreachableError
        return kind(f"MLflow server {self._server.uri} cannot be reached{through}: {reason}", transient=True)


def find_proxy(uri: str) -> Proxy | None:
    """Return the proxy for a URI; None if requests go to its host directly.

    Names in lower case come first. ``NO_PROXY`` has hosts, domains, addresses and networks (``10.0.0.0/8``). On macOS
    and Windows the settings of the system count where no variable is set. An error does not quote the proxy: it can
    have a password.
    """
    has_variables = any(name.lower().endswith("_proxy") for name in os.environ)
    if not has_variables and sys.platform not in ("darwin", "win32"):
        return None
    from urllib import request  # It takes 10 ms to load.

    parts = urlsplit(uri)
    proxies = request.getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or request.proxy_bypass(parts.netloc) or _is_in_excluded_network(parts, proxies.get("no", "")):
        return None
    return _parse_proxy(address, f"{parts.scheme.upper()}_PROXY")


def _is_in_excluded_network(parts: SplitResult, excluded: str) -> bool:
    try:
        address = ip_address(parts.hostname or "")
    except ValueError:
        return False
    for entry in excluded.split(","):
        try:
            if address in ip_network(entry.strip(), strict=False):
                return True
        except ValueError:  # The name of a host.
            continue
    return False


def _parse_proxy(address: str, variable: str) -> Proxy:
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host = None
    if not host or parts.scheme != "http":
        raise TrackingError(f"the proxy in {variable} or ALL_PROXY must be an http:// URL; correct it") from None
    if not parts.username:
        return Proxy(host, port)
    import base64

    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"})


def _get_least_timeout(path: str, body: bytes | Path | None) -> float:
    """Return the seconds that a server may need although it works."""
    if isinstance(body, Path) or path.endswith("model-versions/create"):
        return _COPY_TIMEOUT
    return _BATCH_TIMEOUT if body is not None and len(body) > _BATCH_SIZE else 0.0


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            yield block
