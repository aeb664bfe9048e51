"""Decides how a search continues: a pure function of its definition, its entries and the time.

The state of a search is its TrainJobs: entry 0, 1, 2, … are created one after the other, each under a name that one
process can take. Any number of drivers list them, decide, and act; what two of them decide at the same time is done
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from trainer_core.base.text import shorten
from trainer_core.model.jobs import COMPLETE, Category, Observation, Outcome, Progress
from trainer_core.model.request import SearchEntry
from trainer_core.search import early_stop
from trainer_core.search.definition import Asha, Direction, GridSearch, Objective, SearchDefinition
from trainer_core.search.history import ENDS, RungReport, SettledTrial, TrialState
from trainer_core.search.space import count_cells

#: Why a search has ended: the reasons of its records.
COMPLETED, GOAL, TIMEOUT = "complete", "goal", "timeout"
FAILED, CANCELLED, SUPERSEDED = "failed", "cancelled", "superseded"
#: Reason of a record that has the lines of trials which are about to be stopped, where that deletes their jobs.
STOPPED = "stopped"
#: A search that ended for one of them is not continued with other limits.
_FINAL = (CANCELLED, SUPERSEDED)
#: Failures that say something about the parameters.
_OF_PARAMETERS = (Category.USER_CODE, Category.OUT_OF_MEMORY, Category.DEADLINE)
#: Category of a trial that reported no objective.
_NO_OBJECTIVE = "NoObjective"
#: First trials that all fail alike end a search, at least so many.
_FIRST_TRIALS = 3
_MAX_REASON = 300
_DELETED: dict[str, Any] = {"category": Category.DELETED.value, "reason": "it was deleted"}


@dataclass(frozen=True)
class Ending:
    """How a run of a trial ended, and the line of the trial if this is its last run."""

    state: TrialState | Literal["Paused"]
    retryable: bool
    line: SettledTrial


@dataclass(frozen=True)
class EntryView:
    """An entry of a search, as a driver sees it: a run of a trial, or a record with its reason.

    Attributes:
        created: In seconds since 1970.
        rung: Rung at which the run ends. None for the end of the training.
        limits: The limits and the goal that the search had at a record.
        status: Status of the TrainJob, or ``Deleted``.
        has_processes: Whether processes of it may run, also after its end.
        ending: How it ended. None while it runs, for a record, and if it was deleted before its end was read.
        step: Step that it reported last.
        is_trained: Whether that is its last step: it only has to end.
    """

    number: int
    job: str
    created: float
    trial: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rung: int | None = None
    reason: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    status: str = "Created"
    has_processes: bool = True
    ending: Ending | None = None
    reports: tuple[RungReport, ...] = ()
    step: float | None = None
    is_trained: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it trains, or may still have processes."""
        return self.trial is not None and self.has_processes


@dataclass(frozen=True)
class TrialView:
    """A trial of a search.

    Attributes:
        status: ``Created``, ``Suspended``, ``Running``, ``Retrying``, ``Paused``, or how it ended: ``Complete``,
            ``Stopped early``, ``Failed`` or ``Lost``.
        job: Name of its last TrainJob. None if it is unknown.
        value: Value of the objective, so far.
        settled: Its line once it has ended.
        runs: Number of its TrainJobs.
    """

    number: int
    status: str
    parameters: Mapping[str, Any]
    job: str | None = None
    value: float | None = None
    step: float | None = None
    reports: tuple[RungReport, ...] = ()
    settled: SettledTrial | None = None
    runs: int = 1


@dataclass(frozen=True)
class SearchTable:
    """All trials of a search, and why it has ended: the reason of its last record. `total`: those it will have."""

    trials: Mapping[int, TrialView]
    best: TrialView | None
    total: int
    reason: str | None = None

    @property
    def settled(self) -> dict[int, SettledTrial]:
        """Lines of the trials that have ended, by number."""
        return {number: trial.settled for number, trial in self.trials.items() if trial.settled is not None}


