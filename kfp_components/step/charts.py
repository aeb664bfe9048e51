"""Curves and timelines as SVG: no script, no font, no other file, so that KFP's UI shows them as they are.

Colours are those of the page, by class: it has a light and a dark one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 180, 70, 12
_ROW = 22


def render_curve(points: Sequence[tuple[float, float]]) -> str:
    steps, values = [step for step, _ in points], [value for _, value in points]
    low, high, first, last = min(values), max(values), min(steps), max(steps)
    width, height = _WIDTH - _LEFT - _TOP, _HEIGHT - 3 * _TOP

    def format_point(step: float, value: float) -> str:
        x = _LEFT + width * (step - first) / ((last - first) or 1)
        y = _TOP + height * (high - value) / ((high - low) or 1)
        return f"{x:.1f},{y:.1f}"

    line = " ".join(format_point(step, value) for step, value in points)
    bottom = _HEIGHT - 2 * _TOP
    return "".join(
        (
            _render_svg_tag(_HEIGHT),
            f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _TOP}"/>',
            f'<polyline class="curve" points="{line}"/>',
            _render_text(_LEFT - 6, _TOP + 4, f"{high:.4g}", "end"),
            _render_text(_LEFT - 6, bottom, f"{low:.4g}", "end"),
            _render_text(_LEFT, bottom + 16, f"{first:g}"),
            _render_text(_WIDTH - _TOP, bottom + 16, f"{last:g}", "end"),
            "</svg>",
        )
    )


def render_scatter(points: Sequence[tuple[float | str, float, str]], is_log: bool = False) -> str:
    """Return points of an x that is a number or a text, a y, and the class of the point."""
    texts = list(dict.fromkeys(str(x) for x, *_ in points)) if any(isinstance(x, str) for x, *_ in points) else []
    places = [_place(x, texts, is_log) for x, *_ in points]
    values = [y for _, y, _ in points]
    low, high, first, last = min(values), max(values), min(places), max(places)
    width, bottom = _WIDTH - _LEFT - 2 * _TOP, _HEIGHT - 2 * _TOP
    dots = []
    for place, (x, y, status) in zip(places, points, strict=True):
        left = _LEFT + 8 + width * (place - first) / ((last - first) or 1)
        top = _TOP + (bottom - _TOP - 6) * (high - y) / ((high - low) or 1)
        title = f"<title>{escape(str(x))}: {y:.6g}, {escape(status)}</title>"
        dots.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" class="{escape(status)}">{title}</circle>')
    ends = (
        (texts[0], texts[-1]) if texts else (f"{min(x for x, *_ in points):.4g}", f"{max(x for x, *_ in points):.4g}")
    )
    return "".join(
        (
            _render_svg_tag(_HEIGHT),
            f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _TOP}"/>',
            *dots,
            _render_text(_LEFT - 6, _TOP + 4, f"{high:.4g}", "end"),
            _render_text(_LEFT - 6, bottom, f"{low:.4g}", "end"),
            _render_text(_LEFT, bottom + 16, ends[0]),
            _render_text(_WIDTH - _TOP, bottom + 16, f"{ends[1]}{' (log)' if is_log else ''}", "end"),
            "</svg>",
        )
    )


def _place(x: float | str, texts: Sequence[str], is_log: bool) -> float:
    if texts:
        return float(texts.index(str(x)))
    return math.log(float(x)) if is_log else float(x)


def render_timeline(
    bars: Sequence[tuple[str, str, datetime, datetime]], marks: Sequence[tuple[str, datetime]] = ()
) -> str:
    """Return when each step ran."""
    begin, end = min(bar[2] for bar in bars), max(bar[3] for bar in bars)
    whole = (end - begin).total_seconds() or 1.0
    left, width = 150, _WIDTH - 150 - 70
    rows = []
    for number, (name, status, start, stop) in enumerate(bars):
        y = number * _ROW
        x = left + width * (start - begin).total_seconds() / whole
        seconds = (stop - start).total_seconds()
        length = max(2.0, width * seconds / whole)
        rows += [
            _render_text(left - 6, y + 15, name, "end"),
            f'<rect x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}" class="{escape(status)}"/>',
            _render_text(x + length + 4, y + 15, f"{seconds:.1f} s"),
        ]
    for number, (text, time) in enumerate(marks, len(bars)):
        x = left + width * min(1.0, max(0.0, (time - begin).total_seconds() / whole))
        y = number * _ROW
        # The text is on the side with more room.
        after, anchor = (4, "start") if x < left + width / 2 else (-4, "end")
        rows += [
            f'<path class="mark" d="M{x:.1f} 0V{y + _ROW}"/>',
            _render_text(x + after, y + 15, text, anchor),
        ]
    return f"{_render_svg_tag((len(bars) + len(marks)) * _ROW)}{''.join(rows)}</svg>"


def _render_svg_tag(height: int) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'


def _render_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
