"""Garbage collection: removes old finished jobs, abandoned staging folders, and code and environments without jobs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.backends.local import environments
from trainer_core.backends.local.job_queue import JobQueue
from trainer_core.backends.local.job_record import JobRecord
from trainer_core.backends.local.job_store import JobFolder, StateFolder, read_json
from trainer_core.packaging import code_location

#: Age after which a staging folder, or a job whose supervisor was killed, counts as abandoned.
_ABANDONED_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


def remove_old_jobs(state: StateFolder, keep: int, keep_days: float) -> list[str]:
    _remove_abandoned_folders(state)
    _remove_old_queues(state, keep_days)
    now = time.time()
    jobs = sorted(_list_jobs(state), reverse=True)
    if len(jobs) <= keep:
        # Only the age counts, and thousands of jobs need not be read.
        jobs = [(changed, folder) for changed, folder in jobs if now - changed > keep_days * _DAY_SECONDS]
    finished = [(changed, folder) for changed, folder in jobs if _has_ended(JobFolder(folder), now - changed)]
    is_open: dict[str, bool] = {}
    old = [
        folder
        for rank, (changed, folder) in enumerate(finished)
        if now - changed > keep_days * _DAY_SECONDS or (rank >= keep and not _is_needed(state, folder, is_open))
    ]
    for folder in old:
        state.remove_folder(folder)
    return [folder.name for folder in old]


def _is_needed(state: StateFolder, folder: Path, is_open: dict[str, bool]) -> bool:
    """Return whether a job belongs to a search that has not ended: its jobs are its only state."""
    marker = next((path.name for path in folder.glob("search-*")), None)
    if marker is not None and marker not in is_open:
        is_open[marker] = _is_search_open(state, marker)
    return marker is not None and is_open[marker]


def _is_search_open(state: StateFolder, marker: str) -> bool:
    """Return whether the newest job of a search, in one of its generations, trains and does not close it."""
    newest: dict[str | None, tuple[int, bool]] = {}
    for folder in map(state.job_folder, state.list_job_names()):
        if (folder.path / marker).exists():
            with suppress(OSError, ValueError, LookupError, TypeError):
                request = read_json(folder.request)
                entry, generation = request["search"], request["owner"].get("generation")
                found = entry["entry"], entry.get("kind") == "record" and entry.get("reason") != "stopped"
                newest[generation] = max(newest.get(generation, (-1, False)), found)
    return not all(is_closed for _, is_closed in newest.values())


def remove_unused_environments(state: StateFolder) -> None:
    """Remove the environments that no job refers to and that were not used for a day."""
    if not environments.list_environments(state.environments):
        return
    plans = (_read_plan(state.job_folder(name)) for name in state.list_job_names())
    specs = (plan["environment"] for plan in plans if plan.get("environment"))
    in_use = {environments.environment_key(spec["packages"], spec["index_urls"]) for spec in specs}
    environments.remove_environments(state.environments, in_use, _DAY_SECONDS)


def remove_unused_code(state: StateFolder) -> None:
    """Remove the files of large projects, and the kits, that no job refers to and that were not used for a day."""
    code_location.remove_unused(
        state.code, lambda: {_read_plan(state.job_folder(name)).get("code") for name in state.list_job_names()}
    )
    for kit in state.kits.glob("*"):
        with suppress(FileNotFoundError):  # Supervisors of other jobs remove kits too.
            if time.time() - kit.stat().st_mtime > _DAY_SECONDS and not _is_kit_used(state, kit.name):
                state.remove_folder(kit)


def _is_kit_used(state: StateFolder, kit: str) -> bool:
    jobs = map(JobFolder, (*state.staging.glob("*"), *state.jobs.glob("*")))
    # A job that was submitted before kits were shared has a folder and no link.
    return any(job.code.is_symlink() and job.code.readlink().name == kit for job in jobs)


def _read_plan(folder: JobFolder) -> dict[str, Any]:
    try:
        return dict(read_json(folder.plan))
    except (OSError, ValueError):
        return {}


def _list_jobs(state: StateFolder) -> Iterator[tuple[float, Path]]:
    """Yield the folders of jobs with the time of their last status change."""
    for name in state.list_job_names():
        folder = state.job_folder(name)
        with suppress(OSError):  # Supervisors of other jobs remove jobs too.
            yield folder.status.stat().st_mtime, folder.path


def _has_ended(folder: JobFolder, unchanged: float) -> bool:
    """Return whether a job has ended, or its supervisor was killed long ago."""
    try:
        record = JobRecord.from_dict(read_json(folder.status))
    except (OSError, ValueError):
        return False
    is_abandoned = unchanged > _ABANDONED_SECONDS and record.has_reliable_lock()
    return (record.is_finished or is_abandoned) and not folder.is_supervised()


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