@dataclass(frozen=True)
class Start:
    """Start a run of a trial.

    Attributes:
        parameters: None for a new trial: they are chosen from `history`, and from `running` trials.
        rung: Rung at which the run ends. None for the end of the training.
        until: Step of that rung.
    """

    trial: int
    parameters: Mapping[str, Any] | None = None
    rung: int | None = None
    until: float | None = None
    history: tuple[SettledTrial, ...] = ()
    running: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """Stop a run. `why` is None for one that is cancelled with its search."""

    entry: int
    why: str | None


@dataclass(frozen=True)
class Record:
    """Write a record that ends the search."""

    reason: str


@dataclass(frozen=True)
class Finish:
    """The search has ended."""

    reason: str


SearchAction: TypeAlias = Start | Stop | Record | Finish


@dataclass(frozen=True)
class Decision:
    """What a driver does, in this order. `wake_at`: the timeout of the search, in seconds since 1970."""

    table: SearchTable
    actions: tuple[SearchAction, ...]
    wake_at: float | None = None


def view_entry(job: str, section: SearchEntry) -> EntryView:
    """Return the view of an entry whose job was not observed yet."""
    if section.kind == "record":
        limits = SearchDefinition.from_dict(section.definition).limits()
        return EntryView(section.entry, job, section.created, reason=section.reason, limits=limits, has_processes=False)
    return EntryView(section.entry, job, section.created, section.trial, section.parameters, section.rung)


def apply_observation(view: EntryView, observation: Observation, definition: SearchDefinition, now: float) -> EntryView:
    """Return the view with the status, the step and the reports of its job."""
    progress, trial = observation.progress, view.trial or 0
    reported = progress.objective if progress else None
    reports = view.reports
    if reported is not None:
        reports = tuple(RungReport(trial, *each) for each in reported.rungs) or reports
    elif progress is not None:
        reports = read_rungs(definition, trial, progress, reports, now)
    step = progress.step if progress and progress.step is not None else view.step
    last = [getattr(definition.stop, "max_step", None), progress.total if progress else None]
    is_trained = step is not None and any(each is not None and step >= each for each in last)
    return replace(view, status=observation.status, reports=reports, step=step, is_trained=is_trained)


def apply_outcome(view: EntryView, outcome: Outcome, definition: SearchDefinition) -> EntryView:
    """Return the view of a run that has ended."""
    ending = judge(outcome, definition, view.trial or 0, view.parameters, view.rung)
    status = view.status if view.status == "Deleted" else outcome.status
    return replace(view, status=status, ending=ending, reports=ending.line.rungs or view.reports)


def judge(
    outcome: Outcome, definition: SearchDefinition, trial: int, parameters: Mapping[str, Any], rung: int | None = None
) -> Ending:
    """Return how a run of a trial ended, which was to end at a rung."""
    objective, diagnosis = definition.objective, outcome.diagnosis
    # A cluster may have no record of a stopped trial's nodes: the driver that stopped it wrote what it had read.
    report = outcome.objective or (diagnosis.objective if diagnosis else None)
    rungs = tuple(RungReport(trial, *each) for each in report.rungs) if report else ()
    line = SettledTrial(
        trial,
        "Complete",
        rungs=rungs,
        parameters=parameters,
        job=outcome.job.name,
        seconds=outcome.duration.total_seconds() if outcome.duration else None,
        gpu_hours=outcome.resource_use.gpu_hours if outcome.resource_use else None,
        metrics={each.metric: value for each in definition.objectives if (value := _find(outcome, each)) is not None},
    )
    final, last = line.metrics.get(objective.metric), _get_value(rungs)
    if outcome.paused_at is not None:
        if rung is None or rung in {each.rung for each in rungs}:
            paused = replace(line, state="StoppedEarly", value=last, reason="paused and not promoted")
            return Ending("Paused", False, paused)
        # It would be promoted from the rung before again.
        reason = f"paused at step {outcome.paused_at:g} and reported no {objective.metric} there"
        return Ending("Failed", False, replace(line, state="Failed", category=_NO_OBJECTIVE, reason=reason))
    if outcome.status == COMPLETE:
        if final is not None and math.isfinite(final):
            return Ending("Complete", False, replace(line, value=final))
        reason = _explain_no_objective(outcome, objective.metric, final)
        return Ending("Failed", False, replace(line, state="Failed", category=_NO_OBJECTIVE, reason=reason))
    if diagnosis is None:
        return Ending("Lost", False, replace(line, state="Lost"))
    reason = shorten(diagnosis.reason, _MAX_REASON)
    if diagnosis.category is Category.STOPPED_EARLY:
        value = last if last is not None else final
        return Ending("StoppedEarly", False, replace(line, state="StoppedEarly", value=value, reason=reason))
    state: TrialState = "Failed" if diagnosis.category in _OF_PARAMETERS else "Lost"
    ended = replace(line, state=state, category=diagnosis.category.value, reason=reason)
    return Ending(state, diagnosis.retryable, ended)


