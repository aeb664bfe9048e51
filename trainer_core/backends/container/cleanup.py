"""Removes jobs from the engine, and objects that killed processes left.

The claim is removed before the journal. In the other order, a job without its end would be visible for a moment, and a
supervisor would run it again. Objects without a claim belong to no job and can be removed by any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from trainer_core.backends.container import names, observations
from trainer_core.backends.container.engine import Engine, EngineRequestError
from trainer_core.backends.container.job_journal import ContainerJob

#: Minimum age of a container that is removed because its job does not exist: the job may be created just now.
_ORPHAN_AGE = timedelta(minutes=10)


def remove_job(engine: Engine, job: ContainerJob, keep_containers: bool = False) -> None:
    label = f"{names.UID_LABEL}={job.uid}"
    _remove_containers(engine, label, job.uid, keep_containers)
    engine.remove_volume(names.claim_volume(job.namespace, job.name))
    # Again: a supervisor that had not seen the end may have created containers meanwhile.
    _remove_containers(engine, label, job.uid, keep_containers)
    for volume in engine.list_volumes(label):
        # Data that `initialize` fetched outlives the job.
        if volume["Name"] != names.fetched_volume(job.namespace, job.name):
            with suppress(EngineRequestError):  # Containers that are kept may still use the volume.
                engine.remove_volume(volume["Name"])


def _remove_containers(engine: Engine, label: str, uid: str, keep: bool) -> None:
    for each in engine.list_containers(label):
        if keep:
            _stop_and_rename(engine, each, uid)
        else:
            engine.remove_container(each["Id"])
    for network in engine.list_networks(label):
        with suppress(EngineRequestError):
            engine.remove_network(network["Name"])


def _stop_and_rename(engine: Engine, container: Mapping[str, Any], uid: str) -> None:
    name = _get_name(container)
    if not name.endswith(_kept_suffix(uid)):
        engine.stop_container(container["Id"], 0)
        engine.rename_container(container["Id"], name + _kept_suffix(uid))


def find_expired_jobs(jobs: Iterable[ContainerJob], now: datetime) -> list[ContainerJob]:
    """Return the jobs that ended longer ago than their option `DeleteAfter` allows."""
    expired = []
    for job in jobs:
        seconds, ended = job.plan.get("delete_after_seconds"), observations.get_end_time(job)
        if seconds is not None and ended is not None and now - ended > timedelta(seconds=seconds):
            expired.append(job)
    return expired


def list_code_uris(jobs: Iterable[ContainerJob]) -> set[str]:
    """Return the URIs of the files of large projects that jobs refer to, also in requests of another version."""
    trainers = (job.claim["request"].get("trainer") or {} for job in jobs)
    projects = ((trainer.get("code") or {}).get("project") or {} for trainer in trainers)
    return {project["uri"] for project in projects if project.get("uri")}


def remove_orphans(engine: Engine, namespace: str, now: datetime) -> None:
    """Remove the objects of a namespace whose jobs do not exist."""
    label = f"{names.NAMESPACE_LABEL}={namespace}"
    volumes = engine.list_volumes(label)
    existing = {_get_uid(volume) for volume in volumes if _get_kind(volume) == names.JOB_KIND}
    for each in engine.list_containers(label):
        age = now.timestamp() - float(each.get("Created") or 0)
        is_kept = _get_name(each).endswith(_kept_suffix(_get_uid(each)))
        if _get_uid(each) not in existing and not is_kept and age > _ORPHAN_AGE.total_seconds():
            engine.remove_container(each["Id"])
    for network in engine.list_networks(label):
        if _get_uid(network) not in existing:
            with suppress(EngineRequestError):
                engine.remove_network(network["Name"])
    for volume in volumes:
        is_ours = _get_kind(volume) is not None and volume["Name"].startswith("trainjob.")
        if _get_uid(volume) not in existing and is_ours:
            with suppress(EngineRequestError):
                engine.remove_volume(volume["Name"])


def _get_uid(raw: Mapping[str, Any]) -> str:
    return str((raw.get("Labels") or {}).get(names.UID_LABEL, ""))


def _get_kind(volume: Mapping[str, Any]) -> str | None:
    return (volume.get("Labels") or {}).get(names.KIND_LABEL)


def _get_name(container: Mapping[str, Any]) -> str:
    return str(container["Names"][0]).lstrip("/")


def _kept_suffix(uid: str) -> str:
    """Return the suffix of the names of containers that are kept of a deleted job."""
    return f".{uid[:8]}"
