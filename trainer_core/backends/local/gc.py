"""Garbage collection: removes old finished jobs, abandoned staging folders, and code and environments without jobs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
    # True for one that is too old, False for one too many.
    beyond = {
        folder: now - changed > keep_days * _DAY_SECONDS
        for rank, (changed, folder) in enumerate(finished)
        if rank >= keep or now - changed > keep_days * _DAY_SECONDS
    }
    searches: dict[str, _Search] = {}
    old = [folder for folder, is_old in beyond.items() if not _is_needed(state, folder, is_old, beyond, searches)]
    for folder in reversed(old):  # The record of a search after its trials: without it the search has not ended.
        state.remove_folder(folder)
    return [folder.name for folder in old]


class _Search(NamedTuple):
    """A search whose jobs are its only state."""

    #: Whether it has not ended.
    is_open: bool
    #: The best trial of each generation whose record stays, with True, and those that no entry has as ended yet.
    spared: dict[str, bool]


def _is_needed(
    state: StateFolder, folder: Path, is_old: bool, beyond: Collection[Path], searches: dict[str, _Search]
) -> bool:
    """Return whether a job is spared: the best of a search, and, unless they are old, all of one that has not ended."""
    marker = next((path.name for path in folder.glob("search-*")), None)
    if marker is None:
        return False
    if marker not in searches:
        searches[marker] = _read_search(state, marker, {path.name for path in beyond})
    search = searches[marker]
    if is_old:  # Those that no entry has as ended may be of a search that nobody continues.
        return search.spared.get(folder.name, False)
    return search.is_open or folder.name in search.spared


def _read_search(state: StateFolder, marker: str, beyond: Collection[str]) -> _Search:
    generations: dict[str | None, list[tuple[int, str, dict[str, Any]]]] = {}
    for folder in map(state.job_folder, state.list_job_names()):
        if (folder.path / marker).exists():
            with suppress(OSError, ValueError, LookupError, TypeError):
                request = read_json(folder.request)
                entries = generations.setdefault(request["owner"].get("generation"), [])
                entries.append((request["search"]["entry"], folder.path.name, request["search"]))
    is_open, spared = False, dict[str, bool]()
    for entries in generations.values():
        _, newest, section = max(entries)
        is_running = section.get("kind") != "record" or section.get("reason") == "stopped"
        is_open |= is_running
        spared.update(_list_spared(entries) if is_running or newest not in beyond else ())
    return _Search(is_open, spared)


def _list_spared(entries: list[tuple[int, str, dict[str, Any]]]) -> Iterator[tuple[str, bool]]:
    """Yield the job of the best trial, with True, and those that no entry has as ended: one of them may be the best."""
    lines = {line[0]: line for _, _, entry in sorted(entries) for line in entry.get("settled", ())}
    for _, name, entry in entries:
        if entry.get("trial") is not None and entry["trial"] not in lines:
            yield name, False
    objective = max(entries)[2]["definition"]["objectives"][0]
    choose = max if objective.get("direction") == "maximize" else min
    for state in ("Complete", "StoppedEarly"):
        # A line is (trial, state, value, rungs, parameters, job, …).
        found = [line for _, line in sorted(lines.items()) if line[1] == state and line[2] is not None]
        if found:
            yield choose(found, key=lambda line: line[2])[5] or "", True
            return


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
