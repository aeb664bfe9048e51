"""Ends the runs of TrainJobs that ended, or were deleted, while no process waited for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from trainer_core.backends.base import Backend
from trainer_core.errors import TrackingError
from trainer_core.tracking import tags
from trainer_core.tracking.binding import find_outcome
from trainer_core.tracking.connections import get_report_api
from trainer_core.tracking.mlflow_api import MlflowApi, MlflowRun
from trainer_core.tracking.reporter import RunReporter
from trainer_core.tracking.run_writer import RunWriter
from trainer_core.tracking.server import MlflowServer

__all__ = ["EndedRun", "end_abandoned_runs"]

_log = logging.getLogger(__name__)

#: Experiments in one search.
_MAX_EXPERIMENTS = 100


@dataclass(frozen=True)
class EndedRun:
    """A run that was ended because no process waited for its job.

    Attributes:
        job: Name of the TrainJob.
        status: FINISHED, FAILED or KILLED.
        url: Address of the run in MLflow's UI.
    """

    job: str
    status: str
    url: str


def end_abandoned_runs(backend: Backend, server: MlflowServer, redact: Callable[[str], str] = str) -> list[EndedRun]:
    """End all runs whose jobs have ended, or are gone, while no process waited for them; with what their logs have.

    A run stays as it is if its job is active, or lives where `backend` cannot see it.

    Args:
        backend: Backend of the jobs. Runs of other backends are left alone.
        server: The server.
        redact: Masks secrets in the diagnosis. Default: the text unchanged.

    Raises:
        TrackingError: The server cannot be reached, or refuses.
    """
    api = get_report_api(server)
    ended = []
    for run in _list_active_runs(api, backend.name):
        try:
            outcome = find_outcome(api, backend, run)
            if outcome is None:
                continue
            RunReporter(backend, outcome.job, server, redact).complete(outcome, RunWriter(api, run.id))
        except TrackingError as error:
            if error.transient:
                raise
            _log.warning("TrainJob %s: its run cannot be ended: %s", run.tags.get(tags.NAME), error)
        else:
            url = server.get_run_url(run.info.experiment_id, run.id)
            ended.append(EndedRun(outcome.job.name, tags.get_run_status(outcome), url))
    return ended


def _list_active_runs(api: MlflowApi, backend: str) -> list[MlflowRun]:
    """Return the runs of all experiments that were created for a backend and have not ended."""
    experiments = api.list_experiment_ids()
    return [
        run
        for start in range(0, len(experiments), _MAX_EXPERIMENTS)
        for status in ("RUNNING", "SCHEDULED")
        for run in api.search_runs(
            experiments[start : start + _MAX_EXPERIMENTS],
            f"attributes.status = '{status}' and tags.`{tags.BACKEND}` = '{backend}'",
        )
    ]
