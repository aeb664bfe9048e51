"""The MLflow server that a process is configured with: its address, and credentials that never leave it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from trainer_core.base import validation
from trainer_core.base.secrets import redact

_log = logging.getLogger(__name__)
#: Tracking URIs of which a warning was logged.
_unsupported: set[str] = set()

#: Kubernetes replaces the token of a service account while a pod runs.
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class MlflowServer:
    """Address and credentials of an MLflow server.

    Attributes:
        uri: Tracking URI, ``http://…`` or ``https://…``, without credentials.
        token: Bearer token (``MLFLOW_TRACKING_TOKEN``).
        username: User for basic authentication (``MLFLOW_TRACKING_USERNAME``).
        password: Password for basic authentication (``MLFLOW_TRACKING_PASSWORD``).
        auth: ``kubernetes`` sends the token of the pod's service account, read again for each request;
            ``kubernetes-namespaced`` also sends its namespace as the workspace (``MLFLOW_TRACKING_AUTH``).
        workspace: MLflow workspace (``MLFLOW_WORKSPACE``).
        ca_file: Certificates of the authorities to trust (``MLFLOW_TRACKING_SERVER_CERT_PATH``).
        insecure: Whether not to check the server's certificate (``MLFLOW_TRACKING_INSECURE_TLS``).
        ui_url: Address of MLflow's UI for people, where it differs from the URI.
        experiment: Default experiment (``MLFLOW_EXPERIMENT_NAME``).

    Raises:
        ValueError: The URI is not http or https, or has credentials; or the token or the workspace cannot be a header.
    """

    uri: str
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    auth: str | None = None
    workspace: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    ui_url: str | None = None
    experiment: str | None = None

    def __post_init__(self) -> None:
        validation.check_tracking_uri("tracking URI", self.uri)
        if self.auth not in (None, "kubernetes", "kubernetes-namespaced"):
            raise ValueError(f"auth must be kubernetes or kubernetes-namespaced, got {redact(self.auth)}")
        for name, value in (("token", self.token), ("workspace", self.workspace)):
            # Checked here, because http.client quotes such a header in its error.
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} of the MLflow server must be a string, got {type(value).__name__}")
            if value is not None and not (value.isascii() and value.isprintable()):
                raise ValueError(f"{name} of the MLflow server has a character that a header cannot have; correct it")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, uri: str | None = None) -> MlflowServer | None:
        """Return the server that MLflow's environment variables name; None if they name none.

        Credentials of the environment belong to ``MLFLOW_TRACKING_URI`` if it is set, and are sent to no other server.

        Args:
            environ: Environment variables. Default: those of this process.
            uri: Use this tracking URI instead of ``MLFLOW_TRACKING_URI``. Default None.
        """
        configured = environ.get("MLFLOW_TRACKING_URI", "").strip() or None
        address = uri or configured
        if address is None or not address.startswith(("http://", "https://")):
            if uri is None and address is not None and address not in _unsupported:
                _unsupported.add(address)
                _log.warning(
                    "MLFLOW_TRACKING_URI: %s is not supported, so nothing is tracked; set the URL of an MLflow server, "
                    "which begins with http:// or https://",
                    redact(address.partition(":")[0]),
                )
            return None
        if configured is not None and _origin(configured) != _origin(address):
            return cls(address)
        # A value that was written with a text editor or `kubectl create secret` may end with a line break.
        values = {name: value.strip() or None for name, value in environ.items() if name.startswith("MLFLOW_")}
        return cls(
            address,
            token=values.get("MLFLOW_TRACKING_TOKEN"),
            username=values.get("MLFLOW_TRACKING_USERNAME"),
            password=values.get("MLFLOW_TRACKING_PASSWORD"),
            auth=values.get("MLFLOW_TRACKING_AUTH"),
            workspace=values.get("MLFLOW_WORKSPACE"),
            ca_file=values.get("MLFLOW_TRACKING_SERVER_CERT_PATH"),
            insecure=(values.get("MLFLOW_TRACKING_INSECURE_TLS") or "").lower() == "true",
            experiment=values.get("MLFLOW_EXPERIMENT_NAME"),
        )

    @property
    def is_loopback(self) -> bool:
        """Whether the address means this machine."""
        host = urlsplit(self.uri).hostname or ""
        return host == "localhost" or host == "::1" or host.startswith("127.")

    def has_origin_of(self, uri: str) -> bool:
        """Return whether a URI has the scheme, host and port of this server, so that credentials may be sent to it.

        Args:
            uri: The URI.
        """
        return _origin(self.uri) == _origin(uri)

    def get_headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        import base64

        headers = {}
        if self.auth is not None:
            token = (_SERVICE_ACCOUNT / "token").read_text(encoding="utf-8").strip()
            headers["Authorization"] = f"Bearer {token}"
            if self.auth == "kubernetes-namespaced":
                namespace = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
                headers["X-MLFLOW-WORKSPACE"] = namespace
        elif self.username:
            pair = f"{self.username}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        elif self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.workspace:
            headers["X-MLFLOW-WORKSPACE"] = self.workspace
        return headers

    def get_training_secrets(self) -> dict[str, str]:
        """Return the credentials that mlflow inside the training needs, by environment variable."""
        values = {
            "MLFLOW_TRACKING_TOKEN": self.token,
            "MLFLOW_TRACKING_USERNAME": self.username,
            "MLFLOW_TRACKING_PASSWORD": self.password,
        }
        return {name: value for name, value in values.items() if value}

    def get_run_url(self, experiment_id: str, run_id: str) -> str:
        """Return the address of a run in MLflow's UI.

        Args:
            experiment_id: Id of its experiment.
            run_id: Id of the run.
        """
        return f"{(self.ui_url or self.uri).rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def choose_server(uri: str | None, configured: MlflowServer | None) -> MlflowServer | None:
    """Return the server for a tracking URI, with the credentials that belong to it; None if none is configured.

    `configured` is the server of an Airflow connection; None for the environment of this process.
    """
    if configured is not None and (uri is None or configured.has_origin_of(uri)):
        return replace(configured, uri=uri or configured.uri)
    return MlflowServer.from_environment(uri=uri)


def _origin(uri: str) -> tuple[str, str, int]:
    parts = urlsplit(uri)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default
