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
    _remove_containers(engine, label, job.uid, keep_containers)
    engine.remove_volume(names.claim(job.namespace, job.name))
    # Whoever has made some meanwhile has not seen that the claim is gone.
    _remove_containers(engine, label, job.uid, keep_containers)
    for volume in engine.volumes(label):
        # What an initializer has fetched for others is not the job's.
        if volume["Name"] != names.fetched_volume(job.namespace, job.name):
            with suppress(RefusedError):  # Still mounted by containers that are kept.
                engine.remove_volume(volume["Name"])


def _remove_containers(engine: Engine, label: str, uid: str, keep: bool) -> None:
    for each in engine.containers(label):
        if keep:
            _put_aside(engine, each, uid)
        else:
            engine.remove(each["Id"])
    for network in engine.networks(label):
        with suppress(RefusedError):
            engine.remove_network(network["Name"])


def _put_aside(engine: Engine, container: Mapping[str, Any], uid: str) -> None:
    name = _name(container)
    if not name.endswith(_aside(uid)):
        engine.stop(container["Id"], 0)
        engine.rename(container["Id"], name + _aside(uid))


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
        kept = _name(each).endswith(_aside(_uid(each)))
        if _uid(each) not in there and not kept and age > _HALF_MADE.total_seconds():
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


def _name(container: Mapping[str, Any]) -> str:
    return str(container["Names"][0]).lstrip("/")


def _aside(uid: str) -> str:
    """How the names end of containers that are kept of a job that is deleted."""
    return f".{uid[:8]}"
