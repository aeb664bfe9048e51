"""Waiting for a TrainJob with something to look at: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from trainer_core.client import TrainerClient
from trainer_core.observation import Observation
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["wait"]


def wait(client: TrainerClient, ref: TrainJobRef, timeout: float | None, quiet: bool = False) -> Outcome:
    """Wait until the TrainJob has ended, showing how far it is on standard error.

    Args:
        client: Of the job's backend.
        ref: The job.
        timeout: Seconds to wait at most.
        quiet: Show nothing.

    Raises:
        WaitTimeoutError: The time is over.
    """
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        return client.wait(ref, timeout, _Lines(console, ref.name).show)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[metrics]}")
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(ref.name, total=None, metrics="")

        def show(seen: Observation) -> None:
            done = seen.progress
            bar.update(task, description=f"{ref.name} {seen.status}")
            if done is not None:
                bar.update(task, completed=done.step or 0, total=done.total, metrics=_metrics(seen))

        return client.wait(ref, timeout, show)


class _Lines:
    """One line for each change that a person would want to know of."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._last = ""

    def show(self, seen: Observation) -> None:
        percentage = seen.progress.percentage if seen.progress else None
        # Tenths: a log is no progress bar.
        line = seen.status if percentage is None else f"{seen.status} {percentage // 10 * 10}%"
        if line != self._last:
            self._last = line
            self._console.print(f"{self._name} {line} {_metrics(seen)}".rstrip(), soft_wrap=True, highlight=False)


def _metrics(seen: Observation) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in seen.progress.metrics.items()) if seen.progress else ""
