"""Ties a TrainJob to the run of its pipeline: when KFP deletes the run's Workflow, the cluster deletes the job too."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainer_core.configs import config_from_dict
from trainer_core.errors import TrainerError
from trainer_core.ref import TrainJobRef

__all__ = ["tie_to_run"]

#: Set by KFP in every pod that it starts for a task.
_POD, _POD_UID = "KFP_POD_NAME", "KFP_POD_UID"
#: What a job is on the cluster, by its backend: names in `trainer_core.cluster.kinds`.
_KINDS = {"kubernetes": ("TRAINJOBS", "JOBS"), "training-operator": ("PYTORCH_JOBS",)}


def tie_to_run(ref: TrainJobRef, settings: Mapping[str, Any] | None) -> None:
    """Make the Workflow of this pod an owner of a job, and label the job with the run, where this pod may read itself.

    It is a net under other ones: what prevents it is said and does not fail the task.
    """
    pod, uid = os.environ.get(_POD), os.environ.get(_POD_UID)
    if ref.backend not in _KINDS or not pod or not uid:
        return
    try:
        if not _tied(ref, settings or {}, pod, uid):
            print(f"TrainJob {ref.name} is not tied to the run: its pod is elsewhere, or has no Workflow", flush=True)
    except TrainerError as error:
        print(f"TrainJob {ref.name} is not tied to the run: {error}", file=sys.stderr, flush=True)


def _tied(ref: TrainJobRef, settings: Mapping[str, Any], pod: str, uid: str) -> bool:
    from trainer_core.cluster import connect, kinds, marks
    from trainer_core.cluster.answers import NotThereError
    from trainer_core.cluster.api import Api
    from trainer_core.cluster.runs import RUN_ID

    api = Api(connect.connect(config_from_dict(ref.backend, settings)))  # type: ignore[arg-type]  # of a cluster
    # The step may list pods anyway, to follow its job; so that nobody has to grant more.
    found = api.list(kinds.PODS, fields=f"metadata.name={pod}", namespace=ref.namespace)
    # Owners live in the namespace of what they own; a pod of that name in another one is a stranger.
    own: dict[str, Any] = next((each["metadata"] for each in found if each["metadata"]["uid"] == uid), {})
    workflow = next((each for each in own.get("ownerReferences", ()) if each["kind"] == "Workflow"), None)
    if workflow is None:
        return False
    owner = {key: workflow[key] for key in ("apiVersion", "kind", "name", "uid")}
    run = own.get("labels", {}).get(RUN_ID)
    for kind in (getattr(kinds, name) for name in _KINDS[ref.backend]):
        with suppress(NotThereError):
            job = api.get(kind, ref.name, namespace=ref.namespace)["metadata"]
            others = [each for each in job.get("ownerReferences", ()) if each["uid"] != owner["uid"]]
            labels = {"labels": {marks.RUN: run}} if run else {}
            change = {"metadata": {"uid": ref.uid, "ownerReferences": [*others, owner], **labels}}
            api.patch(kind, ref.name, change, namespace=ref.namespace)
            return True
    return False
