"""A TrainJob once it exists: its ref, status, steps, events, observations and outcome, as frozen data.

`submit` returns a `TrainJobRef`, which finds the job again in any process. While the job runs, a wait gets an
`Observation` after each change: the status and the last `Progress`. `get` returns a `TrainJob` with its `Step`s. An
ended job has an `Outcome`: its result, or the `Diagnosis` of its failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from trainer_core.base import naming, resources, validation
from trainer_core.base.errors import TrainerError
from trainer_core.base.secrets import redact
from trainer_core.model.resource_use import ResourceUse
from trainer_core.model.runtimes import Runtime
from trainer_core.node import jsonable
from trainer_core.node.jsonable import extract_artifacts

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_VERSION = 1
_REF_FIELDS = ("backend", "namespace", "name", "uid")
#: Fields that JSON data has only if they have a value: programs of earlier releases refuse unknown fields.
_LEFT_OUT = frozenset({"objective", "paused_at", "memory", "restarts", "stamps", "fetched"})
#: Characters of a value that a message quotes.
_QUOTED = 120

#: The statuses of a TrainJob.
CREATED = "Created"
SUSPENDED = "Suspended"
RUNNING = "Running"
COMPLETE = "Complete"
FAILED = "Failed"
STATUSES = frozenset({CREATED, SUSPENDED, RUNNING, COMPLETE, FAILED})

#: Label of a TrainJob on Kubernetes: seconds after its end when it may be deleted.
DELETE_AFTER_LABEL = "trainjob-workflows/delete-after"
#: Label of a TrainJob with the id of the Kubeflow Pipelines run that it belongs to.
KFP_RUN_LABEL = "trainjob-workflows/kfp-run"
#: Label of a TrainJob: what happens to it when the KFP step that waits for it is terminated: ``cancel`` or ``keep``.
KFP_ON_KILL_LABEL = "trainjob-workflows/kfp-on-kill"
#: Label of a TrainJob: when a task has attached to it again, in seconds since 1970. An older cancellation is void.
ATTACHED_LABEL = "trainjob-workflows/attached-at"
#: Label of a TrainJob with its partition as `naming.build_partition_slug` returns it, and annotation with the key.
PARTITION_LABEL = "trainjob-workflows/partition"
#: Label of a TrainJob whose result a later one can take: a hash of all that decides what it trains.
REUSE_LABEL = "trainjob-workflows/reuse-key"
#: Label of a TrainJob of a search: the search's key, hashed by `naming.hash_owner_key`.
SEARCH_LABEL = "trainjob-workflows/search"
#: Label of a TrainJob that records how a search ended, and trains nothing.
SEARCH_RECORD_LABEL = "trainjob-workflows/search-record"


def build_partition_labels(key: str | None) -> dict[str, str]:
    """Return the label of a TrainJob with this partition; empty without one."""
    return {} if key is None else {PARTITION_LABEL: naming.build_partition_slug(key)}


def build_reuse_labels(key: str | None) -> dict[str, str]:
    """Return the label of a TrainJob with this key of all that decides what it trains; empty without one."""
    return {} if key is None else {REUSE_LABEL: key}


def build_partition_annotations(key: str | None) -> dict[str, str]:
    """Return the annotation of a TrainJob with this partition; empty without one."""
    return {} if key is None else {PARTITION_LABEL: key}


@dataclass(frozen=True)
class TrainJobRef:
    """Reference to one TrainJob: small JSON data that travels through XCom and KFP parameters.

    Any process that can reach the backend finds the TrainJob by it.

    Attributes:
        backend: Name of the backend, such as ``"local"`` or ``"kubernetes"``.
        namespace: Namespace of the TrainJob: a Kubernetes namespace; the absolute path of the state folder on the
            local backend.
        name: Name of the TrainJob. Unique in its namespace at any time.
        uid: Identity of this TrainJob. A TrainJob that is deleted and created again under the same name has another.
        host: Where a TrainJob of the local or container backend lives, separated by slashes: hostname, boot id, PID
            namespace and identity of the state folder, or hostname and identity of the engine. None (the default) on
            other backends. Refs are compared without it.
        reused: True if the TrainJob belongs to another run, and only its result is taken: the client neither
            changes, ends nor deletes it by this ref. Refs are compared without it.
    """

    backend: str
    namespace: str
    name: str
    uid: str
    host: str | None = field(default=None, compare=False)
    reused: bool = field(default=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the ref as plain JSON data."""
        left_out = {name for name in ("host", "reused") if not getattr(self, name)}
        return {"version": _VERSION, **{key: value for key, value in asdict(self).items() if key not in left_out}}

    @classmethod
    def from_dict(cls, data: Any) -> TrainJobRef:
        """Read what `to_dict` returned.

        Args:
            data: The dict.

        Raises:
            ValueError: The data is not a ref, or was written by a newer version.
        """
        quoted = repr(str(data)[:_QUOTED])
        values = dict(data) if isinstance(data, Mapping) else {}
        if values.get("version") != _VERSION:
            raise ValueError(
                f"{quoted} is not a TrainJob ref of version {_VERSION}: expected a dict with {', '.join(_REF_FIELDS)}; "
                "pass what submit returned"
            )
        strings = {key: values[key] for key in _REF_FIELDS if isinstance(values.get(key), str) and values[key]}
        if len(strings) < len(_REF_FIELDS):
            missing = ", ".join(sorted(set(_REF_FIELDS) - set(strings)))
            raise ValueError(f"{quoted} is not a TrainJob ref: it lacks {missing}; pass what submit returned")
        host = values.get("host")
        return cls(**strings, host=host if isinstance(host, str) else None, reused=values.get("reused") is True)

    def to_json(self) -> str:
        """Return the ref as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TrainJobRef:
        """Read what `to_json` returned.

        Args:
            text: The JSON.

        Raises:
            ValueError: The string is not JSON, or not a ref.
        """
        return cls.from_dict(validation.parse_json("a TrainJob ref, as submit prints it,", text))


@dataclass(frozen=True)
class OwnerReference:
    """A Kubernetes object that owns a TrainJob (``metadata.ownerReferences[]``).

    Attributes:
        api_version: API version of the owner, such as ``"argoproj.io/v1alpha1"``.
        kind: Kind of the owner, such as ``"Workflow"``.
        name: Name of the owner.
        uid: Uid of the owner.
    """

    api_version: str
    kind: str
    name: str
    uid: str

    @classmethod
    def from_manifest(cls, data: Mapping[str, Any]) -> OwnerReference:
        """Read an entry of ``metadata.ownerReferences``."""
        return cls(data["apiVersion"], data["kind"], data["name"], data["uid"])

    def to_manifest(self) -> dict[str, str]:
        """Return an entry of ``metadata.ownerReferences``."""
        return {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid}


class RungValue(NamedTuple):
    """The first value of a search's objective at or after a rung.

    Attributes:
        rung: Number of the rung, 0 for the first.
        step: Step that was reported with it.
        value: The value. None if it was not a finite number.
        time_ms: When it was reported, in milliseconds since 1970.
    """

    rung: int
    step: float
    value: float | None
    time_ms: int


@dataclass(frozen=True)
class ObjectiveReport:
    """What a trial has reported of the objective of its search.

    Attributes:
        value: The last value. None if it was not a finite number.
        step: The step of the last value. None if it was reported without one.
        best: The best of all values. None without one.
        rungs: The values at rungs, by rung.
    """

    value: float | None = None
    step: float | None = None
    best: float | None = None
    rungs: tuple[RungValue, ...] = ()

    @classmethod
    def parse(cls, data: object) -> ObjectiveReport | None:
        """Return the report of a line or a termination record; None if it is not one. Any program may write them."""
        if not isinstance(data, dict):
            return None
        try:
            rungs = tuple(
                RungValue(int(rung), float(step), _get_finite(value), int(time))
                for rung, step, value, time in data["rungs"]
            )
        except (LookupError, TypeError, ValueError, OverflowError):
            return None
        numbers = {name: _get_finite(data.get(name)) for name in ("value", "step", "best")}
        return cls(rungs=rungs, **numbers)


@dataclass(frozen=True)
class Progress:
    """The last progress report of a training function.

    Attributes:
        step: Steps done, in a unit that the function chooses. None if not reported.
        total: Steps in total. None if unknown.
        metrics: Numbers by name: the last that was reported under each.
        checkpoint: Step of the last checkpoint. None without one.
        resumed_from: Step of the checkpoint from which the function was resumed. None if it began from the start.
        objective: What was reported of the objective of a search. None outside of a search.
        silent: How long the training has given no sign of progress, and how long it may (option `Stalled`), such as
            ``22 of 30 min``. None for a shorter time than a quarter of the limit.
    """

    step: float | None
    total: float | None
    metrics: Mapping[str, float]
    checkpoint: int | None = None
    resumed_from: int | None = None
    objective: ObjectiveReport | None = None
    silent: str | None = None

    @property
    def percentage(self) -> int | None:
        """Steps done as a percentage, 0 to 100. None if unknown."""
        if self.step is None or not self.total:
            return None
        return max(0, min(100, int(100 * self.step / self.total)))

    def __str__(self) -> str:
        """Return the report as text, such as ``50% (5/10) loss=0.1``."""
        steps = [f"{number:.15g}" for number in (self.step, self.total) if number is not None]
        percent = self.percentage
        where = f"{percent}% ({'/'.join(steps)})" if percent is not None else "/".join(steps)
        metrics = (f"{name}={value:g}" for name, value in self.metrics.items())
        silence = self.silent and f"silent for {self.silent}"
        return " ".join(part for part in (where, *metrics, silence) if part)


_R = TypeVar("_R", bound="_Record")


@dataclass(frozen=True)
class _Record:
    """Base of frozen dataclasses with a JSON form."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data. Times are ISO 8601."""
        kind: Any = type(self)
        return {"version": _VERSION, **_type_adapter(kind).dump_python(self, mode="json")}

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls: type[_R], data: object) -> _R:
        """Read what `to_dict` returned.

        Args:
            data: The dict.

        Raises:
            ValueError: The data is invalid, or was written by another version.
        """
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError(f"{redact(data)} is not a {cls.__name__} of version {_VERSION}")
        record: _R = _validate(cls, {name: value for name, value in data.items() if name != "version"})
        return record

    @classmethod
    def from_json(cls: type[_R], text: str) -> _R:
        """Read what `to_json` returned.

        Args:
            text: The JSON.

        Raises:
            ValueError: The string is not JSON, or the data is invalid.
        """
        return cls.from_dict(validation.parse_json(f"a {cls.__name__}", text))


