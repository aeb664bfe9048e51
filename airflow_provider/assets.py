"""Assets of trained models: what the event of a new model says, and whether one is better than the last.

Airflow makes an Asset new when a task that has it among its outlets succeeds. Tasks of ours that wait for a TrainJob
write into that event what the job left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from airflow.sdk import Asset, get_current_context
from airflow.sdk.definitions.asset import Model

from trainer_core.outcome import Outcome

__all__ = ["ModelAsset", "announce", "check_outlets", "event_of"]


class ModelAsset(Model):
    """A trained model as an Asset.

    Among the outlets of `TrainJobOperator` or `TrainJobSensor`, each event carries the metrics, the ref and the
    artifacts of the TrainJob, and as ``artifact_uri`` where the model lies. Any other Asset gets the same, but for the
    last.

    Args:
        name: Of the Asset.
        uri: Of the Asset, which stays while models come and go; None for ``trainjob://models/<name>``.
        artifact: Which of the job's artifacts is the model.
        metric: By which models are compared.
        mode: Whether the largest or the smallest value of it is best: ``max`` or ``min``.
        kwargs: As for every Asset.

    Raises:
        ValueError: `mode` is neither, or the name cannot be one.
    """

    def __init__(
        self,
        name: str,
        uri: str | None = None,
        *,
        artifact: str = "model",
        metric: str = "accuracy",
        mode: Literal["max", "min"] = "max",
        **kwargs: Any,
    ) -> None:
        if mode not in ("max", "min"):
            raise ValueError(f"ModelAsset {name!r}: mode must be 'max' or 'min', got {mode!r}")
        super().__init__(name, uri or f"trainjob://models/{name}", **kwargs)
        self.artifact = artifact
        self.metric = metric
        self.mode = mode

    def last(self, inlet_events: Mapping[Any, Any]) -> dict[str, Any] | None:
        """Return what the last event said, None if there was none.

        Args:
            inlet_events: Of the context of a task that has this Asset among its inlets.
        """
        events = inlet_events[self]
        return dict(events[-1].extra) if len(events) else None

    def is_improved_by(self, metrics: Mapping[str, float], inlet_events: Mapping[Any, Any]) -> bool:
        """Return whether a model is better than that of the last event; the first model always is.

        Args:
            metrics: Of the new model, such as the XCom ``metrics`` of the task that trained it.
            inlet_events: Of the context of a task that has this Asset among its inlets.

        Raises:
            ValueError: The new model lacks the metric.
        """
        if self.metric not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            raise ValueError(f"ModelAsset {self.name!r} compares by {self.metric!r}; the model has {known}")
        before = (self.last(inlet_events) or {}).get("metrics", {}).get(self.metric)
        if before is None:
            return True
        difference = metrics[self.metric] - before
        return bool(difference > 0 if self.mode == "max" else difference < 0)


def check_outlets(task_id: str, outlets: Iterable[Any], *, waits: bool) -> None:
    """Refuse to announce a model that is not there yet.

    Raises:
        ValueError: The task only submits, and has a `ModelAsset` among its outlets.
    """
    early = next((outlet for outlet in outlets if isinstance(outlet, ModelAsset)), None)
    if early is not None and not waits:
        raise ValueError(
            f"task {task_id!r} only submits, so ModelAsset {early.name!r} would be new before there is a model; "
            "give it to the TrainJobSensor that waits"
        )


def announce(outlets: Iterable[Any], outcome: Outcome) -> None:
    """Write what a TrainJob left into the events of a task's Assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    if not assets:
        return
    events = get_current_context()["outlet_events"]
    for asset in assets:
        event = events[asset]
        event.extra = {**event.extra, **event_of(asset, outcome)}


def event_of(asset: Asset, outcome: Outcome) -> dict[str, Any]:
    """Return what the event of an Asset says of a TrainJob that is Complete."""
    said: dict[str, Any] = {
        "job": outcome.job.name,
        "ref": outcome.ref,
        "metrics": outcome.metrics,
        "artifacts": outcome.artifacts,
        "finished_at": outcome.finished_at,
    }
    if isinstance(asset, ModelAsset):
        said["artifact_uri"] = outcome.artifacts.get(asset.artifact)
    return said
