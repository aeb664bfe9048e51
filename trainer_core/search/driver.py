"""The driver of a search: `run` repeats `step` and `wait` until the search has ended.

A step does, in this order:

1. `_supersede` ends the trials of an older generation, before the first trial of this one starts.
2. `_list_entries` lists the TrainJobs of the search, at the beginning and twice a minute: another driver may have
   created or deleted some. Each is an entry with a number.
3. `_observe` reads the trials that have changed. `_apply` puts each observation into the view of its entry.
4. `_decide` calls the pure function `search.decisions.decide` with the views. It returns what to stop and to start.
5. `_stop_all` stops losers, each in a thread. `_create` creates runs, and the record that ends the search.
6. `_build_state` returns the table of the trials, and what to wait for.

All state is in the TrainJobs. A driver that is killed at any moment is followed by another one, and several drivers of
the same search make one search: the entries have numbers, and one process can create each of them.
"""

from __future__ import annotations

import base64
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainer_core.base import naming
from trainer_core.base.change_event import ChangeEvent, wait_any, wait_any_async
from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    JobNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.lifecycle import adoption, wait_state
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import (
    FAILED,
    Category,
    Diagnosis,
    ObjectiveReport,
    Observation,
    Outcome,
    RungValue,
    TrainJobRef,
)
from trainer_core.model.request import Context, Owner, SearchEntry, TrackingRequest, TrainJobRequest
from trainer_core.node.project import ProjectError
from trainer_core.packaging import code_location
from trainer_core.search import decisions, sampling, snapshot, template as templates
from trainer_core.search.decisions import EntryView, Record, SearchTable, Start, Stop, TrialView
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import SettledTrial, parse_lines
from trainer_core.search.parameters import check_trial
from trainer_core.search.results import SearchOutcome
from trainer_core.search.tables import build_outcome

if TYPE_CHECKING:
    from trainer_core.backends.follower import Follower
    from trainer_core.search.search_run import SearchRun
    from trainer_core.search.trial_client import TrialClient

_log = logging.getLogger(__name__)
#: Entries between two that carry the lines of all trials.
_FULL_TABLE = 32
#: Seconds after which the entries are listed again without a reason.
_LIST_SECONDS = 30.0
#: Seconds between two observations of a trial that does not change: with a stop policy, whose values may be in the log
#: only, and without one.
_PROGRESS_SECONDS, _OBSERVE_SECONDS = 2.0, 30.0
#: Seconds between two reads of the processes of a trial that has ended.
_PROCESS_SECONDS = 0.2
#: Seconds of a submit during which this process may have been stopped.
_STOPPED_SECONDS = 1.0
#: Seconds until a step is repeated after the backend did not answer.
_RETRY_SECONDS = 2.0
#: Number of times that an entry of another driver is found in a row before this is an error.
_MAX_ROUNDS = 1000
_LISTING = "The list of a search's TrainJobs"


@dataclass(frozen=True)
class SearchState:
    """What a step of a driver has found."""

    table: SearchTable
    #: The TrainJobs to follow for a change.
    live: tuple[TrainJobRef, ...]
    #: Whether something is to be created, by a step with ``create=True``.
    must_create: bool = False
    #: When time alone changes the decision, in seconds since 1970. None if never.
    wake_at: float | None = None
    outcome: SearchOutcome | None = None
    #: The backend did not answer: these are the trials as they were.
    is_stale: bool = False


@dataclass
class _Entry:
    """An entry and what this process knows of it."""

    view: EntryView
    ref: TrainJobRef
    #: Without the lines of settled trials: thousands of entries have thousands of lines each.
    section: SearchEntry
    wait: wait_state.WaitState
    follower: Follower | None = None
    observed: float = 0.0
    #: Until when its processes are waited for after its end, in seconds of the monotonic clock.
    processes_until: float | None = None
    is_stopping: bool = False
    #: What a wait has concluded about a trial that cannot start or recover. It is cancelled.
    verdict: Outcome | None = None
    context: ExitStack = field(default_factory=ExitStack)
    report: Callable[[str, Outcome | None], None] | None = None

    @property
    def must_observe(self) -> bool:
        return self.view.ending is None and self.view.status != "Deleted"

    def close(self) -> None:
        self.context.close()
        self.follower = None


