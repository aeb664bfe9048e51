"""Reads a search from one list of its TrainJobs, for a page that shows it. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from trainer_core.base.errors import JobNotFoundError
from trainer_core.lifecycle import adoption
from trainer_core.model.jobs import Observation, TrainJobRef
from trainer_core.model.request import SearchEntry, TrainJobRequest
from trainer_core.search import decisions, tables
from trainer_core.search.decisions import SearchTable
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import SettledTrial, parse_lines
from trainer_core.search.results import Trial

if TYPE_CHECKING:
    from trainer_core.search.trial_client import TrialClient

SearchJob: TypeAlias = tuple[TrainJobRef, TrainJobRequest, Observation]


@dataclass(frozen=True)
class SearchSnapshot:
    """A search at one moment."""

    definition: SearchDefinition
    table: SearchTable

    @property
    def status(self) -> str:
        """``Created``, ``Running``, ``Complete`` or ``Failed``."""
        return tables.get_status(self.table)

    @property
    def summary(self) -> str:
        """The numbers of trials, and the best one, in a line."""
        return tables.describe(self.definition, self.table)

    @property
    def trials(self) -> list[Trial]:
        """The trials by number."""
        return tables.build_trials(self.definition, self.table)


def read_search(client: TrialClient, key: str, generation: str | None = None) -> SearchSnapshot:
    """Return a search; of its newest generation, unless one is given."""
    return build_snapshot(key, list_jobs(client, key), generation, time.time())


def list_jobs(client: TrialClient, key: str) -> list[SearchJob]:
    """Return the TrainJobs of a search, of all generations."""
    return [job for job in client.backend.list_search_jobs(key, ()).values() if job is not None]


def find_newest_generation(jobs: Iterable[SearchJob]) -> str | None:
    """Return the newest generation of the TrainJobs of a search."""
    newest = None
    for _, request, _ in jobs:
        if request.context.owner and (newest is None or adoption.is_older(newest, request.context.owner.generation)):
            newest = request.context.owner.generation
    return newest


def select_jobs(key: str, jobs: Iterable[SearchJob], generation: str | None) -> list[tuple[SearchEntry, SearchJob]]:
    """Return the entries of a generation, by number.

    Of several searches only the one that began last counts: a process that was stopped for a while may create an entry
    of a search that was deleted, beside those of a new one of its name. Entries of earlier releases do not tell.
    """
    found = [
        (request.context.search, (ref, request, observation))
        for ref, request, observation in jobs
        if request.context.search
        and request.context.search.key == key
        and request.context.owner
        and request.context.owner.generation == generation
    ]
    began = max((section.started for section, _ in found if section.shares_start), default=0.0)
    counted = (each for each in found if each[0].started == began or not each[0].shares_start)
    return sorted(counted, key=lambda each: each[0].entry)


def find_limits(entries: Iterable[SearchEntry]) -> SearchEntry | None:
    """Return the entry whose limits were set last; of several ones the newest."""
    return max(entries, key=lambda entry: (entry.limits_since, entry.entry), default=None)


def build_snapshot(key: str, jobs: Sequence[SearchJob], generation: str | None, now: float) -> SearchSnapshot:
    """Return a search from its TrainJobs, of which at least one must be an entry of it."""
    if generation is None:
        generation = find_newest_generation(jobs)
    entries = select_jobs(key, jobs, generation)
    newest = find_limits(section for section, _ in entries)
    if newest is None:
        raise JobNotFoundError(f"search {key!r} has no TrainJob")
    definition = SearchDefinition.from_dict(newest.definition)
    lines: dict[int, SettledTrial] = {}
    views = []
    for section, (ref, _, observation) in entries:
        lines.update(parse_lines(section.settled))
        view = decisions.view_entry(ref.name, section)
        if section.kind == "run":
            view = decisions.apply_observation(view, observation, definition, now)
            if observation.outcome is not None:
                view = replace(decisions.apply_outcome(view, observation.outcome, definition), has_processes=False)
        views.append(view)
    decision = decisions.decide(
        definition, views, lines, now, started=newest.started or None, limits_since=newest.limits_since
    )
    return SearchSnapshot(definition, decision.table)
