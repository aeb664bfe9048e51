"""The report of a search: one small HTML page, every text of a user escaped."""

from __future__ import annotations

from html import escape

from kfp_components.step import charts, report
from trainer_core.jobs import COMPLETE
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.results import SearchOutcome, Trial
from trainer_core.search.space import Choice, LogUniform, RandInt

#: Trials in the table, the best first.
_MAX_ROWS = 200


def render_html(name: str, outcome: SearchOutcome, definition: SearchDefinition) -> str:
    metric = definition.objective.metric
    sections = [report.render_pairs(_list_facts(outcome, definition))]
    ended = [trial for trial in outcome.trials if trial.value is not None]
    best = _list_best_values(outcome, definition)
    if len(best) > 1:
        sections += [f"<h2>Best {escape(metric)} so far</h2>", charts.render_curve(best)]
    for parameter, distribution in definition.space.items():
        is_log = isinstance(distribution, LogUniform) or (isinstance(distribution, RandInt) and distribution.log)
        points = [_build_point(trial, parameter, isinstance(distribution, Choice)) for trial in ended]
        if points:
            heading = f"<h3>{escape(metric)} by {escape(parameter)}</h3>"
            sections += [heading, charts.render_scatter(points, is_log)]
    head = ("trial", "status", metric, *definition.space, "seconds", "job")
    rows = [
        (
            str(trial.number),
            trial.status,
            "" if trial.value is None else f"{trial.value:.6g}",
            *(trial.parameters.get(each, "") for each in definition.space),
            "" if trial.seconds is None else f"{trial.seconds:.1f}",
            trial.name,
        )
        for trial in _sort_trials(outcome, definition)[:_MAX_ROWS]
    ]
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


def _build_point(trial: Trial, parameter: str, is_choice: bool) -> tuple[float | str, float, str]:
    value = trial.parameters.get(parameter, "") if is_choice else trial.values[parameter]
    return value, trial.value or 0.0, trial.status


def _sort_trials(outcome: SearchOutcome, definition: SearchDefinition) -> list[Trial]:
    sign = 1.0 if definition.objective.is_better(0.0, 1.0) else -1.0
    return sorted(
        outcome.trials, key=lambda each: (each.value is None, each.status != COMPLETE, sign * (each.value or 0.0))
    )
