"""The history of a training according to its log: the points of the report's curves, and where it resumed."""

from __future__ import annotations

import re

from trainer_core.model.logs import parse_timed_progress

#: Points of a curve from which on every other one is dropped: a step that waits for days must not grow.
_MAX_POINTS = 1000
#: What `checkpoints()` prints on rank 0 when it has found a checkpoint.
_RESUMED = re.compile(r"trainjob: resumed from step (\d+), saved by TrainJob (\S+)")


class MetricHistory:
    """Curves by metric. One thread adds, another reads when it is done."""

    def __init__(self) -> None:
        #: Step of the checkpoint, TrainJob that saved it, and milliseconds since 1970 of the first progress afterwards,
        #: for each time that the training resumed from a checkpoint.
        self.resumptions: list[tuple[int, str, int]] = []
        self._resumed: tuple[int, str] | None = None
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._strides: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def add(self, line: str) -> None:
        """Read a line of a log; most have no metric."""
        if resumed := _RESUMED.fullmatch(line):
            self._resumed = int(resumed[1]), resumed[2]
        progress, printed = parse_timed_progress(line)
        if progress is None:
            return
        if self._resumed is not None and printed is not None:
            self.resumptions.append((*self._resumed, printed))
            self._resumed = None
        for name, value in progress.get("metrics", {}).items():
            seen = self._seen.get(name, 0)
            self._seen[name] = seen + 1
            if seen % self._strides.setdefault(name, 1) == 0:
                self._add_point(name, (float(progress.get("step", seen)), value))

    def get_curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return (step, value) by metric, of those that changed: one point is no curve."""
        return {name: points for name, points in sorted(self._curves.items()) if len(points) > 1}

    def _add_point(self, name: str, point: tuple[float, float]) -> None:
        curve = self._curves.setdefault(name, [])
        curve.append(point)
        if len(curve) > _MAX_POINTS:
            del curve[1::2]
            self._strides[name] *= 2
