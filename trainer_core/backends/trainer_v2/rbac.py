"""RBAC permissions that the Kubernetes backend needs, each with what does not work without it. Pure.

`trainjob doctor` checks these permissions, and `deploy/rbac.yaml` is generated from them.
"""

from __future__ import annotations

from trainer_core.k8s import resources
from trainer_core.k8s.rbac import EVENT_PERMISSIONS, MANAGE_VERBS, ONLY_AIRFLOW, RequiredPermission

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, resources.TRAINJOBS, "TrainJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("get",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace cannot be used"),
    RequiredPermission(
        ("get",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes cannot be used", required=True
    ),
    RequiredPermission(("watch",), resources.TRAINJOBS, "waiting polls the API server instead of watching"),
    RequiredPermission(
        ("list", "watch"), resources.PODS, "no steps, no results, no reason why a TrainJob does not start or fails"
    ),
    RequiredPermission(("get",), resources.PODS, "no logs, no progress, no traceback of a failure", subresource="log"),
    *EVENT_PERMISSIONS,
    RequiredPermission(
        ("get",), resources.JOBSETS, "the name of a deleted TrainJob can be reused before its JobSet is gone"
    ),
    RequiredPermission(
        ("list",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace are not listed", users=ONLY_AIRFLOW
    ),
    RequiredPermission(
        ("list",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes are not listed", users=ONLY_AIRFLOW
    ),
    RequiredPermission(
        ("create",),
        resources.SECRETS,
        "literal tokens are refused; use a SecretRef instead",
        users=ONLY_AIRFLOW,
    ),
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` without a TrainJob does not work"),
    RequiredPermission(
        ("create", "delete"), resources.VOLUME_CLAIMS, "`initialize` cannot create the volume claim that it writes to"
    ),
    RequiredPermission(
        ("get",), resources.VOLUME_CLAIMS, "a claim that only one node can mount is not refused as place of checkpoints"
    ),
)
