"""What a role must permit for each thing the backend does. Pure.

`trainjob doctor` checks this table, and `deploy/rbac-runai.yaml` is made from it.
"""

from __future__ import annotations

from trainer_core.cluster import kinds
from trainer_core.cluster.permissions import ALL, ONLY_AIRFLOW, Permission

__all__ = ["PERMISSIONS"]

PERMISSIONS = (
    Permission(ALL, kinds.TRAINING_WORKLOADS, "workloads cannot be submitted, followed and ended", essential=True),
    Permission(ALL, kinds.DISTRIBUTED_WORKLOADS, "jobs of several nodes cannot be run"),
    Permission(("watch",), kinds.TRAINING_WORKLOADS, "waiting asks the server again and again instead of being told"),
    Permission(("watch",), kinds.DISTRIBUTED_WORKLOADS, "waiting for several nodes asks the server again and again"),
    Permission(("list", "watch"), kinds.PODS, "no steps, no results, no reason why a workload does not start or fails"),
    Permission(("get",), kinds.PODS, "no logs, no progress, no traceback of a failure", part="log"),
    Permission(("list",), kinds.EVENTS, "no reason why a pod finds no machine or an image is not pulled"),
    Permission(("create",), kinds.SECRETS, "tokens given as text are refused; refer to a Secret", users=ONLY_AIRFLOW),
)
