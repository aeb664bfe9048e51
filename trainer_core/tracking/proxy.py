"""Proxy of a request, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as the mlflow client finds it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from trainer_core.errors import TrackingError

__all__ = ["Proxy", "find_proxy"]


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        host: Its host.
        port: Its port.
        headers: Headers that authenticate a request to it. Never part of a message.
    """

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


def find_proxy(uri: str) -> Proxy | None:
    """Return the proxy for a URI; None if requests go to its host directly.

    Names in lower case come first. ``NO_PROXY`` has hosts, domains, addresses and networks (``10.0.0.0/8``). On macOS
    and Windows the settings of the system count where no variable is set.

    Args:
        uri: An http or https URI.

    Raises:
        TrackingError: The proxy is not an ``http://`` URL. The message does not quote it: it can have a password.
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
