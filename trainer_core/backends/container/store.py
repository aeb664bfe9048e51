"""Reading and writing the books of jobs: volumes of the engine, and the containers that go with them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer_core.backends.base import NameTakenError
from trainer_core.backends.container import book, names, times
from trainer_core.backends.container.book import Job
from trainer_core.backends.container.engine import Engine, NotThereError
from trainer_core.errors import ConflictError, JobNotFoundError
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest

__all__ = ["Store"]


class Store:
    """The jobs of one namespace of an engine.

    Args:
        engine: The engine.
        namespace: The namespace.
    """

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = namespace

    def make(self, request: TrainJobRequest, attempt: int, plan: Mapping[str, Any], more: Mapping[str, Any]) -> Job:
        """Make a job: from one call on it is there, whole.

        Raises:
            NameTakenError: There is one of that name.
        """
        name, uid = request.require_name(), uuid.uuid4().hex
        owner = request.owner
        made = {
            "created": times.text(self.engine.now()),
            "attempt": attempt,
            "fingerprint": request.fingerprint(),
            "owner_key": owner.key if owner else None,
            "generation": owner.generation if owner else None,
            "plan": plan,
            "request": request.to_dict(),
            **more,
        }
        labels = {
            **self._labels(name, uid),
            names.KIND: names.JOB,
            names.TEXT: json.dumps(made),
            **({names.OWNER: names.owner_value(owner.key)} if owner else {}),
        }
        volume = self.engine.make_volume(names.claim(self.namespace, name), labels)
        there = volume.get("Labels") or {}
        if there.get(names.UID) == uid:
            return Job(self.namespace, name, uid, made)
        if names.UID not in there:
            raise ConflictError(f"a volume {volume['Name']!r} is on the engine that is no TrainJob; remove it")
        raise NameTakenError(name)

    def append(self, job: Job, kind: str, data: Mapping[str, Any]) -> bool:
        """Write the next entry into a job's book; False where somebody else has written it first.

        Raises:
            JobNotFoundError: The job is gone; nothing is left of what was written.
        """
        token = uuid.uuid4().hex
        text = json.dumps({"at": times.text(self.engine.now()), "data": data})
        labels = {**self._labels(job.name, job.uid), names.KIND: kind, names.TEXT: text, names.TOKEN: token}
        volume = self.engine.make_volume(names.entry(job.uid, len(job.entries)), labels)
        if (volume.get("Labels") or {}).get(names.TOKEN) != token:
            return False
        if self._claimed(job.name).get(names.UID) != job.uid:
            # Deleted meanwhile, with the book as it was then.
            self.engine.remove_volume(volume["Name"])
            raise self._gone(job.uid, job.name)
        return True

    def named(self, name: str) -> Job:
        """Return the job that has this name now.

        Raises:
            JobNotFoundError: There is none.
        """
        labels = self._claimed(name)
        if labels.get(names.KIND) != names.JOB:
            raise JobNotFoundError(
                f"no TrainJob {name!r} in namespace {self.namespace!r} of the engine at {self.engine.address}; "
                "`trainjob list` shows those there are"
            )
        return self.by_uid(labels[names.UID], name)

    def of(self, ref: TrainJobRef) -> Job:
        """Return the job of a ref.

        Raises:
            JobNotFoundError: It is gone, or its name has passed to another job.
        """
        return self.by_uid(ref.uid, ref.name)

    def by_uid(self, uid: str, name: str) -> Job:
        """Return the job of this identity.

        Raises:
            JobNotFoundError: It is gone.
        """
        label = f"{names.UID}={uid}"
        # Containers first: an end that was written when they were looked at must not be missed.
        containers = self._inspected(self.engine.containers(label))
        job = book.read(self.engine.volumes(label), containers)
        if job is None:
            raise self._gone(uid, name)
        return job

    def _claimed(self, name: str) -> dict[str, str]:
        """The labels of the volume that is the job of a name."""
        try:
            return dict(self.engine.volume(names.claim(self.namespace, name)).get("Labels") or {})
        except NotThereError:
            return {}

    def _gone(self, uid: str, name: str) -> JobNotFoundError:
        return JobNotFoundError(f"TrainJob {name!r} ({uid[:8]}) is gone from the engine at {self.engine.address}")

    def all(self) -> list[Job]:
        """Return every job of the namespace."""
        return self._jobs(f"{names.NAMESPACE}={self.namespace}")

    def of_owner(self, key: str) -> list[Job]:
        """Return the jobs of an owner."""
        owned = self.engine.volumes(f"{names.NAMESPACE}={self.namespace}", f"{names.OWNER}={names.owner_value(key)}")
        found = []
        for job in book.jobs(owned):
            with suppress(JobNotFoundError):
                found.append(self.by_uid(job.uid, job.name))
        return found

    def _jobs(self, *labels: str) -> list[Job]:
        containers = self._inspected(self.engine.containers(*labels))
        by_uid: dict[str, list[dict[str, Any]]] = {}
        for raw in containers:
            by_uid.setdefault(raw["Config"]["Labels"][names.UID], []).append(raw)
        volumes: dict[str, list[dict[str, Any]]] = {}
        for volume in self.engine.volumes(*labels):
            volumes.setdefault((volume["Labels"] or {}).get(names.UID, ""), []).append(volume)
        read = (book.read(of_job, by_uid.get(uid, [])) for uid, of_job in volumes.items())
        return [job for job in read if job is not None]

    def _inspected(self, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for each in listed:
            with suppress(NotThereError):
                found.append(self.engine.container(each["Id"]))
        return found

    def _labels(self, name: str, uid: str) -> dict[str, str]:
        return {names.MANAGED: "true", names.NAMESPACE: self.namespace, names.NAME: name, names.UID: uid}
