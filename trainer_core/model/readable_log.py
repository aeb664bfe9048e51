"""ReadableLog: the log of a TrainJob as people read it, without what programs write for programs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trainer_core.model.jobs import Progress
from trainer_core.model.logs import build_progress, parse_progress
from trainer_core.model.resource_use import strip_resource_report

#: First line of torchrun's report on a failed worker: 40 lines that would displace the worker's own traceback.
TORCHRUN_REPORT = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode")
_TRACEBACK = "Traceback (most recent call last):"
#: Second line of torchrun's own traceback; other ranks may have tracebacks between the report's first line and it.
_TORCHRUN_FRAME = re.compile(r'^  File "(<frozen runpy>|.*\btorchrun"|.*/torch/distributed/)')
_RULE = re.compile("={20,}")
#: Rules in the report, the last of which ends it. Lines after which it counts as ended, because torchrun was killed.
_RULES = 2
_MAX_REPORT_LINES = 300
#: Progress is shown when it has changed by this many percent, or after this many seconds.
_PROGRESS_PERCENT = 10
_PROGRESS_SECONDS = 30.0


def format_log_line(line: str) -> str | None:
    """Return a line of a log; a progress report as text; None for one about checkpoints only, which have own lines."""
    report = parse_progress(line)
    if report is None:
        return line
    text = str(build_progress(report))
    return f"progress {text}" if text else None


def format_log_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log for people: progress as text, and no reports of the use of resources."""
    for raw in lines:
        line = strip_resource_report(raw)
        text = None if line is None else format_log_line(line)
        if text is not None:
            yield text


class ReadableLog:
    """Shows lines of training and progress now and then; leaves out the use of resources and torchrun's reports."""

    def __init__(self, percent: int | None = None) -> None:
        self.progress: Progress | None = None
        self.percent = percent
        self._next_progress: float | None = None
        self._reports: dict[str, _TorchrunReport] = {}

    def format(self, step: str, line: str, now: float) -> list[str]:
        """Return what to show of a line."""
        report = parse_progress(line)
        if report is None:
            text = strip_resource_report(line)
            return [] if text is None else self._reports.setdefault(step, _TorchrunReport()).cut(text)
        self.progress = build_progress(report)
        # The node prints separate lines about checkpoints.
        return [f"progress {self.progress}"] if str(self.progress) and self._is_due(self.progress, now) else []

    def _is_due(self, progress: Progress, now: float) -> bool:
        percent, last = progress.percentage, self.percent
        if self._next_progress is None:
            self._next_progress = now if last is None else now + _PROGRESS_SECONDS
        moved = percent is not None and (
            last is None or abs(percent - last) >= _PROGRESS_PERCENT or last < percent == 100
        )
        if not moved and now < self._next_progress:
            return False
        self.percent = percent if percent is not None else last
        self._next_progress = now + _PROGRESS_SECONDS
        return True


class _TorchrunReport:
    """Cuts torchrun's reports out of the log of one step."""

    def __init__(self) -> None:
        self._has_begun = False
        self._holds_traceback = False
        self._rules = 0
        self._lines = 0

    def cut(self, line: str) -> list[str]:
        """Return the lines to show now that this one is read."""
        if self._rules:
            self._lines += 1
            self._rules -= bool(_RULE.fullmatch(line))
            self._rules *= self._lines < _MAX_REPORT_LINES
            return []
        if TORCHRUN_REPORT.search(line):
            self._has_begun = True
            return []
        if self._has_begun and line == _TRACEBACK:
            self._holds_traceback = True
            return []
        if not self._holds_traceback:
            return [line]
        self._holds_traceback = False
        if not _TORCHRUN_FRAME.match(line):
            return [_TRACEBACK, line]
        self._has_begun, self._rules, self._lines = False, _RULES, 0
        return []
