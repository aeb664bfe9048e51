"""Writes to existing jobs: suspend, resume, cancel, delete, owner references and the stored outcome."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError, TrainerError
from trainer_core.base.retries import repeat_while_failing
from trainer_core.k8s import observations, resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError, WriteConflictError
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.labels import (
    CANCELLED,
    DIAGNOSIS,
    MANAGER,
    MAX_DIAGNOSIS_BYTES,
    MAX_OUTCOME_BYTES,
    OUTCOME,
    PROGRESS,
)
from trainer_core.k8s.parsing import RawObject
from trainer_core.model.jobs import COMPLETE, FAILED, Category, Diagnosis, Outcome, OwnerReference

_log = logging.getLogger(__name__)
_ENDED = frozenset({COMPLETE, FAILED})
#: For the key of an annotation.
_KEY_BYTES = 64
#: Characters of a log line in a diagnosis that is too large.
_MAX_LINE_LENGTH = 400
#: Characters that the API server takes for the message of an event.
_MAX_EVENT_MESSAGE = 1024
#: Outcomes to remember.
_MAX_STORED = 256
#: Seconds for a deletion to finish: pods have a grace period of 30 seconds, unless their runtime sets a longer one.
_MAX_DELETION_SECONDS = 120.0


class JobWriter:
    """Changes and deletes jobs."""

    def __init__(self, api: ApiClient, adapter: WorkloadAdapter) -> None:
        self._api = api
        self._adapter = adapter
        #: Outcomes that this process has stored or is storing, by uid: a thousand waiters can wait for one job.
        self._stored: dict[str, str] = {}
        self._stored_lock = threading.Lock()

    def set_suspended(self, raw: RawObject, suspended: bool) -> None:
        """Suspend or resume a job. A job that has ended is not changed."""
        job = self._adapter.parse_job(raw)
        if observations.get_status(job) in _ENDED or job.suspend == suspended:
            return
        # The resourceVersion protects a cancellation that was written after the job was read.
        metadata = {"uid": job.uid, "resourceVersion": raw["metadata"]["resourceVersion"]}
        patch = {**self._adapter.build_suspend_patch(job, suspended), "metadata": metadata}
        resource = self._adapter.get_resource(job)
        try:
            self._api.patch(resource, job.name, patch, namespace=job.namespace)
        except NotFoundError as error:
            raise JobNotFoundError(f"TrainJob {job.name!r} has been deleted") from error

    def cancel(self, raw: RawObject, diagnosis: Diagnosis | None = None, progress: str | None = None) -> None:
        """Suspend an active job and mark it as cancelled; delete one of a Kueue queue, which would resume it."""
        job = self._adapter.parse_job(raw)
        if observations.get_status(job) in _ENDED:
            return
        if job.queue_name:
            self.delete(raw)
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        annotations = {CANCELLED: now}
        if diagnosis is not None:
            annotations[DIAGNOSIS] = _dump_diagnosis(diagnosis)
        if progress is not None:
            annotations[PROGRESS] = progress
        self._patch(job, {"metadata": {"annotations": annotations}, **self._adapter.build_suspend_patch(job, True)})
        if diagnosis is not None:
            self._create_event(job, diagnosis)

    def _create_event(self, job: JobState, diagnosis: Diagnosis) -> None:
        """Tell administrators why the job was ended: to `kubectl get` it is only suspended."""
        resource, now = self._adapter.get_resource(job), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
            "type": "Normal" if diagnosis.category is Category.STOPPED_EARLY else "Warning",
            "reason": diagnosis.category.value,
            "message": f"ended, not suspended: {diagnosis.reason}"[:_MAX_EVENT_MESSAGE],
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.create(resources.EVENTS, {"apiVersion": "v1", "kind": "Event", **event})
        except TrainerError as error:
            # The job is cancelled, and its annotation has the diagnosis.
            _log.debug("no event on TrainJob %r: %s", job.name, error)

    def store_outcome(self, outcome: Outcome) -> None:
        """Annotate the job with its outcome, as its pods may be deleted; once, as each write passes webhooks."""
        text, ref = outcome.to_json(), outcome.job
        if len(text.encode()) > MAX_OUTCOME_BYTES - _KEY_BYTES or not self._claim_outcome(ref.uid, text):
            return
        change = {"metadata": {"uid": ref.uid, "annotations": {OUTCOME: text}}}
        try:
            for resource in self._adapter.pod_labels:
                with suppress(NotFoundError, ApiNotServedError, WriteConflictError):
                    self._api.patch(resource, ref.name, change, namespace=ref.namespace)
                    return
        except BaseException:
            self._stored.pop(ref.uid, None)
            raise

    def _claim_outcome(self, uid: str, text: str) -> bool:
        """Return whether an outcome is to be stored, and that only once."""
        with self._stored_lock:
            if self._stored.get(uid) == text:
                return False
            self._stored[uid] = text
            if len(self._stored) > _MAX_STORED:
                del self._stored[next(iter(self._stored))]
            return True

    def set_owner(
        self,
        raw: RawObject,
        kind: str,
        owner: OwnerReference | None,
        labels: Mapping[str, str | None],
        only_with: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Replace the ownerReferences of one kind on a job, and change labels, with one patch."""
        present: dict[str, str] = raw["metadata"].get("labels") or {}
        # With the labels in place, an earlier try may have set an owner that this one cannot read.
        is_done = owner is None and bool(labels) and all(present.get(key) == text for key, text in labels.items())
        if is_done or not only_with.items() <= present.items():
            return present
        owners = [each for each in raw["metadata"].get("ownerReferences") or () if each["kind"] != kind]
        owners += [owner.to_manifest()] if owner else []
        self._patch(self._adapter.parse_job(raw), {"metadata": {"ownerReferences": owners, "labels": dict(labels)}})
        return present

    def delete(self, raw: RawObject) -> None:
        """Delete a job and its dependents; wait until its name is free and its pods are gone."""
        job = self._adapter.parse_job(raw)
        self.request_deletion(job)
        resource_names = ",".join(dict.fromkeys((self._adapter.get_resource(job).plural, "jobs", "pods")))
        still_exists = BackendUnavailableError(
            f"TrainJob {job.name!r} is being deleted, but a part of it still exists after "
            f"{_MAX_DELETION_SECONDS:.0f} s; check finalizers and unreachable nodes: "
            f"kubectl get {resource_names} -n {job.namespace}"
        )

        def check_gone() -> None:
            if self._exists(job):
                raise still_exists

        repeat_while_failing(check_gone, lambda error: error is still_exists, _MAX_DELETION_SECONDS, pauses=(0.05, 2.0))

    def request_deletion(self, job: JobState) -> bool:
        """Delete a job without waiting; the garbage collector deletes its dependents. Return whether it existed."""
        resource = self._adapter.get_resource(job)
        foreground = resource in self._adapter.foreground_resources
        return self._api.delete(resource, job.name, uid=job.uid, foreground=foreground, namespace=job.namespace)

    def _patch(self, job: JobState, change: dict[str, Any]) -> None:
        # The uid protects a later job of the same name.
        metadata = {**change.get("metadata", {}), "uid": job.uid}
        resource = self._adapter.get_resource(job)
        try:
            self._api.patch(resource, job.name, {**change, "metadata": metadata}, namespace=job.namespace)
        except (NotFoundError, WriteConflictError) as error:
            raise JobNotFoundError(f"TrainJob {job.name!r} has been deleted") from error

    def _exists(self, job: JobState) -> bool:
        resource = self._adapter.get_resource(job)
        try:
            return bool(self._api.get(resource, job.name, namespace=job.namespace)["metadata"]["uid"] == job.uid)
        except NotFoundError:
            return resource not in self._adapter.foreground_resources and self._has_dependents(job)

    def _has_dependents(self, job: JobState) -> bool:
        """Whether visible objects of a deleted job are left: its controller would take them for the next one's."""
        with suppress(ForbiddenError):
            selector = self._adapter.build_pod_selector(job)
            if self._api.list(resources.PODS, label_selector=selector, namespace=job.namespace):
                return True
        return any(self._owns_object(job, resource) for resource in self._adapter.owned_resources)

    def _owns_object(self, job: JobState, resource: resources.ApiResource) -> bool:
        with suppress(NotFoundError, ApiNotServedError, ForbiddenError):
            owned = self._api.get(resource, job.name, namespace=job.namespace)
            return any(owner.get("uid") == job.uid for owner in owned["metadata"].get("ownerReferences") or ())
        return False


def _dump_diagnosis(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as JSON; one that is too large without the ends of its log lines, its log, its traceback."""
    short = replace(diagnosis, log_tail=tuple(line[:_MAX_LINE_LENGTH] for line in diagnosis.log_tail))
    without_log = replace(diagnosis, log_tail=())
    candidates = (diagnosis, short, without_log, replace(without_log, traceback=None))
    texts = [json.dumps(candidate.to_dict()) for candidate in candidates]
    # The annotation CANCELLED needs room, too.
    return next((text for text in texts if len(text) <= MAX_DIAGNOSIS_BYTES - 3 * _KEY_BYTES), texts[-1])
