"""Curves and timelines as SVG: no script, no font, no other file, so that KFP's UI shows them as they are.

Colours are those of the page, by class: it has a light and a dark one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

from trainer_core.base.text import shorten

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 180, 70, 12
_ROW = 22
#: Between two parallel axes.
_MIN_GAP = 100


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


class Axis:
    """Places of values between 0 and 1: of numbers, by their logarithm if asked, or of choices."""

    def __init__(self, values: Sequence[Any], is_log: bool = False, choices: Sequence[str] = ()) -> None:
        if choices:
            places, low, high = [float(choices.index(value)) for value in values], 0.0, len(choices) - 1.0
            self.first, self.last = choices[0], choices[-1]
        else:
            places = [math.log(value) if is_log else float(value) for value in values]
            low, high = min(places), max(places)
            self.first, self.last = f"{min(values):.4g}", f"{max(values):.4g}{' (log)' if is_log else ''}"
        self.places = [(place - low) / ((high - low) or 1) for place in places]


def render_scatter(across: Axis, up: Axis, dots: Sequence[tuple[str, str]]) -> str:
    """Return a dot for each pair of class and title."""
    width, bottom = _WIDTH - _LEFT - 2 * _TOP, _HEIGHT - 2 * _TOP
    circles = []
    for to_right, to_top, (kind, title) in zip(across.places, up.places, dots, strict=True):
        x, y = _LEFT + 8 + width * to_right, _TOP + (bottom - _TOP - 6) * (1 - to_top)
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="dot {escape(kind)}">'
        circles.append(f"{circle}<title>{escape(title)}</title></circle>")
    return "".join(
        (
            _render_svg_tag(_HEIGHT),
            f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _TOP}"/>',
            *circles,
            _render_text(_LEFT - 6, _TOP + 4, up.last, "end"),
            _render_text(_LEFT - 6, bottom, up.first, "end"),
            _render_text(_LEFT, bottom + 16, across.first),
            _render_text(_WIDTH - _TOP, bottom + 16, across.last, "end"),
            "</svg>",
        )
    )


def render_parallel(axes: Sequence[tuple[str, Axis]], lines: Sequence[tuple[str, str]]) -> str:
    """Return parallel axes with their names, and lines through their places on them with their classes and titles."""
    gap = max(_MIN_GAP, (_WIDTH - 2 * _LEFT) / (len(axes) - 1))
    top, bottom = 3 * _TOP, _HEIGHT - 2 * _TOP
    parts = []
    for at, (kind, title) in enumerate(lines):
        places = (axis.places[at] for _, axis in axes)
        points = (f"{_LEFT + gap * x:.1f},{bottom - (bottom - top) * y:.1f}" for x, y in enumerate(places))
        line = f'<polyline class="line {escape(kind)}" points="{" ".join(points)}">'
        parts.append(f"{line}<title>{escape(title)}</title></polyline>")
    for number, (name, axis) in enumerate(axes):
        x = _LEFT + gap * number
        parts += [
            f'<path class="axis" d="M{x:.1f} {top}V{bottom}"/>',
            _render_text(x, _TOP, shorten(name, 16), "middle"),
            _render_text(x, top - 5, shorten(axis.last, 16), "middle"),
            _render_text(x, bottom + 14, shorten(axis.first, 16), "middle"),
        ]
    width = 2 * _LEFT + gap * (len(axes) - 1)
    return f'<div class="scroll">{_render_svg_tag(_HEIGHT, math.ceil(width))}{"".join(parts)}</svg></div>'


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


def _render_svg_tag(height: int, width: int = _WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'


def _render_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
