"""RBAC permissions that the Training Operator backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and the roles in `deploy/rbac-training-operator.yaml` grant them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import EVENT_PERMISSIONS, MANAGE_VERBS, ONLY_AIRFLOW, RequiredPermission

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, resources.PYTORCH_JOBS, "PyTorchJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("watch",), resources.PYTORCH_JOBS, "waiting polls the API server instead of watching"),
    RequiredPermission(
        ("list", "watch"), resources.PODS, "no steps, no results, no reason why a PyTorchJob does not start or fails"
    ),
    RequiredPermission(("get",), resources.PODS, "no logs, no progress, no traceback of a failure", subresource="log"),
    *EVENT_PERMISSIONS,
    RequiredPermission(
        ("create",), resources.SECRETS, "literal tokens are refused; use a SecretRef instead", users=ONLY_AIRFLOW
    ),
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` does not work"),
    RequiredPermission(
        ("create", "delete"), resources.VOLUME_CLAIMS, "`initialize` cannot create the volume claim that it writes to"
    ),
    RequiredPermission(
        ("get",), resources.VOLUME_CLAIMS, "a claim that only one node can mount is not refused as place of checkpoints"
    ),
)
