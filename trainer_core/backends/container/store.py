"""Creates, reads and extends the jobs of one namespace of an engine: claims, journals and containers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer_core.backends.base import NameTakenError
from trainer_core.backends.container import job_journal, names
from trainer_core.backends.container.engine import Engine, EngineNotFoundError
from trainer_core.backends.container.job_journal import ContainerJob
from trainer_core.backends.container.timestamps import format_time
from trainer_core.base import naming
from trainer_core.base.errors import ConflictError, JobElsewhereError, JobNotFoundError
from trainer_core.base.secrets import mask_credentials
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import TrainJobRequest


class JobStore:
    """The jobs of one namespace."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = namespace

    def create_job(
        self, request: TrainJobRequest, attempt: int, plan: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> ContainerJob:
        """Create the claim of a job. This single call to the engine creates the complete job."""
        name, uid = request.require_name(), uuid.uuid4().hex
        owner = request.context.owner
        claim = {
            "engine": self._get_or_create_engine_id(),
            "engine_host": self.engine.hostname,
            "created": format_time(self.engine.now()),
            "attempt": attempt,
            "fingerprint": request.fingerprint(),
            "owner_key": owner.key if owner else None,
            "generation": owner.generation if owner else None,
            "plan": plan,
            "request": request.to_dict(),
            **extra,
        }
        labels = {
            **names.job_labels(self.namespace, name, uid),
            names.KIND_LABEL: names.JOB_KIND,
            names.CONTENT_LABEL: json.dumps(claim),
            **({names.OWNER_LABEL: naming.hash_owner_key(owner.key)} if owner else {}),
            **(
                {names.SEARCH_LABEL: naming.hash_owner_key(request.context.search.key)}
                if request.context.search
                else {}
            ),
        }
        volume = self.engine.get_or_create_volume(names.claim_volume(self.namespace, name), labels)
        actual_labels = volume.get("Labels") or {}
        if actual_labels.get(names.UID_LABEL) == uid:
            return ContainerJob(self.namespace, name, uid, claim)
        if names.UID_LABEL not in actual_labels:
            raise ConflictError(
                f"volume {volume['Name']!r} exists on the engine and belongs to no TrainJob; remove it or use another "
                "job name"
            )
        raise NameTakenError(name)

    def append_entry(self, job: ContainerJob, kind: str, data: Mapping[str, Any]) -> bool:
        """Write the next entry of a job's journal."""
        token = uuid.uuid4().hex
        labels = {
            **names.job_labels(self.namespace, job.name, job.uid),
            names.KIND_LABEL: kind,
            names.CONTENT_LABEL: json.dumps({"at": format_time(self.engine.now()), "data": data}),
            names.TOKEN_LABEL: token,
        }
        volume = self.engine.get_or_create_volume(names.entry_volume(job.uid, len(job.entries)), labels)
        if (volume.get("Labels") or {}).get(names.TOKEN_LABEL) != token:
            return False
        if self._read_claim_labels(job.name).get(names.UID_LABEL) != job.uid:
            # The job was deleted while the entry was written, so the deletion has missed this volume.
            self.engine.remove_volume(volume["Name"])
            raise self._job_deleted(job.uid, job.name)
        return True

    def get_by_name(self, name: str) -> ContainerJob:
        labels = self._read_claim_labels(name)
        if labels.get(names.KIND_LABEL) != names.JOB_KIND:
            raise JobNotFoundError(
                f"TrainJob {name!r} does not exist in namespace {self.namespace!r} of the engine at "
                f"{self.engine.address}; `trainjob list` shows the existing jobs"
            )
        return self._get_by_uid(labels[names.UID_LABEL], name)

    def get(self, ref: TrainJobRef) -> ContainerJob:
        try:
            return self._get_by_uid(ref.uid, ref.name)
        except JobNotFoundError:
            self._check_same_engine(ref)
            raise

    def get_engine_place(self) -> str:
        """Return the host in the refs of the jobs that this object creates; other namespaces have another one."""
        return f"{self.engine.hostname}/{self._get_or_create_engine_id()}"

    def _get_or_create_engine_id(self) -> str:
        """Return the engine's identity for this namespace, from a volume: Podman reports another id to each request."""
        labels = {
            names.MANAGED_LABEL: "true",
            names.NAMESPACE_LABEL: self.namespace,
            names.ENGINE_LABEL: uuid.uuid4().hex,
        }
        volume = self.engine.get_or_create_volume(names.engine_volume(self.namespace), labels)
        return str((volume.get("Labels") or {}).get(names.ENGINE_LABEL, ""))

    def _check_same_engine(self, ref: TrainJobRef) -> None:
        """Check that a job that is missing on the engine was deleted from it."""
        if ref.host is None:
            return
        host, _, created_on = ref.host.rpartition("/")
        try:
            labels = self.engine.inspect_volume(names.engine_volume(ref.namespace)).get("Labels") or {}
        except EngineNotFoundError:
            labels = {}
        if labels.get(names.ENGINE_LABEL) != created_on:
            raise JobElsewhereError(
                f"TrainJob {ref.name!r} lives on the container engine of host {host!r}, and the engine at "
                f"{mask_credentials(self.engine.address)} is another one, or has lost its volumes; nothing was "
                "changed: run the command there, or set container_host to one engine that all hosts use"
            )

    def list_jobs(self) -> list[ContainerJob]:
        label = f"{names.NAMESPACE_LABEL}={self.namespace}"
        containers: dict[str, list[dict[str, Any]]] = {}
        for raw in self._inspect_all(self.engine.list_containers(label)):
            containers.setdefault(raw["Config"]["Labels"][names.UID_LABEL], []).append(raw)
        volumes: dict[str, list[dict[str, Any]]] = {}
        for volume in self.engine.list_volumes(label):
            volumes.setdefault((volume["Labels"] or {}).get(names.UID_LABEL, ""), []).append(volume)
        jobs = (job_journal.parse_job(group, containers.get(uid, [])) for uid, group in volumes.items())
        return [job for job in jobs if job is not None]

    def list_all_claims(self) -> list[ContainerJob]:
        """Return the jobs of all namespaces of the engine, without their containers."""
        return job_journal.parse_jobs(self.engine.list_volumes(f"{names.KIND_LABEL}={names.JOB_KIND}"))

    def list_owner_jobs(self, key: str) -> list[ContainerJob]:
        claims = self.engine.list_volumes(
            f"{names.OWNER_LABEL}={naming.hash_owner_key(key)}", f"{names.NAMESPACE_LABEL}={self.namespace}"
        )
        jobs = []
        for job in job_journal.parse_jobs(claims):
            with suppress(JobNotFoundError):
                jobs.append(self._get_by_uid(job.uid, job.name))
        return jobs

    def list_search_jobs(self, key: str, known: Collection[str]) -> dict[str, ContainerJob | None]:
        """Return the jobs of a search by name, None for a known one. The containers of ended jobs are not read."""
        volumes = self.engine.list_volumes(f"{names.NAMESPACE_LABEL}={self.namespace}")
        search = naming.hash_owner_key(key)
        uids = {each["Labels"][names.UID_LABEL] for each in volumes if each["Labels"].get(names.SEARCH_LABEL) == search}
        found: dict[str, ContainerJob | None] = {}
        groups: dict[str, list[Mapping[str, Any]]] = {uid: [] for uid in uids}
        for volume in volumes:
            group = groups.get(volume["Labels"].get(names.UID_LABEL))
            if group is not None:
                group.append(volume)
        for uid, group in groups.items():
            name = group[0]["Labels"][names.NAME_LABEL]
            job = None if name in known else job_journal.parse_job(group, ())
            with suppress(JobNotFoundError):
                found[name] = self._get_by_uid(uid, name) if job is not None and job.outcome is None else job
        return found

    def _get_by_uid(self, uid: str, name: str) -> ContainerJob:
        label = f"{names.UID_LABEL}={uid}"
        # Containers before volumes: an end that is recorded between the two reads must not be missed.
        containers = self._inspect_all(self.engine.list_containers(label))
        job = job_journal.parse_job(self.engine.list_volumes(label), containers)
        if job is None:
            raise self._job_deleted(uid, name)
        return job

    def _read_claim_labels(self, name: str) -> dict[str, str]:
        try:
            return dict(self.engine.inspect_volume(names.claim_volume(self.namespace, name)).get("Labels") or {})
        except EngineNotFoundError:
            return {}

    def _inspect_all(self, containers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        inspected = []
        for each in containers:
            with suppress(EngineNotFoundError):
                inspected.append(self.engine.inspect_container(each["Id"]))
        return inspected

    def _job_deleted(self, uid: str, name: str) -> JobNotFoundError:
        return JobNotFoundError(
            f"TrainJob {name!r} (uid {uid[:8]}) was deleted from the engine at {self.engine.address}"
        )
