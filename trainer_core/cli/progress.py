"""Progress of a wait on standard error: a bar on a terminal, lines everywhere else."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from trainer_core.client.attempts import Attempt
from trainer_core.model.jobs import Observation, Outcome


def wait_with_progress(attempt: Attempt) -> Outcome:
    """Wait until an attempt has ended, and print its progress to standard error."""
    console, ref = Console(stderr=True), attempt.ref
    if not console.is_terminal:
        return attempt.wait(_LinePrinter(console, ref.name).print_if_changed)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[metrics]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(ref.name, total=None, metrics="")

        def update_bar(observation: Observation) -> None:
            progress = observation.progress
            bar.update(task, description=f"{ref.name} {_format_status(observation)}")
            if progress is not None:
                metrics = _format_metrics(observation)
                bar.update(task, completed=progress.step or 0, total=progress.total, metrics=metrics)

        return attempt.wait(update_bar)


class _LinePrinter:
    """Prints a line when the status changes or the progress passes a multiple of 10 %."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._last: tuple[str, int | None, str | None] | None = None

    def print_if_changed(self, observation: Observation) -> None:
        progress = observation.progress
        percentage = progress.percentage if progress else None
        status = _format_status(observation)
        silent = progress.silent if progress else None
        shown = (status, None if percentage is None else percentage // 10, silent)
        if shown != self._last:
            self._last = shown
            line = status if percentage is None else f"{status} {percentage}%"
            text = f"{self._name} {line} {_format_metrics(observation)}".rstrip()
            self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def _format_status(observation: Observation) -> str:
    """Return the status, with the reason of a failure that is pending or the place in the queue."""
    pending = observation.pending_failure
    reason = observation.queued if pending is None else str(pending.diagnosis)
    return f"{observation.status}: {reason}" if reason else observation.status


def _format_metrics(observation: Observation) -> str:
    progress = observation.progress
    if progress is None:
        return ""
    resumed = [] if progress.resumed_from is None else [f"(resumed from step {progress.resumed_from})"]
    silent = [] if progress.silent is None else [f"silent for {progress.silent}"]
    return " ".join([*(f"{name}={value:.4g}" for name, value in progress.metrics.items()), *resumed, *silent])
