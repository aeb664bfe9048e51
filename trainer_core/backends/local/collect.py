"""Garbage collection: finished jobs beyond the number or the age to keep, and what died half-made."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.backends.local import environments
from trainer_core.backends.local.files import Home, JobFolder, read_json
from trainer_core.backends.local.record import Record

__all__ = ["sweep", "sweep_environments"]

_HALF_MADE_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


def sweep(home: Home, keep: int, keep_days: float) -> list[str]:
    """Remove old finished jobs.

    Args:
        home: The state folder.
        keep: How many finished jobs to keep, the newest first.
        keep_days: How many days to keep a finished job.

    Returns:
        The names of the removed jobs.
    """
    _sweep_half_made(home)
    now = time.time()
    finished = sorted(_finished(home), reverse=True)
    old = [
        folder
        for rank, (ended, folder) in enumerate(finished)
        if rank >= keep or now - ended > keep_days * _DAY_SECONDS
    ]
    for folder in old:
        home.discard(JobFolder(folder))
    return [folder.name for folder in old]


def sweep_environments(home: Home) -> None:
    """Remove environments that no job there is refers to."""
    plans = (_plan(home.job(name)) for name in home.job_names())
    wanted = (plan["environment"] for plan in plans if plan.get("environment"))
    needed = {environments.key(env["packages"], env["index_urls"]) for env in wanted}
    environments.remove_unused(home.environments, needed, _DAY_SECONDS)


def _plan(folder: JobFolder) -> dict[str, Any]:
    try:
        return dict(read_json(folder.plan))
    except (OSError, ValueError):
        return {}


def _finished(home: Home) -> list[tuple[float, Path]]:
    found = []
    for name in home.job_names():
        folder = home.job(name)
        try:
            ended = Record.from_dict(read_json(folder.status)).ended
            changed = folder.status.stat().st_mtime
        except (OSError, ValueError):
            continue
        if (ended or time.time() - changed > _HALF_MADE_SECONDS) and not folder.supervised():
            found.append((changed, folder.path))
    return found


def _sweep_half_made(home: Home) -> None:
    """A submitter or deleter that was killed left a folder nobody will ever finish."""
    for place in (home.staging, home.trash):
        for path in place.glob("*"):
            with suppress(FileNotFoundError):  # Supervisors of other jobs sweep, too.
                if not JobFolder(path).supervised() and time.time() - path.stat().st_mtime > _HALF_MADE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