def _explain_no_objective(outcome: Outcome, metric: str, value: float | None) -> str:
    """Return what a complete trial reported instead of a finite value: ``reported no loss, but: accuracy``."""
    found = ", ".join(sorted(outcome.metrics)) if value is None else f"{metric} {value}"
    hint = f", but: {found}" if found else "; return it, or call report_metrics()"
    note = f" ({outcome.result_note})" if outcome.result_note else ""  # It names numbers that are not finite.
    return shorten(f"reported no {metric}{hint}{note}", _MAX_REASON)


def build_stopped_line(trial: TrialView, reason: str) -> SettledTrial:
    """Return the line of a running trial that is about to be stopped."""
    reason = shorten(reason, _MAX_REASON)
    return SettledTrial(
        trial.number, "StoppedEarly", trial.value, trial.reports, trial.parameters, trial.job, reason=reason
    )


def read_rungs(
    definition: SearchDefinition, trial: int, progress: Progress, known: Sequence[RungReport], now: float
) -> tuple[RungReport, ...]:
    """Return the reports at rungs of a trial whose nodes do not write them, such as an image: the first ones read."""
    if definition.stop is None or progress.step is None or definition.objective.metric not in progress.metrics:
        return tuple(known)
    value = progress.metrics[definition.objective.metric]
    passed = [rung for rung, step in enumerate(early_stop.list_rungs(definition.stop)) if step <= progress.step]
    new = set(passed) - {report.rung for report in known}
    finite = value if math.isfinite(value) else None
    return (*known, *(RungReport(trial, rung, progress.step, finite, int(now * 1000)) for rung in sorted(new)))


def _find(outcome: Outcome, objective: Objective) -> float | None:
    """Return the value of an objective: of the last report, or the best of all."""
    report, own = outcome.objective, outcome.metrics.get(objective.metric)
    if objective.best_of is None or report is None or report.best is None or outcome.lacks(objective.metric):
        return own
    choose = min if objective.best_of == "min" else max
    return report.best if own is None else choose(report.best, own)


def decide(
    definition: SearchDefinition,
    entries: Sequence[EntryView],
    lines: Mapping[int, SettledTrial],
    now: float,
    *,
    started: float | None = None,
    limits_since: float = 0.0,
    settled: dict[int, TrialView] | None = None,
) -> Decision:
    """Decide how a search continues.

    `lines` are those that entries carry, `started` is when entry 0 was created if that is deleted, and `limits_since`
    when the limits were set. A trial that can no longer change is added to `settled`; the next decision takes it from
    there, and its entries may be left out, except the newest one and records, if `started` is given.
    """
    config = definition.trial_config
    total = config.num_trials
    if isinstance(definition.algorithm, GridSearch):
        total = min(total, count_cells(definition.space))
    record = _find_closing_record(definition, entries)
    settled = {} if settled is None else settled
    trials = _build_trials(definition, entries, lines, settled)
    live = sorted((entry for entry in entries if entry.is_live), key=lambda entry: entry.number)
    timeout = config.timeout
    began = min((entry.created for entry in entries), default=now) if started is None else started
    # A search that had ended is extended: its time and its first failures are over.
    is_extended = any(entry.reason not in (None, STOPPED) and entry.status != "Deleted" for entry in entries)
    began = max(began, limits_since) if is_extended else began
    wake_at = None if timeout is None else began + float(timeout)
    is_timeout = wake_at is not None and now >= wake_at
    end = record.reason if record else _find_end(definition, trials, total, is_timeout, is_extended)
    if end is None:
        trials = {number: _reopen(trial) for number, trial in trials.items()}
    starts = [] if end else _choose_starts(definition, trials, len(live), total)
    if end is None and not live and not starts:
        end = COMPLETED
    if end is None:
        losers = _find_losers(definition, trials, live)
        return Decision(_build_table(definition, trials, total), (*losers, *starts), wake_at)
    actions: tuple[SearchAction, ...] = tuple(Stop(entry.number, ENDS.get(end)) for entry in live)
    if not live:
        trials = _build_trials(definition, entries, lines, settled, closing=True)
        actions = (Finish(end),) if record else (Record(end),)
    return Decision(_build_table(definition, trials, total, end), actions, wake_at)


