"""The report of a TrainJob: one small HTML page, every text of a user escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from kfp_components import _charts
from kfp_components._history import History
from trainer_core.jobs import Step, TrainJob
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["html"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TrainJob $name</title>
<style>
body { font: 14px/1.5 sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 0 0 1.5em; }
th, td { border: 1px solid #ccc; padding: .3em .8em; text-align: left; }
th { background: #f4f4f4; }
pre { background: #f4f4f4; padding: 1em; overflow: auto; }
</style>
</head>
<body>
<h1>TrainJob $name</h1>
$sections
</body>
</html>
""")


def html(
    ref: TrainJobRef,
    status: str,
    job: TrainJob | None,
    outcome: Outcome | None = None,
    history: History | None = None,
) -> str:
    """Return the page.

    Args:
        ref: The job.
        status: Its status.
        job: Its steps; None where they are not known.
        outcome: What it left; None for a job that has not ended.
        history: How its metrics came to be.
    """
    sections = [_table(("", ""), _facts(ref, status, job, outcome))]
    if outcome is not None and outcome.diagnosis is not None:
        sections += ["<h2>Diagnosis</h2>", *_diagnosis(outcome.diagnosis)]
    if outcome is not None and outcome.metrics:
        rows = [(name, f"{value:.6g}") for name, value in sorted(outcome.metrics.items())]
        sections += ["<h2>Metrics</h2>", _table(("metric", "value"), rows)]
    for name, points in (history.curves() if history else {}).items():
        sections += [f"<h3>{escape(name)}</h3>", _charts.curve(points)]
    if outcome is not None and outcome.artifacts:
        sections += ["<h2>Artifacts</h2>", _table(("artifact", "URI"), sorted(outcome.artifacts.items()))]
    if job is not None:
        rows_of_steps = [_step(step) for step in job.steps]
        sections += ["<h2>Steps</h2>", _table(("step", "status", "exit code", "seconds"), rows_of_steps)]
        bars = [(s.name, s.status or "", s.started, s.finished) for s in job.steps if s.started and s.finished]
        sections += [_charts.timeline(bars)] if bars else []
    return _PAGE.substitute(name=escape(ref.name), sections="\n".join(sections))


def _facts(ref: TrainJobRef, status: str, job: TrainJob | None, outcome: Outcome | None) -> Iterable[tuple[str, str]]:
    facts = {
        "status": status,
        "runtime": job.runtime.name if job else None,
        "backend": ref.backend,
        "namespace": ref.namespace,
        "started": outcome.started_at if outcome else None,
        "finished": outcome.finished_at if outcome else None,
        "result": outcome.result_note if outcome else None,
        "logs": f"trainjob logs {ref.name}",
    }
    return [(name, value) for name, value in facts.items() if value]


def _diagnosis(diagnosis: Diagnosis) -> list[str]:
    facts = {
        "category": diagnosis.category.value,
        "reason": diagnosis.reason,
        "step": diagnosis.step,
        "node": diagnosis.node,
        "exit code": None if diagnosis.exit_code is None else str(diagnosis.exit_code),
        "can a retry help": "yes" if diagnosis.retryable else "no",
    }
    text = diagnosis.traceback or "\n".join(diagnosis.log_tail)
    table = _table(("", ""), [(name, value) for name, value in facts.items() if value])
    return [table, f"<pre>{escape(text)}</pre>"] if text else [table]


def _step(step: Step) -> tuple[str, str, str, str]:
    seconds = (step.finished - step.started).total_seconds() if step.started and step.finished else None
    code = "" if step.exit_code is None else str(step.exit_code)
    return step.name, step.status or "", code, "" if seconds is None else f"{seconds:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = _row("th", head) if any(head) else ""
    return f"<table>{titles}{''.join(_row('td', row) for row in rows)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
