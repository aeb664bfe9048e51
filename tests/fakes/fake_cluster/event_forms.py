"""Events are the same objects in two APIs, under other names; kept as core/v1 has them."""

from __future__ import annotations

import json
from typing import Any

from fake_cluster.history import Record
from trainer_core.k8s.resources import EVENTS, EVENTS_V1, ApiResource

_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "deprecatedSource": "source",
}
_BACK = {value: key for key, value in _NAMES.items()}


def kept(kind: ApiResource, raw: dict[str, Any]) -> dict[str, Any]:
    if kind == EVENTS_V1:
        renamed = {_NAMES.get(key, key): value for key, value in raw.items()}
        # The Go type of core/v1 has no omitempty on these: they are there, and null.
        return {"firstTimestamp": None, "lastTimestamp": None, **renamed, "apiVersion": EVENTS.api_version}
    return raw


def shown(kind: ApiResource, record: Record) -> bytes:
    """Return an object as JSON, as a kind shows it."""
    if kind == EVENTS_V1:
        renamed = {_BACK.get(key, key): value for key, value in record.raw.items()}
        return json.dumps({**renamed, "apiVersion": EVENTS_V1.api_version}).encode()
    return record.encoded
