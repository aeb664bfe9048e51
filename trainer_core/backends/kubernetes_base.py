"""BaseKubernetesBackend: what all backends whose jobs are Kubernetes objects have in common.

A subclass passes the `WorkloadAdapter` of its kind of job, renders the manifests of a request, and lists runtimes.

`Backend.submit` calls `find_jobs` (one list, by the label of the owner), `check` (nothing is created before the
manifests are valid) and `create`: volume claim, job, then the Secret, which the job owns. A process that dies in
between leaves no job, or one whose Secret `create_missing_parts` creates at the next submit. Afterwards `JobReader`
reads and `JobWriter` changes the job, each from its ref; `WatchFollower` waits for it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from trainer_core.backends.base import Backend, NameTakenError, Prepared
from trainer_core.backends.follower import Follower
from trainer_core.backends.watch_follower import WatchFollower, subscribe_to_job
from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError, TrainerError, UnsupportedError
from trainer_core.base.retries import repeat_while_failing
from trainer_core.k8s import manifest_common, observations, pod_state, resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import AlreadyExistsError, ForbiddenError, NotFoundError, RejectedError, WriteConflictError
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_feed import stream_log_lines
from trainer_core.k8s.job_reader import JobReader
from trainer_core.k8s.job_writer import JobWriter
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.resources import ApiResource
from trainer_core.k8s.runtimes import list_further_images
from trainer_core.lifecycle import reuse
from trainer_core.lifecycle.adoption import ExistingJob, list_other_names
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import Diagnosis, Event, Observation, Outcome, OwnerReference, TrainJob, TrainJobRef
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk, select_steps
from trainer_core.model.request import KUEUE_QUEUE, TRACKING_SECRETS, Code, TrainJobRequest
from trainer_core.model.runtimes import Runtime
from trainer_core.packaging import argv_payload, code_location

_log = logging.getLogger(__name__)

#: Seconds to wait for the garbage collector to delete the Secret of a deleted job of the same name.
_GARBAGE_COLLECTION_SECONDS = 5.0
#: How often a write is repeated because the object has changed since it was read.
_MAX_WRITES = 20


class BaseKubernetesBackend(Backend):
    """Backend whose jobs are objects of a cluster. It keeps no state, so that any process can continue with a job."""

    def __init__(self, config: ClusterConfig, adapter: WorkloadAdapter) -> None:
        self.adapter = adapter
        self._checkpoints_uri, self._code_uri = config.checkpoints_uri, config.code_uri
        self._resource_interval = config.resource_interval
        self._connection = Connection(config)
        self._api = ApiClient(self._connection)
        self._reader = JobReader(self._api, self.adapter, config.scheduling_grace)
        self._writer = JobWriter(self._api, self.adapter)
        self._taken_names: set[str] = set()

    @property
    def namespace(self) -> str:
        """Namespace in which jobs are created and listed."""
        return self._connection.namespace

    @abstractmethod
    def _render_manifests(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        """Render the objects of a job in the order in which they are created; the job itself is the last."""

    def _render_checked(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        manifests = self._render_manifests(request, attempt)
        for manifest in manifests:
            manifest_common.check_size(manifest)
        return manifests

    def _prepare_creation(self, kind: ApiResource) -> None:
        """Called before a job is created, so that the caller knows the job as soon as it exists."""

    @abstractmethod
    def _read_runtime(self, request: TrainJobRequest) -> tuple[Any, str | None]:
        """Return the content of the runtime of a request as plain data, and the image of its nodes."""

    def get_place(self, ref: TrainJobRef | None) -> str | None:
        return f"{self._connection.server_digest}/{ref.namespace if ref else self.namespace}"

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        request = request.with_checkpoints_uri(self._checkpoints_uri).with_resource_interval(self._resource_interval)
        return code_location.resolve(request, self._code_uri)

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        manifests = self._render_checked(self.resolve_request(request), attempt=0)
        return manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}

    def read_versions(self, request: TrainJobRequest) -> Versions:
        content, image = self._read_runtime(request)
        image = (request.work.trainer.image if request.work.trainer else None) or image
        images = (image, *list_further_images({"spec": content}))
        unknown = (*reuse.check_images(request, *images), *reuse.check_runtime(content))
        return Versions({"image": image, "runtime": content}, unknown)

    def check(self, request: TrainJobRequest, attempt: int = 0) -> Prepared:
        self._check_checkpoint_claim(request)
        return Prepared(request, attempt, self._render_checked(request, attempt))

    def dry_run(self, request: TrainJobRequest) -> None:
        for manifest in self.check(self.resolve_request(request)).rendered:
            with suppress(AlreadyExistsError):  # An existing name does not make the manifest invalid.
                self._api.create(resources.get_resource_of_object(manifest), manifest, dry_run=True)

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        owned = (
            self._reader.list_owned_objects(request.context.owner.key, self.namespace) if request.context.owner else []
        )
        jobs = [self._parse_existing_job(raw) for raw in owned]
        names = list_other_names(request, jobs)
        if request.context.owner and request.context.name is None:
            # A name that is made of the owner's hash is looked for only when it has turned out to be taken.
            names &= self._taken_names
        for name in names:
            with suppress(JobNotFoundError):
                jobs.append(self._parse_existing_job(self._reader.get_object(name, self.namespace)))
        return jobs

    def _parse_existing_job(self, raw: RawObject) -> ExistingJob:
        return observations.parse_existing_job(raw, self.adapter.parse_job)

    def create(self, prepared: Prepared) -> TrainJobRef:
        storable = self._drop_unstorable_credentials(prepared.request)
        if storable is not prepared.request:
            prepared = self.check(storable, prepared.attempt)
        request, (*dependencies, job) = prepared.request, prepared.rendered
        resource = resources.get_resource_of_object(job)
        self._prepare_creation(resource)
        created_dependencies = [manifest for manifest in dependencies if self._create_if_absent(manifest)]
        try:
            created = self._api.create(resource, job)
        except AlreadyExistsError as error:
            # The job that exists uses the volume claim, so it is not deleted.
            self._taken_names.add(request.require_name())
            raise NameTakenError(request.require_name()) from error
        except TrainerError as error:
            # After a lost connection the job may exist and need its volume claim.
            if not isinstance(error, BackendUnavailableError) or not error.transient:
                self._delete_objects(created_dependencies)
            raise
        self._reader.keep_object(created)
        ref = observations.build_ref(self.adapter.parse_job(created))
        try:
            self._create_secret(created, request, timeout=_GARBAGE_COLLECTION_SECONDS)
        except TrainerError:
            self.delete(ref)
            raise
        return ref

    def _drop_unstorable_credentials(self, request: TrainJobRequest) -> TrainJobRequest:
        """Leave out a tracking server whose credentials no Secret can hold, unless tracking is required."""
        if not _has_only_tracking_secrets(request):
            return request
        metadata = {"name": manifest_common.get_secret_name(request.require_name()), "namespace": self.namespace}
        secret = {"apiVersion": resources.SECRETS.api_version, "kind": resources.SECRETS.kind, "metadata": metadata}
        try:
            with suppress(AlreadyExistsError):
                self._api.create(resources.SECRETS, secret, dry_run=True)
        except (ForbiddenError, RejectedError) as error:
            if request.policy.tracking and request.policy.tracking.required:
                raise
            _log.warning(
                "mlflow in TrainJob %s does not get the tracking server, whose credentials need a Secret: %s",
                request.context.name,
                error,
            )
            tracking = request.policy.tracking.model_copy(update={"env": {}}) if request.policy.tracking else None
            return request.with_fields(literal_secrets={}, tracking=tracking)
        return request

    def _check_checkpoint_claim(self, request: TrainJobRequest) -> None:
        """Check that all nodes can mount the claim of the checkpoints, as far as it exists and can be read."""
        volumes = manifest_common.build_checkpoints_patch(request).get("volumes") or ()
        for name in (volume["persistentVolumeClaim"]["claimName"] for volume in volumes):
            try:
                modes = self._api.get(resources.VOLUME_CLAIMS, name, namespace=self.namespace)["spec"]["accessModes"]
            except (NotFoundError, ForbiddenError):
                continue
            if set(modes) <= resources.SINGLE_NODE_MODES and self._get_num_nodes(request) > 1:
                raise UnsupportedError(
                    f"Checkpoints uri: claim {name!r} is {', '.join(modes)}, which one node can mount, and the job has "
                    f"{self._get_num_nodes(request)}; use a claim with ReadWriteMany, or s3://"
                )

    def _get_num_nodes(self, request: TrainJobRequest) -> int:
        requested = request.work.trainer.num_nodes if request.work.trainer else None
        return requested or self.get_runtime(self.get_runtime_ref(request).name).trainer.num_nodes

    def create_missing_parts(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        # The job was created without credentials of a tracking server that no Secret can hold.
        ignored = (ForbiddenError, RejectedError) if _has_only_tracking_secrets(request) else ()
        with suppress(*ignored):
            if request.context.literal_secrets:
                self._create_secret(self._reader.get_object_by_ref(ref), request)

    def _create_secret(self, job: RawObject, request: TrainJobRequest, timeout: float = 0.0) -> None:
        if request.context.literal_secrets:
            self._create_if_absent(manifest_common.build_secret(request, job), timeout)

    def _create_if_absent(self, raw: RawObject, timeout: float = 0.0) -> bool:
        """Create an object unless one of its name exists; return whether it was created."""
        create = partial(self._api.create, resources.get_resource_of_object(raw), raw)
        try:
            repeat_while_failing(
                create, lambda error: isinstance(error, AlreadyExistsError), timeout, pauses=(0.05, 1.0)
            )
        except AlreadyExistsError:
            return False
        return True

    def _delete_objects(self, objects: Sequence[RawObject]) -> None:
        for raw in objects:
            name, resource = raw["metadata"]["name"], resources.get_resource_of_object(raw)
            with suppress(TrainerError):
                self._api.delete(resource, name, namespace=self.namespace)

    def store_outcome(self, outcome: Outcome) -> None:
        self._writer.store_outcome(outcome)

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        return self._reader.get_request(ref)

    def get_code(self, ref: TrainJobRef) -> Code | None:
        # The recorded request is without the files of the project, which travel in the arguments.
        code = super().get_code(ref)
        if code is None or code.project is None or code.project.uri is not None:
            return code
        payload = argv_payload.find_payload(self._reader.get_object_by_ref(ref))
        return Code.model_validate(payload) if payload else code

    def get_ref(self, name: str) -> TrainJobRef:
        return observations.build_ref(self.adapter.parse_job(self._reader.get_object(name, self.namespace)))

    def observe(self, ref: TrainJobRef) -> Observation:
        return self._reader.observe(ref)

    def list_processes(self, ref: TrainJobRef) -> list[str]:
        try:
            job = self.adapter.parse_job(self._reader.get_object_by_ref(ref))
        except JobNotFoundError:
            return []
        return [pod.name for pod in self._reader.list_pods(job) if pod.phase not in ("Succeeded", "Failed")]

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        if ref.namespace != self.namespace:
            return super().follow(ref, progress)
        return WatchFollower(self._reader, self._connection, self.adapter, ref, progress)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        is_watched = follow and ref.namespace == self.namespace
        subscribe = partial(subscribe_to_job, self._connection, self.adapter, ref, shares_list=True)
        return stream_log_lines(self._reader, ref, step, follow, subscribe if is_watched else None)

    def tail(
        self,
        ref: TrainJobRef,
        cursor: Mapping[str, Any],
        job_ended: bool = False,
        max_lines: int = MAX_LOG_LINES,
        step: str | None = None,
    ) -> LogChunk:
        job = self.adapter.parse_job(self._reader.get_object_by_ref(ref))
        pods = self._reader.list_pods(job)
        if step is not None and step not in pod_state.group_pods_by_step(pods):
            # A step without a pod has no log yet, or does not exist.
            select_steps(ref.name, [each.name for each in self._reader.explain_train_job(job, pods).steps], step)
        return self._reader.read_log_chunk(job, pods, cursor, job_ended, max_lines, step)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return self._reader.list_events(ref)

    def suspend(self, ref: TrainJobRef) -> None:
        self._set_suspended(ref, suspended=True)

    def resume(self, ref: TrainJobRef) -> None:
        self._set_suspended(ref, suspended=False)

    def _set_suspended(self, ref: TrainJobRef, suspended: bool) -> None:
        for _ in range(_MAX_WRITES):
            try:
                self._writer.set_suspended(self._reader.get_object_by_ref(ref), suspended)
            except WriteConflictError:
                # A controller or another client changed the job after it was read.
                continue
            return
        raise BackendUnavailableError(
            f"TrainJob {ref.name!r} was not changed: other clients change it repeatedly; try again later"
        )

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        with suppress(JobNotFoundError):
            raw = self._reader.get_object_by_ref(ref)
            self._writer.cancel(raw, diagnosis, self._reader.read_progress_line(raw) if diagnosis else None)

    def keeps_cancelled(self, request: TrainJobRequest) -> bool:
        return KUEUE_QUEUE not in request.policy.metadata.labels

    def delete(self, ref: TrainJobRef) -> None:
        with suppress(JobNotFoundError):
            self._writer.delete(self._reader.get_object_by_ref(ref))
        self._reader.keep_object(None)

    def get_pod(self, name: str, uid: str, namespace: str | None = None) -> dict[str, Any] | None:
        # A list, because the role that reads TrainJobs has `list` on pods, and needs no `get`.
        pods = self._api.list(
            resources.PODS, field_selector=f"metadata.name={name}", namespace=namespace or self.namespace
        )
        return next((pod for pod in pods if pod["metadata"]["uid"] == uid), None)

    def set_owner(
        self,
        ref: TrainJobRef,
        kind: str,
        owner: OwnerReference | None,
        labels: Mapping[str, str | None],
        only_with: Mapping[str, str],
    ) -> Mapping[str, str]:
        return self._writer.set_owner(self._reader.get_object_by_ref(ref), kind, owner, labels, only_with)

    def get_job(self, name: str) -> TrainJob:
        return self._reader.get_train_job(self._reader.get_object(name, self.namespace))

    def get_job_by_ref(self, ref: TrainJobRef) -> TrainJob:
        return self._reader.get_train_job(self._reader.get_object_by_ref(ref))

    def observe_job(self, name: str) -> tuple[TrainJob, Observation, TrainJobRequest | None]:
        return self._reader.observe_train_job(name, self.namespace)

    def list_jobs(self) -> list[TrainJob]:
        return self._reader.list_train_jobs(self.namespace)

    def list_jobs_by_labels(self, labels: Mapping[str, str]) -> list[TrainJob]:
        """Return the jobs with these labels, newest first; the API server selects them."""
        return self._reader.list_train_jobs(self.namespace, labels)

    def list_search_jobs(
        self, key: str, known: Collection[str]
    ) -> dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None]:
        found: dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None] = {}
        for raw in self._reader.list_search_objects(key, self.namespace):
            job = self.adapter.parse_job(raw)
            found[job.name] = None
            if job.name not in known:
                ref = observations.build_ref(job)
                found[job.name] = ref, observations.parse_request(raw), self._reader.observe_of_many(raw, ref)
        return found

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        from trainer_core.backends import runtime_packages  # It loads the modules that package a function.

        return runtime_packages.list_runtime_packages(self, runtime)


def _has_only_tracking_secrets(request: TrainJobRequest) -> bool:
    return bool(request.context.literal_secrets) and request.context.literal_secrets.keys() <= TRACKING_SECRETS
