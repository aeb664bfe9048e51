"""Times of files, which kernels before 6.13 take from a clock that ticks every few milliseconds."""

from __future__ import annotations

from pathlib import Path


def wait_for_next_time(file: Path, probe: Path) -> None:
    """Return when a file of the same file system that is written now gets a later time of change than `file` has."""
    probe.touch()
    while probe.stat().st_ctime_ns <= file.stat().st_ctime_ns:
        probe.touch()