class SearchDriver:
    """Drives one search. `open` or `find` it, and use it as a context manager."""

    def __init__(
        self, client: TrialClient, owner: Owner, definition: SearchDefinition, template: TrainJobRequest
    ) -> None:
        self.client = client
        self.owner = owner
        self.definition = definition
        self.template = template
        self.digest = templates.compute_digest(template, definition)
        self._entries: dict[int, _Entry] = {}
        #: Those that a decision needs: of trials that have not settled, the records, and the newest one.
        self._open: dict[int, _Entry] = {}
        self._settled: dict[int, TrialView] = {}
        #: Numbers of entries that were deleted before this driver has seen them, or that another search has.
        self._gaps: set[int] = set()
        self._lines: dict[int, SettledTrial] = {}
        #: The newest entry with the lines of all trials: its number, and the trials.
        self._full_table: tuple[int, set[int]] = (-1, set())
        self._others: list[tuple[TrainJobRef, TrainJobRequest]] = []
        self._listed = self._limits_since = 0.0
        self._stops: list[threading.Thread] = []
        self._unavailable_since: float | None = None
        self._outcome: SearchOutcome | None = None
        self._run: SearchRun | None = None
        #: Number of the best trial that the log has.
        self._best: int | None = None

    @classmethod
    def open(
        cls,
        client: TrialClient,
        owner: Owner,
        definition: SearchDefinition | None = None,
        template: TrainJobRequest | None = None,
    ) -> SearchDriver:
        """List the TrainJobs of a search and open its run in MLflow; return its driver.

        Without `definition` and `template`, the search is what its newest TrainJob has.
        """
        if definition is not None and template is not None:
            check_trial(template, definition)
            if client.backend.name == "debug" and definition.stop is not None:
                _log.warning("The debug backend runs each trial to its end: the stop policy is skipped")
                definition = replace(definition, stop=None)
        listed = time.monotonic()
        jobs = client.repeat_while_unavailable(_LISTING, lambda: snapshot.list_jobs(client, owner.key))
        driver = cls._restore(client, owner, jobs, definition, template)
        driver._listed = listed
        return driver

    @classmethod
    def _restore(
        cls,
        client: TrialClient,
        owner: Owner,
        jobs: Sequence[snapshot.SearchJob],
        definition: SearchDefinition | None = None,
        template: TrainJobRequest | None = None,
    ) -> SearchDriver:
        own = snapshot.select_jobs(owner.key, jobs, owner.generation)
        newest = _read_newest(client, own) if own else None
        is_found = definition is None or template is None
        if definition is None or template is None:
            definition, template = _read_definition(owner, own, newest)
        elif newest is not None:
            template = templates.keep_project(_get_name(owner), _fetch_project(newest, template), template)
        template = client.backend.resolve_request(templates.strip_template(template))
        if isinstance(client.config, ClusterConfig):
            templates.check_project_size(template, definition.trial_config.num_trials)
        driver = cls(client, owner, definition, template)
        if newest is not None and not is_found:
            templates.check_same_search(newest, template, definition)
        driver._read_settings([section for section, _ in own])
        driver._run = driver._open_run()
        names = {ref.name for _, (ref, _, _) in own}
        for job in [*(job for _, job in own), *(job for job in jobs if job[0].name not in names)]:
            driver._add(*job)
        client.repeat_while_unavailable(_LISTING, driver._verify_gaps)
        best = driver._decide().table.best
        driver._best = best.number if best else None
        return driver

    def _open_run(self) -> SearchRun | None:
        runs, tracking = self.client.runs, self.template.policy.tracking
        if not runs.tracks_all and tracking is None:
            return None
        from trainer_core.search.search_run import open_search_run  # Loads the modules of HTTP.

        tracking = tracking or TrackingRequest()
        return open_search_run(runs.server, tracking, self.owner, self.definition, self.client.backend.name)

    @classmethod
    def find(cls, client: TrialClient, key: str, generation: str | None = None) -> SearchDriver:
        """Return the driver of an existing search; of its newest generation, unless one is given."""
        jobs = snapshot.list_jobs(client, key)
        if generation is None:
            generation = snapshot.find_newest_generation(jobs)
        slug = key.removeprefix("search/") if key.startswith("search/") else "search"
        return cls._restore(client, Owner(key=key, slug=slug, generation=generation), jobs)

    def __enter__(self) -> SearchDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Name of the search."""
        return _get_name(self.owner)

    @property
    def exists(self) -> bool:
        """Whether the search has a TrainJob."""
        return bool(self._entries)

    @property
    def first_ref(self) -> TrainJobRef | None:
        """The first TrainJob of the search that exists; None before it has one."""
        return self._entries[min(self._entries)].ref if self._entries else None

    def list_refs(self) -> list[TrainJobRef]:
        """Return the TrainJobs of the search that exist; its records are the last ones."""
        entries = sorted(self._entries.values(), key=lambda entry: (entry.section.kind == "record", entry.view.number))
        return [entry.ref for entry in entries if entry.view.status != "Deleted"]

    def close(self) -> None:
        """Stop following the trials. They continue."""
        for entry in self._entries.values():
            entry.close()
        for thread in self._stops:
            thread.join()

    def run(
        self, timeout: float | None = None, on_change: Callable[[SearchState], None] | None = None
    ) -> SearchOutcome:
        """Drive the search until it has ended, and return its outcome."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            state = self.try_step()
            if on_change is not None:
                on_change(state)
            if state.outcome is not None:
                return state.outcome
            if end is not None and time.monotonic() >= end:
                raise WaitTimeoutError(f"search {self.name!r} has not ended after {timeout:g} s; its trials continue")
            self.wait(state, None if end is None else end - time.monotonic())

    def try_step(self, create: bool = True) -> SearchState:
        """Do a step. A backend that cannot be reached is tolerated as long as by a wait for a TrainJob."""
        try:
            state = self.step(create)
        except BackendUnavailableError as error:
            now = time.monotonic()
            if self._unavailable_since is None:
                self._unavailable_since = now
                _log.warning("Search %s cannot continue now, and is tried again: %s", self.name, error)
            if not error.transient or now - self._unavailable_since > wait_state.MAX_UNAVAILABLE_SECONDS:
                raise
            self._listed = -math.inf  # What failed may have been done.
            return SearchState(self._decide().table, (), is_stale=True)
        self._unavailable_since = None
        return state

    def step(self, create: bool = True) -> SearchState:
        """Read what has changed, decide, and act. Without `create` nothing is started or recorded."""
        if self._outcome is not None:
            return SearchState(self._decide().table, (), outcome=self._outcome)
        if create:
            self._supersede()
        if time.monotonic() - self._listed > _LIST_SECONDS:
            self._list_entries()
        self._observe()
        for _ in range(_MAX_ROUNDS):
            decision = self._decide()
            if decision.table.reason == decisions.SUPERSEDED:
                raise ConflictError(f"search {self.name!r} has a newer generation, which has ended these trials")
            are_stopped = self._stop_all(decision, create)
            if not any(isinstance(action, (Start, Stop, Record)) for action in decision.actions):
                return self._build_state(decision)
            if not create or (are_stopped and self._create(decision)):
                return self._build_state(self._decide())
        raise ConflictError(f"search {self.name!r} cannot continue: other processes change it repeatedly")

    def _build_state(self, decision: decisions.Decision) -> SearchState:
        self._log_best(decision.table)
        must_create = bool(self._find_unrecorded(decision))
        must_create |= any(isinstance(action, (Start, Record)) for action in decision.actions)
        if any(isinstance(action, decisions.Finish) for action in decision.actions):
            self._outcome = build_outcome(self.client, self.name, self.definition, decision.table)
        self._report(decision.table)
        live = tuple(entry.ref for entry in self._open.values() if entry.view.is_live and entry.must_observe)
        return SearchState(decision.table, live, must_create, decision.wake_at, self._outcome)

    def _report(self, table: SearchTable) -> None:
        """Report to the search's run in MLflow."""
        if self._run is not None:
            views = sorted((entry.view for entry in self._entries.values()), key=lambda view: -view.number)
            created = dict.fromkeys(table.trials, self.started)
            created |= {view.trial: view.created for view in views if view.trial is not None}
            is_over = self._outcome is not None or self._has_record(decisions.CANCELLED, decisions.SUPERSEDED)
            self._run.report(self.definition, table, created, is_over)

    def wait(self, state: SearchState, timeout: float | None = None) -> None:
        """Wait until a trial has changed, or until it is time to decide again."""
        wait_any(*self._plan_wait(state, timeout))

    async def wait_async(self, state: SearchState, timeout: float | None = None) -> None:
        """Do the same without blocking the running event loop."""
        await wait_any_async(*self._plan_wait(state, timeout))

    def _plan_wait(self, state: SearchState, timeout: float | None) -> tuple[list[ChangeEvent], float]:
        """Return what to wait for, and for how many seconds at most."""
        pause = _OBSERVE_SECONDS if self.definition.stop is None else _PROGRESS_SECONDS
        limits = [pause, *([] if timeout is None else [timeout])]
        limits += [] if state.wake_at is None else [state.wake_at - time.time()]
        limits += [0.0] if state.must_create else []
        if state.is_stale:
            return [], max(0.0, min(_RETRY_SECONDS, *limits))
        entries = [entry for entry in self._open.values() if entry.view.is_live]
        limits += [0.0 for entry in entries if entry.follower is None and entry.must_observe]
        limits += [_PROCESS_SECONDS for entry in entries if entry.processes_until is not None]
        limits += [entry.wait.timeout(time.monotonic()) for entry in entries if entry.wait.errors]
        changed = [entry.follower.changed for entry in entries if entry.follower is not None and entry.must_observe]
        return changed, max(0.0, min(limits))

    def cancel(self) -> None:
        """End the search, and all of its trials that run. Succeeds if it has ended."""
        while not self._has_record(decisions.CANCELLED, decisions.SUPERSEDED):
            if (table := self._decide().table).reason is not None:
                break
            self._create_record(decisions.CANCELLED, table)
        self._stop_live()
        self._report(self._decide().table)

    def _stop_live(self) -> None:
        self._stop(Stop(entry.view.number, None) for entry in self._open.values() if entry.view.is_live)
        for thread in self._stops:
            thread.join()

    def _has_record(self, *reasons: str) -> bool:
        return any(entry.view.reason in reasons for entry in self._open.values())

    def _log_best(self, table: SearchTable) -> None:
        best = table.best
        if best is not None and best.number != self._best:
            self._best = best.number
            metric = self.definition.objective.metric
            _log.info("Search %s: trial %d is the best so far: %s %s", self.name, best.number, metric, best.value)

    def _decide(self) -> decisions.Decision:
        decision = decisions.decide(
            self.definition,
            [entry.view for entry in self._open.values()],
            self._lines,
            time.time(),
            started=self.started or None,
            limits_since=self._limits_since,
            settled=self._settled,
        )
        newest = max(self._open, default=-1)
        for number, entry in list(self._open.items()):
            if entry.view.trial in self._settled and not entry.view.is_live and number != newest:
                del self._open[number]
        return decision

    # Reading

    def _list_jobs(self) -> list[snapshot.SearchJob]:
        """Return the TrainJobs of the search that are not known, and mark those that have been deleted."""
        self._listed = time.monotonic()
        known = {entry.view.job for entry in self._entries.values()} | {ref.name for ref, _ in self._others}
        found = self.client.backend.list_search_jobs(self.owner.key, known)
        for entry in self._open.values():
            if entry.view.job not in found and entry.view.is_live:
                self._mark_deleted(entry)
        return [job for job in found.values() if job is not None]

    def _list_entries(self) -> None:
        for job in self._list_jobs():
            self._add(*job)
        self._verify_gaps()

    def _verify_gaps(self) -> None:
        """Read the entries that a list did not show; one may have been created while the list was read."""
        for number in set(range(max(self._entries, default=-1))) - self._entries.keys() - self._gaps:
            entry = next(iter(self._entries.values())).section.model_copy(update={"entry": number})
            owner = Owner(key=f"{self.owner.key}/{number}", generation=self.owner.generation)
            jobs = self.client.backend.find_jobs(TrainJobRequest(context=Context(owner=owner, search=entry)))
            job = next((job for job in jobs if job.generation == self.owner.generation), None)
            if job is None:
                self._gaps.add(number)
            else:
                self._read(self.client.get_job_ref(job.name))

    def _read(self, ref: TrainJobRef) -> None:
        self._add(ref, self.client.get_job_request(ref), self.client.observe(ref))

    def _add(self, ref: TrainJobRef, request: TrainJobRequest, observation: Observation) -> None:
        """Add a TrainJob that this driver has not seen before."""
        section = request.context.search
        if section is None or section.key != self.owner.key or request.context.owner is None:
            return
        if request.context.owner.generation != self.owner.generation:
            self._others.append((ref, request))
            return
        if section.started != self.started and not self._entries:  # Another driver was the first.
            templates.check_same_search(request, self.template, self.definition)
            self._adopt(section)
        # Of another search, which was deleted before this one began, or after it.
        if section.shares_start and section.started != self.started:
            self._check_exists()
            self._gaps.add(section.entry)
            return
        if section.entry % _FULL_TABLE == 0 and section.entry > self._full_table[0]:
            self._full_table = section.entry, {line[0] for line in section.settled}
        known = self._lines
        self._lines |= parse_lines(
            line for line in section.settled if line[0] not in known or known[line[0]].ended_with_search
        )
        section = section.model_copy(update={"settled": ()})
        entry = _Entry(decisions.view_entry(ref.name, section), ref, section, wait_state.start(ref, time.monotonic()))
        self._entries[section.entry] = self._open[section.entry] = entry
        if section.limits_since > self._limits_since:
            self.definition = SearchDefinition.from_dict(section.definition)
            self._limits_since = section.limits_since
            self._open, self._settled = dict(self._entries), {}
        if section.kind == "record" and observation.outcome is None:
            self.client.backend.cancel(ref)
        if section.kind == "run":
            self._apply(entry, observation)

    def _read_settings(self, sections: Sequence[SearchEntry]) -> None:
        """Read since when the limits hold, and what the first driver has decided for all."""
        newest = snapshot.find_limits(sections)
        self._limits_since = newest.limits_since if newest else time.time()
        if newest is not None and SearchDefinition.from_dict(newest.definition).limits() != self.definition.limits():
            self._limits_since = max(time.time(), newest.limits_since + 0.001)
        state = getattr(self.definition.algorithm, "random_state", None)
        self.seed = naming.hash_owner_key(self.owner.key) if state is None else str(state)
        self.started = 0.0
        if sections:  # Of entries that differ in it, each driver takes the same one.
            self._adopt(max(sections, key=lambda section: (section.shares_start, -section.entry)))

    def _adopt(self, section: SearchEntry) -> None:
        """Take over what the first driver has decided for all."""
        self.started, self.seed, self.digest = section.started, section.seed, section.digest

    # Observing

    def _observe(self) -> None:
        now = time.monotonic()
        pause = _OBSERVE_SECONDS if self.definition.stop is None else _PROGRESS_SECONDS
        for entry in list(self._open.values()):
            if entry.processes_until is not None:
                self._check_processes(entry)
            if not entry.must_observe or not entry.view.is_live:
                continue
            if entry.follower is None:
                self._follow(entry)
            assert entry.follower is not None  # noqa: S101 -- set above
            if (
                entry.follower.changed.is_set
                or now - entry.observed >= pause
                or entry.wait.errors
                or not entry.observed
            ):
                self._observe_entry(entry, entry.follower)

    def _follow(self, entry: _Entry) -> None:
        entry.follower = self.client.backend.follow(entry.ref, progress=self.definition.stop is not None)
        entry.context.enter_context(entry.follower)
        if self.client.runs.tracks_all or self.template.policy.tracking is not None:
            entry.report = entry.context.enter_context(self.client.runs.report_progress(entry.ref))

    def _observe_entry(self, entry: _Entry, follower: Follower) -> None:
        entry.observed = time.monotonic()
        try:
            observation = follower.next_observation(0.0)
        except TrainerError as error:
            entry.wait = entry.wait.on_error(error, time.monotonic())
            if isinstance(error, JobNotFoundError):
                self._mark_deleted(entry)
                self._judge(entry)
            return
        self._apply(entry, observation)

    def _apply(self, entry: _Entry, observation: Observation) -> None:
        """Update the view of an entry."""
        entry.wait = entry.wait.on_observation(observation, time.monotonic())
        entry.view = decisions.apply_observation(entry.view, observation, self.definition, time.time())
        if entry.report is not None and entry.wait.outcome is None:
            entry.report(observation.status, None)
        if entry.wait.outcome is not None:
            self._judge(entry)

    def _judge(self, entry: _Entry) -> None:
        """Judge an entry that has ended."""
        outcome = entry.wait.outcome
        if outcome is None or entry.view.ending is not None or entry.view.trial is None:
            return
        if entry.wait.should_cancel:
            entry.wait, entry.verdict = wait_state.start(entry.ref, time.monotonic(), fail_fast=False), outcome
            self._stop_entry(entry, outcome.diagnosis)
            return
        if not entry.wait.outcome_is_stored:
            with suppress(TrainerError):  # It only helps later readers.
                self.client.backend.store_outcome(outcome)
        if entry.verdict is not None and outcome.diagnosis is not None:
            outcome = entry.verdict
        entry.view = decisions.apply_outcome(entry.view, outcome, self.definition)
        if entry.report is not None:
            entry.report(outcome.status, outcome)
        entry.close()
        entry.processes_until = time.monotonic() + self.client.backend.max_left_seconds
        if outcome.status == FAILED:
            self._check_processes(entry)
        else:
            self._end(entry)

    def _check_processes(self, entry: _Entry) -> None:
        is_over = entry.processes_until is not None and time.monotonic() > entry.processes_until
        if is_over or not self.client.backend.list_processes(entry.ref):
            self._end(entry)

    def _end(self, entry: _Entry) -> None:
        entry.processes_until = None
        entry.view = replace(entry.view, has_processes=False)

    def _mark_deleted(self, entry: _Entry) -> None:
        entry.close()
        entry.view = replace(entry.view, status="Deleted", has_processes=False)

    # Acting

    def _create(self, decision: decisions.Decision) -> bool:
        """Create the entries of a decision; return whether no other driver has taken one of their numbers."""
        for action in decision.actions:
            if isinstance(action, Record) and not self._create_record(action.reason, decision.table):
                return False
            if isinstance(action, Start) and not self._create_run(action, decision.table):
                return False
        return True

    def _create_run(self, start: Start, table: SearchTable) -> bool:
        templates.check_continuable(self.template)
        parameters = start.parameters
        if parameters is None:
            parameters = sampling.suggest(
                self.definition.space,
                self.definition.algorithm,
                self.seed,
                start.trial,
                start.history,
                start.running,
                self.definition.direction,
            )
        place = {"trial": start.trial, "rung": start.rung, "until": start.until}
        entry = self._build_entry(table.settled, parameters=parameters, **place)
        request = templates.build_run(self.template, self.definition, self.owner, entry)
        if self._run is not None and (parent := self._run.find_parent()):
            tracking = self._run.tracking.model_copy(update={"parent_run_id": parent})
            request = request.with_fields(tracking=tracking)
        ref = self._submit(entry, lambda: self.client.submit(request))
        if ref is None:
            return False
        _log.info("Search %s: trial %d starts as %s with %s", self.name, start.trial, ref.name, dict(parameters))
        return True

    def _create_record(self, reason: str, table: SearchTable, lines: Mapping[int, SettledTrial] | None = None) -> bool:
        entry = self._build_entry({**table.settled, **(lines or {})}, kind="record", reason=reason)
        suspend = "Suspend" in self.client.backend.accepts
        request = templates.build_record(self.template, self.owner, entry, suspend)
        # Not by the client, which would track it as a run.
        return self._submit(entry, lambda: self.client.backend.submit(request)) is not None

    def _build_entry(self, lines: Mapping[int, SettledTrial], **fields: Any) -> SearchEntry:
        number = max(max(self._entries, default=-1), max(self._gaps, default=-1)) + 1
        # Jobs with `DeleteAfter` may be deleted before the next full table: each has all lines.
        is_full = number % _FULL_TABLE == 0 or fields.get("kind") == "record"
        if not is_full and not self.template.policy.delete_after_seconds:
            table, trials = self._full_table
            recorded = trials if table == number - number % _FULL_TABLE else set()
            lines = {trial: line for trial, line in lines.items() if trial not in recorded}
        now = time.time()
        self.started = self.started or now
        return SearchEntry(
            key=self.owner.key,
            entry=number,
            created=now,
            started=self.started,
            shares_start=True,
            seed=self.seed,
            lag=self.definition.lag,
            definition=self.definition.to_dict(),
            limits_since=self._limits_since,
            digest=self.digest,
            settled=tuple(line.to_line() for line in lines.values()),
            **fields,
        )

    def _submit(self, entry: SearchEntry, send: Callable[[], TrainJobRef]) -> TrainJobRef | None:
        """Create an entry; return None if another driver has taken its number."""
        began = time.time()
        self._check_exists()
        ref = send()
        try:
            request = self.client.get_job_request(ref)
        except JobNotFoundError:
            self._check_exists()
            raise
        found = request.context.search
        is_own = found is not None and (found.created, found.kind) == (entry.created, entry.kind)
        if is_own and time.time() - began > _STOPPED_SECONDS:
            try:
                self._check_exists()
            except JobNotFoundError:
                self.client.delete_job(ref)
                raise
        self._add(ref, request, self.client.observe(ref))
        if is_own:
            return ref
        self._list_entries()
        return None

    def _check_exists(self) -> None:
        """Raise if the search was deleted, such as while this process was stopped: it is not begun again."""
        for number in sorted(self._entries, reverse=True):
            with suppress(JobNotFoundError):
                self.client.backend.get_request(self._entries[number].ref)
                return
        if self._entries:
            raise JobNotFoundError(f"search {self.name!r} was deleted while this process drove it; start it again")

    def _stop_all(self, decision: decisions.Decision, create: bool) -> bool:
        """Stop the runs of a decision; return whether no other driver has taken the number of a record."""
        unrecorded = self._find_unrecorded(decision)
        if unrecorded and create:
            return self._create_record(decisions.STOPPED, decision.table, unrecorded) and self._stop_all(
                decision, create
            )
        stops = [action for action in decision.actions if isinstance(action, Stop)]
        self._stop(stop for stop in stops if self._entries[stop.entry].view.trial not in unrecorded)
        return True

    def _find_unrecorded(self, decision: decisions.Decision) -> dict[int, SettledTrial]:
        """Return the lines of the trials that no entry has yet, and whose stop deletes their jobs."""
        if self.client.backend.keeps_cancelled(self.template):
            return {}
        trials = decision.table.trials
        stops = [(self._entries[each.entry].view, each.why) for each in decision.actions if isinstance(each, Stop)]
        return {
            view.trial: decisions.build_stopped_line(trials[view.trial], why)
            for view, why in stops
            if view.trial is not None and why is not None and view.ending is None
            if view.trial not in self._lines or self._lines[view.trial].job != view.job
        }

    def _stop(self, stops: Iterable[Stop]) -> None:
        """Stop runs, each in a thread: a trial may take its time to save a checkpoint."""
        for stop in stops:
            entry = self._entries[stop.entry]
            if entry.is_stopping or entry.wait.outcome is not None:
                continue
            diagnosis = None
            if stop.why is not None:
                rungs = tuple(RungValue(*report[1:]) for report in entry.view.reports)
                objective = ObjectiveReport(rungs=rungs) if rungs else None
                diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason=stop.why, objective=objective)
            self._stop_entry(entry, diagnosis)

    def _stop_entry(self, entry: _Entry, diagnosis: Diagnosis | None) -> None:
        why = diagnosis.reason if diagnosis else "the search is cancelled"
        _log.info("Search %s: %s is stopped: %s", self.name, entry.ref.name, why)
        entry.is_stopping = True
        thread = threading.Thread(target=self._cancel, args=(entry, diagnosis), daemon=True)
        self._stops = [each for each in self._stops if each.is_alive()]
        self._stops.append(thread)
        thread.start()

    def _cancel(self, entry: _Entry, diagnosis: Diagnosis | None) -> None:
        try:
            self.client.backend.cancel(entry.ref, diagnosis)
        except TrainerError as error:
            _log.warning("Search %s: %s could not be stopped, and is tried again: %s", self.name, entry.ref.name, error)
            entry.is_stopping = False

    def _supersede(self) -> None:
        """End the TrainJobs of an older generation before the first trial of this one starts."""
        if not self._others or self._entries:
            return
        others, self._others = self._others, []
        for generation in {request.context.owner.generation for _, request in others if request.context.owner}:
            older = Owner(key=self.owner.key, slug=self.owner.slug, generation=generation)
            with SearchDriver.open(self.client, older) as driver:
                driver.supersede(self.owner.generation)

    def supersede(self, generation: str | None) -> None:
        """End the search because a newer generation of it begins."""
        if adoption.is_older(generation, self.owner.generation):
            raise ConflictError(
                f"search {self.name!r} has generation {self.owner.generation}, which is newer than {generation}; end "
                "this run of the task"
            )
        while not self._has_record(decisions.SUPERSEDED):
            self._create_record(decisions.SUPERSEDED, self._decide().table)
        self._stop_live()
        with suppress(WaitTimeoutError):
            self._wait_for_end()
        self._report(self._decide().table)

    def _wait_for_end(self) -> None:
        end = time.monotonic() + self.client.backend.max_end_seconds
        while any(entry.view.is_live for entry in self._open.values()) and time.monotonic() < end:
            self._observe()
            time.sleep(_PROCESS_SECONDS)