def _validate(kind: Any, data: object) -> Any:
    """Return the object of a dataclass for its JSON data."""
    from pydantic import ValidationError  # See `_type_adapter`.

    try:
        return _type_adapter(kind).validate_python(data)
    except ValidationError as error:
        raise ValueError(f"{kind.__name__} is invalid: {validation.format_problems(error)}") from error


@cache
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    # Takes 90 ms and 10 MB, and the supervisor of a local job only writes records.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@dataclass(frozen=True)
class Step(_Record):
    """One part of a TrainJob: an initializer or a node.

    Attributes:
        name: ``dataset-initializer``, ``model-initializer``, ``launcher``, or ``node-0`` … ``node-N``.
        status: ``Pending``, ``Running``, ``Succeeded`` or ``Failed``, as for a pod. None if unknown.
        pod_name: Name of the pod or container, or id of the process.
        device: What it computes on, such as ``"gpu"`` or ``"cpu"``. ``"Unknown"`` if unknown.
        device_count: Number of devices as text. ``"Unknown"`` if unknown.
        exit_code: Exit code once it has ended; negative for a signal, as in `subprocess`. None before.
        restarts: How often it was restarted.
        node: Name of the machine it runs on. None if unknown.
        started: When it started. None before.
        finished: When it ended. None before.
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
    """One run of training, as the backend reported it.

    Attributes:
        name: Name of the TrainJob (``metadata.name``). Unique in its namespace at any time.
        runtime: The runtime it refers to (``spec.runtimeRef``).
        steps: Its steps: initializers first, then nodes by number.
        num_nodes: Number of training nodes (``spec.trainer.numNodes``).
        creation_timestamp: When it was created (``metadata.creationTimestamp``).
        status: ``Created``, ``Suspended``, ``Running``, ``Complete`` or ``Failed``.
        uid: Identity of this TrainJob (``metadata.uid``). Another TrainJob of the same name has another.
        namespace: Namespace of the TrainJob (``metadata.namespace``).
        labels: Its labels (``metadata.labels``).
        annotations: Its annotations (``metadata.annotations``).
        reason: Why it has this status, in one line. None if there is nothing to report.
        started: When its first step started. None before.
        finished: When it ended. None before.
        progress: The last progress report of the training function. None without one.
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

    @property
    def partition(self) -> str | None:
        """Key of the partition that it trains for. None without one."""
        return self.annotations.get(PARTITION_LABEL)


