"""Secrets that come from Airflow connections: looked up by the worker, masked, and kept nowhere.

They are for initializers, by what is fetched, and for training, by environment variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.sdk import BaseHook

from airflow_provider.compat import AirflowNotFoundException
from trainer_core import checks

__all__ = ["check", "fields", "literals", "mask"]

_ROLES = {"dataset", "model"}
_ENV = "env"
#: By the scheme of what is fetched: which setting of the initializer is which field of a connection.
_FIELDS = {
    "hf": {"ACCESS_TOKEN": "password"},
    "s3": {"ACCESS_KEY_ID": "login", "SECRET_ACCESS_KEY": "password"},
}
_KNOWN = ", ".join(f"{scheme}://" for scheme in _FIELDS)
#: What of a connection an environment variable can be; the first where none is named.
_PARTS = ("password", "login")


def check(secrets: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connections by role, after a check that there is something to use them for.

    Args:
        secrets: Connection ids by ``dataset`` and ``model``, and under ``env`` by environment variable; None for none.
        asked: The request as plain data.

    Raises:
        ValueError: An unknown role, nothing to fetch or to train there, or nothing that takes a secret.
    """
    if secrets is not None and not isinstance(secrets, Mapping):
        raise ValueError(f"secrets must be a dict such as {{'model': 'hf_default'}}, got {type(secrets).__name__}")
    for role, given in (secrets or {}).items():
        if role == _ENV:
            _check_env(given, asked.get("trainer"))
        elif role in _ROLES and isinstance(given, str) and given:
            _check_source(role, given, asked.get("initializer", {}).get(role))
        else:
            raise ValueError(f"secrets must be the id of a connection by dataset or model, or env; got {role!r}")
    return dict(secrets or {})


def fields(secrets: Mapping[str, Any], asked: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return which fields of which connections are used: their ids and names.

    Args:
        secrets: As `check` returned them.
        asked: The request as plain data, rendered.

    Raises:
        ValueError: What is fetched takes no secret.
    """
    return sorted(set(_used(secrets, asked).values()))


def literals(secrets: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, str]:
    """Look the connections up; return `TrainJobRequest.literal_secrets`. Everything in it is masked in logs.

    Args:
        secrets: As `check` returned them.
        asked: The request as plain data, rendered.

    Raises:
        ValueError: A connection lacks a field; its message holds no secret.
        AirflowNotFoundException: There is no such connection.
    """
    used = _used(secrets, asked)
    found = {name: _looked_up(*place) for name, place in used.items()}
    missing = [f"connection {used[name][0]!r} has no {used[name][1]} for {name}" for name in used if not found[name]]
    if missing:
        raise ValueError(f"{'; '.join(missing)}; fill it in there, or name another connection")
    for role in secrets.keys() & _ROLES:
        _check_lasts(secrets[role])
    return {name: value for name, value in found.items() if value}


def mask(fields: Iterable[Sequence[str]]) -> None:
    """Hide fields of connections in the logs of this process; a connection that is gone since hides nothing."""
    for conn_id, field in fields:
        with suppress(AirflowNotFoundException):
            _looked_up(conn_id, field)


def _used(secrets: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Connection and field by the name that the secret has in `TrainJobRequest.literal_secrets`."""
    found: dict[str, tuple[str, str]] = {}
    for role, given in secrets.items():
        if role == _ENV:
            found.update({f"trainer.{name}": _place(each) for name, each in given.items()})
            continue
        scheme = _scheme(asked["initializer"][role])
        if scheme not in _FIELDS:
            raise ValueError(f"secrets: {scheme}://… takes no secret; those that do are {_KNOWN}")
        found.update({f"{role}.{name}": (given, field) for name, field in _FIELDS[scheme].items()})
    return found


def _check_env(given: Any, trainer: Mapping[str, Any] | None) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(each, str) and each for each in given.values()):
        raise ValueError("secrets: env must be a dict of connections by variable, such as {'HF_TOKEN': 'hf_default'}")
    if trainer is None:
        raise ValueError("secrets: env is for training, and there is no trainer; give one")
    checks.check_env("secrets: env", given)
    for name in given:
        if name in trainer.get("env", {}):
            raise ValueError(f"secrets: {name} is in the trainer's env already; leave one of them out")


def _check_source(role: str, conn_id: str, source: Mapping[str, Any] | None) -> None:
    if source is None:
        raise ValueError(f"secrets: there is no {role} to fetch with connection {conn_id!r}; give initializer a {role}")
    scheme = _scheme(source)
    if "{" not in scheme and scheme not in _FIELDS:
        raise ValueError(f"secrets: the {role} is {scheme}://…, which takes no secret; those that do are {_KNOWN}")
    if source.get("secrets"):
        raise ValueError(f"secrets: the {role} has a SecretRef already; leave it or connection {conn_id!r} out")


def _place(given: str) -> tuple[str, str]:
    """A connection's id, and which field of it is meant."""
    conn_id, _, field = given.rpartition(":")
    # An id may have colons of its own.
    return (conn_id, field) if conn_id and field in _PARTS else (given, _PARTS[0])


def _looked_up(conn_id: str, field: str) -> str | None:
    from airflow.sdk.log import mask_secret  # the worker has it loaded already; a DAG file need not pay for it

    value: str | None = getattr(BaseHook.get_connection(conn_id), field)
    if value:
        mask_secret(value)
    return value


def _check_lasts(conn_id: str) -> None:
    if "aws_session_token" in BaseHook.get_connection(conn_id).extra_dejson:
        raise ValueError(
            f"connection {conn_id!r} has an aws_session_token, which initializers cannot use; give role_arn"
        )


def _scheme(source: Mapping[str, Any]) -> str:
    return str(source["storage_uri"]).partition("://")[0]
