"""The report of a search: one small HTML page, every text of a user escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kfp_components.step import charts, report
from trainer_core.model.jobs import COMPLETE
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.parameters import to_text
from trainer_core.search.results import SearchOutcome, Trial
from trainer_core.search.space import Choice, Distribution, LogUniform, RandInt

#: Trials in the table, the best first.
_MAX_ROWS = 200


def render_html(name: str, outcome: SearchOutcome, definition: SearchDefinition) -> str:
    metric = definition.objective.metric
    sections = [report.render_pairs(_list_facts(outcome, definition))]
    best = _list_best_values(outcome, definition)
    if len(best) > 1:
        sections += [f"<h2>Best {escape(metric)} so far</h2>", charts.render_curve(best)]
    best_first = _sort_trials(outcome, definition)
    drawn = [trial for trial in best_first if trial.value is not None][:_MAX_ROWS]
    if drawn:
        sections += _render_plots(drawn[::-1], outcome, definition)
    head = ("trial", "status", metric, *definition.space, "seconds", "job")
    rows = []
    for trial in best_first[:_MAX_ROWS]:
        value = "" if trial.value is None else f"{trial.value:.6g}"
        parameters = [trial.parameters.get(name, "") for name in definition.space]
        seconds = "" if trial.seconds is None else f"{trial.seconds:.1f}"
        rows.append((str(trial.number), trial.status, value, *parameters, seconds, trial.name))
    sections += ["<h2>Trials</h2>", report.render_table(head, rows)]
    return report.render_page(f"Search {name}", outcome.status, sections)


def _list_facts(outcome: SearchOutcome, definition: SearchDefinition) -> list[tuple[str, str]]:
    best = outcome.best
    facts = {
        "result": outcome.message,
        "objective": f"{definition.objective.metric}, {definition.direction.value}",
        "best trial": None if best is None else f"{best.trial} ({best.job})",
        **({} if best is None else {f"best {name}": str(value) for name, value in best.parameters.items()}),
        "GPU hours": f"{outcome.gpu_hours:.2f}" if outcome.gpu_hours else None,
        "GPU hours of trials that were stopped": f"{outcome.stopped_gpu_hours:.2f}" if outcome.gpu_hours else None,
    }
    return [(name, value) for name, value in facts.items() if value]


def _list_best_values(outcome: SearchOutcome, definition: SearchDefinition) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = []
    for trial in outcome.trials:
        if trial.status == COMPLETE and trial.value is not None:
            is_better = not curve or definition.objective.is_better(trial.value, curve[-1][1])
            curve.append((float(trial.number), trial.value if is_better else curve[-1][1]))
    return curve


def _render_plots(trials: Sequence[Trial], outcome: SearchOutcome, definition: SearchDefinition) -> list[str]:
    """Return the objective by each parameter, and all in parallel, with the best trial on top."""
    metric = definition.objective.metric
    values = charts.Axis([trial.value for trial in trials])
    axes = [(name, _build_axis(distribution, name, trials)) for name, distribution in definition.space.items()]
    marks = [_describe_trial(trial, outcome, metric) for trial in trials]
    plots = []
    for name, axis in axes:
        plots += [f"<h3>{escape(metric)} by {escape(name)}</h3>", charts.render_scatter(axis, values, marks)]
    if len(axes) > 1:
        plots += ["<h3>Parameters of each trial</h3>", charts.render_parallel([*axes, (metric, values)], marks)]
    return plots


def _build_axis(distribution: Distribution, name: str, trials: Sequence[Trial]) -> charts.Axis:
    if isinstance(distribution, Choice):
        return charts.Axis([each.parameters[name] for each in trials], False, list(map(to_text, distribution.values)))
    is_log = isinstance(distribution, LogUniform) or (isinstance(distribution, RandInt) and distribution.log)
    return charts.Axis([each.values[name] for each in trials], is_log)


def _describe_trial(trial: Trial, outcome: SearchOutcome, metric: str) -> tuple[str, str]:
    """Return the class of a trial in a plot, and its title."""
    is_best = outcome.best is not None and trial.number == outcome.best.trial
    parameters = ", ".join(f"{name} {value}" for name, value in trial.parameters.items())
    title = f"Trial {trial.number}, {trial.status}: {metric} {trial.value:.6g}, {parameters}"
    return "best" if is_best else "complete" if trial.status == COMPLETE else "", title


def _sort_trials(outcome: SearchOutcome, definition: SearchDefinition) -> list[Trial]:
    sign = 1.0 if definition.objective.is_better(0.0, 1.0) else -1.0
    return sorted(
        outcome.trials, key=lambda each: (each.value is None, each.status != COMPLETE, sign * (each.value or 0.0))
    )
