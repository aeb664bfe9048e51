"""RBAC permissions that the Kubernetes backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and `deploy/rbac.yaml` is generated from them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import (
    CREATE_CLAIMS,
    CREATE_SECRETS,
    MANAGE_VERBS,
    ONLY_AIRFLOW,
    READ_CLAIMS,
    RequiredPermission,
    list_pod_permissions,
)

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, resources.TRAINJOBS, "TrainJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("get",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace cannot be used"),
    RequiredPermission(
        ("get",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes cannot be used", required=True
    ),
    RequiredPermission(("watch",), resources.TRAINJOBS, "waiting polls the API server instead of watching"),
    *list_pod_permissions("TrainJob"),
    RequiredPermission(
        ("get",), resources.JOBSETS, "the name of a deleted TrainJob can be reused before its JobSet is gone"
    ),
    RequiredPermission(
        ("list",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace are not listed", users=ONLY_AIRFLOW
    ),
    RequiredPermission(
        ("list",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes are not listed", users=ONLY_AIRFLOW
    ),
    CREATE_SECRETS,
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` without a TrainJob does not work"),
    CREATE_CLAIMS,
    READ_CLAIMS,
)
