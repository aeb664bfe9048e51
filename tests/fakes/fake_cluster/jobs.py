"""The Job controller: Jobs become pods, replaced when they fail, until all indexes are done or too many have failed."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from fake_cluster import clock
from fake_cluster.building import COMPLETION_INDEX, owned_by
from fake_cluster.conditions import is_true, set_condition, time_to_live
from fake_cluster.history import Change, Record
from fake_cluster.recorder import Recorder
from fake_cluster.resource_kinds import stored_as
from fake_cluster.store import Store
from trainer_core.k8s.resources import JOBS, PODS

_CONTROLLER = "job-controller"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_BACKOFF_LIMIT = 6
_AGAIN = 0.2
#: Not the generator of the module, which hypothesis seeds again before each example: a name would come twice.
_RANDOM = random.Random()  # noqa: S311 -- names, no secrets


class BatchJobs:
    """Controller of Jobs."""

    def __init__(self, store: Store, recorder: Recorder, backoff_limit: int | None, backoff: float) -> None:
        #: Of Jobs without ``spec.backoffLimit``.
        self.backoff_limit = _BACKOFF_LIMIT if backoff_limit is None else backoff_limit
        #: Seconds until a failed pod is replaced; doubled each time.
        self.backoff = backoff
        #: Why the pods of a Job cannot be created, if they cannot.
        self.quota: Callable[[Record], str | None] = lambda _: None
        self._store = store
        self._recorder = recorder
        self._waiting: set[tuple[str, int]] = set()
        #: Of each Job, the pods that have failed: deleted ones, too.
        self._failed: defaultdict[str, set[str]] = defaultdict(set)
        store.listeners.append(self._on_change)

    def reconcile(self, record: Record) -> float | None:
        """Bring a Job closer to its desired state; return the seconds until it is due again."""
        raw = record.raw
        finished = is_true(raw, "Complete") or is_true(raw, "Failed")
        if finished or record.metadata.get("deletionTimestamp"):
            return self._clean_up(record) if finished else None
        pods = [pod for kind, pod in self._store.children(record) if kind == PODS]
        if raw["spec"].get("suspend"):
            self._delete_active(pods)
            self._write(record, [])
            return None
        if reason := self._failure(record, pods):
            self._delete_active(pods)
            self._write(record, pods, failed=reason)
            return None
        again = self._ensure_pods(record, pods)
        pods = [pod for kind, pod in self._store.children(record) if kind == PODS]
        self._write(record, pods)
        return again

    def _clean_up(self, record: Record) -> float | None:
        """Delete a finished Job when its time to live is over."""
        rest = time_to_live(record.raw)
        if rest == 0:
            self._store.delete(JOBS, *record.key)
        return rest or None

    def _on_change(self, change: Change) -> None:
        """Count a pod that has failed or, unless the Job waits for its end, that is being deleted."""
        pod = change.new
        owner = next(iter(pod.metadata.get("ownerReferences") or ()), None)
        if change.stored_as != stored_as(PODS) or not owner or owner["kind"] != JOBS.kind or _phase(pod) == "Succeeded":
            return
        job = self._store.find(JOBS, pod.key[0], owner["name"])
        if job is None or job.metadata["uid"] != owner["uid"] or job.raw["spec"].get("suspend"):
            return
        if _phase(pod) == "Failed" or (pod.metadata.get("deletionTimestamp") and not _replaces_failed_only(job)):
            self._failed[owner["uid"]].add(pod.metadata["uid"])

    def _failure(self, record: Record, pods: list[Record]) -> tuple[str, str] | None:
        """Return why a Job has failed, if it has."""
        limit = record.raw["spec"].get("backoffLimit", self.backoff_limit)
        failed = self._failed[record.metadata["uid"]]
        restarts = sum(_restarts(pod) for pod in pods if _phase(pod) in ("Pending", "Running"))
        on_failure = record.raw["spec"]["template"]["spec"].get("restartPolicy") == "OnFailure"
        if len(failed) > limit or (on_failure and restarts >= max(1, limit)):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _ensure_pods(self, record: Record, pods: list[Record]) -> float | None:
        spec = record.raw["spec"]
        wanted = int(spec.get("completions") or spec.get("parallelism") or 1)
        going: list[Record] = []
        if not _replaces_failed_only(record):
            going = [pod for pod in pods if _phase(pod) != "Succeeded" and pod.metadata.get("deletionTimestamp")]
        held = {_index(pod) for pod in pods if _phase(pod) != "Failed" and pod not in going}
        failures = len([pod for pod in pods if _phase(pod) == "Failed"])
        missing = [index for index in range(wanted) if index not in held]
        if not missing:
            return None
        if quota := self.quota(record):
            self._recorder.record(record.raw, "FailedCreate", quota, _CONTROLLER)
            return _AGAIN
        attempt = (record.metadata["uid"], failures)
        if failures and attempt not in self._waiting:
            self._waiting.add(attempt)
            return self.backoff * 2 ** (failures - 1)
        for index in missing:
            pod = self._store.create(PODS, _pod(record.raw, index))
            self._recorder.record(record.raw, "SuccessfulCreate", f"Created pod: {pod.key[1]}", _CONTROLLER)
        return None

    def _delete_active(self, pods: list[Record]) -> None:
        for pod in pods:
            if _phase(pod) in ("Pending", "Running") and not pod.metadata.get("deletionTimestamp"):
                self._store.delete(PODS, *pod.key)

    def _write(self, record: Record, pods: list[Record], failed: tuple[str, str] | None = None) -> None:
        spec = record.raw["spec"]
        wanted = int(spec.get("completions") or spec.get("parallelism") or 1)
        live = [pod for pod in pods if not pod.metadata.get("deletionTimestamp")]
        succeeded = {_index(pod) for pod in pods if _phase(pod) == "Succeeded"}
        numbers = {
            "active": 0 if failed else len([pod for pod in live if _phase(pod) in ("Pending", "Running")]),
            "ready": 0 if failed else len([pod for pod in live if is_true(pod.raw, "Ready")]),
            "succeeded": len(succeeded),
            "terminating": len([pod for pod in pods if pod.metadata.get("deletionTimestamp")]),
            "failed": len(self._failed[record.metadata["uid"]]) + (1 if failed else 0),
        }
        complete = not failed and len(succeeded) >= wanted

        def write(job: dict[str, Any]) -> None:
            status = job.setdefault("status", {})
            status.update(numbers)
            suspended = bool(spec.get("suspend"))
            if suspended or is_true(job, "Suspended"):
                reason, text = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
                set_condition(job, "Suspended", suspended, reason, text)
            if not suspended:
                status.setdefault("startTime", clock.now())
            if failed:
                set_condition(job, "Failed", True, *failed)
            if complete:
                set_condition(job, "Complete", True, "CompletionsReached", "Reached expected number of succeeded pods")
                status["completionTime"] = clock.now()

        self._store.change(JOBS, *record.key, write, "status")
        if failed:
            self._recorder.record(record.raw, *failed, _CONTROLLER)
        if complete:
            self._recorder.record(record.raw, "Completed", "Job completed", _CONTROLLER)


def _phase(pod: Record) -> str:
    return (pod.raw.get("status") or {}).get("phase", "Pending")


def _replaces_failed_only(job: Record) -> bool:
    """Return whether a pod is replaced only once it has ended. By default it is at once when its deletion begins."""
    return job.raw["spec"].get("podReplacementPolicy") == "Failed"


def _restarts(pod: Record) -> int:
    return sum(status.get("restartCount", 0) for status in (pod.raw.get("status") or {}).get("containerStatuses") or ())


def _index(pod: Record) -> int:
    return int((pod.metadata.get("annotations") or {}).get(COMPLETION_INDEX, 0))


def _pod(job: Mapping[str, Any], index: int) -> dict[str, Any]:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    template = copy.deepcopy(job["spec"]["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name, "batch.kubernetes.io/controller-uid": uid}
    annotations = dict(metadata.get("annotations") or {})
    suffix = "".join(_RANDOM.choices(_LETTERS, k=5))
    pod_name = f"{name}-{suffix}"
    if job["spec"].get("completionMode") == "Indexed":
        pod_name = f"{name}-{index}-{suffix}"
        labels[COMPLETION_INDEX] = annotations[COMPLETION_INDEX] = str(index)
        spec["hostname"] = f"{name}-{index}"
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            container.setdefault("env", []).append(_index_variable())
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": pod_name,
            "generateName": pod_name.removesuffix(suffix),
            "namespace": job["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": annotations,
            "ownerReferences": [owned_by(job)],
        },
        "spec": {"schedulerName": "default-scheduler", "restartPolicy": "Never", **spec},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def _index_variable() -> dict[str, Any]:
    path = f"metadata.annotations['{COMPLETION_INDEX}']"
    return {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
