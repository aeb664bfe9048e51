"""What `TrainerClient` does with searches: starts, reads, waits for, cancels and deletes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from trainer_core import naming
from trainer_core.errors import InvalidRequestError, JobNotFoundError, WaitTimeoutError
from trainer_core.jobs import SEARCH_LABEL, SEARCH_RECORD_LABEL, Event, TrainJob, TrainJobRef
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.search import tables, template as templates
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.driver import SearchDriver, SearchState
from trainer_core.search.results import OptimizationJob, Result, SearchOutcome
from trainer_core.template import TrainJobTemplate

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

__all__ = ["Searches"]

_log = logging.getLogger(__name__)
_STATUSES = frozenset({"Created", "Running", "Complete", "Failed"})


class Searches:
    """The searches of a client."""

    def __init__(self, client: TrainerClient) -> None:
        self._client = client

    def start(
        self,
        trial_template: TrainJobTemplate | Mapping[str, Any],
        definition: SearchDefinition,
        options: Sequence[Any] | None = None,
        owner: Owner | None = None,
    ) -> str:
        """Start a search, or continue it, and return its name."""
        with self.open(trial_template, definition, options, owner) as driver:
            driver.step()
            return driver.name

    def open(
        self,
        trial_template: TrainJobTemplate | Mapping[str, Any],
        definition: SearchDefinition,
        options: Sequence[Any] | None = None,
        owner: Owner | None = None,
    ) -> SearchDriver:
        """Return the driver of a search that may exist already. Creates nothing."""
        fields = dict(trial_template)
        options = [*fields.pop("options", ()), *(options or ())]
        fields["trainer"] = templates.add_example(fields.get("trainer"), definition.space)
        request = self._client.build_request(options=options, **fields)
        if request.literal_secrets:
            raise InvalidRequestError("a search takes secrets as references only; give SecretRef(name, key)")
        return self.open_request(request, definition, owner)

    def open_request(
        self, request: TrainJobRequest, definition: SearchDefinition, owner: Owner | None = None
    ) -> SearchDriver:
        """Return the driver of a search whose trials have a request, with an example of each parameter."""
        if owner is None:
            name = request.require_name()
            owner = Owner(key=f"search/{name}", slug=name)
        return SearchDriver(self._client, owner, definition, request)

    def find(self, name: str) -> SearchDriver:
        """Return the driver of an existing search by its name or key."""
        key = name if "/" in name else f"search/{name}"
        return SearchDriver.find(self._client, key)

    def list_all(self) -> list[OptimizationJob]:
        """Return all searches, newest first."""
        keys: dict[str, str] = {}
        jobs = self._client.list_jobs()
        for job in jobs:
            label = job.labels.get(SEARCH_LABEL)
            if label is not None and label not in keys and SEARCH_RECORD_LABEL not in job.labels:
                section = self._client.get_job_request(job.name).search
                if section is not None:
                    keys[label] = section.key
        found = []
        for key in keys.values():
            with suppress(JobNotFoundError), SearchDriver.find(self._client, key) as driver:
                found.append(self._build_job(driver, jobs=jobs))
        return sorted(found, key=lambda job: job.creation_timestamp, reverse=True)

    def get(self, name: str) -> OptimizationJob:
        """Return a search with its trials."""
        with self.find(name) as driver:
            return self._build_job(driver)

    def get_best(self, name: str) -> Result | None:
        """Return the best trial so far."""
        with self.find(name) as driver:
            return tables.build_result(driver.definition, driver.step(create=False).table)

    def wait(
        self,
        name: str,
        timeout: float | None = None,
        on_change: Callable[[SearchState], None] | None = None,
    ) -> SearchOutcome:
        """Drive a search until it has ended."""
        with self.find(name) as driver:
            return driver.run(timeout, on_change)

    def wait_for_status(
        self,
        name: str,
        status: set[str],
        timeout: float,
        callbacks: Sequence[Callable[[OptimizationJob], None]],
    ) -> OptimizationJob:
        """Drive a search until it has one of the statuses."""
        unknown = status - _STATUSES
        if unknown or not status:
            raise ValueError(f"status must name one or more of {', '.join(sorted(_STATUSES))}")
        end = time.monotonic() + timeout
        with self.find(name) as driver:
            while True:
                state = driver.try_step()
                found = tables.get_status(state.table)
                if callbacks:
                    job = self._build_job(driver, state)
                    for callback in callbacks:
                        callback(job)
                if found in status:
                    return self._build_job(driver, state)
                if state.outcome is not None:
                    raise RuntimeError(f"search {name!r} is {found}: {state.outcome.message}")
                if time.monotonic() >= end:
                    raise WaitTimeoutError(f"search {name!r} is {found} after {timeout} s; it has not been stopped")
                driver.wait(state, end - time.monotonic())

    def logs(self, name: str, trial: str | None, follow: bool) -> Iterator[str]:
        """Yield the log of a trial, the best one by default."""
        with self.find(name) as driver:
            table = driver.step(create=False).table
        views = table.trials.values()
        chosen = next((view for view in views if trial in (view.job, str(view.number))), None) if trial else table.best
        chosen = chosen or (None if trial else next(iter(views), None))
        if chosen is None or chosen.job is None:
            raise JobNotFoundError(f"search {name!r} has no trial {trial!r}")
        return self._client.get_job_logs(chosen.job, follow=follow)

    def events(self, name: str) -> list[Event]:
        """Return the events of the TrainJobs of a search, oldest first."""
        events: list[Event] = []
        for ref in self.find(name).list_refs():
            with suppress(JobNotFoundError):
                events += self._client.get_job_events(ref)
        return sorted(events, key=lambda event: event.event_time)

    def cancel(self, name: str) -> None:
        """End a search and its trials; succeeds if it has ended or does not exist."""
        with suppress(JobNotFoundError), self.find(name) as driver:
            driver.cancel()

    def delete(self, name: str) -> None:
        """End a search and delete its TrainJobs; succeeds if it does not exist."""
        with suppress(JobNotFoundError), self.find(name) as driver:
            driver.cancel()
            refs: list[TrainJobRef] = driver.list_refs()
            # The records last: until then no other driver creates anything.
            for ref in refs:
                self._client.delete_job(ref)

    def _build_job(
        self, driver: SearchDriver, state: SearchState | None = None, jobs: Sequence[TrainJob] | None = None
    ) -> OptimizationJob:
        table = (state or driver.step(create=False)).table
        definition = driver.definition
        if jobs is None:
            jobs = self._client.list_jobs(labels={SEARCH_LABEL: naming.hash_owner_key(driver.owner.key)})
        by_name = {job.name: job for job in jobs}
        trials = tables.build_trials(definition, table)
        return OptimizationJob(
            name=driver.name,
            search_space=definition.space,
            objectives=list(definition.objectives),
            algorithm=definition.algorithm,
            trial_config=definition.trial_config,
            trials=[replace(trial, trainjob=by_name.get(trial.name)) for trial in trials],
            creation_timestamp=datetime.fromtimestamp(driver.started, tz=timezone.utc),
            status=tables.get_status(table),
            reason=table.reason,
            total=table.total,
        )
