"""Airflow provider: hook, operators, sensor, trigger and decorator for TrainJobs.

Every Airflow process that uses providers calls `get_provider_info`, which imports only the form of a connection.
"""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_INTEGRATION = "TrainJob"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata for Airflow's provider manager."""
    from airflow_provider.connection_form import build_connection_fields

    return {
        "package-name": "trainjob-workflows",
        "name": "TrainJob",
        "description": "Run one training definition as an Airflow task, on any backend.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://www.kubeflow.org/docs/components/trainer/",
                "tags": ["software"],
            }
        ],
        "operators": [
            _modules(
                "airflow_provider.operators.trainjob",
                "airflow_provider.operators.manage",
                "airflow_provider.operators.promote",
                "airflow_provider.operators.runtimes",
                "airflow_provider.operators.search",
            )
        ],
        "sensors": [_modules("airflow_provider.sensors.trainjob")],
        "hooks": [_modules("airflow_provider.hooks.trainjob", "airflow_provider.hooks.mlflow")],
        "triggers": [_modules("airflow_provider.triggers.trainjob")],
        "task-decorators": [{"name": "trainjob", "class-name": "airflow_provider.decorators.trainjob.trainjob_task"}],
        "plugins": [{"name": "trainjob", "plugin-class": "airflow_provider.plugins.trainjob.TrainJobPlugin"}],
        "extra-links": [
            "airflow_provider.links.JobLink",
            "airflow_provider.links.DashboardLink",
            "airflow_provider.links.LogsLink",
            "airflow_provider.links.MlflowLink",
        ],
        "connection-types": [
            {
                "connection-type": "trainjob",
                "hook-class-name": "airflow_provider.hooks.trainjob.TrainJobHook",
                "hook-name": "TrainJob",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {"home": "~/.trainjob", "namespace": "default"},
                },
                "conn-fields": build_connection_fields(),
            },
            {
                "connection-type": "mlflow",
                "hook-class-name": "airflow_provider.hooks.mlflow.MlflowHook",
                "hook-name": "MLflow",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"login": "Username"},
                    "placeholders": {
                        "host": "https://mlflow.example",
                        "extra": '{"experiment": "digits", "workspace": "team-a"}',
                    },
                },
            },
        ],
        "config": {
            "trainjob": {
                "description": "Settings of the TrainJob provider.",
                "options": {
                    "backend": {
                        "description": "Backend of tasks that name none and for which the connection trainjob_default "
                        "does not exist, such as local: processes on the worker. Without it, such tasks fail.",
                        "version_added": None,
                        "type": "string",
                        "example": "local",
                        "default": None,
                    }
                },
            }
        },
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}