def _get_name(owner: Owner) -> str:
    return owner.key.removeprefix("search/")


def _read_definition(
    owner: Owner, entries: Sequence[tuple[SearchEntry, snapshot.SearchJob]], newest: TrainJobRequest | None
) -> tuple[SearchDefinition, TrainJobRequest]:
    limits = snapshot.find_limits(section for section, _ in entries)
    if limits is None or newest is None:
        name = _get_name(owner)
        raise JobNotFoundError(f"search {name!r} does not exist; `trainjob searches` lists the existing ones")
    return SearchDefinition.from_dict(limits.definition), templates.restore_template(newest)


def _read_newest(client: TrialClient, entries: Sequence[tuple[SearchEntry, snapshot.SearchJob]]) -> TrainJobRequest:
    """Return the request of the newest trial, with its files; of a record, without a template, if no trial is left."""
    _, (ref, request, _) = max(entries, key=lambda entry: (entry[0].kind == "run", entry[0].entry))
    if request.project is None or request.project.archive or request.project.uri:
        return request
    code = client.backend.get_code(ref)  # A cluster has the files in the arguments of the job only.
    return request.with_project(archive=code.project.archive) if code and code.project else request


def _fetch_project(trial: TrainJobRequest, template: TrainJobRequest) -> TrainJobRequest:
    """Return the request of a trial with the files of its project from their URI, if a template has other ones."""
    begun, now = trial.project, template.project
    if begun is None or begun.uri is None or now is None or begun.digest == now.digest:
        return trial
    try:
        data = code_location.fetch(begun.uri, begun.digest)
    except (OSError, ProjectError) as error:
        _log.warning(
            "The files that the search began with, %s, cannot be compared with those of now: %s", begun.uri, error
        )
        return trial
    return trial.with_project(archive=base64.b64encode(data).decode("ascii"))
