"""Reads Airflow connections, and tells one that does not exist from one that cannot be read now.

Airflow reports both as missing: it skips a secrets backend that raises, and an Execution API that answers with an
error. Where to train must not depend on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.exceptions import TrainJobConnectionMissingError, TrainJobConnectionUnreadableError
from trainer_core.base.secrets import redact

if TYPE_CHECKING:
    from airflow.sdk import Connection


def check_constants(backend: Any, backend_config: Any, **conn_ids: str | None) -> None:
    """Check, when the DAG is parsed, the arguments that say where a task leads; Airflow renders none of them."""
    settings = backend_config if isinstance(backend_config, Mapping) else {}
    named = {"backend": backend, **conn_ids, **{f"backend_config.{name}": value for name, value in settings.items()}}
    for name, value in named.items():
        if isinstance(value, str) and "{{" in value:
            raise ValueError(
                f"{name} is not templated, got {redact(value)}; pass a constant, computed in Python if need be"
            )
    if isinstance(backend, str):
        from trainer_core.client import backend_for  # Only for a DAG that names its backend.

        backend_for(backend)


def find_connection(conn_id: str) -> Connection | None:
    """Return a connection; None if it does not exist."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return _find_strictly(conn_id)
    except Exception as error:
        raise _unreadable(conn_id, error) from error


def get_connection(conn_id: str, arguments: str) -> Connection:
    """Return a connection that must exist."""
    connection = find_connection(conn_id)
    if connection is None:
        raise TrainJobConnectionMissingError(
            f"connection {conn_id!r} does not exist; create it: `airflow connections add {conn_id} {arguments}`"
        )
    return connection


def _find_strictly(conn_id: str) -> Connection | None:
    """Ask each secrets backend again; one that fails is an error."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    for backend in ensure_secrets_backend_loaded():
        try:
            found = _ask_backend(backend, conn_id)
        except Exception as error:
            raise _unreadable(conn_id, error, type(backend).__name__) from error
        if found is not None:
            return found
    return None


def _ask_backend(backend: Any, conn_id: str) -> Any:
    from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend

    if not isinstance(backend, ExecutionAPISecretsBackend):
        return backend.get_connection(conn_id=conn_id)
    # This backend returns None for each error, so its request is sent here.
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ConnectionResult, ErrorResponse, GetConnection
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    try:
        reply = SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    except AirflowRuntimeError as error:
        reply = error.error
    if isinstance(reply, ErrorResponse):
        if reply.error == ErrorType.CONNECTION_NOT_FOUND:
            return None
        raise AirflowRuntimeError(reply)
    if isinstance(reply, ConnectionResult):
        return BaseHook.get_connection(conn_id)  # It can be read now.
    raise TypeError(f"unexpected answer {type(reply).__name__}")


def _unreadable(conn_id: str, error: Exception, backend: str = "Airflow") -> TrainJobConnectionUnreadableError:
    text = " ".join(str(error).split())[:300]
    return TrainJobConnectionUnreadableError(
        f"connection {conn_id!r} cannot be read now ({backend}: {type(error).__name__}: {text}); a retry reads it again"
    )
