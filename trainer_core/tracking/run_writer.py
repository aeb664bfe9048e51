"""Writes the run of a TrainJob: its status, the points of its curves, and its end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime

from trainer_core.errors import TrackingError
from trainer_core.jobs import CREATED, SUSPENDED, Outcome
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MAX_BATCH, MlflowApi

__all__ = ["Point", "RunWriter"]

#: Prefix of metrics that the training logs itself under the same name.
_PREFIX = "progress/"
#: Name, value, milliseconds since 1970, and step of a point of a curve.
Point = tuple[str, float, int, int]


class RunWriter:
    """Writes one run, and keeps what the server is known to have of it.

    Args:
        api: API of the server.
        run_id: Id of the run.

    Attributes:
        api: API of the server.
        id: Id of the run.
        tags: Tags that the run had when it was loaded.
    """

    def __init__(self, api: MlflowApi, run_id: str) -> None:
        self.api = api
        self.id = run_id
        self.tags: dict[str, str] = {}
        self._latest: dict[str, float] = {}
        self._curves: set[str] = set()
        self._status = "RUNNING"

    def load(self) -> None:
        """Read the run.

        Raises:
            TrackingError: A person has deleted it; or the server cannot be reached, or refuses.
        """
        run = self.api.get_run(self.id)
        if run.info.lifecycle_stage == "deleted":
            raise TrackingError(f"run {self.id} was deleted; it is left alone")
        self.tags, self._latest, self._status = run.tags, run.metrics, run.info.status
        try:
            self._curves = set(json.loads(self.tags.get(tags.CURVES, "[]")))
        except (TypeError, ValueError):  # A person changed the tag.
            self._curves = set()

    def set_status(self, status: str | None) -> None:
        """Set RUNNING or SCHEDULED while the job has not ended."""
        wanted = "SCHEDULED" if status in (CREATED, SUSPENDED) else "RUNNING"
        if status is not None and wanted != self._status:
            self.api.post("runs/update", run_id=self.id, status=wanted)
            self._status = wanted

    def send(self, points: Sequence[Point]) -> None:
        """Send points of curves."""
        if not points:
            return
        names = {name: self._choose_name(name) for name, *_ in points}
        known = len(self._curves)
        self._curves.update(name for name, chosen in names.items() if name == chosen)
        if len(self._curves) > known:
            # Before the points: the next process that reports must not take them for those of the training.
            self.api.log_batch(self.id, tags={tags.CURVES: json.dumps(sorted(self._curves))})
        self.api.log_batch(
            self.id,
            [
                {"key": names[name], "value": value, "timestamp": timestamp, "step": step}
                for name, value, timestamp, step in points
            ],
        )
        self._latest.update({names[name]: value for name, value, *_ in points})

    def end(self, outcome: Outcome, step: int) -> None:
        """Send the final metrics, tags and status, unless the training itself has logged the same values."""
        finished = _to_milliseconds(outcome.finished_at)
        final = {
            self._choose_name(name): value
            for name, value in outcome.metrics.items()
            if not (name in self._latest and name not in self._curves)
        }
        metrics = [
            {"key": name, "value": value, "timestamp": finished, "step": step}
            for name, value in final.items()
            if self._latest.get(name) != value
        ]
        for start in range(0, len(metrics), MAX_BATCH):
            self.api.log_batch(self.id, metrics[start : start + MAX_BATCH])
        self.api.post("runs/update", run_id=self.id, status=tags.get_run_status(outcome), end_time=finished)
        self.api.log_batch(self.id, tags=tags.build_outcome_tags(outcome))

    def _choose_name(self, name: str) -> str:
        is_foreign = name in self._latest and name not in self._curves
        return f"{_PREFIX}{name}" if is_foreign else name


def _to_milliseconds(timestamp: str | None) -> int:
    if timestamp is None:
        return int(time.time() * 1000)
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)