@dataclass(frozen=True)
class Event(_Record):
    """An event of a TrainJob or of one of its objects, as in the Kubernetes events API.

    Attributes:
        involved_object_kind: Kind of the object, such as ``"TrainJob"`` or ``"Pod"``.
        involved_object_name: Name of the object.
        message: What happened, for a person.
        reason: What happened, as one word for a program.
        event_time: When it happened.
        type: ``"Normal"`` or ``"Warning"``.
    """

    involved_object_kind: str
    involved_object_name: str
    message: str
    reason: str
    event_time: datetime
    type: str = "Normal"


class Category(str, Enum):
    """Why a TrainJob failed. The values are a stable contract: alerts and retry policies may match on them.

    `STOPPED_EARLY` is no failure: a search has ended a trial that was not among the best.
    """

    USER_CODE = "UserCode"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE = "Image"
    SCHEDULING = "Scheduling"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    STALLED = "Stalled"
    DEADLINE = "Deadline"
    INITIALIZER = "Initializer"
    REJECTED = "Rejected"
    DELETED = "Deleted"
    INFRASTRUCTURE = "Infrastructure"
    STOPPED_EARLY = "StoppedEarly"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a TrainJob failed.

    Attributes:
        category: The kind of failure.
        reason: What happened, in one line.
        step: The step that failed, such as ``"node-0"``. None if the failure is not that of a single step.
        node: Machine or pod of that step. None if unknown.
        exit_code: Exit code of that step; negative for a signal, as in `subprocess`.
        traceback: Traceback of the training function. None if it raised no exception.
        log_tail: Last lines of that step's log.
        retryable: True if running the same request again can succeed.
        objective: Of a trial that a search has ended: what it had reported. None for others.
    """

    category: Category
    reason: str
    step: str | None = None
    node: str | None = None
    exit_code: int | None = None
    traceback: str | None = None
    log_tail: tuple[str, ...] = ()
    retryable: bool = False
    objective: ObjectiveReport | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self, dict_factory=_build_json_dict)

    @classmethod
    def from_dict(cls, data: object) -> Diagnosis:
        """Read what `to_dict` returned.

        Args:
            data: The dict.

        Raises:
            ValueError: The data is not a diagnosis.
        """
        diagnosis: Diagnosis = _validate(cls, data)
        return diagnosis

    def __str__(self) -> str:
        where = f" in {self.step}" if self.step else ""
        return f"{self.category}{where}: {self.reason}"


@dataclass(frozen=True)
class AttemptMemory:
    """The memory of an attempt after which another one may ask for more, as Kubernetes quantities.

    Attributes:
        amount: What each node of this attempt asks for.
        asked: What the request asks for.
        next: What the next attempt asks for if this one runs out of memory. None if this one has the limit.
    """

    amount: str
    asked: str
    next: str | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for quantity in (self.amount, self.asked, self.next or self.amount):
            resources.parse_memory(quantity)

    @classmethod
    def parse(cls, data: object) -> AttemptMemory | None:
        """Return the memory that is recorded with a TrainJob; None if it is damaged. Anyone may edit an annotation."""
        try:
            memory: AttemptMemory = _validate(cls, data)
        except ValueError:
            return None
        return memory

    def __str__(self) -> str:
        """Return the amount as text, such as ``12Gi (asked 8Gi)``."""
        return self.amount if self.amount == self.asked else f"{self.amount} (asked {self.asked})"


@dataclass(frozen=True)
class RestartCause:
    """Why a training was started again.

    Attributes:
        category: Category of the failure that ended the start before.
        step: How far that start came: its last checkpoint, or without the option `Checkpoints` the last step that it
            reported; 0 for none. None if unknown, as where a pod and its record were deleted.
        at: When it ended, ISO 8601 in UTC. None if unknown.
        counted: Whether the restart counts in ``max_restarts``.
        delay: Seconds from that end to the restart.
        seconds: Run time of that start, in seconds.
    """

    category: str
    step: float | None = None
    at: str | None = None
    counted: bool = True
    delay: float = 0.0
    seconds: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Restarts:
    """The restarts of a training with the option `RestartPolicy`, over all TrainJobs of its owner and generation.

    Attributes:
        total: How many there were.
        counted: How many of them count in ``max_restarts``.
        causes: Why, oldest first; the last 20.
        seconds: Run time of the starts that ended, in seconds.
        step: The furthest that one of them came; see `RestartCause`. None if unknown.
        without_progress: How many starts in a row ended without getting further, as far as it is known.
        following: After a failure: the restart that follows it. None if there is none.
    """

    total: int = 0
    counted: int = 0
    causes: tuple[RestartCause, ...] = ()
    seconds: float = 0.0
    step: float | None = None
    without_progress: int = 0
    following: RestartCause | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Outcome(_Record):
    """What a TrainJob that has ended left. XCom and KFP outputs carry it as JSON.

    Attributes:
        ref: The TrainJob, as `TrainJobRef.to_dict` returns it.
        status: ``"Complete"`` or ``"Failed"``.
        result: Return value of the training function on rank 0. For a TrainJob that only initializes, the locations
            as ``{"dataset": uri, "model": uri}``.
        metrics: Numbers of the result (its ``metrics`` entry if it has one, otherwise its top level), and the last
            value that `progress` reported under each name which the result does not have.
        artifacts: URIs by name: the ``artifacts`` entry of the result, and what the initializers fetched.
        diagnosis: Why it failed. None for a complete TrainJob.
        started_at: When the first step started, ISO 8601 in UTC.
        finished_at: When it ended, ISO 8601 in UTC.
        result_truncated: True if the result exceeded the limit (4,096 bytes as JSON) and was left out. Its numbers and
            artifacts are kept.
        result_note: What became null in `result`, or why it is None although the function returned a value, and
            which metrics are absent because the function returned no finite number.
        checkpoint: Step of its last checkpoint. None without one.
        resumed_from: Step of the checkpoint from which it was last resumed. None if it began from the start.
        resource_use: Its use of processor, memory and GPUs. None if it ended before the first report, or if reports
            are switched off or not available.
        objective: What it reported of the objective of its search. None outside of a search.
        paused_at: Step of the rung at which a trial has paused, with a checkpoint. None if it did not.
        memory: What this attempt asked for. None unless another one may ask for more.
        restarts: The restarts before this end, and whether another one follows. None without the option
            `RestartPolicy`.
        stamps: Hash by name of each artifact of the result: content or sizes and times of its files, or ETags in S3.
            None if none was read.
        fetched: Where the initializers have put the data, by role. None without initializers.
    """

    ref: dict[str, Any]
    status: Literal["Complete", "Failed"]
    result: Any = None
    metrics: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    started_at: str | None = None
    finished_at: str | None = None
    result_truncated: bool = False
    result_note: str | None = None
    checkpoint: int | None = None
    resumed_from: int | None = None
    resource_use: ResourceUse | None = None
    objective: ObjectiveReport | None = None
    paused_at: int | None = None
    memory: AttemptMemory | None = None
    restarts: Restarts | None = None
    stamps: dict[str, str] | None = None
    fetched: dict[str, str] | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the TrainJob is Complete."""
        return self.status == COMPLETE

    @property
    def duration(self) -> timedelta | None:
        """Time from the start of its first step to its end. None if no step started."""
        if self.started_at is None or self.finished_at is None:
            return None
        # Python 3.10 does not read the Z.
        begin, end = (
            datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (self.started_at, self.finished_at)
        )
        return end - begin

    @property
    def missing_result(self) -> str | None:
        """Why the result, or a number in it, is missing, in one line. None if nothing is missing."""
        if self.result_truncated:
            return f"{self.result_note or 'the result is too large to return'}; set result_uri to write it to a file"
        return f"no result: {self.result_note}" if self.result_note and self.result is None else self.result_note

    def lacks(self, metric: str) -> bool:
        """Return whether the function returned no finite number under this name, whatever was reported before."""
        return metric not in self.metrics and (self.result_truncated or metric in jsonable.extract_metrics(self.result))

    @property
    def job(self) -> TrainJobRef:
        """The TrainJob as a ref."""
        return TrainJobRef.from_dict(self.ref)

    @property
    def reused(self) -> bool:
        """Whether it is the outcome of an earlier TrainJob, which trained the same."""
        return self.job.reused

    @property
    def reused_from(self) -> str | None:
        """Name of the earlier TrainJob whose outcome it is. None for one that was trained for this request."""
        return self.job.name if self.reused else None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON data."""
        return {"version": _VERSION, **asdict(self, dict_factory=_build_json_dict)}


def mark_reused(outcome: Outcome) -> Outcome:
    """Return the outcome of an earlier TrainJob whose result is taken."""
    return replace(outcome, ref={**outcome.ref, "reused": True})


class JobFailedError(TrainerError, RuntimeError):
    """The TrainJob ended with status Failed.

    Attributes:
        outcome: Its outcome, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.outcome)  # A process pool sends errors as pickles.


