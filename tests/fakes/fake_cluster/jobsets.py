"""JobSet's controller: replicated jobs become Jobs, in their order, until one fails or all are done."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fake_cluster.building import owned_by, steps_of
from fake_cluster.conditions import is_true, set_condition, time_to_live
from fake_cluster.history import Record
from fake_cluster.recorder import Recorder
from fake_cluster.store import Store
from trainer_core.k8s.resources import JOBS, JOBSETS

_LABEL = "jobset.sigs.k8s.io"
_CONTROLLER = "jobset-controller"


class JobSets:
    """Reconciles JobSets."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder

    def reconcile(self, record: Record) -> float | None:
        raw = record.raw
        if record.metadata.get("deletionTimestamp"):
            return None
        if is_true(raw, "Completed") or is_true(raw, "Failed"):
            rest = time_to_live(raw)
            if rest == 0:
                self._store.delete(JOBSETS, *record.key)
            return rest or None
        jobs = self._ensure_jobs(record)
        statuses = [_step_status(step, jobs.get(step["name"])) for step in steps_of(raw["spec"])]
        restart = self._judge(record, jobs)
        self._store.change(JOBSETS, *record.key, lambda new: _write(new, statuses, restart), "status")
        if restart:
            self._end(list(jobs.values()))
        return None

    def _ensure_jobs(self, record: Record) -> dict[str, Record]:
        """Return the Jobs by name of their step; those whose turn it is are made."""
        suspend = bool(record.raw["spec"].get("suspend"))
        jobs: dict[str, Record] = {}
        for step in steps_of(record.raw["spec"]):
            name = f"{record.key[1]}-{step['name']}-0"
            found = self._store.find(JOBS, record.key[0], name)
            if found is None and _turn_has_come(step, jobs):
                found = self._store.create(JOBS, _job(record.raw, step, name))
            elif found is not None and bool(found.raw["spec"].get("suspend")) != suspend:
                template = _job(record.raw, step, name)["spec"]
                found = self._store.change(JOBS, *found.key, lambda job, new=template: job.update(spec=new))
            if found is not None and not found.metadata.get("deletionTimestamp"):
                jobs[step["name"]] = found
        return jobs

    def _judge(self, record: Record, jobs: Mapping[str, Record]) -> bool:
        """End the JobSet if it is decided; return whether it has to start again instead."""
        failed = next((job for job in jobs.values() if is_true(job.raw, "Failed")), None)
        if failed is not None:
            return self._fail(record, failed, jobs)
        if _done(record.raw, jobs):
            self._finish(record, "Completed", "AllJobsCompleted", "jobset completed successfully")
            self._end([job for job in jobs.values() if not is_true(job.raw, "Complete")])
        return False

    def _fail(self, record: Record, failed: Record, jobs: Mapping[str, Record]) -> bool:
        most = (record.raw["spec"].get("failurePolicy") or {}).get("maxRestarts", 0)
        restarts = (record.raw.get("status") or {}).get("restarts", 0)
        if restarts < most:
            return True
        reason = "ReachedMaxRestarts" if most else "FailedJobs"
        text = (
            "jobset failed due to reaching max number of restarts"
            if most
            else "jobset failed due to one or more job failures"
        )
        self._finish(record, "Failed", reason, f"{text} (first failed job: {failed.key[1]})")
        self._end([job for job in jobs.values() if not is_true(job.raw, "Failed") and not is_true(job.raw, "Complete")])
        return False

    def _finish(self, record: Record, type_: str, reason: str, message: str) -> None:
        def finish(raw: dict[str, Any]) -> None:
            set_condition(raw, type_, True, reason, message)
            raw["status"]["terminalState"] = type_

        self._store.change(JOBSETS, *record.key, finish, "status")
        self._recorder.record(record.raw, reason, message, _CONTROLLER)

    def _end(self, jobs: list[Record]) -> None:
        for job in jobs:
            if self._store.find(JOBS, *job.key):
                self._store.delete(JOBS, *job.key, propagation="Foreground")


def _write(raw: dict[str, Any], statuses: list[dict[str, Any]], restart: bool) -> None:
    status = raw.setdefault("status", {})
    status["replicatedJobsStatus"] = statuses
    if restart:
        status["restarts"] = status.get("restarts", 0) + 1
    if raw["spec"].get("suspend"):
        set_condition(raw, "Suspended", True, "SuspendedJobs", "jobset is suspended")
    elif is_true(raw, "Suspended"):
        set_condition(raw, "Suspended", False, "ResumeJobs", "jobset is resumed")


def _turn_has_come(step: Mapping[str, Any], jobs: Mapping[str, Record]) -> bool:
    for needed in step.get("dependsOn") or ():
        job = jobs.get(needed["name"])
        if job is None:
            return False
        if needed["status"] == "Complete" and not is_true(job.raw, "Complete"):
            return False
        if needed["status"] == "Ready" and not _step_status({"name": ""}, job)["ready"]:
            return False
    return True


def _done(raw: Mapping[str, Any], jobs: Mapping[str, Record]) -> bool:
    policy = raw["spec"].get("successPolicy") or {}
    targets = policy.get("targetReplicatedJobs") or [step["name"] for step in steps_of(raw["spec"])]
    complete = [name in jobs and is_true(jobs[name].raw, "Complete") for name in targets]
    return any(complete) if policy.get("operator") == "Any" else all(complete)


def _step_status(step: Mapping[str, Any], job: Record | None) -> dict[str, Any]:
    """Return the numbers of a step: of its Jobs, not of its pods."""
    status = (job.raw.get("status") or {}) if job else {}
    wanted = int(job.raw["spec"].get("parallelism") or 1) if job else 1
    complete, failed = job is not None and is_true(job.raw, "Complete"), job is not None and is_true(job.raw, "Failed")
    ready = not complete and not failed and status.get("ready", 0) + status.get("succeeded", 0) >= wanted
    return {
        "name": step["name"],
        "ready": int(ready),
        "succeeded": int(complete),
        "failed": int(failed),
        "active": int(status.get("active", 0) > 0),
        "suspended": int(job is not None and bool(job.raw["spec"].get("suspend"))),
    }


def _job(jobset: Mapping[str, Any], step: Mapping[str, Any], name: str) -> dict[str, Any]:
    template = copy.deepcopy(step["template"])
    metadata = template.get("metadata") or {}
    labels = {
        f"{_LABEL}/jobset-name": jobset["metadata"]["name"],
        f"{_LABEL}/jobset-uid": jobset["metadata"]["uid"],
        f"{_LABEL}/replicatedjob-name": step["name"],
        f"{_LABEL}/replicatedjob-replicas": str(step.get("replicas", 1)),
        f"{_LABEL}/job-index": "0",
        f"{_LABEL}/restart-attempt": str((jobset.get("status") or {}).get("restarts", 0)),
    }
    spec = template["spec"]
    pod = spec["template"]
    pod["metadata"] = pod.get("metadata") or {}
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **labels}
    pod["spec"].setdefault("restartPolicy", "OnFailure")
    pod["spec"].setdefault("subdomain", jobset["metadata"]["name"])
    suspend = bool(jobset["spec"].get("suspend"))
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": jobset["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owned_by(jobset)],
        },
        "spec": {"parallelism": 1, "completions": 1, **spec, "completionMode": "Indexed", "suspend": suspend},
    }
