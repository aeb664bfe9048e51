"""Rules for the run policy of a job of Kubeflow, which both a TrainJob and its predecessor have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.base import validation

CLEAN_POD_POLICIES = ("Running", "All", "None")
_SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds")


def check_scheduling_policy(what: str, policy: Mapping[str, Any]) -> None:
    """Refuse unknown keys in a schedulingPolicy."""
    check_keys(what, policy, _SCHEDULING)


def check_keys(what: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a value that is not a dict, and unknown keys."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict with Kubernetes' field names, got {type(value).__name__}")
    unknown = [key for key in value if key not in known]
    if unknown:
        raise ValueError(f"{what}.{validation.list_names(unknown)} is unknown; {what} has {', '.join(known)}")
