"""A connection to a cluster: as whom, through what, for how long; for sync requests and async streams.

Both clients are made from the one configuration that was found, so that one place knows the credentials. The async
client is a bare aiohttp session: only streams of JSON are read through it, and the models that `kubernetes_asyncio`
loads would cost every process that waits 50 MB and a second.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Hashable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainer_core.cluster import kubeconfig
from trainer_core.cluster.account import PodAccount
from trainer_core.cluster.kubeconfig import ACCOUNT, NoClusterError
from trainer_core.cluster.raw import one_line

if TYPE_CHECKING:
    import aiohttp
    import urllib3

    from trainer_core.configs import ClusterConfig

__all__ = ["CONNECT_SECONDS", "READ_SECONDS", "Connection", "connect"]

#: Seconds for reaching the server, and for each piece of an answer.
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
# Objects can be 1.5 MB, and each is one line of a watch; aiohttp takes lines of twice this.
_READ_BUFFER = 2**21


def connect(config: ClusterConfig, account: Path = ACCOUNT) -> Connection:
    """Prepare a connection; the server is not asked for anything.

    Args:
        config: Which cluster, and which of its namespaces.
        account: Folder of the service account of the pod this may run in.

    Raises:
        NoClusterError: The configuration leads to no cluster.
    """
    return Connection(config, account)


class Connection:
    """How to talk to one cluster. Safe to use from several threads, and in a forked child.

    Attributes:
        namespace: Where objects are unless said otherwise.
    """

    def __init__(self, config: ClusterConfig, account: Path = ACCOUNT) -> None:
        self._config = config
        self._account = account
        self._lock = threading.RLock()
        self._turn = 0
        self._load()
        self.namespace: str = config.namespace or self._found.namespace or "default"

    @property
    def url(self) -> str:
        """The server's address, to put paths behind."""
        return str(self._found.configuration.host).rstrip("/")

    @property
    def host(self) -> str:
        """The server's address as it may be shown: without credentials."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def identity(self) -> Hashable:
        """What tells this connection from others: equal ones reach the same cluster as the same user."""
        return (self.url, self._found.origin)

    @property
    def turn(self) -> int:
        """How often credentials were read anew: what `renew` wants to hear."""
        return self._turn

    @property
    def pool(self) -> urllib3.PoolManager:
        """The client for sync requests."""
        if self._process != os.getpid():
            # Sockets shared with the parent would mix up answers.
            self._make_client()
        return self._pool

    @property
    def route(self) -> dict[str, Any]:
        """What an async request needs beside its headers to reach the server."""
        configuration = self._found.configuration
        wanted = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        return {key: value for key, value in wanted.items() if value}

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, with credentials that are still good.

        This may run the credential plugin of a kubeconfig, which can take seconds.

        Raises:
            NoClusterError: There are no credentials any more.
        """
        with self._lock:
            try:
                settings = self._found.configuration.auth_settings()
            except Exception as error:
                raise NoClusterError(
                    f"the credentials for {self.host} cannot be renewed ({type(error).__name__}); log in again"
                ) from error
        named = {each["key"]: each["value"] for each in settings.values() if each.get("value")}
        return {"User-Agent": _user_agent(), "Accept": "application/json", **named}

    def renew(self, turn: int) -> bool:
        """Read the credentials anew after the server has refused them.

        Args:
            turn: The `turn` at which they were refused: what another thread has renewed since is not renewed again.

        Returns:
            Whether there are other credentials now, so that asking again makes sense.

        Raises:
            NoClusterError: There are none any more.
        """
        with self._lock:
            if turn == self._turn and self._found.again:
                self._load()
                self._turn += 1
            return turn != self._turn

    def session(self) -> aiohttp.ClientSession:
        """Return a new client for async requests, of the running event loop; close it."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        connector = aiohttp.TCPConnector(ssl=self._tls())
        return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_READ_BUFFER)

    def _load(self) -> None:
        self._found = kubeconfig.find(self._config, self._account)
        self._make_client()

    def _make_client(self) -> None:
        self._pool = _pool(self._found.configuration)
        self._process = os.getpid()
        self._context: ssl.SSLContext | None = None

    def _tls(self) -> ssl.SSLContext | bool:
        """What async requests are encrypted with. Reading the CAs takes 30 ms, in which nobody hears of a job."""
        configuration = self._found.configuration
        if self.url.startswith("http://") and not str(configuration.proxy or "").startswith("https://"):
            return True
        if self._context is None:
            self._context = _context(configuration, self.host)
        return self._context


def _context(configuration: Any, host: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except OSError as error:
        raise NoClusterError(
            f"the certificates for {host} cannot be read: {one_line(str(error), 300)}; correct the kubeconfig"
        ) from error
    if not configuration.verify_ssl or configuration.assert_hostname is False:
        context.check_hostname = False
    if not configuration.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    if getattr(configuration, "disable_strict_ssl_verification", False):
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _pool(configuration: Any) -> urllib3.PoolManager:
    if isinstance(configuration, PodAccount):
        import urllib3

        settings: dict[str, Any] = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert, "maxsize": 4}
        if configuration.proxy:
            return urllib3.ProxyManager(configuration.proxy, proxy_headers=configuration.proxy_headers, **settings)
        return urllib3.PoolManager(**settings)
    from kubernetes.client import ApiClient

    pool: urllib3.PoolManager = ApiClient(configuration).rest_client.pool_manager
    return pool


@lru_cache(maxsize=1)
def _user_agent() -> str:
    return f"trainjob-workflows/{metadata.version('trainjob-workflows')}"
