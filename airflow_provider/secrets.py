"""Secrets of initializers that come from Airflow connections: looked up by the worker, and kept nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook

__all__ = ["check", "literals"]

_ROLES = ("dataset", "model")
#: By the scheme of what is fetched: which setting of the initializer is which field of a connection.
_FIELDS = {
    "hf": {"ACCESS_TOKEN": "password"},
    "s3": {"ACCESS_KEY_ID": "login", "SECRET_ACCESS_KEY": "password"},
}
_KNOWN = ", ".join(f"{scheme}://" for scheme in _FIELDS)


def check(secrets: Any, initializer: Mapping[str, Any]) -> dict[str, str]:
    """Return the connections of initializers by role, after a check that there is something to use them for.

    Args:
        secrets: Connection ids by ``dataset`` and ``model``; None for none.
        initializer: That part of a request.

    Raises:
        ValueError: An unknown role, nothing to fetch there, or nothing that takes a secret.
    """
    if secrets is not None and not isinstance(secrets, Mapping):
        raise ValueError(f"secrets must be a dict such as {{'model': 'hf_default'}}, got {type(secrets).__name__}")
    for role, conn_id in (secrets or {}).items():
        if role not in _ROLES or not isinstance(conn_id, str) or not conn_id:
            raise ValueError(f"secrets must be the id of a connection by dataset or model, got {role!r}")
        _check_source(role, conn_id, initializer.get(role))
    return dict(secrets or {})


def literals(secrets: Mapping[str, str], initializer: Mapping[str, Any]) -> dict[str, str]:
    """Look the connections up; return `TrainJobRequest.literal_secrets`. Everything in it is masked in logs.

    Args:
        secrets: As `check` returned them.
        initializer: That part of the request, rendered.

    Raises:
        ValueError: A connection lacks a field; its message holds no secret.
        AirflowNotFoundException: There is no such connection.
    """
    found: dict[str, str] = {}
    for role, conn_id in secrets.items():
        found.update({f"{role}.{name}": value for name, value in _of(conn_id, initializer[role]).items()})
    return found


def _check_source(role: str, conn_id: str, source: Mapping[str, Any] | None) -> None:
    if source is None:
        raise ValueError(f"secrets: there is no {role} to fetch with connection {conn_id!r}; give initializer a {role}")
    scheme = _scheme(source)
    if "{" not in scheme and scheme not in _FIELDS:
        raise ValueError(f"secrets: the {role} is {scheme}://…, which takes no secret; those that do are {_KNOWN}")
    if source.get("secrets"):
        raise ValueError(f"secrets: the {role} has a SecretRef already; leave it or connection {conn_id!r} out")


def _of(conn_id: str, source: Mapping[str, Any]) -> dict[str, str]:
    from airflow.sdk.log import mask_secret  # the worker has it loaded already; a DAG file need not pay for it

    fields = _FIELDS.get(_scheme(source))
    if fields is None:
        raise ValueError(f"secrets: {_scheme(source)}://… takes no secret; those that do are {_KNOWN}")
    connection = BaseHook.get_connection(conn_id)
    found = {name: getattr(connection, field) for name, field in fields.items()}
    for value in filter(None, found.values()):
        mask_secret(value)
    missing = [f"{field} (its {name.lower()})" for name, field in fields.items() if not found[name]]
    if missing:
        raise ValueError(f"connection {conn_id!r} has no {' and no '.join(missing)} for {_scheme(source)}://…")
    if "aws_session_token" in connection.extra_dejson:
        raise ValueError(
            f"connection {conn_id!r} has an aws_session_token, which initializers cannot use; give role_arn"
        )
    return found


def _scheme(source: Mapping[str, Any]) -> str:
    return str(source["storage_uri"]).partition("://")[0]
