"""The run of one TrainJob: its creation after the submit, what binds it to its job, its points, and its end.

Only the run's id must be known before the job exists. Everything else is sent after the submit has returned: by the
thread of the process that submitted, else by the next process that waits for the job or submits it again. The tag
``trainjob.uid`` is sent last; a run that has it is complete.

A run without this tag whose TrainJob exists with another run was created by a submitter that was killed, or that lost a
race. It is deleted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.base.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.model.jobs import CREATED, SUSPENDED, Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.model.request import TrackingRequest, TrainJobRequest
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MAX_BATCH, MAX_VALUE, MlflowApi, MlflowRun, fit_names

_log = logging.getLogger(__name__)

DEFAULT_EXPERIMENT = "trainjob"
#: Code of the error that a person deleted the run: nothing completes it.
DELETED = "RUN_DELETED"
#: Prefix of metrics that the training logs itself under the same name.
_PREFIX = "progress/"
_SYSTEM = "system/"
#: Characters of a tag's value. Longer names of metrics are recorded by their hash.
_MAX_TAG, _MAX_NAME = 4000, 250
#: Experiments in one search.
_MAX_EXPERIMENTS = 100
#: Points that wait for the next report.
_MAX_HELD = 5 * MAX_BATCH
#: Name, value, milliseconds since 1970, and step of a point of a curve.
Point = tuple[str, float, int, int]


class RunWriter:
    """Writes one run, and keeps what the server is known to have of it.

    Points are sent with the next report, which reads the run first: a metric that the training has begun to log itself
    gets only the points before its own.

    Attributes:
        tags: Tags that the run had when it was read.
        cursor: Position in the job's log up to which the points were sent, by any process.
        step: Step of the training at that position.
        writes: Number of requests that stored something.
    """

    def __init__(self, api: MlflowApi, run_id: str, job: str) -> None:
        self.api = api
        self.id = run_id
        self.experiment_id = ""
        self.tags: dict[str, str] = {}
        self.cursor: dict[str, Any] = {}
        self.step = 0
        self.writes = 0
        self._job = job
        #: Step, timestamp and value of the latest point of each metric; and step and timestamp of our latest one.
        self._latest: dict[str, tuple[int, int, float]] = {}
        self._own: dict[str, tuple[int, int]] = {}
        self._keys: dict[str, str] = {}
        #: Metrics that the training began to log after us: key, and timestamp and step of its first point.
        self._taken: dict[str, tuple[str, int, int]] = {}
        self._status: str | None = None
        #: Points to send; how many of them earlier reports had; the positions in the log after these, and after all.
        self._held: list[Point] = []
        self._ready = 0
        self._ready_position: dict[str, str] = {}
        self._position: dict[str, str] = {}
        #: Names of metrics whose latest point is newer than what was read of the log: ours, or that of the training.
        self._undecided: set[str] = set()
        #: Times of the newest point before the position at which this process began, and of the newest that it read.
        self._begin, self._newest = math.inf, 0.0
        self._refused: set[str] = set()

    @property
    def has_held_points(self) -> bool:
        """Whether points wait for the next report."""
        return bool(self._held) and not self._undecided

    def load(self) -> None:
        run = self.api.get_run(self.id)
        if run.is_deleted:
            raise _build_deletion(self.id)
        self.experiment_id = run.info.experiment_id
        is_first = self._status is None
        self.tags, self._latest, self._status = run.tags, run.latest, run.info.status
        announced = [_parse_keys(value) for key, value in self.tags.items() if key.startswith(tags.CURVES)]
        pairs = [pair for found in announced for pair in found.items()]
        self._keys |= sorted(pairs, key=lambda pair: pair[1].startswith(_PREFIX))
        if is_first:
            self.cursor, self.step, self._begin = _parse_cursor(self.tags.get(tags.CURSOR, ""))
            self._newest = self._begin if self.cursor else 0
            stored = {key: self._latest[key][:2] for key in self._keys.values() if key in self._latest}
            self._own = {key: point for key, point in stored.items() if point[1] <= self._begin}

    def set_status(self, status: str | None) -> None:
        """Set RUNNING or SCHEDULED while the job has not ended."""
        wanted = "SCHEDULED" if status in (CREATED, SUSPENDED) else "RUNNING"
        if status is not None and wanted != self._status:
            self.api.post("runs/update", run_id=self.id, status=wanted)
            self._status = wanted

    def begin_report(self) -> None:
        """Let the points that the previous report held be sent. Call it before the log is read."""
        if self._held:
            self.load()
        self._ready, self._ready_position = len(self._held), self._position

    def send(
        self,
        points: Sequence[Point],
        cursor: Mapping[str, Any] | None = None,
        step: int = 0,
        job_ended: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Send the points of earlier reports, and hold these ones, unless the job has ended.

        `is_whole`: the job's log was read to its present end.
        """
        held = [*self._held, *points]
        self._newest = max([self._newest, *(timestamp for _, _, timestamp, _ in points)])
        position = self._position if cursor is None else _build_cursor_tag(cursor, step, self._newest)
        count, reached = self._ready, self._ready_position
        if job_ended or len(held) > _MAX_HELD:
            count, reached = len(held), position
        # By what the run had before the log was read; new names by what it has now.
        self._undecided = self._find_undecided(held, is_whole)
        self._choose_keys({name for name, *_ in held[:count]})
        waiting = [point for point in held[:count] if _shorten(point[0]) in self._undecided]
        metrics = [self._build_metric(point) for point in held[:count] if _shorten(point[0]) not in self._undecided]
        reached = {} if waiting else reached
        if metrics or (reached and reached[tags.CURSOR] != self.tags.get(tags.CURSOR)):
            self._log(metrics, reached)
            self.tags |= reached
        self._held, self._ready, self._position = [*waiting, *held[count:]], len(waiting), position

    def _build_metric(self, point: Point) -> dict[str, Any]:
        name, value, timestamp, step = point
        key, first, first_step = self._taken.get(_shorten(name), ("", 0, 0))
        if not key or timestamp >= first or step >= first_step:
            key = self._keys[_shorten(name)]
        return {"key": key, "value": value, "timestamp": timestamp, "step": step}

    def _find_undecided(self, held: Sequence[Point], is_whole: bool) -> set[str]:
        """Leave the metrics that the training logs itself to it; return those of which it is not known yet."""
        read = {(_shorten(name), step, timestamp) for name, _, timestamp, step in held}
        newest = math.inf if is_whole else self._newest
        undecided = set()
        for name, key in [*self._keys.items()]:
            latest = self._latest.get(key)
            if latest is None or key.startswith((_PREFIX, _SYSTEM)) or key in self._refused:
                continue
            step, timestamp, _ = latest
            if self._own.get(key) == (step, timestamp) or (name, step, timestamp) in read:
                continue
            if timestamp < newest:
                self._leave(name, key, read)
            else:
                undecided.add(name)
        return undecided

    def _leave(self, name: str, key: str, read: Collection[tuple[str, int, int]]) -> None:
        """Send no point of a metric after the first one of the training, which logs it too."""
        _, before = self._own.get(key, (0, self._begin))
        history = self.api.get_history(self.id, key)
        points = [(each.timestamp, each.step) for each in history if (name, each.step, each.timestamp) not in read]
        first = min((point for point in points if point[0] > before), default=(0, 0))
        renamed = {name: f"{_PREFIX}{key}"[:_MAX_NAME]}
        self._log((), _build_key_tags(renamed))
        self._keys |= renamed
        self._taken[name] = (key, *first)

    def end(self, outcome: Outcome) -> None:
        """Send how the job ended. The rest of its log, and `complete`, may follow from another process."""
        # The job may have been deleted since its end was sent.
        status = self.tags.get(tags.PENDING) or tags.get_run_status(outcome)
        if not self.tags.get(tags.PENDING):
            described = tags.build_outcome_tags(outcome)
            renamed = tags.build_renamed("artifacts", described)
            self._log((), {**described, **renamed, tags.PENDING: status})
            _warn_renamed(self._job, renamed)
        if self._status != status or not self.tags.get(tags.PENDING):
            finished = _to_milliseconds(outcome.finished_at)
            self.api.post("runs/update", run_id=self.id, status=status, end_time=finished)
            self.writes += 1

    def complete(self, outcome: Outcome, step: int) -> None:
        """Send the final metrics as the last points of their curves, and that nothing is missing.

        Those that the training itself has logged are left to it.
        """
        self.send((), job_ended=True, is_whole=True)
        new = {name for name in outcome.metrics if _shorten(name) not in self._keys}
        self._choose_keys(outcome.metrics, announce=False)
        finished = _to_milliseconds(outcome.finished_at)
        keys = {name: self._keys[_shorten(name)] for name in outcome.metrics}
        last: dict[str, float | str] = {keys[name]: value for name, value in outcome.metrics.items()}
        # The curve stays; NaN as its last point: the last value of the curve is not that of the model.
        last |= {
            key: "NaN"
            for name, key in self._keys.items()
            if outcome.lacks(name) and not key.startswith(_SYSTEM) and key in self._latest
        }
        metrics = []
        for key, value in last.items():
            at, timestamp, stored = self._latest.get(key, (step, 0, None))
            if not key.startswith(_PREFIX) and str(stored) != str(float(value)):
                # The server's last point is that of the highest step, then of the latest time.
                timestamp = max(finished, timestamp + 1)
                metrics.append({"key": key, "value": value, "timestamp": timestamp, "step": max(step, at)})
        renamed = {name: keys[name] for name in new if keys[name] != name and not keys[name].startswith(_PREFIX)}
        self._log(metrics, {**_build_key_tags(renamed), tags.REPORTED: outcome.job.uid, tags.PENDING: ""})

    def _choose_keys(self, names: Iterable[str], announce: bool = True) -> None:
        """Choose the metric of each new name, by what the run has now.

        The names are announced before their points: the next process that reports must not take them for those of the
        training.
        """
        new = sorted(name for name in names if _shorten(name) not in self._keys)
        if not new:
            return
        self.load()
        own = set(self._keys.values())
        chosen = fit_names([name for name in new if _shorten(name) not in self._keys], own)
        for name, key in chosen.items():
            if key in self._latest and key not in own:
                chosen[name] = f"{_PREFIX}{key}"[:_MAX_NAME]
        if announce and chosen:
            self._log((), _build_key_tags(chosen))
        self._keys |= {_shorten(name): key for name, key in chosen.items()}
        changed = {name[:_MAX_NAME]: key for name, key in chosen.items() if key not in (name, _PREFIX + name)}
        if changed:
            _log.warning("TrainJob %s: MLflow takes no metrics of such names; stored as %s", self._job, changed)

    def _log(self, metrics: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> None:
        kept = [each for each in metrics if each["key"] not in self._refused]
        refused = self.api.log_batch(self.id, kept, tags=fields)
        self.writes += 1
        for each in kept:
            key, point = each["key"], (each["step"], each["timestamp"])
            self._own[key] = max(point, self._own.get(key, point))
            self._latest[key] = max((*point, float(each["value"])), self._latest.get(key, (*point, -math.inf)))
        for key, error in refused.items():
            _log.warning("TrainJob %s: the run lacks %s: %s", self._job, key, error)
        self._refused |= refused.keys()


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME else hashlib.sha256(name.encode(errors="replace")).hexdigest()


def _parse_keys(value: str) -> dict[str, str]:
    try:
        data = json.loads(value)
    except ValueError:  # A person changed the tag.
        return {}
    found = data if isinstance(data, dict) else {}
    return {name: key for name, key in found.items() if isinstance(key, str)}


def _build_key_tags(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that announce the metrics of names, each short enough to be stored."""
    found: dict[str, str] = {}
    part: dict[str, str] = {}
    for name, key in [*sorted(keys.items()), ("", "")]:
        text = json.dumps({**part, _shorten(name): key}, ensure_ascii=False)
        if part and (not key or len(text) > _MAX_TAG):
            whole = json.dumps(part, ensure_ascii=False)
            found[f"{tags.CURVES}.{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:8]}"] = whole
            part = {}
        part[_shorten(name)] = key
    return found


def _parse_cursor(value: str) -> tuple[dict[str, Any], int, float]:
    """Return a position in the log, the step there, and the time of the newest point before it."""
    try:
        data = json.loads(value)
        return dict(data["cursor"]), int(data["step"]), float(data.get("time", math.inf))
    except (ValueError, TypeError, KeyError):
        return {}, 0, math.inf


def _build_cursor_tag(cursor: Mapping[str, Any], step: int, newest: float) -> dict[str, str]:
    value = json.dumps({"cursor": cursor, "step": step, "time": newest})
    return {tags.CURSOR: value} if len(value) <= _MAX_TAG else {}


def _to_milliseconds(timestamp: str | None) -> int:
    if timestamp is None:
        return int(time.time() * 1000)
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)


def _build_deletion(run_id: str) -> TrackingError:
    return TrackingError(f"run {run_id} was deleted; it is left alone", code=DELETED)


def create_late_run(api: MlflowApi, backend: Backend, request: TrainJobRequest, ref: TrainJobRef) -> str:
    """Return the run of a job that was created while the server was away; create it if necessary.

    Several processes may do so at the same time: each takes the run with the smallest id, and deletes its own.

    Raises:
        TrackingError: A person deleted the run: another one would bring it back.
    """
    tracking = request.policy.tracking or TrackingRequest()
    experiment = api.get_experiment_id(tracking.experiment or DEFAULT_EXPERIMENT)
    identity = tags.build_identity(request, None)
    job_tags = tags.build_job_tags(ref, backend.get_place(ref))
    condition = f"tags.`{tags.KEY}` = '{identity[tags.KEY]}'"

    def list_runs() -> tuple[list[MlflowRun], list[MlflowRun]]:
        """Return the runs of this job by id: those that exist, and those that were deleted."""
        runs = api.search_runs([experiment], condition, "ALL")
        own = sorted((run for run in runs if run.tags.get(tags.UID) == ref.uid), key=lambda run: run.id)
        return [run for run in own if not run.is_deleted], [run for run in own if run.is_deleted]

    found, deleted = list_runs()
    if deleted and not found:
        raise _build_deletion(deleted[0].id)
    if not found:
        run_tags = tags.build_run_tags(request, backend, identity)
        own = api.create_run(
            experiment, str(run_tags[tags.RUN_NAME]), {**run_tags, **job_tags}, int(time.time() * 1000)
        )
        found, _ = list_runs()
        if not found:
            raise TrackingError(f"run {own} of TrainJob {ref.name!r} is not found yet", transient=True)
        if found[0].id != own:
            api.delete_run(own)
    _log_request(api, found[0].id, request, job_tags)
    _delete_orphans(api, backend, ref, found[0].id, api.search_runs([experiment], condition))
    return found[0].id


def bind_run(
    api: MlflowApi, backend: Backend, ref: TrainJobRef, request: TrainJobRequest
) -> list[tuple[MlflowRun, Outcome]]:
    """Complete the run of a TrainJob with its stored request, and settle the other runs of the same work.

    Repeating it changes nothing.
    """
    tracking = request.policy.tracking
    if tracking is None or tracking.run_id is None or tracking.experiment_id is None:
        return []
    runs = api.search_runs([tracking.experiment_id], f"tags.`{tags.KEY}` = '{tags.build_key(request)}'")
    own = next((run for run in runs if run.id == tracking.run_id), None) or api.get_run(tracking.run_id)
    if own.is_deleted:
        raise _build_deletion(own.id)
    ended = []
    for run in runs:
        is_open = run.tags.get(tags.REPORTED) == "" or run.is_active or run.tags.get(tags.PENDING)
        if run.id != own.id and is_open and run.tags.get(tags.BACKEND) == backend.name:
            outcome = find_outcome(api, backend, run, runs)
            ended += [(run, outcome)] if outcome is not None else []
    _bind(api, backend, ref, request, own, runs)
    return ended


def _bind(
    api: MlflowApi,
    backend: Backend,
    ref: TrainJobRef,
    request: TrainJobRequest,
    own: MlflowRun,
    runs: Sequence[MlflowRun],
) -> None:
    _delete_orphans(api, backend, ref, own.id, runs)
    if tags.UID in own.tags:
        return
    bound = tags.build_job_tags(ref, backend.get_place(ref))
    first = next((run.id for run in runs if run.tags.get(tags.ATTEMPT) == "0"), own.id)
    if tags.PARENT not in own.tags and own.tags.get(tags.ATTEMPT) != "0" and first != own.id:
        bound[tags.PARENT] = first
    _log_request(api, own.id, request, bound)


def _log_request(api: MlflowApi, run_id: str, request: TrainJobRequest, bound: Mapping[str, str]) -> None:
    params = tags.build_params(request)
    renamed = tags.build_renamed("params", params)
    renamed |= tags.build_renamed("tags", request.policy.tracking.tags if request.policy.tracking else {})
    refused = api.log_batch(run_id, params=params, tags={**renamed, **bound})
    _warn_renamed(request.context.name, renamed)
    if cut := [name for name, value in params.items() if len(value) > MAX_VALUE]:
        _log.warning(
            "TrainJob %s: MLflow cuts parameters after %d characters: %s", request.context.name, MAX_VALUE, cut
        )
    for key, error in refused.items():
        _log.warning("TrainJob %s: the run lacks %s: %s", request.context.name, key, error)


def _warn_renamed(job: str | None, renamed: Mapping[str, str]) -> None:
    for key, names in renamed.items():
        _log.warning("TrainJob %s: MLflow takes no %s of such names; stored as %s", job, key.rpartition(".")[2], names)


def _delete_orphans(api: MlflowApi, backend: Backend, ref: TrainJobRef, run_id: str, runs: Sequence[MlflowRun]) -> None:
    """Delete the runs that other submits created for a TrainJob, except the one that it has."""
    place = backend.get_place(None)
    orphans = [
        run.id
        for run in runs
        if run.id != run_id
        and run.is_active
        and tags.UID not in run.tags
        and (run.tags.get(tags.NAME), run.tags.get(tags.BACKEND)) == (ref.name, backend.name)
        # Another state folder, engine, namespace or cluster may have a TrainJob of the same name.
        and place is not None
        and run.tags.get(tags.PLACE) == place
    ]
    # Read after the runs: a submit after the job was deleted may be about to use one.
    if orphans and _find_ref(backend, ref.name) == ref:
        for each in orphans:
            _log.debug("Deleting run %s, for TrainJob %s has another", each, ref.name)
            api.delete_run(each)


def list_unreported_runs(api: MlflowApi, backend: str) -> list[MlflowRun]:
    """Return the runs of all experiments that were created for a backend and may lack the end of their jobs."""
    experiments = api.list_experiment_ids()
    # mlflow in the training can have ended the run. The other conditions are for runs of releases without this tag.
    conditions = (f"tags.`{tags.REPORTED}` = ''", "attributes.status = 'RUNNING'", f"tags.`{tags.PENDING}` != ''")
    found = [
        run
        for start in range(0, len(experiments), _MAX_EXPERIMENTS)
        for condition in conditions
        for run in api.search_runs(
            experiments[start : start + _MAX_EXPERIMENTS], f"{condition} and tags.`{tags.BACKEND}` = '{backend}'"
        )
    ]
    return list({run.id: run for run in found}.values())


def find_outcome(
    api: MlflowApi, backend: Backend, run: MlflowRun, runs: Sequence[MlflowRun] | None = None
) -> Outcome | None:
    """Return the outcome of a run's job that has ended or is gone; bind the run first if its submitter was killed.

    None if the job is active or cannot be seen from here, or if no job has the run: then it belongs to a submit that
    runs now, or to a killed one, which the next submit repeats. `runs` are all runs of the same work; None to search
    for them, and to settle them too.
    """
    run_tags = run.tags
    if tags.UID not in run_tags:
        job = _find_unbound_job(backend, run)
        if job is None:
            return None
        if runs is None:
            bind_run(api, backend, *job)
        else:
            _bind(api, backend, *job, run, runs)
        run_tags = {**run_tags, **tags.build_job_tags(job[0], backend.get_place(job[0]))}
    return find_abandoned_outcome(backend, run_tags)


def _find_unbound_job(backend: Backend, run: MlflowRun) -> tuple[TrainJobRef, TrainJobRequest] | None:
    """Return the TrainJob of a run, and its request; None if no job has the run, or it cannot be seen from here."""
    name = run.tags.get(tags.NAME)
    if not name:
        return None
    try:
        ref = _find_ref(backend, name)
        request = backend.get_request(ref) if ref else None
    except TrainerError:
        return None
    is_own = request is not None and request.policy.tracking is not None and request.policy.tracking.run_id == run.id
    return (ref, request) if ref and request and is_own else None


def find_abandoned_outcome(backend: Backend, run_tags: Mapping[str, str]) -> Outcome | None:
    """Return the outcome of a run's job that ended or is gone; None if it is active, or cannot be seen from here."""
    name, place = run_tags[tags.NAME], run_tags.get(tags.PLACE)
    ref = TrainJobRef(backend.name, run_tags.get(tags.NAMESPACE, ""), name, run_tags[tags.UID], place)
    try:
        return backend.observe(ref).outcome
    except JobNotFoundError:
        # Another cluster or machine, or a release that recorded no place, may have the job.
        if place is None or place != backend.get_place(ref):
            return None
        return build_deleted_outcome(ref)
    except TrainerError:
        return None


def build_deleted_outcome(ref: TrainJobRef) -> Outcome:
    """Return the outcome of a job that was deleted before it ended."""
    diagnosis = Diagnosis(category=Category.DELETED, reason=f"TrainJob {ref.name!r} was deleted")
    return Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis)


def _find_ref(backend: Backend, name: str) -> TrainJobRef | None:
    try:
        return backend.get_ref(name)
    except JobNotFoundError:
        return None
