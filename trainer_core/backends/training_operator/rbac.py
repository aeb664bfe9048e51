"""RBAC permissions that the Training Operator backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and the roles in `deploy/rbac-training-operator.yaml` grant them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import (
    CREATE_CLAIMS,
    CREATE_SECRETS,
    MANAGE_VERBS,
    READ_CLAIMS,
    RequiredPermission,
    list_pod_permissions,
)

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, resources.PYTORCH_JOBS, "PyTorchJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("watch",), resources.PYTORCH_JOBS, "waiting polls the API server instead of watching"),
    *list_pod_permissions("PyTorchJob"),
    CREATE_SECRETS,
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` does not work"),
    CREATE_CLAIMS,
    READ_CLAIMS,
)
