"""Reads a search from one list of its TrainJobs, for a page that shows it. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_core.errors import JobNotFoundError
from trainer_core.jobs import Observation, TrainJobRef
from trainer_core.lifecycle import adoption, search as decisions
from trainer_core.lifecycle.search import EntryView, SearchTable
from trainer_core.request import SearchEntry, TrainJobRequest
from trainer_core.search import tables
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import RungReport, parse_lines
from trainer_core.search.results import Trial

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient


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


def read_search(client: TrainerClient, key: str, generation: str | None = None) -> SearchSnapshot:
    """Return a search; of its newest generation, unless one is given."""
    found = [job for job in client.backend.list_search_jobs(key, ()).values() if job is not None]
    return build_snapshot(key, found, generation, time.time())


def build_snapshot(
    key: str,
    found: Sequence[tuple[TrainJobRef, TrainJobRequest, Observation]],
    generation: str | None,
    now: float,
) -> SearchSnapshot:
    """Return a search from its TrainJobs.

    Raises:
        JobNotFoundError: None of them is an entry of the search.
    """
    if generation is None:
        for _, request, _ in found:
            if request.owner and (generation is None or adoption.is_older(generation, request.owner.generation)):
                generation = request.owner.generation
    entries = sorted(
        (
            (request.search, ref, observation)
            for ref, request, observation in found
            if request.search
            and request.owner
            and request.owner.generation == generation
            and request.owner.key == f"{key}/{request.search.entry}"
        ),
        key=lambda entry: entry[0].entry,
    )
    if not entries:
        raise JobNotFoundError(f"search {key!r} has no TrainJob")
    newest = entries[-1][0]
    definition = SearchDefinition.from_dict(newest.definition)
    lines = {number: line for section, _, _ in entries for number, line in parse_lines(section.settled).items()}
    views = [_build_view(definition, *entry) for entry in entries]
    decision = decisions.decide(definition, views, lines, now, lag=newest.lag, started=newest.started or None)
    return SearchSnapshot(definition, decision.table)


def _build_view(
    definition: SearchDefinition, section: SearchEntry, ref: TrainJobRef, observation: Observation
) -> EntryView:
    if section.kind == "record":
        limits = SearchDefinition.from_dict(section.definition).limits()
        return EntryView(
            section.entry, ref.name, section.created, reason=section.reason, limits=limits, has_processes=False
        )
    trial, progress, outcome = section.trial or 0, observation.progress, observation.outcome
    reported = progress.objective if progress else None
    ending = None if outcome is None else decisions.judge(outcome, definition, trial, section.parameters)
    return EntryView(
        section.entry,
        ref.name,
        section.created,
        trial,
        section.parameters,
        section.rung,
        status=observation.status,
        has_processes=outcome is None,
        ending=ending,
        reports=tuple(RungReport(trial, *each) for each in reported.rungs) if reported else (),
        step=progress.step if progress else None,
    )
