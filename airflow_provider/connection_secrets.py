"""Secrets of Airflow connections, for initializers and for environment variables of the trainer.

The worker reads and masks them; they are stored in no XCom, template field or manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider import connections
from airflow_provider.compat import AirflowException
from trainer_core.base import validation
from trainer_core.base.secrets import redact

if TYPE_CHECKING:
    from airflow.sdk import Connection

_ROLES = {"dataset", "model"}
_ENV_KEY = "env"
#: By URI scheme: setting of the initializer → field of the connection.
_FIELDS_BY_SCHEME = {
    "hf": {"ACCESS_TOKEN": "password"},
    "s3": {"ACCESS_KEY_ID": "login", "SECRET_ACCESS_KEY": "password"},
}
#: Fields of a connection that an environment variable can be set to; the first is the default.
_ENV_FIELDS = ("password", "login")


def validate_secrets(secrets: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `secrets` argument of an operator after checking it against the request."""
    if secrets is not None and not isinstance(secrets, Mapping):
        raise ValueError(f"secrets must be a dict such as {{'model': 'hf_default'}}, got {type(secrets).__name__}")
    for role, value in (secrets or {}).items():
        if role == _ENV_KEY:
            _validate_env(value, request.get("trainer"))
        elif role in _ROLES and isinstance(value, str) and value:
            _validate_source(role, value, request.get("initializer", {}).get(role))
        else:
            raise ValueError(
                f"secrets: the keys are dataset, model (each with a connection id) and env; got {redact(role)}"
            )
    return dict(secrets or {})


def list_connection_fields(secrets: Mapping[str, Any], request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the connection fields that are used, as pairs of connection id and field."""
    return sorted(set(_map_secrets_to_fields(secrets, request).values()))


def resolve_secrets(secrets: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, str]:
    """Read the connections and return `TrainJobRequest.literal_secrets`. All values are masked in logs."""
    used = _map_secrets_to_fields(secrets, request)
    values = {name: _read_field(*field) for name, field in used.items()}
    missing = [f"connection {used[name][0]!r} has no {used[name][1]} for {name}" for name in used if not values[name]]
    if missing:
        raise ValueError(f"{'; '.join(missing)}; set it in the connection, or use another connection")
    for role in secrets.keys() & _ROLES:
        _refuse_session_token(secrets[role])
    return {name: value for name, value in values.items() if value}


def mask_connection_fields(fields: Iterable[Sequence[str]]) -> None:
    """Mask fields of connections in the logs of this process; skips those that can no longer be read."""
    for conn_id, field in fields:
        with suppress(AirflowException):
            _read_field(conn_id, field)


def _map_secrets_to_fields(secrets: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return connection id and field by the name of the secret in `TrainJobRequest.literal_secrets`."""
    mapping: dict[str, tuple[str, str]] = {}
    for role, value in secrets.items():
        if role == _ENV_KEY:
            mapping.update({f"trainer.{name}": _parse_field(each) for name, each in value.items()})
            continue
        fields = _get_fields(role, _get_scheme(request["initializer"][role]))
        mapping.update({f"{role}.{name}": (value, field) for name, field in fields.items()})
    return mapping


def _validate_env(env: Any, trainer: Mapping[str, Any] | None) -> None:
    if not isinstance(env, Mapping) or not all(isinstance(each, str) and each for each in env.values()):
        raise ValueError("secrets: env must map variables to connection ids, such as {'HF_TOKEN': 'hf_default'}")
    if trainer is None:
        raise ValueError("secrets: env needs a trainer; set the trainer argument")
    validation.check_env("secrets: env", env)
    for name in env:
        if name in trainer.get("env", {}):
            raise ValueError(f"secrets: {name} is also in the trainer's env; remove one of them")


def _validate_source(role: str, conn_id: str, source: Mapping[str, Any] | None) -> None:
    if source is None:
        raise ValueError(f"secrets: {role} names connection {conn_id!r}, but the initializer has no {role}; add one")
    scheme = _get_scheme(source)
    if "{" not in scheme:
        _get_fields(role, scheme)
    if source.get("secrets"):
        raise ValueError(f"secrets: the {role} also has a SecretRef; remove it or connection {conn_id!r}")


def _parse_field(value: str) -> tuple[str, str]:
    """Return connection id and field of a value such as ``hf_default:login``; the id can itself contain colons."""
    conn_id, _, field = value.rpartition(":")
    return (conn_id, field) if conn_id and field in _ENV_FIELDS else (value, _ENV_FIELDS[0])


def _read_field(conn_id: str, field: str) -> str | None:
    from airflow.sdk.log import mask_secret  # slow to import, and parsing a DAG file does not need it

    value: str | None = getattr(_get_connection(conn_id), field)
    if value:
        mask_secret(value)
    return value


def _get_connection(conn_id: str) -> Connection:
    return connections.get_connection(conn_id, "--conn-type generic --conn-password …")


def _refuse_session_token(conn_id: str) -> None:
    if "aws_session_token" in _get_connection(conn_id).extra_dejson:
        raise ValueError(
            f"connection {conn_id!r} has an aws_session_token, which initializers do not support; set role_arn instead"
        )


def _get_fields(role: str, scheme: str) -> dict[str, str]:
    if scheme not in _FIELDS_BY_SCHEME:
        known = ", ".join(f"{each}://" for each in _FIELDS_BY_SCHEME)
        raise ValueError(f"secrets: the {role} URI {scheme}://… takes no secret; supported schemes: {known}")
    return _FIELDS_BY_SCHEME[scheme]


def _get_scheme(source: Mapping[str, Any]) -> str:
    return str(source["storage_uri"]).partition("://")[0]
