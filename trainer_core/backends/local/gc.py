"""Garbage collection: removes old finished jobs, abandoned staging folders and unused environments."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.backends.local import environments, job_status
from trainer_core.backends.local.job_queue import JobQueue
from trainer_core.backends.local.job_record import JobRecord
from trainer_core.backends.local.job_store import JobFolder, StateFolder, read_json

__all__ = ["remove_old_jobs", "remove_unused_environments"]

#: Age after which a staging folder, or a job whose supervisor was killed, counts as abandoned.
_ABANDONED_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


def remove_old_jobs(state: StateFolder, keep: int, keep_days: float) -> list[str]:
    """Remove old finished jobs and abandoned folders.

    Args:
        state: The state folder.
        keep: Number of finished jobs to keep; the newest are kept.
        keep_days: Number of days to keep a finished job.

    Returns:
        The names of the removed jobs.
    """
    _remove_abandoned_folders(state)
    _remove_old_queues(state, keep_days)
    now = time.time()
    finished = sorted(_list_finished_jobs(state), reverse=True)
    old = [
        folder
        for rank, (changed, folder) in enumerate(finished)
        if rank >= keep or now - changed > keep_days * _DAY_SECONDS
    ]
    for folder in old:
        state.remove_job(JobFolder(folder))
    return [folder.name for folder in old]


def remove_unused_environments(state: StateFolder) -> None:
    """Remove the environments that no job refers to and that were not used for a day."""
    plans = (_read_plan(state.job_folder(name)) for name in state.list_job_names())
    specs = (plan["environment"] for plan in plans if plan.get("environment"))
    in_use = {environments.environment_key(spec["packages"], spec["index_urls"]) for spec in specs}
    environments.remove_environments(state.environments, in_use, _DAY_SECONDS)


def _read_plan(folder: JobFolder) -> dict[str, Any]:
    try:
        return dict(read_json(folder.plan))
    except (OSError, ValueError):
        return {}


def _list_finished_jobs(state: StateFolder) -> list[tuple[float, Path]]:
    """Return the folders of jobs that ended, with the time of their last status change."""
    finished = []
    for name in state.list_job_names():
        folder = state.job_folder(name)
        try:
            record = JobRecord.from_dict(read_json(folder.status))
            changed = folder.status.stat().st_mtime
        except (OSError, ValueError):
            continue
        is_abandoned = time.time() - changed > _ABANDONED_SECONDS and job_status.has_reliable_lock(record)
        if (record.is_finished or is_abandoned) and not folder.is_supervised():
            finished.append((changed, folder.path))
    return finished


def _remove_abandoned_folders(state: StateFolder) -> None:
    """Remove what a submitter or deleter left when it was killed."""
    for parent in (state.staging, state.trash):
        for path in parent.glob("*"):
            with suppress(FileNotFoundError):  # Supervisors of other jobs remove folders too.
                age = time.time() - path.stat().st_mtime
                if age > _ABANDONED_SECONDS and not JobFolder(path).is_supervised():
                    shutil.rmtree(path, ignore_errors=True)


def _remove_old_queues(state: StateFolder, keep_days: float) -> None:
    """Remove the queues of earlier boots of this host, and of hosts that no longer submit jobs."""
    own = JobQueue(state.queue).path
    for path in state.queue.glob("*"):
        with suppress(FileNotFoundError):
            if path != own and time.time() - path.stat().st_mtime > keep_days * _DAY_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
