"""Checks of `trainjob doctor` for a cluster with Run:ai."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer_core.backends.runai import runtime_templates
from trainer_core.backends.runai.config import RunaiBackendConfig
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, TRAINING_WORKLOADS
from trainer_core.base.errors import TrainerError
from trainer_core.k8s import preflight
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.rbac import CREATE_SECRETS, MANAGE_VERBS, READ_CLAIMS, RequiredPermission, list_pod_permissions
from trainer_core.model.preflight import LIMITED, OK, UNKNOWN, PreflightCheck, PreflightReport

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS,
        TRAINING_WORKLOADS,
        "workloads cannot be submitted, followed or cancelled",
        required=True,
    ),
    RequiredPermission(MANAGE_VERBS, DISTRIBUTED_WORKLOADS, "jobs with several nodes do not work"),
    RequiredPermission(("watch",), TRAINING_WORKLOADS, "waiting polls the API server instead of watching"),
    RequiredPermission(
        ("watch",),
        DISTRIBUTED_WORKLOADS,
        "waiting for jobs with several nodes polls the API server instead of watching",
    ),
    *list_pod_permissions("workload"),
    CREATE_SECRETS,
    READ_CLAIMS,
)


def check_runai_cluster(config: RunaiBackendConfig) -> PreflightReport:
    """Check everything that the backend needs of a cluster. Read-only."""
    project_config = config.model_copy(update={"namespace": config.project_namespace})
    return preflight.check_cluster(project_config, TRAINING_WORKLOADS, _run_checks, PERMISSIONS)


def _run_checks(api: ApiClient) -> Iterator[PreflightCheck]:
    yield preflight.check_api_group(
        api, "run:ai", TRAINING_WORKLOADS.group, "no workload can be created; install Run:ai"
    )
    yield preflight.check_namespace(api)
    yield _check_templates(api, "templates of the project", api.connection.namespace)
    yield _check_templates(api, "templates of all projects", runtime_templates.SHARED_NAMESPACE)


def _check_templates(api: ApiClient, what: str, namespace: str) -> PreflightCheck:
    try:
        workloads = api.list(TRAINING_WORKLOADS, namespace=namespace)
    except TrainerError as error:
        return PreflightCheck(what, UNKNOWN, str(error))
    templates = [raw for raw in workloads if runtime_templates.is_template(raw)]
    problems = list(_list_problems(templates))
    names = ", ".join(sorted(raw["metadata"]["name"] for raw in templates)) or "none; built-in runtimes are available"
    return PreflightCheck(what, LIMITED if problems else OK, names, "; ".join(problems))


def _list_problems(templates: list[dict[str, Any]]) -> Iterator[str]:
    for raw in templates:
        try:
            runtime_templates.parse_template(raw)
        except ValueError as error:
            yield str(error)
