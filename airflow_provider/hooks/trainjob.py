"""TrainJobHook: creates a TrainerClient from an Airflow connection.

People who edit connections are trusted less than DAG authors. Therefore only the fields of the connection form are
read, and settings in the DAG override those of the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.sdk import BaseHook

from airflow_provider import connections, get_provider_info, links
from airflow_provider.compat import AirflowException
from airflow_provider.connection_form import CONNECTION_FIELDS
from airflow_provider.exceptions import TrainJobConnectionMissingError
from trainer_core.base.errors import TrainerError
from trainer_core.model.backend_names import is_backend
from trainer_core.model.config import BackendConfig, config_class, config_from_dict

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from trainer_core.client import TrainerClient
    from trainer_core.model.preflight import PreflightReport

__all__ = ["TrainJobHook"]

_CREATE_ARGUMENTS = """--conn-type trainjob --conn-extra '{"backend": "kubernetes"}'"""
#: Backend of a connection that names none, as its form shows.
_DEFAULT_BACKEND = "local"


class TrainJobHook(BaseHook):
    """Create the client of the backend that a connection or the DAG names.

    The connection is read on first use.

    Example:
        ```python
        for job in TrainJobHook("trainjob_default").client.list_jobs():
            print(job.name, job.status)
        ```

    Args:
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, `backend` or the Airflow setting ``[trainjob] backend`` must name a backend.
            None: use no connection.
        backend: Name of the backend. Default: None, the backend of the connection.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None.
    """

    conn_name_attr = "trainjob_conn_id"
    default_conn_name = "trainjob_default"
    conn_type = "trainjob"
    hook_name = "TrainJob"

    def __init__(
        self,
        trainjob_conn_id: str | None = default_conn_name,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.trainjob_conn_id = trainjob_conn_id
        self.backend = backend
        self.backend_config = backend_config

    @cached_property
    def config(self) -> BackendConfig:
        """Configuration of the backend.

        Raises:
            ValueError: Connection and DAG name different backends, the connection has another type, or a setting is
                invalid.
            TrainJobConnectionMissingError: The connection does not exist, and nothing else names a backend.
            TrainJobConnectionUnreadableError: The connection cannot be read now.
        """
        overrides = self.backend_config
        if overrides is not None and not isinstance(overrides, Mapping):
            return self._check_backend(overrides)
        backend, settings = self._read_settings()
        name = self.backend or backend or self._get_configured_backend()
        return config_from_dict(name, {**settings, **(overrides or {})})

    @cached_property
    def link_templates(self) -> dict[str, str]:
        """URL templates of the connection for a job's dashboard and logs, by field name."""
        try:
            extra = getattr(self._connection, "extra_dejson", {})
        except (AirflowException, ValueError):
            return {}  # A backend_config object in the DAG needs no connection.
        return {name: extra[name] for name in links.URL_FIELDS if extra.get(name)}

    @cached_property
    def client(self) -> TrainerClient:
        """Client of the backend.

        Raises:
            ValueError: As for `config`.
            TrainJobConnectionMissingError: As for `config`.
            TrainJobConnectionUnreadableError: As for `config`.
            BackendUnavailableError: An extra is not installed, or the backend cannot be reached.
        """
        from trainer_core.client import TrainerClient  # Parsing a DAG file does not need it.

        return TrainerClient(self.config)

    def to_trigger_kwargs(self) -> dict[str, Any]:
        """Return the arguments with which a trigger creates the same hook: plain JSON data without secrets.

        Raises:
            ValueError: The configuration has a secret, which must not be stored with the trigger.
        """
        config = self.config
        settings = config.model_dump(mode="json", exclude_unset=True)
        secrets = sorted(
            name for name in config.model_fields_set - settings.keys() if getattr(config, name) is not None
        )
        if not secrets:
            return {"trainjob_conn_id": None, "backend": config.backend, "backend_config": settings}
        overrides = {} if self.backend_config is None else self.backend_config
        if isinstance(overrides, Mapping) and not overrides.keys() & set(secrets):
            # The connection has the secrets: the triggerer reads it, too.
            return {
                "trainjob_conn_id": self.trainjob_conn_id,
                "backend": self.backend,
                "backend_config": dict(overrides) or None,
            }
        raise ValueError(
            f"{type(config).__name__}.{', '.join(secrets)} is not stored in Airflow's database and cannot reach the "
            "triggerer; set it in the connection, or use deferrable=False"
        )

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the backend can run TrainJobs, and a message with one line for each failed check."""
        from trainer_core.frontend import preflight  # tasks do not need it

        try:
            report = preflight.check_backend(self.config)
            if not report.fit:
                return False, "\n".join(
                    [f"The {self.config.backend} backend cannot run TrainJobs.", *_format_failed_checks(report)]
                )
            runtimes = ", ".join(sorted(runtime.name for runtime in self.client.list_runtimes()))
        except (TrainerError, ValueError, AirflowException) as error:
            return False, str(error)
        message = f"The {self.config.backend} backend is available. Runtimes: {runtimes or 'none'}"
        return True, "\n".join([message, *_format_failed_checks(report)])

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form fields for Airflow 3.1; later versions read them from the provider's metadata."""
        return {name: _create_widget(field) for name, field in _get_form()["conn-fields"].items()}

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the behaviour of the standard connection fields for Airflow 3.1."""
        return {key.replace("-", "_"): value for key, value in _get_form()["ui-field-behaviour"].items()}

    def _check_backend(self, config: BackendConfig) -> BackendConfig:
        if self.backend is not None and config.backend != self.backend:
            raise ValueError(
                f"backend={self.backend!r} conflicts with backend_config={type(config).__name__}, which belongs to "
                f"backend {config.backend!r}; remove one of them"
            )
        return config

    def _read_settings(self) -> tuple[str | None, dict[str, Any]]:
        """Return backend and settings of the connection; None and no settings if it does not apply."""
        connection = self._connection
        if connection is None:
            return None, {}
        backend, settings = _parse_connection(connection, self.trainjob_conn_id)
        _mask_kube_config(settings.get("kube_config"))
        if self.backend in (None, backend):
            return backend, settings
        if self.trainjob_conn_id == self.default_conn_name:
            return None, {}
        raise ValueError(
            f"connection {self.trainjob_conn_id!r} is for backend {backend!r}, not {self.backend!r}; "
            "remove backend, or use another connection"
        )

    @cached_property
    def _connection(self) -> Connection | None:
        """The connection; None if the default one does not exist, or none is used."""
        conn_id = self.trainjob_conn_id
        if conn_id is None:
            return None
        if conn_id == self.default_conn_name:
            connection = connections.find_connection(conn_id)
        else:
            connection = connections.get_connection(conn_id, _CREATE_ARGUMENTS)
        if connection is not None and connection.conn_type != self.conn_type:
            raise ValueError(
                f"connection {conn_id!r} is of type {connection.conn_type!r}, not {self.conn_type!r}; change its type, "
                "or use another connection"
            )
        return connection

    def _get_configured_backend(self) -> str:
        """Return the backend of a task without a connection. Where to train is never guessed."""
        backend = conf.get("trainjob", "backend", fallback=None)
        if backend:
            return str(backend)
        if self.trainjob_conn_id is None:
            raise ValueError("trainjob_conn_id is None and nothing names a backend; set backend, such as 'kubernetes'")
        raise TrainJobConnectionMissingError(
            f"connection {self.trainjob_conn_id!r} does not exist; create it: `airflow connections add "
            f"{self.trainjob_conn_id} {_CREATE_ARGUMENTS}`; to train on the worker, set backend='local' in the DAG or "
            "backend = local in section [trainjob] of Airflow's configuration"
        )


def _mask_kube_config(content: Any) -> None:
    """Mask a kubeconfig and its credentials in logs."""
    if not content:
        return
    from airflow.sdk.log import mask_secret  # slow to import, and parsing a DAG file does not need it

    from trainer_core.base.yaml_documents import parse_yaml

    mask_secret(content if isinstance(content, str) else dict(content))
    with suppress(ValueError, IndexError, KeyError, AttributeError, TypeError):
        data = parse_yaml(content, kubernetes=True)[0] if isinstance(content, str) else content
        for entry in data["users"]:
            for value in (entry.get("user") or {}).values():
                if isinstance(value, str) and value:
                    mask_secret(value)


def _get_form() -> dict[str, Any]:
    form: dict[str, Any] = get_provider_info()["connection-types"][0]
    return form


def _create_widget(field: Mapping[str, Any]) -> Any:
    # Only Airflow 3.1 calls this; it provides substitutes for these modules, which later versions do not have.
    wtforms, validators = import_module("wtforms"), import_module("wtforms.validators")
    schema = field["schema"]
    kind = wtforms.BooleanField if "boolean" in schema["type"] else wtforms.StringField
    choices = [validators.any_of(schema["enum"])] if "enum" in schema else []
    return kind(
        field["label"],
        [validators.Optional(), *choices],
        description=field["description"],
        default=schema.get("default"),
    )


def _format_failed_checks(report: PreflightReport) -> list[str]:
    lines = ((each, f" ({each.cost})" if each.cost else "") for each in report.checks if each.state != "ok")
    return [f"{each.what} {each.state}: {each.found}{cost}" for each, cost in lines]


def _parse_connection(connection: Connection, conn_id: str | None) -> tuple[str, dict[str, Any]]:
    """Return backend and settings of a connection; empty and unticked fields of the form are not set."""
    known = CONNECTION_FIELDS
    given = connection.extra_dejson.items()
    extra = {name: value for name, value in given if value not in (None, "") and value is not False}
    backend = extra.pop("backend", _DEFAULT_BACKEND)
    # Of a backend of this project, the form has all of them.
    more = config_class(backend).connection_settings if is_backend(backend) else frozenset()
    unknown = sorted(extra.keys() - known.keys() - more)
    if unknown:
        names = ", ".join([*known, *sorted(more)])
        raise ValueError(f"connection {conn_id!r}: unknown field {', '.join(unknown)}; the fields are {names}")
    settings = {name: value for name, value in extra.items() if name not in links.URL_FIELDS}
    return backend, settings
