"""Events, as controllers, the scheduler and kubelets record them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from fake_cluster.clock import micro_time, now
from fake_cluster.event_forms import kept
from fake_cluster.store import Store
from trainer_core.k8s.resources import EVENTS, EVENTS_V1

_NORMAL = {
    "AllJobsCompleted",
    "Completed",
    "Killing",
    "Nominated",
    "NotTriggerScaleUp",
    "Pulled",
    "Pulling",
    "PyTorchJobFailed",
    "PyTorchJobResumed",
    "PyTorchJobSucceeded",
    "PyTorchJobSuspended",
    "Scheduled",
    "Started",
    "SuccessfulCreate",
    "SuccessfulCreatePod",
    "SuccessfulDeletePod",
    "TriggeredScaleUp",
}


class Recorder:
    """Writes events about objects."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str, str], tuple[str, str]] = {}

    def record(self, about: Mapping[str, Any], reason: str, message: str, component: str) -> None:
        """Record an event the old way, core/v1: the same event again only counts."""
        same = (about["metadata"]["uid"], reason, message)
        if same in self._known and self._store.change(EVENTS, *self._known[same], _once_more):
            return
        moment = now()
        record = self._store.create(
            EVENTS,
            {
                "apiVersion": EVENTS.api_version,
                "kind": "Event",
                "metadata": _metadata(about),
                "involvedObject": _reference(about),
                "type": _type(reason),
                "reason": reason,
                "message": message,
                "source": {"component": component},
                "reportingComponent": component,
                "reportingInstance": "",
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "eventTime": None,
                "count": 1,
            },
        )
        self._known[same] = record.key

    def record_v1(self, about: Mapping[str, Any], reason: str, note: str, controller: str, action: str) -> None:
        """Record an event through events.k8s.io/v1, once: with an eventTime, and no other times."""
        same = (about["metadata"]["uid"], reason, note)
        if same in self._known and self._store.find(EVENTS, *self._known[same]):
            return
        event = {
            "apiVersion": EVENTS_V1.api_version,
            "kind": "Event",
            "metadata": _metadata(about),
            "eventTime": micro_time(),
            "regarding": _reference(about),
            "type": _type(reason),
            "reason": reason,
            "note": note[:1024],
            "action": action,
            "reportingController": controller,
            "reportingInstance": f"{controller}-{uuid.uuid4().hex[:10]}",
        }
        self._known[same] = self._store.create(EVENTS, kept(EVENTS_V1, event)).key


def _type(reason: str) -> str:
    return "Normal" if reason in _NORMAL else "Warning"


def _once_more(raw: dict[str, Any]) -> None:
    raw["count"] = (raw.get("count") or 1) + 1
    raw["lastTimestamp"] = now()


def _metadata(about: Mapping[str, Any]) -> dict[str, Any]:
    metadata = about["metadata"]
    return {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": metadata.get("namespace", "default")}


def _reference(about: Mapping[str, Any]) -> dict[str, Any]:
    metadata = about["metadata"]
    known = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata}
    return {"apiVersion": about["apiVersion"], "kind": about["kind"], **known}