def _build_json_dict(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON data of a dataclass whose values are strings, numbers, enums, tuples and JSON data."""
    return {name: _to_json_value(value) for name, value in items if value is not None or name not in _LEFT_OUT}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return [_to_json_value(each) for each in value] if isinstance(value, tuple) else value


def describe_status(status: str, reason: str | None) -> str:
    """Return the status of a TrainJob for people: a trial that its search has ended has not failed."""
    is_stopped = status == FAILED and (reason or "").startswith(Category.STOPPED_EARLY.value)
    return "Stopped early" if is_stopped else status


@dataclass(frozen=True)
class PendingFailure:
    """Why a TrainJob that has not ended will fail unless its situation changes.

    Attributes:
        diagnosis: The expected failure.
        grace: Seconds after which a wait with ``fail_fast`` cancels the TrainJob. None: it is not cancelled for this.
        start_within: Seconds until every wait cancels the TrainJob, unless it starts before. None without such a limit.
    """

    diagnosis: Diagnosis
    grace: float | None = None
    start_within: float | None = None


@dataclass(frozen=True)
class Observation:
    """Status of a TrainJob at one moment.

    Attributes:
        status: One of `STATUSES`.
        progress: The last progress report. None without one.
        outcome: What the TrainJob left. Set if and only if the status is Complete or Failed.
        pending_failure: Why it will fail unless its situation changes. None if nothing is wrong, or if it has ended.
        outcome_is_stored: Whether `outcome` was read from the TrainJob itself, so that it need not be stored again.
        queued: What it waits for in the queue of its backend, such as ``queued: 2 TrainJobs are ahead``. None if it
            does not wait, or if the backend does not report it.
        restarts: With the option `RestartPolicy`: the restarts before the current start. None where they are known
            from the request or the outcome.
    """

    status: str
    progress: Progress | None = None
    outcome: Outcome | None = None
    pending_failure: PendingFailure | None = None
    outcome_is_stored: bool = False
    queued: str | None = None
    restarts: Restarts | None = None


def build_complete_outcome(
    ref: TrainJobRef,
    termination: Mapping[str, Any],
    *,
    started_at: str | None,
    finished_at: str | None,
    last_progress: Progress | None = None,
    fetched: Mapping[str, str] | None = None,
    resource_use: ResourceUse | None = None,
    memory: AttemptMemory | None = None,
    restarts: Restarts | None = None,
) -> Outcome:
    """Build the outcome of a complete TrainJob from the record of rank 0, which is empty if it only initializes."""
    uris = dict(fetched or {})
    result = termination.get("result") if termination else (uris or None)
    # What the node kept of a result that is too large.
    kept = termination.get("kept") if termination.get("truncated") else result
    is_known = not (termination.get("truncated") and isinstance(kept, dict) and kept.get("incomplete"))
    reported = last_progress.metrics if last_progress and is_known else {}
    metrics = extract_metrics(kept, reported)
    absent = ", ".join(sorted(reported.keys() - metrics.keys()))
    why = f"no metric, because the function returned no finite number: {absent}" if absent else None
    return Outcome(
        ref=ref.to_dict(),
        status="Complete",
        result=result,
        metrics=metrics,
        artifacts={**uris, **extract_artifacts(kept)},
        started_at=started_at,
        finished_at=finished_at,
        result_truncated=bool(termination.get("truncated")),
        result_note="; ".join(filter(None, (termination.get("note"), why))) or None,
        resource_use=resource_use,
        memory=memory,
        restarts=restarts,
        stamps=termination.get("stamps") or None,
        fetched=uris or None,
        **extract_training_state([termination], last_progress),
    )


def extract_training_state(
    records: Iterable[Mapping[str, Any] | None], last_progress: Progress | None = None
) -> dict[str, Any]:
    """Return the fields of an outcome about checkpoints and the objective of a search, from the records, newest first.

    The last progress is for a node whose record is missing.
    """
    known = [record for record in records if record]
    saved = next((record for record in known if "checkpoint" in record), {})
    fields = {name: saved.get(name) for name in ("checkpoint", "resumed_from")}
    objective = next((record["objective"] for record in known if "objective" in record), None)
    fields["objective"] = ObjectiveReport.parse(objective) if objective is not None else None
    fields["paused_at"] = next((record["paused_at"] for record in known if "paused_at" in record), None)
    if last_progress is not None:
        fields["objective"] = last_progress.objective or fields["objective"]
        if not saved:
            fields.update(checkpoint=last_progress.checkpoint, resumed_from=last_progress.resumed_from)
    return fields


def extract_metrics(result: Any, reported: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the numbers of a result, and those that were reported under names which the function did not return."""
    found = {**(reported or {}), **jsonable.extract_metrics(result)}
    return {name: value for name, value in found.items() if value is not None}


def _get_finite(value: Any) -> float | None:
    return extract_metrics({"value": value}).get("value")
