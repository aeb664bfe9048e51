"""Conditions of objects: set with a transition time only when they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_cluster import clock
from fake_cluster.store import seconds_of


def condition(raw: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    for found in (raw.get("status") or {}).get("conditions") or ():
        if found["type"] == type_:
            return found
    return None


def is_true(raw: Mapping[str, Any], type_: str) -> bool:
    found = condition(raw, type_)
    return found is not None and found["status"] == "True"


def set_condition(
    raw: dict[str, Any], type_: str, status: bool, reason: str | None = None, message: str | None = None
) -> None:
    conditions = raw.setdefault("status", {}).setdefault("conditions", [])
    told = {"reason": reason, "message": message}
    new = {"type": type_, "status": str(status), **{key: value for key, value in told.items() if value is not None}}
    for index, old in enumerate(conditions):
        if old["type"] == type_:
            changed = old["status"] != new["status"]
            conditions[index] = {**new, "lastTransitionTime": clock.now() if changed else old["lastTransitionTime"]}
            return
    conditions.append({**new, "lastTransitionTime": clock.now()})


def time_to_live(raw: Mapping[str, Any]) -> float | None:
    """Return how many seconds are left of a finished object, not less than 0; None where it may stay."""
    seconds = raw["spec"].get("ttlSecondsAfterFinished")
    if seconds is None:
        return None
    conditions = raw["status"]["conditions"]
    end = max(seconds_of(one["lastTransitionTime"]) for one in conditions if one["status"] == "True")
    return max(end + float(seconds) - clock.read(), 0.0)
