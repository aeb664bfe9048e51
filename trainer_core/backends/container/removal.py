"""Taking a job off the engine, whole; and what killed clients have left of others.

The claim goes before the entries of the book: a job is never there without its end, so that nobody takes it for a new
one and runs it again. What is left without a claim belongs to no job any more, whoever finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from trainer_core.backends.container import names, observe
from trainer_core.backends.container.book import Job
from trainer_core.backends.container.engine import Engine, RefusedError

__all__ = ["due", "remove", "sweep"]

#: A container is created before it is seen whether its job is still there.
_HALF_MADE = timedelta(minutes=10)


def remove(engine: Engine, job: Job, keep_containers: bool = False) -> None:
    """Remove everything of a job that has ended.

    Args:
        engine: Where it is.
        job: The job.
        keep_containers: Leave its containers, ended and under other names, to whoever wants to look into them.
    """
    label = f"{names.UID}={job.uid}"
    if keep_containers:
        _put_aside(engine, engine.containers(label), job.uid)
    else:
        _remove_containers(engine, label)
    engine.remove_volume(names.claim(job.namespace, job.name))
    for volume in engine.volumes(label):
        # What an initializer has fetched for others is not the job's.
        if volume["Name"] != names.fetched_volume(job.namespace, job.name):
            with suppress(RefusedError):  # Still mounted by containers that are kept.
                engine.remove_volume(volume["Name"])


def _remove_containers(engine: Engine, label: str) -> None:
    for each in engine.containers(label):
        engine.remove(each["Id"])
    for network in engine.networks(label):
        with suppress(RefusedError):
            engine.remove_network(network["Name"])


def _put_aside(engine: Engine, containers: Iterable[Mapping[str, Any]], uid: str) -> None:
    for each in containers:
        engine.stop(each["Id"], 0)
        with suppress(RefusedError):
            engine.rename(each["Id"], f"{each['Names'][0].lstrip('/')}.{uid[:8]}")


def due(jobs: Iterable[Job], now: datetime) -> list[Job]:
    """Return the jobs that have ended longer ago than they are to be kept."""
    found = []
    for job in jobs:
        seconds, ended = job.plan.get("delete_after_seconds"), observe.finished(job)
        if seconds is not None and ended is not None and now - ended > timedelta(seconds=seconds):
            found.append(job)
    return found


def sweep(engine: Engine, namespace: str, now: datetime) -> None:
    """Remove what is left of jobs that are gone."""
    label = f"{names.NAMESPACE}={namespace}"
    volumes = engine.volumes(label)
    there = {_uid(volume) for volume in volumes if (volume["Labels"] or {}).get(names.KIND) == names.JOB}
    for each in engine.containers(label):
        age = now.timestamp() - float(each.get("Created") or 0)
        if _uid(each) not in there and age > _HALF_MADE.total_seconds():
            engine.remove(each["Id"])
    for network in engine.networks(label):
        if _uid(network) not in there:
            with suppress(RefusedError):
                engine.remove_network(network["Name"])
    for volume in volumes:
        kind = (volume["Labels"] or {}).get(names.KIND)
        if _uid(volume) not in there and kind is not None and volume["Name"].startswith("trainjob."):
            with suppress(RefusedError):
                engine.remove_volume(volume["Name"])


def _uid(raw: Mapping[str, Any]) -> str:
    return str((raw.get("Labels") or {}).get(names.UID, ""))
