"""Connection to an API server: only here are address, credentials and TLS, for sync requests and async streams."""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
from collections.abc import Hashable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainer_core.k8s.config import SERVICE_ACCOUNT_PATH, ClusterConfigError, load_client_config
from trainer_core.k8s.parsing import to_single_line

if TYPE_CHECKING:
    import aiohttp
    import urllib3

    from trainer_core.model.config import ClusterConfig

#: Timeouts in seconds: of connecting to the server, and of each read of a response.
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
# An object has up to 1.5 MB and is one line of a watch; aiohttp accepts lines of twice the buffer.
_READ_BUFFER = 2**21
_MAX_IDLE_CONNECTIONS = 8
#: The Date of a response has whole seconds.
_CLOCK_RESOLUTION = timedelta(seconds=2)


class Connection:
    """Connection to one API server. Safe to use from several threads, and in a forked child.

    Creating it sends no request.

    Attributes:
        namespace: Namespace of objects unless a request names another.
    """

    _pool: urllib3.PoolManager | None

    def __init__(self, config: ClusterConfig, service_account: Path = SERVICE_ACCOUNT_PATH) -> None:
        self._config = config
        self._service_account = service_account
        self._lock = threading.RLock()
        self._generation = 0
        self._clock_difference = timedelta(0)
        self._load()
        self.namespace: str = config.namespace or self._loaded.namespace or "default"

    @property
    def url(self) -> str:
        """The server's address, without a trailing slash."""
        return str(self._loaded.configuration.host).rstrip("/")

    @property
    def host(self) -> str:
        """The server's address without credentials, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def identity(self) -> Hashable:
        """Equal for connections to the same server as the same user."""
        return (self.url, self._loaded.origin)

    @property
    def server_digest(self) -> str:
        """20 hex digits of address and certificate authority. Inside many clusters the address alone is 10.96.0.1."""
        certificates = Path(self._loaded.ca_file).read_bytes() if self._loaded.ca_file else b""
        return hashlib.sha256(self.url.encode() + b"\n" + certificates).hexdigest()[:20]

    @property
    def server_time(self) -> datetime:
        """Time of the API server, from the Date of its last response: times in its objects are compared with this."""
        return datetime.now(timezone.utc) + self._clock_difference

    def read_server_time(self, headers: Mapping[str, str]) -> None:
        """Take the server's clock from the headers of a response. Differences within the resolution are ignored."""
        with suppress(KeyError, ValueError, TypeError):
            difference = parsedate_to_datetime(headers["Date"]) - datetime.now(timezone.utc)
            self._clock_difference = difference if abs(difference) > _CLOCK_RESOLUTION else timedelta(0)

    @property
    def credentials_generation(self) -> int:
        """How often the credentials were reloaded; the argument of `reload_credentials`."""
        return self._generation

    @property
    def pool(self) -> urllib3.PoolManager:
        """HTTP client for sync requests."""
        self._renew_after_fork()
        with self._lock:
            if self._pool is None:
                self._pool = _build_pool(self._loaded.configuration, self._get_tls())
            return self._pool

    @property
    def route(self) -> dict[str, Any]:
        """Arguments of an aiohttp request for the proxy and the TLS server name."""
        configuration = self._loaded.configuration
        route = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        return {key: value for key, value in route.items() if value}

    def build_headers(self) -> dict[str, str]:
        """Return the headers with valid credentials. A credential plugin of a kubeconfig may take seconds."""
        self._renew_after_fork()
        with self._lock:
            try:
                settings = self._loaded.configuration.auth_settings()
            except Exception as error:  # Credential plugins raise errors of any type.
                raise ClusterConfigError(
                    f"the credentials for {self.host} cannot be renewed ({type(error).__name__}); log in again"
                ) from error
        credentials = {each["key"]: each["value"] for each in settings.values() if each.get("value")}
        return {"User-Agent": _get_user_agent(), "Accept": "application/json", **credentials}

    def reload_credentials(self, generation: int) -> bool:
        """Load the credentials again after the server has refused them."""
        self._renew_after_fork()
        with self._lock:
            if generation == self._generation and self._loaded.reloadable:
                self._load()
                self._generation += 1
            return generation != self._generation

    def open_session(self) -> aiohttp.ClientSession:
        """Return a new async HTTP client of the running event loop. The caller closes it."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        connector = aiohttp.TCPConnector(ssl=self._get_tls() or True)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_READ_BUFFER)

    def _load(self) -> None:
        self._loaded = load_client_config(self._config, self._service_account)
        self._forget_pool()

    def _renew_after_fork(self) -> None:
        """Leave the sockets to the parent of a forked child, and the lock, which a thread of the parent may hold."""
        if self._process != os.getpid():
            self._lock = threading.RLock()
            self._forget_pool()

    def _forget_pool(self) -> None:
        self._pool = None
        self._process = os.getpid()
        self._tls: ssl.SSLContext | None = None

    def _get_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of all requests. Cached: loading the CAs blocks the event loop for 30 ms."""
        configuration = self._loaded.configuration
        if self.url.startswith("http://") and not str(configuration.proxy or "").startswith("https://"):
            return None
        if self._tls is None:
            self._tls = _build_tls(configuration, self._loaded.ca_file, self.host)
        return self._tls


def _build_tls(configuration: Any, ca_file: str | None, host: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except OSError as error:
        raise ClusterConfigError(
            f"the certificates for {host} cannot be read: {to_single_line(str(error), 300)}; correct the kubeconfig"
        ) from error
    if not configuration.verify_ssl or configuration.assert_hostname is False:
        context.check_hostname = False
    if not configuration.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    # As kubectl verifies: a CA may be an intermediate one, and may lack the extensions that Python requires since 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _build_pool(configuration: Any, tls: ssl.SSLContext | None) -> urllib3.PoolManager:
    import urllib3

    settings: dict[str, Any] = {"maxsize": _MAX_IDLE_CONNECTIONS, "ssl_context": tls}
    if configuration.tls_server_name:
        settings["server_hostname"] = configuration.tls_server_name
    if not configuration.proxy:
        return urllib3.PoolManager(**settings)
    return urllib3.ProxyManager(
        configuration.proxy, proxy_headers=configuration.proxy_headers, proxy_ssl_context=tls, **settings
    )


@lru_cache(maxsize=1)
def _get_user_agent() -> str:
    return f"trainjob-workflows/{metadata.version('trainjob-workflows')}"
