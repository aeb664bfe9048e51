"""The report of a TrainJob: one small HTML page, every text of a user escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from string import Template
from types import MappingProxyType

from kfp_components.step import charts
from kfp_components.step.failure import describe_diagnosis
from trainer_core.model.jobs import Diagnosis, Outcome, Step, TrainJob, TrainJobRef

#: Whole numbers up to here are written out.
_MAX_INTEGER = 1e15
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
:root { color-scheme: light dark; --text: #1f2328; --quiet: #59636e; --line: #d1d9e0; --soft: #f3f5f7; --page: #fff;
  --good: #1a7f37; --bad: #cf222e; --busy: #0969da; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #9198a1; --line: #3d444d; --soft: #1c2128; --page: #0d1117;
    --good: #3fb950; --bad: #f85149; --busy: #4493f8; }
}
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; max-width: 60em; }
html { color: var(--text); background: var(--page); }
h1 { font-size: 1.6em; overflow-wrap: anywhere; }
h2 { font-size: 1.2em; margin: 1.8em 0 .5em; }
h3 { font-size: 1em; margin: 1.2em 0 .2em; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--line); padding: .3em 1.5em .3em 0; text-align: left; vertical-align: top; }
th + td { overflow-wrap: anywhere; }
th { font-weight: normal; color: var(--quiet); white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: 1em; overflow: auto; border-radius: 6px; }
svg { display: block; max-width: 100%; height: auto; margin-top: .8em; }
svg text { fill: var(--quiet); font: 11px system-ui, sans-serif; }
svg .curve { fill: none; stroke: var(--busy); stroke-width: 1.5; }
svg .line { fill: none; stroke: var(--quiet); opacity: .5; }
svg .line.complete { stroke: var(--busy); }
svg .line.best { stroke: var(--good); stroke-width: 2.5; opacity: 1; }
svg .dot.complete { fill: var(--busy); }
svg .dot.best { fill: var(--good); }
.scroll { overflow-x: auto; }
.scroll svg { max-width: none; }
svg .axis { fill: none; stroke: var(--line); }
svg .mark { fill: none; stroke: var(--busy); stroke-dasharray: 3 3; }
svg rect, svg circle { fill: var(--quiet); }
.Complete, .Succeeded { color: var(--good); fill: var(--good) !important; }
.Failed { color: var(--bad); fill: var(--bad) !important; }
.Running { color: var(--busy); fill: var(--busy) !important; }
</style>
</head>
<body>
<h1>$title <span class="$status">$status</span></h1>
$sections
</body>
</html>
""")


@dataclass(frozen=True)
class Resumption:
    """A training that continued from a checkpoint."""

    #: From which step of which attempt.
    text: str
    at: datetime


def render_html(
    ref: TrainJobRef,
    status: str,
    job: TrainJob | None,
    outcome: Outcome | None = None,
    curves: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
    resumptions: Sequence[Resumption] = (),
) -> str:
    sections = [render_pairs(_list_facts(ref, job, outcome))]
    if outcome is not None and outcome.diagnosis is not None:
        sections += ["<h2>Diagnosis</h2>", *_render_diagnosis(outcome.diagnosis)]
    if outcome is not None and outcome.metrics:
        rows = [(name, _format_number(value)) for name, value in sorted(outcome.metrics.items())]
        sections += ["<h2>Metrics</h2>", render_pairs(rows)]
    for name, points in curves.items():
        sections += [f"<h3>{escape(name)}</h3>", charts.render_curve(points)]
    if outcome is not None and outcome.resource_use is not None:
        sections += ["<h2>Use of resources</h2>", render_pairs(outcome.resource_use.describe().items())]
    if outcome is not None and outcome.artifacts:
        sections += ["<h2>Artifacts</h2>", render_pairs(sorted(outcome.artifacts.items()))]
    if job is not None:
        rows_of_steps = [_build_step_row(step) for step in job.steps]
        sections += ["<h2>Steps</h2>", render_table(("step", "status", "exit code", "seconds"), rows_of_steps)]
        bars = [(s.name, s.status or "", s.started, s.finished) for s in job.steps if s.started and s.finished]
        sections += [charts.render_timeline(bars, [(each.text, each.at) for each in resumptions])] if bars else []
    return render_page(ref.name, status, sections)


def render_page(title: str, status: str, sections: Sequence[str]) -> str:
    return _PAGE.substitute(title=escape(title), status=escape(status), sections="\n".join(sections))


def _list_facts(ref: TrainJobRef, job: TrainJob | None, outcome: Outcome | None) -> Iterable[tuple[str, str]]:
    facts = {
        "runtime": job.runtime.name if job else None,
        "backend": ref.backend,
        "namespace": ref.namespace,
        "started": _format_time(outcome.started_at) if outcome else None,
        "finished": _format_time(outcome.finished_at) if outcome else None,
        "resumed from": _format_step(outcome.resumed_from) if outcome else None,
        "last checkpoint": _format_step(outcome.checkpoint) if outcome else None,
        "result": outcome.result_note if outcome else None,
        "logs": f"trainjob logs {ref.name}",
    }
    return [(name, value) for name, value in facts.items() if value]


def _render_diagnosis(diagnosis: Diagnosis) -> list[str]:
    facts, text = describe_diagnosis(diagnosis)
    table = render_pairs(facts.items())
    return [table, f"<pre>{escape(text)}</pre>"] if text else [table]


def _build_step_row(step: Step) -> tuple[str, str, str, str]:
    seconds = (step.finished - step.started).total_seconds() if step.started and step.finished else None
    code = "" if step.exit_code is None else str(step.exit_code)
    return step.name, step.status or "", code, "" if seconds is None else f"{seconds:.1f}"


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < _MAX_INTEGER else f"{value:.6g}"


def _format_step(step: int | None) -> str | None:
    return None if step is None else f"step {step}"


def _format_time(text: str | None) -> str | None:
    """2026-11-21T03:00:00.250+00:00 → 2026-11-21 03:00:00 UTC."""
    return text and re.sub(r"^([-0-9]+)T([0-9:]+)(?:\.\d+)?(?:Z|\+00:00)$", r"\1 \2 UTC", text)


def render_pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    return (
        f"<table>{''.join(f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)}</table>"
    )


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"<table>{_render_row('th', head)}{''.join(_render_row('td', row) for row in rows)}</table>"


def _render_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
