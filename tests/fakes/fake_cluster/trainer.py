"""Trainer's controller: a TrainJob becomes a JobSet, and the JobSet's end becomes the TrainJob's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from fake_cluster import building, clock
from fake_cluster.conditions import condition, is_true, set_condition
from fake_cluster.history import Record
from fake_cluster.recorder import Recorder
from fake_cluster.store import Store, seconds_of
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, JOBSETS, TRAINING_RUNTIMES, TRAINJOBS

_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
_LONGEST_NAME = 63
_AGAIN = 0.2


class Trainer:
    """Controller of TrainJobs."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        #: Why the JobSet of a TrainJob cannot be created, if it cannot.
        self.refusal: Callable[[Record], str | None] = lambda _: None
        self._store = store
        self._recorder = recorder

    def reconcile(self, record: Record) -> float | None:
        """Bring a TrainJob further, as Trainer 2.3 does also one that is being deleted."""
        raw = record.raw
        managed_elsewhere = raw["spec"].get("managedBy") == _MULTIKUEUE
        if managed_elsewhere or self._is_over(record):
            return None
        rest = self._rest(raw)
        if rest is not None and rest <= 0:
            self.end_by_deadline(record)
            return None
        jobset = self._ensure_jobset(record)
        if jobset is None:
            return _AGAIN
        self._store.change(TRAINJOBS, *record.key, lambda job: _reflect(job, jobset.raw), "status")
        return rest

    def _is_over(self, record: Record) -> bool:
        """Whether a TrainJob has ended.

        As in Trainer 2.3.0, one that has failed starts again when its JobSet is deleted, by a user or by its TTL.
        """
        failed = condition(record.raw, "Failed")
        if failed is None or failed["status"] != "True":
            return is_true(record.raw, "Complete")
        return failed["reason"] == "DeadlineExceeded" or self._store.find(JOBSETS, *record.key) is not None

    def _ensure_jobset(self, record: Record) -> Record | None:
        """Return the JobSet, made or brought up to date; None where it cannot be."""
        raw, found = record.raw, self._store.find(JOBSETS, *record.key)
        suspend = bool(raw["spec"].get("suspend"))
        if found is not None and not suspend and not found.raw["spec"].get("suspend"):
            return found
        runtime = self._runtime(raw)
        if runtime is None:
            return found
        wanted = building.jobset(raw, runtime)
        if refusal := self.refusal(record) or _refusal(wanted):
            note = f"TrainJob resources reconciliation failed: {refusal}"
            self._recorder.record_v1(raw, "TrainJobResourcesCreationFailed", note, "trainjob-controller", "Reconciling")
            return None
        if found is None:
            return self._store.create(JOBSETS, wanted)
        return self._store.change(JOBSETS, *record.key, lambda jobset: jobset.update(spec=wanted["spec"]))

    def _runtime(self, raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
        ref = raw["spec"]["runtimeRef"]
        if ref.get("kind") == TRAINING_RUNTIMES.kind:
            found = self._store.find(TRAINING_RUNTIMES, raw["metadata"]["namespace"], ref["name"])
        else:
            found = self._store.find(CLUSTER_TRAINING_RUNTIMES, None, ref["name"])
        return found.raw if found else None

    def _rest(self, raw: Mapping[str, Any]) -> float | None:
        """Return how many seconds are left until the deadline; None where no clock runs."""
        seconds = raw["spec"].get("activeDeadlineSeconds")
        if seconds is None or raw["spec"].get("suspend"):
            return None
        suspended = condition(raw, "Suspended")
        resumed = suspended is not None and suspended["status"] == "False"
        start = suspended["lastTransitionTime"] if suspended and resumed else raw["metadata"]["creationTimestamp"]
        return seconds_of(start) + float(seconds) - clock.read()

    def end_by_deadline(self, record: Record) -> None:
        """Fail a TrainJob that has run for too long, and end what runs of it."""
        if self._store.find(JOBSETS, *record.key):
            self._store.delete(JOBSETS, *record.key)

        def fail(job: dict[str, Any]) -> None:
            set_condition(job, "Failed", True, "DeadlineExceeded", "TrainJob exceeded its active deadline")

        self._store.change(TRAINJOBS, *record.key, fail, "status")


def _reflect(job: dict[str, Any], jobset: Mapping[str, Any]) -> None:
    """Write what the JobSet says into the status of its TrainJob."""
    if job["spec"].get("suspend"):
        set_condition(job, "Suspended", True, "Suspended", "TrainJob is suspended")
    elif is_true(job, "Suspended"):
        set_condition(job, "Suspended", False, "Resumed", "TrainJob is resumed")
    for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
        found = condition(jobset, theirs)
        if found is not None and found["status"] == "True":
            set_condition(job, ours, True, found["reason"], found["message"])
        elif is_true(job, ours):
            job["status"]["conditions"].remove(condition(job, ours))
    steps = (jobset.get("status") or {}).get("replicatedJobsStatus")
    if steps:
        job.setdefault("status", {})["jobsStatus"] = copy.deepcopy(steps)


def _refusal(jobset: Mapping[str, Any]) -> str | None:
    """Return what JobSet's webhook says of names that get too long for a pod."""
    for step in building.steps_of(jobset["spec"]):
        last = int(step["template"]["spec"].get("completions") or 1) - 1
        longest = f"{jobset['metadata']['name']}-{step['name']}-0-{last}-xxxxx"
        if len(longest) > _LONGEST_NAME:
            return (
                'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs: the longest pod name '
                f"{longest!r} is too long, must be no more than {_LONGEST_NAME} characters".replace("'", '"')
            )
    return None
