"""What we write on the objects that we make: labels and annotations by which any process finds them again."""

from __future__ import annotations

import hashlib

__all__ = [
    "ATTEMPT",
    "CANCELLED",
    "DELETE_AFTER",
    "DIAGNOSIS",
    "FINGERPRINT",
    "MANAGED_BY",
    "MANAGER",
    "OUTCOME",
    "OWNER",
    "PREFIX",
    "REQUEST",
    "RUN",
    "RUNTIME",
    "owner_value",
]

#: Label that says who made an object, and its value; recommended by Kubernetes.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "trainjob-workflows"
#: How the names of our own labels and annotations begin.
PREFIX = "trainjob-workflows/"
#: Label: the owner of a TrainJob, as `owner_value` writes it.
OWNER = "trainjob-workflows/owner"
#: Label: seconds after its end when a TrainJob may be deleted.
DELETE_AFTER = "trainjob-workflows/delete-after"
#: Label: id of the run of Kubeflow Pipelines that a TrainJob belongs to.
RUN = "trainjob-workflows/kfp-run"
#: Annotations: the whole request as JSON, its fingerprint, the attempt; when it was cancelled, and what for;
#: what its runtime offered when it was submitted, so that a look at the job needs no other look.
REQUEST = "trainjob-workflows/request"
RUNTIME = "trainjob-workflows/runtime"
FINGERPRINT = "trainjob-workflows/fingerprint"
ATTEMPT = "trainjob-workflows/attempt"
CANCELLED = "trainjob-workflows/cancelled"
DIAGNOSIS = "trainjob-workflows/diagnosis"
#: Annotation: what the job left, as whoever waited for it saw it. Pods, which say it first, may be gone in an hour.
OUTCOME = "trainjob-workflows/outcome"

_DIGITS = 40


def owner_value(key: str) -> str:
    """Return the label value of an owner: what a label can hold of any key, and the same for the same key."""
    return hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
