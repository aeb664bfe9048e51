"""What `TrainerClient` does with searches: starts, reads, waits for, cancels and deletes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from trainer_core.base import naming
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError, WaitTimeoutError
from trainer_core.definition.template import TrainJobTemplate
from trainer_core.model.jobs import SEARCH_LABEL, Event, TrainJob
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.search import snapshot, tables, template as templates
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.driver import SearchDriver, SearchState
from trainer_core.search.results import OptimizationJob, Result, SearchOutcome

if TYPE_CHECKING:
    from trainer_core.search.trial_client import TrialClient

_log = logging.getLogger(__name__)
_STATUSES = frozenset({"Created", "Running", "Complete", "Failed"})


class Searches:
    """The searches of a client. `OptimizerClient` is one that makes its client."""

    def __init__(self, client: TrialClient) -> None:
        self.client = client

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
        request = self.client.build_request(options=options, **fields)
        if request.context.literal_secrets:
            raise InvalidRequestError("a search takes secrets as references only; give SecretRef(name, key)")
        return self.open_request(request, definition, owner)

    def open_request(
        self, request: TrainJobRequest, definition: SearchDefinition, owner: Owner | None = None
    ) -> SearchDriver:
        """Return the driver of a search whose trials have a request, with an example of each parameter."""
        if owner is None:
            name = request.require_name()
            owner = Owner(key=f"search/{name}", slug=name)
        return SearchDriver.open(self.client, owner, definition, request)

    def find(self, name: str) -> SearchDriver:
        """Return the driver of an existing search by its name or key."""
        return SearchDriver.find(self.client, _get_key(name))

    def list_jobs(self) -> list[OptimizationJob]:
        """Return all searches, newest first."""
        keys: dict[str, str] = {}
        jobs = self.client.backend.list_jobs()  # Also records, of which a search without trials consists.
        for job in jobs:
            label = job.labels.get(SEARCH_LABEL)
            if label is not None and label not in keys:
                section = self.client.get_job_request(job.name).context.search
                if section is not None:
                    keys[label] = section.key
        found = []
        for key in keys.values():
            with suppress(JobNotFoundError), SearchDriver.find(self.client, key) as driver:
                found.append(self._build_job(driver, jobs=jobs))
        return sorted(found, key=lambda job: job.creation_timestamp, reverse=True)

    def get_job(self, name: str) -> OptimizationJob:
        """Return a search with its trials.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
        with self.find(name) as driver:
            return self._build_job(driver)

    def get_best_results(self, name: str) -> Result | None:
        """Return the parameters and metrics of the best trial so far; None while none has a value.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
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

    def wait_for_job_status(
        self,
        name: str,
        status: set[str] = {"Complete"},  # noqa: B006 - the reference's signature; never changed here
        timeout: int = 3600,
        polling_interval: int = 2,
        callbacks: list[Callable[[OptimizationJob], None]] | None = None,
    ) -> OptimizationJob:
        """Continue a search until it has one of the statuses, and return it.

        Args:
            name: Name of the search.
            status: Any of ``Created``, ``Running``, ``Complete``, ``Failed``. Default ``{"Complete"}``.
            timeout: Maximum time to wait, in seconds. Default 3600.
            polling_interval: Not used: changes are noticed when they happen.
            callbacks: Called with the search after each change. None (the default) for none.

        Raises:
            ValueError: An argument is invalid.
            RuntimeError: The search ended with another status.
            WaitTimeoutError: It has none of the statuses within the timeout. Its trials continue.
        """
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

    def get_job_logs(self, name: str, trial_name: str | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the log lines of a trial.

        Args:
            name: Name of the search.
            trial_name: Name of the trial, or its number. None (the default) for the best one so far, or the first one.
            follow: True yields new lines until the trial has ended. Default False.

        Raises:
            JobNotFoundError: The search or the trial does not exist.
        """
        with self.find(name) as driver:
            table = driver.step(create=False).table
        views = table.trials.values()
        if trial_name is None:
            chosen = table.best or next(iter(views), None)
        else:
            chosen = next((view for view in views if trial_name in (view.job, str(view.number))), None)
        if chosen is None or chosen.job is None:
            raise JobNotFoundError(f"search {name!r} has no trial {trial_name!r}")
        return self.client.get_job_logs(chosen.job, follow=follow)

    def get_job_events(self, name: str) -> list[Event]:
        """Return the events of the TrainJobs of a search, oldest first.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
        events: list[Event] = []
        with self.find(name) as driver:
            for ref in driver.list_refs():
                with suppress(JobNotFoundError):
                    events += self.client.get_job_events(ref)
        return sorted(events, key=lambda event: event.event_time)

    def cancel(self, name: str) -> None:
        """End a search and its trials; succeeds if it has ended or does not exist."""
        with suppress(JobNotFoundError), self.find(name) as driver:
            driver.cancel()

    def delete_job(self, name: str) -> None:
        """End a search and delete its TrainJobs. Succeeds if it does not exist.

        Args:
            name: Name of the search.
        """
        self.cancel(name)
        # Of all generations; the records last: until then no other driver creates anything.
        jobs = snapshot.list_jobs(self.client, _get_key(name))
        for ref, _, _ in sorted(
            jobs, key=lambda job: bool(job[1].context.search and job[1].context.search.kind == "record")
        ):
            self.client.delete_job(ref)

    def _build_job(
        self, driver: SearchDriver, state: SearchState | None = None, jobs: Sequence[TrainJob] | None = None
    ) -> OptimizationJob:
        table = (state or driver.step(create=False)).table
        definition = driver.definition
        if jobs is None:
            jobs = self.client.list_jobs(labels={SEARCH_LABEL: naming.hash_owner_key(driver.owner.key)})
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


def _get_key(name: str) -> str:
    """Return the key of a search, which can be given instead of its name."""
    return name if "/" in name else f"search/{name}"
