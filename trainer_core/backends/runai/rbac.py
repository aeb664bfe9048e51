"""RBAC permissions that the Run:ai backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and the roles in `deploy/rbac-runai.yaml` grant them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import EVENT_PERMISSIONS, MANAGE_VERBS, ONLY_AIRFLOW, RequiredPermission

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
    RequiredPermission(
        ("list", "watch"), resources.PODS, "no steps, no results, no reason why a workload does not start or fails"
    ),
    RequiredPermission(("get",), resources.PODS, "no logs, no progress, no traceback of a failure", subresource="log"),
    *EVENT_PERMISSIONS,
    RequiredPermission(
        ("create",), resources.SECRETS, "literal tokens are refused; use a SecretRef instead", users=ONLY_AIRFLOW
    ),
    RequiredPermission(
        ("get",), resources.VOLUME_CLAIMS, "a claim that only one node can mount is not refused as place of checkpoints"
    ),
)
