"""RBAC permissions that the Run:ai backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and the roles in `deploy/rbac-runai.yaml` grant them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import CREATE_SECRETS, MANAGE_VERBS, READ_CLAIMS, RequiredPermission, list_pod_permissions

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS,
        resources.TRAINING_WORKLOADS,
        "workloads cannot be submitted, followed or cancelled",
        required=True,
    ),
    RequiredPermission(MANAGE_VERBS, resources.DISTRIBUTED_WORKLOADS, "jobs with several nodes do not work"),
    RequiredPermission(("watch",), resources.TRAINING_WORKLOADS, "waiting polls the API server instead of watching"),
    RequiredPermission(
        ("watch",),
        resources.DISTRIBUTED_WORKLOADS,
        "waiting for jobs with several nodes polls the API server instead of watching",
    ),
    *list_pod_permissions("workload"),
    CREATE_SECRETS,
    READ_CLAIMS,
)
