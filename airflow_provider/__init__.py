"""Airflow provider: hook, operators, sensor, trigger and decorator for TrainJobs.

Every Airflow process that uses providers calls `get_provider_info`, so this module imports nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_INTEGRATION = "TrainJob"


def _text_field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


#: Fields of the connection form. `TrainJobHook` reads these fields and no others.
_CONNECTION_FIELDS: dict[str, Any] = {
    "backend": {
        "label": "Backend",
        "description": "Where training jobs run.",
        "schema": {
            "type": ["string", "null"],
            "enum": ["local", "debug", "container", "kubernetes", "runai", "training-operator"],
            "default": "local",
        },
    },
    "home": _text_field("State folder", "local: folder of all jobs. Default: $TRAINJOB_HOME, else ~/.trainjob."),
    "max_parallel": {
        "label": "Parallel jobs",
        "description": "local: jobs that run on a host at the same time; others are queued. Default: no limit.",
        "schema": {"type": ["integer", "null"], "minimum": 1},
    },
    "namespace": _text_field("Namespace", "kubernetes, runai, training-operator: namespace of the jobs."),
    "context": _text_field("Context", "kubernetes, runai, training-operator: context of the kubeconfig."),
    "config_file": _text_field("Kubeconfig", "kubernetes, runai, training-operator: path of the kubeconfig."),
    "kube_config": {
        "label": "Kubeconfig content",
        "description": "kubernetes, runai, training-operator: a kubeconfig in JSON, with a token or certificate data.",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "in_cluster": {
        "label": "In cluster",
        "description": "kubernetes, runai, training-operator: use the service account of the pod Airflow runs in.",
        "schema": {"type": ["boolean", "null"], "default": False},
    },
    "project": _text_field("Project", "runai: the Run:ai project."),
    "checkpoints_uri": _text_field(
        "Checkpoints", "Where jobs keep checkpoints: pvc://<claim>/<path>, s3://<bucket>/<path> or file:///<folder>."
    ),
    "code_uri": _text_field(
        "Code", "Where code goes that is too large for a job: s3://<bucket>/<path>; local, container: file:///<folder>."
    ),
    "resource_interval": {
        "label": "Resource reports",
        "description": "Seconds between two reports of processor, memory and GPUs; 0 for none. Default: 10.",
        "schema": {"type": ["number", "null"], "minimum": 0},
    },
    "default_options": _text_field(
        "Default options", "Options of each job that does not have them, in YAML: [{Stalled: {after: 30m}}]."
    ),
    "scheduling_grace": _text_field(
        "Scheduling grace",
        "kubernetes, runai, training-operator: how long a pod may wait for a node, such as 45m. Default: 30m.",
    ),
    "container_host": _text_field("Engine address", "container: URL of the Docker or Podman engine."),
    "dashboard_url": _text_field(
        "Dashboard",
        "URL template of a job in a dashboard, such as https://dash.example/${namespace}/${name}; tasks link to it.",
    ),
    "logs_url": _text_field("Logs", "URL template of a job's log lines in a log store."),
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata for Airflow's provider manager."""
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
                "conn-fields": _CONNECTION_FIELDS,
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
