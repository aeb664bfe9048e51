"""The service account of the pod this runs in, read without the `kubernetes` package.

That package takes a second and 80 MB to load, and a pipeline has a pod for each step that waits. A service account is
two files and an address; kubeconfigs with their plugins are another matter.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer_core.errors import BackendUnavailableError

__all__ = ["AccountError", "PodAccount"]

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class AccountError(BackendUnavailableError):
    """The service account cannot be used; only a person can help."""

    transient = False


class PodAccount:
    """What a `kubernetes.client.Configuration` would say, as far as a connection asks it.

    Args:
        folder: Where the pod has its token and the cluster's CA.

    Raises:
        AccountError: There is none that could be used.
    """

    def __init__(self, folder: Path) -> None:
        host, port = os.environ.get(_HOST, ""), os.environ.get(_PORT, "")
        if not host or not port:
            raise AccountError(f"{_HOST} or {_PORT} is not set, as it is in every pod; name a kubeconfig instead")
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert: str | None = str(_filled(folder / "ca.crt"))
        self.proxy: str | None = None
        self.proxy_headers: dict[str, str] | None = None
        self.tls_server_name: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.assert_hostname: bool | None = None
        self._token = _filled(folder / "token")
        self.auth_settings()

    def auth_settings(self) -> dict[str, dict[str, str]]:
        """Return the header with the token that is good now: the kubelet replaces the file in time."""
        return {"token": {"key": "authorization", "value": f"Bearer {self._token.read_text('utf-8').strip()}"}}


def _filled(path: Path) -> Path:
    try:
        empty = not path.read_text("utf-8").strip()
    except OSError as error:
        raise AccountError(f"the pod's service account has no {path.name}: {error}") from error
    if empty:
        raise AccountError(f"the pod's service account has an empty {path.name} at {path}")
    return path
