"""TrainJob, Step, Event: what a backend answers when it is asked about a job. JSON both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainer_core import checks
from trainer_core.observation import Progress
from trainer_core.runtimes import Runtime

__all__ = ["Event", "Step", "TrainJob"]

_VERSION = 1
_R = TypeVar("_R", bound="_Record")


@dataclass(frozen=True)
class _Record:
    """A frozen record that travels as JSON."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data; times as ISO 8601."""
        return {"version": _VERSION, **self._adapter().dump_python(self, mode="json")}

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls: type[_R], data: object) -> _R:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: Not such a record, or one of another version.
        """
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError(f"not a {cls.__name__} of version {_VERSION}: {str(data)[:120]!r}")
        given = {name: value for name, value in data.items() if name != "version"}
        try:
            record: _R = cls._adapter().validate_python(given)
        except ValidationError as error:
            raise ValueError(f"not a {cls.__name__}: {checks.one_line(error)}") from error
        return record

    @classmethod
    def from_json(cls: type[_R], text: str) -> _R:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not JSON, or not such a record.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a {cls.__name__}: {text[:120]!r} is not JSON ({error})") from error
        return cls.from_dict(data)

    @classmethod
    def _adapter(cls) -> TypeAdapter[Any]:
        kind: Any = cls
        return _adapter(kind)


@dataclass(frozen=True)
class Step(_Record):
    """One part of a TrainJob: an initializer, or a node.

    Attributes:
        name: ``dataset-initializer``, ``model-initializer``, or ``node-0`` … ``node-N``.
        status: Pending, Running, Succeeded or Failed, as of a pod; None when nothing is known of it.
        pod_name: The pod, container or process that is this step.
        device: What it computes on: ``"gpu"``, ``"cpu"``, …, or ``"Unknown"``.
        device_count: How many of it, as text, or ``"Unknown"``.
        exit_code: Once it has ended; negative for a signal.
        restarts: How often it was started again.
        node: The machine it runs on.
        started: When it started.
        finished: When it ended.
    """

    name: str
    status: str | None
    pod_name: str
    device: str = "Unknown"
    device_count: str = "Unknown"
    exit_code: int | None = None
    restarts: int = 0
    node: str | None = None
    started: datetime | None = None
    finished: datetime | None = None


@dataclass(frozen=True)
class TrainJob(_Record):
    """One run of training, as it was when the backend was asked.

    Attributes:
        name: Unique in its namespace at any one time.
        runtime: The blueprint it refers to.
        steps: Its parts, initializers first, then nodes by number.
        num_nodes: How many nodes train.
        creation_timestamp: When it was created.
        status: Created, Suspended, Running, Complete or Failed.
        uid: Identity of this very job; another job of the same name has another.
        namespace: Where the backend keeps it.
        labels: Its labels.
        annotations: Its annotations.
        reason: One line on why it has this status, where there is something to say.
        started: When its first step started.
        finished: When it ended.
        progress: What the training function last reported.
    """

    name: str
    runtime: Runtime
    steps: list[Step]
    num_nodes: int
    creation_timestamp: datetime
    status: str = "Unknown"
    uid: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    started: datetime | None = None
    finished: datetime | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Event(_Record):
    """Something that happened to a TrainJob or to a part of it.

    Attributes:
        involved_object_kind: Kind of what it happened to, such as ``"TrainJob"`` or ``"Pod"``.
        involved_object_name: Its name.
        message: What happened, for a person.
        reason: What happened, in one word for a program.
        event_time: When.
        type: ``"Normal"`` or ``"Warning"``.
    """

    involved_object_kind: str
    involved_object_name: str
    message: str
    reason: str
    event_time: datetime
    type: str = "Normal"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
