"""The run of a hyperparameter search, below which the runs of its trials are nested.

Any driver finds it by a tag. Several drivers may create it at the same time: each takes the run with the smallest id
and deletes its own, and the end of the search moves the trials that are below another run.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from trainer_core.base.errors import TrackingError
from trainer_core.model.request import Owner, TrackingRequest
from trainer_core.search import decisions, tables
from trainer_core.search.decisions import SearchTable, TrialView
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.parameters import to_text
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowApi, MlflowRun, fit_names, get_report_api, get_submit_api
from trainer_core.tracking.reporter import get_run_sender
from trainer_core.tracking.run import DEFAULT_EXPERIMENT
from trainer_core.tracking.server import MlflowServer, choose_server
from trainer_core.tracking.submission import did_not_answer, note_unreachable

_log = logging.getLogger(__name__)

#: Name of the curve of the best value so far; its step is the number of the trial.
BEST = "best"
_STATUSES = {
    **dict.fromkeys((decisions.CANCELLED, decisions.SUPERSEDED), "KILLED"),
    **dict.fromkeys((decisions.COMPLETED, decisions.GOAL, decisions.TIMEOUT), "FINISHED"),
}


class SearchRun:
    """Finds or creates the run of one search, and reports its state. Never ends or delays the search.

    Attributes:
        tracking: What the trials' requests have.
    """

    def __init__(
        self, server: MlflowServer, tracking: TrackingRequest, owner: Owner, definition: SearchDefinition, backend: str
    ) -> None:
        self.tracking = tracking
        self._server = server
        self._owner = owner
        self._definition = definition
        self._backend = backend
        self._key = tags.build_search_key(owner.key, owner.generation)
        self._lock = threading.Lock()
        self._sent: tuple[Any, ...] | None = None
        self._has_warned = False

    def find_parent(self) -> str | None:
        """Return the id of the run for a trial that is about to be created, and create it if it does not exist.

        Raises:
            TrackingError: The server did not answer, and tracking is required.
        """
        if did_not_answer(self._server):
            return None  # The submit of the trial warns, or is refused.
        try:
            return self._find_run(get_submit_api(self._server)).id
        except TrackingError as error:
            note_unreachable(self._server, error)
            if self.tracking.required:
                raise
            self._warn(error, "")
            return None

    def report(
        self, definition: SearchDefinition, table: SearchTable, created: Mapping[int, float], is_over: bool
    ) -> None:
        """Send what has changed, without waiting for it. `created` has the times of the trials' creation."""
        self._definition = definition  # Its limits may have changed.
        points = _build_curve(definition, table, created)
        status = _STATUSES.get(str(table.reason), "FAILED") if is_over else "RUNNING"
        state = (len(points), status, table.best and table.best.number)
        if state == self._sent:
            return
        self._sent = state
        get_run_sender().bind(self._key, partial(self._send, table, points, status))

    @property
    def _name(self) -> str:
        return self._owner.key.removeprefix("search/")

    def _send(self, table: SearchTable, points: list[dict[str, Any]], status: str) -> None:
        if status == "RUNNING" and did_not_answer(self._server):
            return  # The next report has this one's points.
        try:
            self._write(get_report_api(self._server), table, points, status)
        except TrackingError as error:
            note_unreachable(self._server, error)
            hint = f"; `trainjob search {self._name} --wait` completes it" if status != "RUNNING" else ""
            self._warn(error, hint)

    def _warn(self, error: TrackingError, hint: str) -> None:
        level = logging.WARNING if hint or not self._has_warned else logging.DEBUG
        self._has_warned = True
        _log.log(level, "Search %s: its run in MLflow is not complete: %s%s", self._name, error, hint)

    def _write(self, api: MlflowApi, table: SearchTable, points: list[dict[str, Any]], status: str) -> None:
        run = self._find_run(api)
        description = tables.describe(self._definition, table)
        if status != "RUNNING":
            self._nest_trials(api, run)
        if status == run.info.status != "RUNNING" and description == run.tags.get(tags.NOTE):
            return  # Another driver has reported the end.
        best, metrics, params = table.best, list(points), {}
        fields = {tags.NOTE: description, tags.SEARCH_LIMITS: json.dumps(self._definition.limits())}
        if best is not None:
            fields[tags.BEST_TRIAL] = str(best.number)
            if best.job:
                fields[tags.BEST_JOB] = best.job
        if best is not None and status != "RUNNING":
            params = {name: to_text(value) for name, value in best.parameters.items()}
            metrics += self._build_final_metrics(best)
        # Parameters of MLflow do not change: those of a search that is extended stay the first ones.
        api.log_batch(run.id, metrics, params, fields)
        if status != run.info.status:
            end: dict[str, Any] = {} if status == "RUNNING" else {"end_time": int(time.time() * 1000)}
            api.post("runs/update", run_id=run.id, status=status, **end)

    def _build_final_metrics(self, best: TrialView) -> list[dict[str, Any]]:
        """Return the metrics of the best trial, as points at the step that is its number."""
        values = dict(best.settled.metrics) if best.settled else {}
        if best.value is not None:
            values[self._definition.objective.metric] = best.value
        now = int(time.time() * 1000)
        return [
            {"key": key, "value": values[name], "timestamp": now, "step": best.number}
            for name, key in fit_names(values, {BEST}).items()
            if math.isfinite(values[name])
        ]

    def _nest_trials(self, api: MlflowApi, parent: MlflowRun) -> None:
        """Nest the trials that were created while the server was away, or below the run of another driver."""
        for run in api.search_runs([parent.info.experiment_id], f"tags.`{tags.SEARCH}` = '{self._key}'"):
            if run.tags.get(tags.PARENT) != parent.id:
                api.log_batch(run.id, tags={tags.PARENT: parent.id})

    def _find_run(self, api: MlflowApi) -> MlflowRun:
        with self._lock:
            above = self.tracking.parent_run_id
            experiment = (
                api.get_experiment_id(self.tracking.experiment or self._server.experiment or DEFAULT_EXPERIMENT)
                if above is None
                else api.get_run(above).info.experiment_id
            )
            condition = f"tags.`{tags.SEARCH_KEY}` = '{self._key}'"
            found = api.search_runs([experiment], condition)
            if not found:
                self._create_run(api, experiment)
                found = api.search_runs([experiment], condition)
            if not found:
                raise TrackingError(f"the run of search {self._name!r} is not found yet", transient=True)
            first, *others = sorted(found, key=lambda run: run.id)
            for run in others:
                api.delete_run(run.id)
            return first

    def _create_run(self, api: MlflowApi, experiment: str) -> None:
        definition = self._definition.to_dict()
        own = {
            tags.RUN_NAME: self._name,
            "mlflow.source.type": "JOB",
            "mlflow.user": "trainjob",
            tags.PARENT: self.tracking.parent_run_id,
            tags.BACKEND: self._backend,
            tags.SEARCH_KEY: self._key,
            "trainjob.owner": self._owner.key,
        }
        run_tags = {**self.tracking.tags, **{name: value for name, value in own.items() if value}}
        run_id = api.create_run(experiment, self._name, run_tags, int(time.time() * 1000))
        params = {f"search_space.{name}": value for name, value in definition.pop("search_space").items()}
        del definition["trial_config"]  # A search that is extended has other limits: they are a tag.
        texts = {f"trainjob.search.{name}": to_text(value) for name, value in {**params, **definition}.items()}
        api.log_batch(run_id, params=texts)


def open_search_run(
    own: MlflowServer | None, tracking: TrackingRequest, owner: Owner, definition: SearchDefinition, backend: str
) -> SearchRun | None:
    """Return the run of a search, which may not exist yet; None if the search is not tracked by MLflow."""
    server = choose_server(tracking.uri, own) if tracking.kind == "mlflow" else None
    return SearchRun(server, tracking, owner, definition, backend) if server else None


def _build_curve(
    definition: SearchDefinition, table: SearchTable, created: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Return the best value after each trial, as far as all trials before have ended: the same for all drivers."""
    points: list[dict[str, Any]] = []
    best: float | None = None
    for number, trial in sorted(table.trials.items()):
        if trial.settled is None:
            break
        value = trial.value if trial.settled.state == "Complete" else None
        if value is not None and (best is None or definition.objective.is_better(value, best)):
            best = value
        if best is not None:
            timestamp = int(1000 * created[number])
            points.append({"key": BEST, "value": best, "timestamp": timestamp, "step": number})
    return points
