"""Ties a TrainJob to the run of its pipeline: when KFP deletes the run's Workflow, the cluster deletes the job too."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainer_core.client import TrainerClient
from trainer_core.configs import config_from_dict
from trainer_core.errors import TrainerError
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from trainer_core.cluster.api import Api
    from trainer_core.cluster.kinds import Kind

__all__ = ["tie_to_run"]

#: Set by KFP in every pod that it starts for a task.
_POD, _POD_UID = "KFP_POD_NAME", "KFP_POD_UID"


def tie_to_run(client: TrainerClient, ref: TrainJobRef, settings: Mapping[str, Any] | None) -> None:
    """Make the Workflow of this pod an owner of a job, and label the job with the run, where this pod may read itself.

    It is a net under other ones: what prevents it is said and does not fail the task.
    """
    pod, uid = os.environ.get(_POD), os.environ.get(_POD_UID)
    dialect = getattr(client.backend, "dialect", None)
    if dialect is None or not pod or not uid:
        return  # Not a job of a cluster, or not a step of one.
    try:
        if not _tied(ref, tuple(dialect.pod_labels), settings or {}, pod, uid):
            print(f"TrainJob {ref.name} is not tied to the run: its pod is elsewhere, or has no Workflow", flush=True)
    except TrainerError as error:
        print(f"TrainJob {ref.name} is not tied to the run: {error}", file=sys.stderr, flush=True)


def _tied(ref: TrainJobRef, kinds_of_jobs: Sequence[Kind], settings: Mapping[str, Any], pod: str, uid: str) -> bool:
    from trainer_core.cluster import connect, kinds
    from trainer_core.cluster.api import Api

    api = Api(connect.connect(config_from_dict(ref.backend, settings)))  # type: ignore[arg-type]  # of a cluster
    # The step may list pods anyway, to follow its job; so that nobody has to grant more.
    found = api.list(kinds.PODS, fields=f"metadata.name={pod}", namespace=ref.namespace)
    # Owners live in the namespace of what they own; a pod of that name in another one is a stranger.
    own: dict[str, Any] = next((each["metadata"] for each in found if each["metadata"]["uid"] == uid), {})
    workflow = next((each for each in own.get("ownerReferences", ()) if each["kind"] == "Workflow"), None)
    if workflow is None:
        return False
    owner = {key: workflow[key] for key in ("apiVersion", "kind", "name", "uid")}
    return any(_own(api, kind, ref, owner, own.get("labels", {})) for kind in kinds_of_jobs)


def _own(api: Api, kind: Kind, ref: TrainJobRef, owner: dict[str, Any], labels: Mapping[str, str]) -> bool:
    from trainer_core.cluster import marks
    from trainer_core.cluster.answers import NotInstalledError, NotThereError
    from trainer_core.cluster.runs import RUN_ID

    with suppress(NotThereError, NotInstalledError):
        job = api.get(kind, ref.name, namespace=ref.namespace)["metadata"]
        if job["uid"] == ref.uid:
            others = [each for each in job.get("ownerReferences", ()) if each["uid"] != owner["uid"]]
            run = {"labels": {marks.RUN: labels[RUN_ID]}} if RUN_ID in labels else {}
            change = {"metadata": {"uid": ref.uid, "ownerReferences": [*others, owner], **run}}
            api.patch(kind, ref.name, change, namespace=ref.namespace)
            return True
    return False
