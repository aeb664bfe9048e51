"""The form of a connection of type `trainjob` in Airflow's UI."""

from __future__ import annotations

from typing import Any

from trainer_core.model.backend_names import OWN_BACKENDS, find_plugins


def _build_text_field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


#: Fields of the connection form. `TrainJobHook` reads these, and what the configuration of a backend of another
#: distribution has in `connection_settings`.
CONNECTION_FIELDS: dict[str, Any] = {
    "backend": {
        "label": "Backend",
        "description": "Where training jobs run.",
        "schema": {
            "type": ["string", "null"],
            "enum": [*OWN_BACKENDS],
            "default": "local",
        },
    },
    "home": _build_text_field("State folder", "local: folder of all jobs. Default: $TRAINJOB_HOME, else ~/.trainjob."),
    "max_parallel": {
        "label": "Parallel jobs",
        "description": "local: jobs that run on a host at the same time; others are queued. Default: no limit.",
        "schema": {"type": ["integer", "null"], "minimum": 1},
    },
    "namespace": _build_text_field("Namespace", "Clusters: namespace of the jobs."),
    "context": _build_text_field("Context", "Clusters: context of the kubeconfig."),
    "config_file": _build_text_field("Kubeconfig", "Clusters: path of the kubeconfig."),
    "kube_config": {
        "label": "Kubeconfig content",
        "description": "Clusters: a kubeconfig in JSON, with a token or certificate data.",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "in_cluster": {
        "label": "In cluster",
        "description": "Clusters: use the service account of the pod Airflow runs in.",
        "schema": {"type": ["boolean", "null"], "default": False},
    },
    "project": _build_text_field("Project", "runai: the Run:ai project."),
    "checkpoints_uri": _build_text_field(
        "Checkpoints", "Where jobs keep checkpoints: pvc://<claim>/<path>, s3://<bucket>/<path> or file:///<folder>."
    ),
    "code_uri": _build_text_field(
        "Code", "Where code goes that is too large for a job: s3://<bucket>/<path>; local, container: file:///<folder>."
    ),
    "resource_interval": {
        "label": "Resource reports",
        "description": "Seconds between two reports of processor, memory and GPUs; 0 for none. Default: 10.",
        "schema": {"type": ["number", "null"], "minimum": 0},
    },
    "default_options": _build_text_field(
        "Default options", "Options of each job that does not have them, in YAML: [{Stalled: {after: 30m}}]."
    ),
    "scheduling_grace": _build_text_field(
        "Scheduling grace",
        "Clusters: how long a pod may wait for a node, such as 45m. Default: 30m.",
    ),
    "container_host": _build_text_field("Engine address", "container: URL of the Docker or Podman engine."),
    "dashboard_url": _build_text_field(
        "Dashboard",
        "URL template of a job in a dashboard, such as https://dash.example/${namespace}/${name}; tasks link to it.",
    ),
    "logs_url": _build_text_field("Logs", "URL template of a job's log lines in a log store."),
}


def build_connection_fields() -> dict[str, Any]:
    """Return the fields with the backends of other distributions among the choices. Reads what is installed."""
    field, names = CONNECTION_FIELDS["backend"], sorted(find_plugins())
    if names:
        more = f" The settings of {', '.join(names)} are extra fields in JSON."
        schema = {**field["schema"], "enum": [*OWN_BACKENDS, *names]}
        field = {**field, "description": field["description"] + more, "schema": schema}
    return {**CONNECTION_FIELDS, "backend": field}
