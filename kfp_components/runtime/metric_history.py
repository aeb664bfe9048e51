"""How the metrics of a training came to be, as its log tells it: the points of the report's curves."""

from __future__ import annotations

from trainer_core.node.progress import parse_progress

__all__ = ["MetricHistory"]

#: Points of a curve from which on every other one is dropped: a step that waits for days must not grow.
_MAX_POINTS = 1000


class MetricHistory:
    """Curves by metric. One thread adds, another reads when it is done."""

    def __init__(self) -> None:
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._strides: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def add(self, line: str) -> None:
        """Read a line of a log; most have no metric."""
        progress = parse_progress(line) or {}
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
