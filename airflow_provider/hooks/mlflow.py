"""MlflowHook: the MLflow server of an Airflow connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider import connections
from airflow_provider.compat import AirflowException

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from trainer_core.tracking.server import MlflowServer

__all__ = ["MlflowHook"]

#: Settings in the extra field of the connection.
_EXTRA = ("token", "auth", "workspace", "experiment", "ui_url", "ca_file", "insecure")


class MlflowHook(BaseHook):
    """Read the address and the credentials of an MLflow server from a connection of type ``mlflow``.

    Host (with or without ``https://``) and port are the address; login and password are for basic authentication. The
    extra field can have ``token`` (bearer token), ``auth`` (``kubernetes`` sends the token of the service account),
    ``workspace``, ``experiment`` (default experiment), ``ui_url`` (address of the UI for people), ``ca_file`` and
    ``insecure``. Connections of type ``http``, as other MLflow providers use them, are read as well.

    Args:
        mlflow_conn_id: Id of the connection. Default: ``mlflow_default``.
    """

    conn_name_attr = "mlflow_conn_id"
    default_conn_name = "mlflow_default"
    conn_type = "mlflow"
    hook_name = "MLflow"

    def __init__(self, mlflow_conn_id: str | None = default_conn_name) -> None:
        super().__init__()
        self.mlflow_conn_id = mlflow_conn_id

    def get_server(self) -> MlflowServer | None:
        """Return the server; None without a connection id, or if the default connection does not exist.

        Raises:
            TrainJobConnectionMissingError: Another connection than the default one does not exist.
            TrainJobConnectionUnreadableError: The connection cannot be read now.
            ValueError: The connection has no host, or an invalid setting.
        """
        if self.mlflow_conn_id is None:
            return None
        if self.mlflow_conn_id == self.default_conn_name:
            connection = connections.find_connection(self.mlflow_conn_id)
        else:
            connection = connections.get_connection(self.mlflow_conn_id, "--conn-type mlflow --conn-host https://…")
        return None if connection is None else _parse_connection(connection, self.mlflow_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server answers, and a message."""
        from trainer_core.base.errors import TrackingError
        from trainer_core.tracking.mlflow_api import MlflowApi

        try:
            server = self.get_server()
            if server is None:
                return False, f"connection {self.mlflow_conn_id!r} does not exist"
            api = MlflowApi(server)
            try:
                count = len(api.list_experiment_ids())
            finally:
                api.close()
        except (TrackingError, ValueError, AirflowException) as error:
            return False, str(error)
        return True, f"The MLflow server {server.uri} answers; it has {count} experiments"


def _parse_connection(connection: Connection, conn_id: str) -> MlflowServer:
    from airflow.sdk.log import mask_secret  # Slow to import, and parsing a DAG file does not need it.

    from trainer_core.tracking.server import MlflowServer

    extra: dict[str, Any] = {
        name: value for name, value in connection.extra_dejson.items() if value not in (None, "", False)
    }
    unknown = sorted(extra.keys() - set(_EXTRA)) if connection.conn_type == MlflowHook.conn_type else []
    if unknown:
        raise ValueError(f"connection {conn_id!r}: unknown field {', '.join(unknown)}; known are {', '.join(_EXTRA)}")
    if not connection.host:
        raise ValueError(f"connection {conn_id!r} has no host; set it to the address of the MLflow server")
    host = connection.host.rstrip("/")
    scheme = connection.schema if connection.schema in ("http", "https") else "http"
    address = host if "://" in host else f"{scheme}://{host}"
    port = f":{connection.port}" if connection.port else ""
    for secret in (connection.password, extra.get("token")):
        if secret:
            mask_secret(secret)
    return MlflowServer(
        f"{address}{port}",
        username=connection.login or None,
        password=connection.password or None,
        **{name: extra[name] for name in _EXTRA if name in extra},
    )
