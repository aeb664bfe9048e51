"""What a role must permit for each thing the backend does. Pure.

`trainjob doctor` checks this table, and `deploy/rbac.yaml` is made from it.
"""

from __future__ import annotations

from trainer_core.cluster import kinds
from trainer_core.cluster.permissions import ALL, ONLY_AIRFLOW, Permission

__all__ = ["PERMISSIONS"]

PERMISSIONS = (
    Permission(ALL, kinds.TRAINJOBS, "TrainJobs cannot be submitted, followed and ended", essential=True),
    Permission(("get",), kinds.TRAINING_RUNTIMES, "the namespace's own runtimes cannot be used"),
    Permission(("get",), kinds.CLUSTER_TRAINING_RUNTIMES, "the cluster's runtimes cannot be used", essential=True),
    Permission(("watch",), kinds.TRAINJOBS, "waiting asks the server again and again instead of being told"),
    Permission(("list", "watch"), kinds.PODS, "no steps, no results, no reason why a TrainJob does not start or fails"),
    Permission(("get",), kinds.PODS, "no logs, no progress, no traceback of a failure", part="log"),
    Permission(("list",), kinds.EVENTS, "no reason why a pod finds no machine or an image is not pulled"),
    Permission(("get",), kinds.JOBSETS, "a deleted TrainJob's name counts as free a moment too early"),
    Permission(("list",), kinds.TRAINING_RUNTIMES, "the namespace's runtimes are not listed", users=ONLY_AIRFLOW),
    Permission(("list",), kinds.CLUSTER_TRAINING_RUNTIMES, "the cluster's runtimes are not listed", users=ONLY_AIRFLOW),
    Permission(("create",), kinds.SECRETS, "tokens given as text are refused; refer to a Secret", users=ONLY_AIRFLOW),
    Permission(ALL, kinds.JOBS, "`initialize` without a TrainJob does not work"),
    Permission(("create", "delete"), kinds.CLAIMS, "`initialize` cannot make the volume it fetches into"),
)
