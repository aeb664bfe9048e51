"""Opens the model registry that a URI names: a folder, or that of an MLflow server."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.tracking.model_registry import FolderRegistry, ModelRegistry, get_local_path
from trainer_core.tracking.server import MlflowServer


def open_registry(uri: str | None = None, server: MlflowServer | None = None) -> ModelRegistry:
    """Return a model registry.

    Example:
        ```python
        with open_registry() as registry:
            registry.promote(outcome, model="digits", metric="accuracy")
        ```

    Args:
        uri: ``http://…`` or ``https://…`` of an MLflow server, or path or ``file://`` URI of a folder. None (the
            default): `server`, the server that ``MLFLOW_TRACKING_URI`` names, or the folder ``registry`` in
            ``TRAINJOB_HOME``.
        server: A server with credentials, which are used if the URI is that of this server. Default None.

    Raises:
        ValueError: The URI is neither.
    """
    if server is None or (uri is not None and not server.has_origin_of(uri)):
        server = MlflowServer.from_environment(uri=uri) if uri is None or "://" in uri else None
    if server is not None:
        from trainer_core.tracking.mlflow_registry import MlflowRegistry  # Only with a server.

        return MlflowRegistry(server)
    if uri is None:
        home = os.environ.get("TRAINJOB_HOME") or "~/.trainjob"
        return FolderRegistry(Path(home).expanduser().absolute() / "registry")
    folder = get_local_path(uri)
    if folder is None or not folder.is_absolute():
        raise InvalidRequestError(
            f"registry must be an absolute path or file:// URI, or http(s):// of an MLflow server, got {redact(uri)}"
        )
    return FolderRegistry(folder)