def _build_table(
    definition: SearchDefinition, trials: Mapping[int, TrialView], total: int, end: str | None = None
) -> SearchTable:
    return SearchTable(trials, _find_best(definition.objective, trials), total, end)


def _find_closing_record(definition: SearchDefinition, entries: Sequence[EntryView]) -> EntryView | None:
    """Return the record that ends the search, unless the search continues with other limits."""
    present = [entry for entry in entries if entry.status != "Deleted" and entry.reason != STOPPED]
    last = max(present, key=lambda entry: entry.number, default=None)
    final = next((entry for entry in entries if entry.reason in _FINAL), None)
    if final is not None or last is None or last.reason is None:
        return final
    return last if dict(last.limits) == definition.limits() else None


def _build_trials(
    definition: SearchDefinition,
    entries: Sequence[EntryView],
    lines: Mapping[int, SettledTrial],
    settled: dict[int, TrialView],
    closing: bool = False,
) -> dict[int, TrialView]:
    """Return the trials by number. With `closing`, paused ones and those due for a retry have ended."""
    runs: dict[int, list[EntryView]] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.trial is not None and entry.trial not in settled:
            runs.setdefault(entry.trial, []).append(entry)
    count = 1 + max((-1, *runs, *lines, *settled))
    trials: dict[int, TrialView] = {}
    for number in range(count):
        if number in settled:
            trials[number] = settled[number]
            continue
        trial = _build_trial(definition, number, runs.get(number, []), lines.get(number), closing)
        trials[number] = trial
        last = runs[number][-1] if number in runs else None
        is_known = number in lines or (last is not None and last.ending is not None)
        is_over = is_known and not closing and not (last and last.is_live)
        if trial.settled is not None and is_over and not trial.settled.ended_with_search:
            settled[number] = trial
    return trials


def _build_trial(
    definition: SearchDefinition, number: int, runs: Sequence[EntryView], line: SettledTrial | None, closing: bool
) -> TrialView:
    reported = [report for run in runs for report in run.reports]
    reports = _merge_reports(reported + list(line.rungs if line else ()))
    last = runs[-1] if runs else None
    if line is not None and last is not None and line.ended_with_search and line.job != last.job:
        line = None  # The search was extended, and the trial runs again.
    # One that is recorded as stopped may complete before it is.
    is_complete = last is not None and last.ending is not None and last.ending.state == "Complete"
    if last is None or (line is not None and not last.is_live and not is_complete):
        line = line or SettledTrial(number, "Lost", **_DELETED)
        return _settle(number, line, reports, len(runs))
    trial = TrialView(number, last.status, last.parameters, last.job, _get_value(reports), last.step, reports)
    trial = replace(trial, runs=len(runs))
    ending = last.ending
    if ending is None and last.is_live:
        return trial
    if ending is None:
        deleted = SettledTrial(number, "Lost", None, reports, last.parameters, last.job)
        return _settle(number, replace(deleted, **_DELETED), reports, len(runs))
    if ending.state == "Paused" and not closing:
        return replace(trial, status="Paused")
    failures = sum(run.ending is not None and run.ending.retryable for run in runs)
    if ending.retryable and failures <= definition.trial_config.retries and not closing:
        return replace(trial, status="Retrying")
    line = replace(_add_up(ending.line, runs), rungs=reports)
    if line.state == "StoppedEarly" and line.value is None:  # Its nodes left no record.
        line = replace(line, value=_get_value(reports))
    return _settle(number, line, reports, len(runs))


