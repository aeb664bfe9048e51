"""How a wait in the triggerer ended, for the worker that continues the task. Airflow carries it as JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow_provider.exceptions import TrainJobUnreachableError
from trainer_core.model.jobs import TrainJobRef


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """The event of a trigger. Exactly one of `outcome`, `timeout`, `error` and `search` is set."""

    #: Ref of the TrainJob, with the place that the submitting process resolved.
    ref: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None
    #: The deadline has passed: what happened to the TrainJob.
    timeout: str | None = None
    #: With `timeout`: whether the TrainJob was cancelled.
    cancelled: bool | None = None
    #: Why the status of the TrainJob cannot be read.
    error: str | None = None
    #: With `error`: whether the TrainJob lives on a host that the triggerer cannot see.
    elsewhere: bool | None = None
    #: Of a search: ``must_create`` if trials are to be created, ``ended`` if it has ended.
    search: str | None = None
    #: Position in the log of the TrainJob up to which the trigger wrote it, see `airflow_provider.task_log`.
    log: Mapping[str, Any] | None = None

    @property
    def job(self) -> TrainJobRef:
        """Ref of the TrainJob."""
        return TrainJobRef.from_dict(self.ref)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON data, without what is None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> JobEvent:
        """Parse what `to_dict` returned."""
        try:
            event = cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})
            TrainJobRef.from_dict(event.ref)
        except (KeyError, TypeError, ValueError) as error:
            raise TrainJobUnreachableError(f"the event of the trigger has no valid TrainJob ref: {error}") from error
        return event
