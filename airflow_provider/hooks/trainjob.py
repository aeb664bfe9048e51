"""TrainJobHook: connection → TrainerClient.

Whoever may edit connections is trusted less than whoever writes DAGs. So of a connection only the fields of its form
are taken, each by name, and what the DAG says itself wins over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider import get_provider_info, links
from airflow_provider.compat import AirflowNotFoundException
from trainer_core.client import TrainerClient
from trainer_core.configs import BackendConfig, config_from_dict
from trainer_core.errors import TrainerError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from trainer_core.doctor import Report

__all__ = ["TrainJobHook"]

_DEFAULT_BACKEND = "local"


class TrainJobHook(BaseHook):
    """Reach the backend that a connection, or the DAG itself, names.

    Nothing is looked up before it is needed.

    Args:
        trainjob_conn_id: The connection. The default one need not exist: then jobs run as processes on the machine
            of the worker. None to look up no connection at all.
        backend: Name of the backend; None for the connection's.
        backend_config: A configuration of `trainer_core.configs`, which is taken as it is, or a dict of its settings,
            which win over the connection's.
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
        """The configuration of the backend.

        Raises:
            ValueError: Connection and DAG contradict each other, or a setting cannot be right.
            AirflowNotFoundException: There is no such connection.
        """
        given = self.backend_config
        if given is not None and not isinstance(given, Mapping):
            return self._checked(given)
        backend, settings = self._from_connection()
        return config_from_dict(self.backend or backend or _DEFAULT_BACKEND, {**settings, **(given or {})})

    @cached_property
    def link_templates(self) -> dict[str, str]:
        """Templates of addresses at which people look at a job, by the field of the connection."""
        try:
            extra = getattr(self._connection(), "extra_dejson", {})
        except AirflowNotFoundException:
            return {}  # The DAG itself says how the backend is reached.
        return {name: extra[name] for name in links.TEMPLATES if extra.get(name)}

    @cached_property
    def client(self) -> TrainerClient:
        """The client of the backend.

        Raises:
            ValueError: As for `config`.
            BackendUnavailableError: The backend needs an extra that is not installed, or cannot be reached.
        """
        return TrainerClient(self.config)

    def portable(self) -> dict[str, Any]:
        """Return what another process needs to make the same hook: plain JSON data, without secrets.

        Raises:
            ValueError: The configuration holds a secret that only an object in this process has.
        """
        config = self.config
        settings = config.model_dump(mode="json", exclude_unset=True)
        secret = sorted(config.model_fields_set - settings.keys())
        if not secret:
            return {"trainjob_conn_id": None, "backend": config.backend, "backend_config": settings}
        raise ValueError(
            f"{type(config).__name__}.{', '.join(secret)} cannot leave this process; "
            "put what it says into a connection, or use deferrable=False"
        )

    def test_connection(self) -> tuple[bool, str]:
        """Return whether TrainJobs can be run, and what is missing: one line for each thing."""
        from trainer_core import doctor  # what a task does not need

        try:
            report = doctor.examine(self.config)
            if not report.fit:
                return False, "\n".join([f"The {self.config.backend} backend cannot run TrainJobs.", *_wrong(report)])
            runtimes = ", ".join(sorted(runtime.name for runtime in self.client.list_runtimes()))
        except (TrainerError, ValueError, AirflowNotFoundException) as error:
            return False, str(error)
        answer = f"The {self.config.backend} backend answers. Its runtimes: {runtimes or 'none'}"
        return True, "\n".join([answer, *_wrong(report)])

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form for Airflow 3.1; later ones read the metadata of the provider instead."""
        return {name: _widget(field) for name, field in _form()["conn-fields"].items()}

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return how the standard fields of the form look in Airflow 3.1."""
        return {key.replace("-", "_"): value for key, value in _form()["ui-field-behaviour"].items()}

    def _checked(self, config: BackendConfig) -> BackendConfig:
        if self.backend is not None and config.backend != self.backend:
            raise ValueError(
                f"backend={self.backend!r} and backend_config={type(config).__name__}, which is of {config.backend!r}, "
                "contradict each other; leave one of them out"
            )
        return config

    def _from_connection(self) -> tuple[str | None, dict[str, Any]]:
        """The backend and the settings that the connection names."""
        connection = self._connection()
        if connection is None:
            return None, {}
        backend, settings = _read(connection, self.trainjob_conn_id)
        if self.backend in (None, backend):
            return backend, settings
        if self.trainjob_conn_id == self.default_conn_name:
            return None, {}
        raise ValueError(
            f"connection {self.trainjob_conn_id!r} is of backend {backend!r}, but backend={self.backend!r} was given; "
            "leave backend out, or name another connection"
        )

    def _connection(self) -> Connection | None:
        if self.trainjob_conn_id is None:
            return None
        try:
            return self.get_connection(self.trainjob_conn_id)
        except AirflowNotFoundException:
            if self.trainjob_conn_id == self.default_conn_name:
                return None
            raise


def _form() -> dict[str, Any]:
    form: dict[str, Any] = get_provider_info()["connection-types"][0]
    return form


def _widget(field: Mapping[str, Any]) -> Any:
    # They come with the web server of those that read this; Airflow 3.1 has stand-ins of them, each by its own name.
    wtforms, validators = import_module("wtforms"), import_module("wtforms.validators")
    schema = field["schema"]
    kind = wtforms.BooleanField if "boolean" in schema["type"] else wtforms.StringField
    known = [validators.any_of(schema["enum"])] if "enum" in schema else []
    checks = [validators.Optional(), *known]
    return kind(field["label"], checks, description=field["description"], default=schema.get("default"))


def _wrong(report: Report) -> list[str]:
    """A line for each thing that is not as it should be."""
    lines = ((each, f" ({each.cost})" if each.cost else "") for each in report.checks if each.state != "ok")
    return [f"{each.what} {each.state}: {each.found}{cost}" for each, cost in lines]


def _read(connection: Connection, conn_id: str | None) -> tuple[str, dict[str, Any]]:
    """Take the fields of the form, each by name; what is empty or not ticked there is not set."""
    known = _form()["conn-fields"]
    given = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "", False)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"connection {conn_id!r}: unknown field {', '.join(unknown)}; known are {', '.join(known)}")
    settings = {name: value for name, value in given.items() if name not in links.TEMPLATES}
    return settings.pop("backend", _DEFAULT_BACKEND), settings