def _settle(number: int, line: SettledTrial, reports: tuple[RungReport, ...], runs: int) -> TrialView:
    status = "Stopped early" if line.state == "StoppedEarly" else line.state
    step = reports[-1].step if reports else None
    return TrialView(number, status, line.parameters, line.job, line.value, step, reports, line, max(runs, 1))


def _add_up(line: SettledTrial, runs: Sequence[EntryView]) -> SettledTrial:
    """Add the time of earlier runs of a trial to that of its last one."""
    earlier = [run.ending.line for run in runs[:-1] if run.ending]
    lines = [*earlier, line]
    return replace(line, seconds=_sum(each.seconds for each in lines), gpu_hours=_sum(each.gpu_hours for each in lines))


def _sum(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    # Rounded as in the line, so that it is the same when the job has been deleted.
    return round(sum(present), 4) if present else None


def _merge_reports(reports: Iterable[RungReport]) -> tuple[RungReport, ...]:
    first: dict[int, RungReport] = {}
    for report in sorted(reports, key=lambda report: report.time_ms):
        first.setdefault(report.rung, report)
    return tuple(first[rung] for rung in sorted(first))


def _get_value(reports: Sequence[RungReport]) -> float | None:
    return next((report.value for report in reversed(reports) if report.value is not None), None)


def _find_best(objective: Objective, trials: Mapping[int, TrialView]) -> TrialView | None:
    """Return the best complete trial; if there is none, the best one that was stopped early."""
    choose = min if objective.direction is Direction.MINIMIZE else max
    for state in ("Complete", "Stopped early"):
        values = [
            (trial.value, trial) for trial in trials.values() if trial.status == state and trial.value is not None
        ]
        if values:
            return choose(values, key=lambda each: each[0])[1]  # Of equal ones the first.
    return None


def _reopen(trial: TrialView) -> TrialView:
    """Return a trial that its search had stopped at its end as one that is due, as the search continues."""
    is_due = trial.settled is not None and trial.settled.ended_with_search
    return replace(trial, status="Retrying", settled=None) if is_due else trial


def _find_end(
    definition: SearchDefinition, trials: Mapping[int, TrialView], total: int, is_timeout: bool, is_extended: bool
) -> str | None:
    """Return why no trial starts, although trials are left."""
    config, objective = definition.trial_config, definition.objective
    settled = {number: trial.settled for number, trial in trials.items() if trial.settled is not None}
    values = [line.value for line in settled.values() if line.state == "Complete" and line.value is not None]
    if any(objective.reaches_goal(value) for value in values):
        return GOAL
    failed = {
        number: line.category
        for number, line in settled.items()
        if line.state in ("Failed", "Lost") and line.category != Category.DELETED.value
    }
    if len(failed) == total or (config.max_failed_trials is not None and len(failed) >= config.max_failed_trials):
        return FAILED
    first = range(max(_FIRST_TRIALS, config.parallel_trials))
    categories = {failed.get(number) for number in first}
    counts_first = config.max_failed_trials is None and not is_extended
    if counts_first and len(categories) == 1 and None not in categories:  # All of them have failed alike.
        return FAILED
    if not is_timeout:
        return None
    # The trials may have ended in time, and a driver may read them only after it.
    was_stopped = any(line.reason == ENDS[TIMEOUT] for line in settled.values())
    return TIMEOUT if len(settled) < total or was_stopped else None


def _find_losers(
    definition: SearchDefinition, trials: Mapping[int, TrialView], live: Sequence[EntryView]
) -> list[SearchAction]:
    if definition.stop is None:
        return []
    objective = definition.objective
    reports = [report for trial in trials.values() for report in trial.reports]
    losers = early_stop.find_losers(definition.stop, definition.direction.value, reports)
    running = [entry for entry in live if entry.ending is None and not entry.is_trained and entry.trial in losers]
    return [Stop(entry.number, f"{objective.metric} {losers[int(entry.trial or 0)].reason}") for entry in running]


def _choose_starts(definition: SearchDefinition, trials: Mapping[int, TrialView], live: int, total: int) -> list[Start]:
    """Return the runs for the free slots: retries, then promotions, then new trials."""
    free = definition.trial_config.parallel_trials - live
    due = [trial for trial in trials.values() if trial.status == "Retrying"]
    starts = [_repeat(definition, trial) for trial in due[: max(0, free)]]
    free -= len(due)
    policy = _get_promoting_policy(definition)
    promoted = {(trial.number, rung) for trial in trials.values() for rung in _list_passed(trial)} if policy else set()
    while policy and free > 0:
        promotion = _promote(definition, policy, trials, promoted, final=False)
        if promotion is None:
            break
        starts.append(promotion)
        free -= 1
    for number in range(len(trials), min(total, len(trials) + max(0, free))):
        start = _start_new(definition, trials, number)
        if start:
            starts.append(start)
        if definition.uses_history:
            break  # The parameters of the next one depend on those of this one.
    is_idle = not starts and not live and not due
    if policy and is_idle and not any(trial.status == "Complete" for trial in trials.values()):
        promotion = _promote(definition, policy, trials, promoted, final=True)
        if promotion:
            starts.append(promotion)
    return starts


def _get_promoting_policy(definition: SearchDefinition) -> Asha | None:
    """Return the policy that runs each trial up to a rung, and promotes the best ones to the next; None without it."""
    policy = definition.stop
    return policy if isinstance(policy, Asha) and policy.promote else None


def _list_passed(trial: TrialView) -> list[int]:
    """Return the rungs of a trial at which it is not paused."""
    rungs = [report.rung for report in trial.reports]
    return rungs if trial.status != "Paused" else rungs[:-1]


def _promote(
    definition: SearchDefinition,
    policy: Asha,
    trials: Mapping[int, TrialView],
    promoted: set[tuple[int, int]],
    *,
    final: bool,
) -> Start | None:
    reports = [report for trial in trials.values() for report in trial.reports]
    chosen = early_stop.choose_promotion(policy, definition.direction.value, reports, promoted, final=final)
    if chosen is None:
        return None
    number, rung = chosen
    promoted.add(chosen)
    return _build_start(policy, number, trials[number].parameters, rung + 1)


def _repeat(definition: SearchDefinition, trial: TrialView) -> Start:
    """Return the next run of a trial whose last one failed, up to the same rung."""
    policy = _get_promoting_policy(definition)
    if policy is None:
        return Start(trial.number, trial.parameters)
    return _build_start(policy, trial.number, trial.parameters, trial.reports[-1].rung + 1 if trial.reports else 0)


def _build_start(policy: Asha, number: int, parameters: Mapping[str, Any] | None, rung: int) -> Start:
    steps = early_stop.list_rungs(policy)
    return Start(number, parameters, rung, steps[rung]) if rung < len(steps) else Start(number, parameters)


def _start_new(definition: SearchDefinition, trials: Mapping[int, TrialView], number: int) -> Start | None:
    """Return the start of a new trial; None while its parameters need results that do not exist yet."""
    policy, lag = _get_promoting_policy(definition), definition.lag
    start = _build_start(policy, number, None, 0) if policy else Start(number)
    if not definition.uses_history:
        return start
    settled = [trial.settled for trial in trials.values() if trial.settled is not None]
    if lag is None:
        running = {trial.number: trial.parameters for trial in trials.values() if trial.settled is None}
        return replace(start, history=tuple(settled), running=running)
    history = [line for line in settled if line.trial <= number - lag]
    if len(history) < max(0, number - lag + 1):
        return None
    others = range(max(0, number - lag + 1), number)
    return replace(start, history=tuple(history), running={each: trials[each].parameters for each in others})
