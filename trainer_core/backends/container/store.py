"""Creates, reads, extends and removes the jobs of one namespace of an engine: claims, journals and containers."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from trainer_core.backends.base import NameTakenError
from trainer_core.backends.container import job_journal, names
from trainer_core.backends.container.engine import Engine, EngineNotFoundError, EngineRequestError
from trainer_core.backends.container.job_journal import ContainerJob, format_time, parse_containers
from trainer_core.base import naming
from trainer_core.base.errors import BackendUnavailableError, ConflictError, JobElsewhereError, JobNotFoundError
from trainer_core.base.secrets import mask_credentials
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import TrainJobRequest

_log = logging.getLogger(__name__)
#: Minimum age of a container that is removed because its job does not exist: the job may be created just now.
_ORPHAN_AGE = timedelta(minutes=10)


class RecordLostError(JobElsewhereError):
    """The volumes of a job are gone from the engine, and its containers are running."""

    def __init__(self, job: ContainerJob, address: str) -> None:
        running = ", ".join(each.name for each in job.running_containers)
        super().__init__(
            f"TrainJob {job.name!r} (uid {job.uid[:8]}) has lost its record on the engine at "
            f"{mask_credentials(address)}, as after `docker volume prune`, and {running} is running; nothing is "
            f"started beside it: wait for its end, or run `trainjob delete {job.name}`, and submit again"
        )
        #: The job, without claim and journal.
        self.job = job


class JobStore:
    """The jobs of one namespace.

    A claim is removed after the containers and before the journal. Therefore a container without a claim belongs to a
    job that is being deleted, or whose volumes another program has removed; and no supervisor sees a job without its
    end, which it would run again. Objects without a claim can be removed by any process.
    """

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine = engine
        self.namespace = namespace
        self._label = f"{names.NAMESPACE_LABEL}={namespace}"

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
                f"{mask_credentials(self.engine.address)}; `trainjob list` shows the existing jobs"
            )
        return self._get_by_uid(labels[names.UID_LABEL], name)

    def get(self, ref: TrainJobRef) -> ContainerJob:
        try:
            return self._get_by_uid(ref.uid, ref.name)
        except JobNotFoundError:
            self.check_record(f"{names.UID_LABEL}={ref.uid}")
            self._check_same_engine(ref)
            raise

    def check_record(self, label: str) -> None:
        """Check that no container with a label is running without a record."""
        for each in self._list_lost(label):
            self._check_ended(each)

    def make_room(self, name: str, is_attempt: Callable[[str], bool]) -> None:
        """Remove containers that have ended and lost their record, and whose names are those of a job to be created.

        Raises:
            RecordLostError: An attempt of the job is running.
        """
        for each in self._list_lost():
            if is_attempt(other := str(each["Labels"].get(names.NAME_LABEL))):
                self._check_ended(each)
                if other == name:
                    self.engine.remove_container(each["Id"])

    def _check_ended(self, lost: Mapping[str, Any]) -> None:
        if lost["State"] in job_journal.ALIVE:
            name, uid = str(lost["Labels"].get(names.NAME_LABEL)), _get_uid(lost)
            # Read now: a deletion ends the containers before it removes the claim.
            containers = self._inspect_all(self.engine.list_containers(f"{names.UID_LABEL}={uid}"))
            job = ContainerJob(self.namespace, name, uid, {"plan": {}}, (), parse_containers(containers))
            if job.running_containers:
                raise RecordLostError(job, self.engine.address)

    def _list_lost(self, *labels: str) -> list[dict[str, Any]]:
        """Return summaries of the containers of this namespace without a record, except those that are kept."""
        found = self.engine.list_containers(self._label, *labels)
        claims = self.engine.list_volumes(f"{names.KIND_LABEL}={names.JOB_KIND}") if found else ()
        known = {_get_uid(each) for each in claims}
        return [each for each in found if _get_uid(each) not in known and not _is_kept(each)]

    def remove_job(self, job: ContainerJob, keep_containers: bool = False) -> None:
        """Remove what can be removed of a job: a full disk is a reason to delete jobs.

        Raises:
            BackendUnavailableError: The rest, whose names are in the message. The job can be deleted again.
        """
        reasons = self._remove_containers(job.uid, keep_containers)
        with suppress(EngineRequestError):  # Containers that are kept use it.
            self.engine.remove_volume(names.data_volume(job.uid))
        label, claim = f"{names.UID_LABEL}={job.uid}", names.claim_volume(job.namespace, job.name)
        left = [_get_name(each) for each in self.engine.list_containers(label) if not _is_kept(each)]
        if not left and self._read_labels(claim).get(names.UID_LABEL) == job.uid:
            try:
                self.engine.remove_volume(claim)
            except EngineRequestError as error:
                left, reasons = [f"volume {claim}"], [error.reason]
        if left:
            raise BackendUnavailableError(
                f"TrainJob {job.name!r} is deleted in part, and {', '.join(left)} is left on the engine at "
                f"{mask_credentials(self.engine.address)} ({'; '.join(reasons)}); delete it again"
            )
        # Again: a supervisor that had not seen the end may have created containers meanwhile.
        self._remove_containers(job.uid, keep_containers)
        for volume in self.engine.list_volumes(label):
            # Data that `initialize` fetched outlives the job.
            if volume["Name"] != names.fetched_volume(job.namespace, job.name):
                with suppress(EngineRequestError):  # Containers that are kept may still use the volume.
                    self.engine.remove_volume(volume["Name"])

    def _remove_containers(self, uid: str, keep: bool) -> list[str]:
        """Remove or rename the containers and networks of a job; return why some were not."""
        label, reasons = f"{names.UID_LABEL}={uid}", []
        for each in self.engine.list_containers(label):
            try:
                if not keep:
                    self.engine.remove_container(each["Id"])
                elif not _is_kept(each):
                    self.engine.stop_container(each["Id"], 0)
                    self.engine.rename_container(each["Id"], _get_name(each) + names.kept_suffix(uid))
            except EngineRequestError as error:
                reasons.append(error.reason)
        for network in self.engine.list_networks(label):
            with suppress(EngineRequestError):
                self.engine.remove_network(network["Name"])
        return reasons

    def remove_orphans(self) -> None:
        """Remove what has no record, except containers that are running or young."""
        for each in self._list_lost():
            if each["State"] in job_journal.ALIVE:
                _log.warning("container %s is running and its TrainJob has lost its record", _get_name(each))
            elif self.engine.now().timestamp() - float(each.get("Created") or 0) > _ORPHAN_AGE.total_seconds():
                self.engine.remove_container(each["Id"])
        volumes = self.engine.list_volumes(self._label)
        existing = {_get_uid(each) for each in volumes if _get_kind(each) == names.JOB_KIND}
        for network in self.engine.list_networks(self._label):
            if _get_uid(network) not in existing:
                with suppress(EngineRequestError):
                    self.engine.remove_network(network["Name"])
        for volume in volumes:
            is_ours = _get_kind(volume) is not None and volume["Name"].startswith("trainjob.")
            if _get_uid(volume) not in existing and is_ours:
                with suppress(EngineRequestError):
                    self.engine.remove_volume(volume["Name"])

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
        if self._read_labels(names.engine_volume(ref.namespace)).get(names.ENGINE_LABEL) != created_on:
            raise JobElsewhereError(
                f"TrainJob {ref.name!r} lives on the container engine of host {host!r}, and the engine at "
                f"{mask_credentials(self.engine.address)} is another one, or has lost its volumes; nothing was "
                "changed: run the command there, or set container_host to one engine that all hosts use"
            )

    def list_jobs(self) -> list[ContainerJob]:
        containers: dict[str, list[dict[str, Any]]] = {}
        for raw in self._inspect_all(self.engine.list_containers(self._label)):
            containers.setdefault(raw["Config"]["Labels"].get(names.UID_LABEL), []).append(raw)
        jobs = job_journal.parse_jobs(self.engine.list_volumes(self._label))
        return [replace(job, containers=parse_containers(containers.get(job.uid, ()))) for job in jobs]

    def list_code_uris(self) -> set[str]:
        """Return the URIs of the files of large projects that jobs of any namespace and version refer to."""
        jobs = job_journal.parse_jobs(self.engine.list_volumes(f"{names.KIND_LABEL}={names.JOB_KIND}"))
        trainers = (job.claim["request"].get("trainer") or {} for job in jobs)
        projects = ((trainer.get("code") or {}).get("project") or {} for trainer in trainers)
        return {project["uri"] for project in projects if project.get("uri")}

    def list_owner_jobs(self, key: str) -> list[ContainerJob]:
        claims = self.engine.list_volumes(f"{names.OWNER_LABEL}={naming.hash_owner_key(key)}", self._label)
        jobs = []
        for job in job_journal.parse_jobs(claims):
            with suppress(JobNotFoundError):
                jobs.append(self._get_by_uid(job.uid, job.name))
        return jobs

    def list_search_jobs(self, key: str, known: Collection[str]) -> dict[str, ContainerJob | None]:
        """Return the jobs of a search by name, None for a known one. The containers of ended jobs are not read."""
        volumes = self.engine.list_volumes(self._label)
        search = naming.hash_owner_key(key)
        claims = [each["Labels"] for each in volumes if each["Labels"].get(names.SEARCH_LABEL) == search]
        uids = {each[names.UID_LABEL] for each in claims if each[names.NAME_LABEL] not in known}
        found: dict[str, ContainerJob | None] = dict.fromkeys({each[names.NAME_LABEL] for each in claims} & {*known})
        for job in job_journal.parse_jobs(each for each in volumes if _get_uid(each) in uids):
            with suppress(JobNotFoundError):
                found[job.name] = self._get_by_uid(job.uid, job.name) if job.outcome is None else job
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
        return self._read_labels(names.claim_volume(self.namespace, name))

    def _read_labels(self, volume: str) -> dict[str, str]:
        try:
            return dict(self.engine.inspect_volume(volume).get("Labels") or {})
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
            f"TrainJob {name!r} (uid {uid[:8]}) was deleted from the engine at {mask_credentials(self.engine.address)}"
        )


def _get_uid(raw: Mapping[str, Any]) -> str:
    return str((raw.get("Labels") or {}).get(names.UID_LABEL, ""))


def _get_kind(volume: Mapping[str, Any]) -> str | None:
    return (volume.get("Labels") or {}).get(names.KIND_LABEL)


def _get_name(container: Mapping[str, Any]) -> str:
    return str(container["Names"][0]).lstrip("/")


def _is_kept(container: Mapping[str, Any]) -> bool:
    return _get_name(container).endswith(names.kept_suffix(_get_uid(container)))
