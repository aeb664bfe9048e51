"""Backend: the interface of all backends, with the contract of each method.

`submit` is implemented here once, so that attaching means the same on every backend. A backend implements
`find_jobs`, which returns the existing TrainJobs, `render`, and `create`, which creates what was rendered or raises
`NameTakenError`.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.backends.follower import Follower
from trainer_core.backends.polling_follower import PollingFollower
from trainer_core.base import naming
from trainer_core.base.clock import Clock
from trainer_core.base.errors import ConflictError, JobNotFoundError, UnsupportedError
from trainer_core.lifecycle import adoption, attempt_memory, restart_policy
from trainer_core.lifecycle.adoption import Action, Decision, ExistingJob
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model import checkpoint_location
from trainer_core.model.jobs import (
    RUNNING,
    SEARCH_LABEL,
    Diagnosis,
    Event,
    Observation,
    Outcome,
    OwnerReference,
    TrainJob,
    TrainJobRef,
)
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk, select_steps, tail_steps
from trainer_core.model.request import TRACKING_SECRETS, Code, RuntimeRef, TrainJobRequest
from trainer_core.model.runtimes import Runtime
from trainer_core.model.storage_schemes import SCHEMES
from trainer_core.packaging import code_location

if TYPE_CHECKING:
    from trainer_core.model.preflight import PreflightReport

_log = logging.getLogger(__name__)

#: A round fails only if another process created or deleted a TrainJob of the same name in the meantime.
_MAX_ROUNDS = 20
#: Seconds between two reads of the processes of an earlier attempt: the first pause, and the longest.
_POLL_SECONDS, _MAX_POLL_SECONDS = 0.05, 2.0


class NameTakenError(Exception):
    """`Backend.create` raises it if another process created a TrainJob of that name first."""


@dataclass(frozen=True)
class Prepared:
    """A checked request, and what is created for it."""

    #: With the values that the configuration of the backend has for it.
    request: TrainJobRequest
    #: Attempt of its owner, 0 for the first.
    attempt: int
    #: What `Backend.render` returns; on a cluster, the list of its manifests.
    rendered: Any


class Backend(ABC):
    """A place where TrainJobs run.

    The class attributes can be read without the backend's client library. Only an instance opens connections.
    """

    #: Name of the backend in refs, connections and configurations.
    name: ClassVar[str]
    #: Class names of the options that it accepts. For a backend of this project, the fields of a request have them.
    accepts: ClassVar[frozenset[str]]
    #: Schemes of the URIs of datasets and models that it has.
    schemes: ClassVar[Collection[str]] = tuple(SCHEMES)
    #: Runtime of a request that names none.
    default_runtime: ClassVar[str] = "torch-distributed"
    #: Seconds that the next attempt waits for the processes of a cancelled one, in addition to the grace of its
    #: checkpoints. A pod on a node that is lost may never end.
    max_end_seconds: ClassVar[float] = 120.0
    #: The same for what is left of a failed attempt, which was not asked to end: a node may wait for a lost peer.
    max_left_seconds: ClassVar[float] = 30.0
    #: Whether it starts a training with restart rules again in the same TrainJob, without a process that waits.
    restarts_in_place: ClassVar[bool] = False
    #: The clock by which processes wait for its TrainJobs.
    clock: Clock = Clock()

    def submit(
        self,
        request: TrainJobRequest,
        *,
        before_create: Callable[[], None] | None = None,
        prepare: Callable[[TrainJobRequest, int], TrainJobRequest] | None = None,
    ) -> TrainJobRef:
        """Get or create the TrainJob of a request, and return without waiting for it.

        Submitting the same request again, from any process at any time, returns the same TrainJob. If a submitting
        process dies at any moment, one TrainJob exists or none.

        Args:
            request: The request, with a name or an owner.
            before_create: Called when no job exists and one is about to be created. If it raises, nothing is created.
            prepare: Called with the named request and the attempt right before the creation; returns the request to
                create, which has the same fingerprint. If it raises, nothing is created.

        Raises:
            InvalidRequestError: A value of the request is invalid. Nothing was created.
            UnsupportedError: This backend cannot do what is requested. Nothing was created.
            RuntimeNotFoundError: The runtime does not exist. Nothing was created.
            ConflictError: The name belongs to another owner or request.
            BackendUnavailableError: The backend cannot be reached.
        """
        request = self.resolve_request(request)
        for _ in range(_MAX_ROUNDS):
            decision = adoption.decide(request, self.find_jobs(request))
            try:
                found = self._find_or_prepare(request, decision, before_create, prepare)
                return self.create(found) if isinstance(found, Prepared) else found
            except (NameTakenError, JobNotFoundError):
                # Another process created or deleted the TrainJob after `find_jobs`.
                continue
        raise ConflictError(
            f"TrainJob {decision.name!r} could not be created: other processes create and delete it repeatedly; "
            "try again later"
        )

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        """Return a request with the values that the configuration of the backend has for it. Idempotent.

        Raises:
            UnsupportedError: The files of its project are too large, or this backend does not support their place.
        """
        return code_location.resolve(request, None)

    def predict_ref(self, request: TrainJobRequest) -> TrainJobRef | None:
        """Return what a process on another host needs to know of a TrainJob that is about to be created here.

        If the creating process dies, `observe` of this ref raises `JobElsewhereError` on a host that cannot see the
        TrainJob, and `JobNotFoundError` on one that can.

        Args:
            request: The request, with a name or an owner.

        Returns:
            A ref with the host, and without the real uid. None (the default) where all hosts see the same TrainJobs.
        """
        return None

    def get_checkpoints_uri(self, request: TrainJobRequest) -> str | None:
        """Return the place of all checkpoints of a request; None for a request without the option `Checkpoints`."""
        return checkpoint_location.resolve_uri(self.resolve_request(request), None)

    def _find_or_prepare(
        self,
        request: TrainJobRequest,
        decision: Decision,
        before_create: Callable[[], None] | None,
        prepare: Callable[[TrainJobRequest, int], TrainJobRequest] | None,
    ) -> TrainJobRef | Prepared:
        """Return the TrainJob to attach to; or check the request, end what is in the way, and return what to create."""
        if decision.action is not Action.CREATE:
            return self._attach(request, decision)
        ended = self._observe_ended(request, decision)
        if ended is not None and restart_policy.is_final(request, ended):
            _log.warning(
                "TrainJob %r is not started again: %s; `trainjob retry %s` starts it with a new budget of restarts",
                decision.retried,
                ended.diagnosis,
                decision.retried,
            )
            return ended.job
        named = request.with_name(decision.name).with_checkpoints_nonce(secrets.token_hex(5))
        with_files = self._set_attempt(named, ended)
        created = code_location.remove_stored(with_files)
        prepared = self.check(created, decision.attempt)
        if before_create is not None:
            before_create()
        self._end_earlier(request, decision)
        code_location.store(with_files)
        # The run of a tracker is created last, and its variables are a part of what is created.
        return self.check(prepare(created, decision.attempt), decision.attempt) if prepare else prepared

    def _attach(self, request: TrainJobRequest, decision: Decision) -> TrainJobRef:
        self._check_same_partition(request, decision)
        self._warn_if_different(request, decision)
        ref = self.get_ref(decision.name)
        self.create_missing_parts(ref, request)
        return ref

    def _end_earlier(self, request: TrainJobRequest, decision: Decision) -> None:
        """End the earlier TrainJobs of an owner, and wait for their processes."""
        cancelled = [self.get_ref(name) for name in decision.cancel_first]
        for ref in cancelled:
            self.cancel(ref)
        grace = request.policy.checkpoints.grace if request.policy.checkpoints else 0
        self._wait_for_processes(cancelled, self.max_end_seconds + grace)
        for name in decision.ended_attempts[-1:]:
            with suppress(JobNotFoundError):
                self.wait_for_left_processes(self.get_ref(name), request)

    def _observe_ended(self, request: TrainJobRequest, decision: Decision) -> Outcome | None:
        """Return the outcome that the next attempt depends on; None for the first one, and without such an option."""
        if decision.retried is None or not (request.policy.more_memory or request.policy.restart_policy):
            return None
        ended = self.observe(self.get_ref(decision.retried)).outcome
        is_new_budget = ended is not None and request.context.retry_of == decision.retried
        return replace(ended, restarts=None) if ended and is_new_budget else ended

    def _set_attempt(self, request: TrainJobRequest, ended: Outcome | None) -> TrainJobRequest:
        """Return the request with the memory and the restarts of its attempt, by the outcome of the one before."""
        if request.context.owner is not None:
            request = attempt_memory.build_next_request(request, ended)
            request = restart_policy.build_next_request(request, ended)
        names = sorted(request.context.literal_secrets.keys() - TRACKING_SECRETS)
        if request.policy.restart_policy is not None and names:
            request = request.with_fields(secret_names=tuple(names))
        if request.context.attempt_memory is not None:
            memory = attempt_memory.get_attempt_memory(request)
            _log.info(
                "TrainJob %r asks for %s of memory: an earlier attempt ran out of it", request.context.name, memory
            )
        return request

    def wait_for_left_processes(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        """Wait for what is left of a failed attempt, before the next attempt of a request is created.

        Args:
            ref: The failed attempt.
            request: The request.
        """
        grace = request.policy.checkpoints.grace if request.policy.checkpoints else 0
        self._wait_for_processes([ref], self.max_left_seconds + grace)

    def _wait_for_processes(self, refs: Sequence[TrainJobRef], limit: float) -> None:
        """Wait until no process of earlier attempts is left: they hold GPUs, and may be saving a checkpoint."""
        names = ", ".join(repr(ref.name) for ref in refs)
        began, pause = self.clock.monotonic(), _POLL_SECONDS
        while left := [process for ref in refs for process in self.list_processes(ref)]:
            if pause == _POLL_SECONDS:
                _log.info("waiting up to %.0f s for the end of TrainJob %s: %s", limit, names, ", ".join(left))
            if self.clock.monotonic() - began > limit:
                _log.warning(
                    "TrainJob %s has not ended in %.0f s, and the next attempt starts beside it; check %s, which may "
                    "hold GPUs and write checkpoints",
                    names,
                    limit,
                    ", ".join(left),
                )
                return
            self.clock.sleep(pause)
            pause = min(_MAX_POLL_SECONDS, 2 * pause)

    def _check_same_partition(self, request: TrainJobRequest, decision: Decision) -> None:
        """Refuse the TrainJob of another partition, which trains for other data although its work is the same."""
        if request.context.partition is None:
            return
        other = self.get_request(self.get_ref(decision.name)).context.partition
        if other not in (None, request.context.partition):
            raise ConflictError(
                f"TrainJob {decision.name!r} trains for partition {other!r}, not {request.context.partition!r}; choose "
                "another name or owner for each partition"
            )

    def _warn_if_different(self, request: TrainJobRequest, decision: Decision) -> None:
        if decision.differs:
            submitted = self.get_request(self.get_ref(decision.name))
            fields = ", ".join(request.list_differences(submitted)) or "its definition"
            _log.warning(
                "TrainJob %r continues as it was first submitted; this try differs in: %s. Remove values that differ "
                "between tries (try_number, now()) from the definition.",
                decision.name,
                fields,
            )

    def get_runtime_ref(self, request: TrainJobRequest) -> RuntimeRef:
        """Return the runtime that a request names, or the default."""
        return request.work.runtime or RuntimeRef(name=self.default_runtime)

    @abstractmethod
    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """Return exactly what would be created, as plain data. Creates nothing; equal requests give equal data.

        Args:
            request: The request, with a name.

        Raises:
            UnsupportedError: This backend cannot do what is requested.
            RuntimeNotFoundError: The runtime does not exist.
        """

    def check(self, request: TrainJobRequest, attempt: int = 0) -> Prepared:
        """Check a request, and render what `create` creates for it. Creates nothing.

        Args:
            request: The request, with a name.
            attempt: Attempt of its owner, 0 for the first.

        Raises:
            UnsupportedError: This backend cannot do what is requested.
            RuntimeNotFoundError: The runtime does not exist.
        """
        return Prepared(request, attempt, self.render(request))

    def dry_run(self, request: TrainJobRequest) -> None:
        """Check whether the backend's server would accept a request. Creates nothing.

        Args:
            request: The request, with a name.

        Raises:
            InvalidRequestError: The server refuses it.
            UnsupportedError: This backend cannot do what is requested.
            RuntimeNotFoundError: The runtime does not exist.
        """
        self.render(request)

    def read_versions(self, request: TrainJobRequest) -> Versions:
        """Return the versions of what a TrainJob runs beside its code and data, by which its result can be reused.

        Args:
            request: The request, with a trainer.
        """
        return Versions(unknown=(f"backend {self.name}: it does not know what a TrainJob runs",))

    @classmethod
    def check_platform(cls, config: Any) -> PreflightReport | None:
        """Check what the backend needs of its place, for `trainjob doctor`. Creates nothing.

        Args:
            config: A configuration of the backend.

        Returns:
            The checks. None (the default) where it is enough that the runtimes can be listed.
        """
        return None

    @abstractmethod
    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        """Return all existing TrainJobs that have the request's name or belong to its owner.

        Args:
            request: The request, with a name or an owner.
        """

    @abstractmethod
    def create(self, prepared: Prepared) -> TrainJobRef:
        """Create the TrainJob of a checked request completely, or not at all.

        Args:
            prepared: What `check` returned.

        Raises:
            NameTakenError: A TrainJob of that name exists.
        """

    def create_missing_parts(  # noqa: B027 -- on most backends a TrainJob has no further parts
        self, ref: TrainJobRef, request: TrainJobRequest
    ) -> None:
        """Create what an existing TrainJob lacks because the process that submitted it died before its last step."""

    def store_outcome(self, outcome: Outcome) -> None:  # noqa: B027 -- most backends keep the outcome themselves
        """Store the outcome with an ended TrainJob, on backends that would lose it. Succeeds if it was deleted."""

    @abstractmethod
    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        """Return the request that a TrainJob was created from.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
        """

    def get_code(self, ref: TrainJobRef) -> Code | None:
        """Return the function that a TrainJob runs, with the files of its project unless they lie at their URI.

        None for a TrainJob that runs no function.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
        """
        trainer = self.get_request(ref).work.trainer
        return trainer.code if trainer else None

    @abstractmethod
    def get_ref(self, name: str) -> TrainJobRef:
        """Return the ref of the TrainJob that has a name now.

        Raises:
            JobNotFoundError: No TrainJob has this name.
        """

    @abstractmethod
    def observe(self, ref: TrainJobRef) -> Observation:
        """Return the status of a TrainJob now. Read-only, fast, and possible from any process.

        Raises:
            JobNotFoundError: The TrainJob was deleted; another one may have its name now.
        """

    def list_processes(self, ref: TrainJobRef) -> list[str]:
        """Return the names of the processes, containers or pods of a TrainJob that run, also after it has ended.

        The next attempt is created when there are none, or after a limit. Empty for a deleted TrainJob, and where they
        cannot be seen.
        """
        try:
            steps = self.get_job_by_ref(ref).steps
        except JobNotFoundError:
            return []
        return [step.pod_name or step.name for step in steps if step.status == RUNNING]

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        """Return a follower of a TrainJob. Sends no request before the first observation.

        The default implementation polls `observe`, once for all followers of a TrainJob. A backend with a watch
        overrides it.

        Args:
            ref: The TrainJob.
            progress: Whether the observations have the reported progress, which may be in the log only.
        """
        return PollingFollower(self, ref, progress)

    @abstractmethod
    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        """Yield the log lines of a step without line ends: none lost and none repeated, across restarts too.

        Args:
            ref: The TrainJob.
            step: Name of the step, such as ``node-0``.
            follow: Whether to wait for new lines, and for a step that has not started, until the TrainJob has ended.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
            InvalidRequestError: The TrainJob has no such step; the message lists its steps.
        """

    def tail(
        self,
        ref: TrainJobRef,
        cursor: Mapping[str, Any],
        job_ended: bool = False,
        max_lines: int = MAX_LOG_LINES,
        step: str | None = None,
    ) -> LogChunk:
        """Return the log lines of the steps after a cursor, and the next cursor. Does not wait for new lines.

        Lines are complete and in order. None is lost or repeated, whichever process continues from the cursor. The
        default implementation reads each log from its start and counts lines. A backend that can seek overrides it.

        Args:
            ref: The TrainJob.
            cursor: `LogChunk.cursor` of the previous chunk; empty for the beginning.
            job_ended: Whether the TrainJob has ended: the last line counts even without a line end.
            max_lines: Approximate limit of lines to return.
            step: Name of the only step to read. None reads all steps.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
            InvalidRequestError: The TrainJob has no such step; the message lists its steps.
        """

        def read_step(step: str, skip: int | None, limit: int) -> tuple[list[str], int, bool]:
            first = int(skip or 0)
            lines = list(islice(self.logs(ref, step), first, first + limit + 1))
            has_more = len(lines) > limit
            # A line is known to be complete once another line follows it.
            if lines and (has_more or not job_ended):
                lines.pop()
            return lines, first + len(lines), not has_more

        steps = select_steps(ref.name, [each.name for each in self.get_job(ref.name).steps], step)
        return tail_steps(steps, cursor, max_lines, read_step)

    @abstractmethod
    def events(self, ref: TrainJobRef) -> list[Event]:
        """Return the events of a TrainJob, oldest first.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
        """

    @abstractmethod
    def suspend(self, ref: TrainJobRef) -> None:
        """End the running steps and keep the TrainJob. Succeeds if it is suspended or has ended."""

    @abstractmethod
    def resume(self, ref: TrainJobRef) -> None:
        """Start a suspended TrainJob again, as `TrainerClient.resume` does. Succeeds if it is not suspended."""

    @abstractmethod
    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        """End a TrainJob permanently and keep its logs and outcome. Succeeds if it has ended or does not exist.

        Args:
            ref: The TrainJob.
            diagnosis: Diagnosis of the failed TrainJob. None: it was cancelled.
        """

    def keeps_cancelled(self, request: TrainJobRequest) -> bool:
        """Return whether the TrainJob of a request still exists after `cancel`, with what it has reported."""
        return True

    @abstractmethod
    def delete(self, ref: TrainJobRef) -> None:
        """Delete a TrainJob and end its processes. Its name is free afterwards. Succeeds if it does not exist."""

    def reap(self) -> list[str]:
        """Delete the ended TrainJobs whose `DeleteAfter` time has passed, and return their names.

        The default implementation does nothing, for backends that delete them without being asked.
        """
        return []

    def get_place(self, ref: TrainJobRef | None) -> str | None:
        """Return the place where a TrainJob lives, the same from each process; None if it is unknown.

        A TrainJob that is not found at its place was deleted. At another place that proves nothing.

        Args:
            ref: The TrainJob. None for one that this backend is about to create.
        """
        return ref.host if ref else None

    def get_pod(self, name: str, uid: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return a pod as Kubernetes returns it; None if it does not exist, or on a backend without Kubernetes.

        Args:
            name: Name of the pod.
            uid: Uid of the pod.
            namespace: Namespace of the pod. None for the namespace of the backend.
        """
        return None

    def set_owner(
        self,
        ref: TrainJobRef,
        kind: str,
        owner: OwnerReference | None,
        labels: Mapping[str, str | None],
        only_with: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Replace the ownerReferences of one kind on a TrainJob, and change labels, in one request.

        Args:
            ref: The TrainJob.
            kind: Kind of the owners to remove.
            owner: The new owner of this kind. None for no owner of this kind.
            labels: Labels to set; the value None removes a label. Without an owner, a TrainJob that has them keeps its
                owners.
            only_with: Labels without which the TrainJob is not changed.

        Returns:
            The labels that the TrainJob had before.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
            UnsupportedError: The backend does not run on Kubernetes.
        """
        raise UnsupportedError(
            f"TrainJob {ref.name!r} cannot have an ownerReference: the {self.name} backend does not run on Kubernetes"
        )

    @abstractmethod
    def get_job(self, name: str) -> TrainJob:
        """Return one TrainJob with its steps.

        Raises:
            JobNotFoundError: No TrainJob has this name.
        """

    def get_job_by_ref(self, ref: TrainJobRef) -> TrainJob:
        """Return the TrainJob of a ref with its steps.

        Raises:
            JobNotFoundError: The TrainJob was deleted; another one may have its name now.
        """
        job = self.get_job(ref.name)
        if job.uid not in (None, ref.uid):
            raise JobNotFoundError(f"TrainJob {ref.name!r} was deleted, and another TrainJob has its name now")
        return job

    def observe_job(self, name: str) -> tuple[TrainJob, Observation, TrainJobRequest | None]:
        """Return the TrainJob that has a name now, its observation and its request, from one reading where possible.

        The request is None for a TrainJob that was created in another way.

        Raises:
            JobNotFoundError: No TrainJob has this name.
        """
        ref = self.get_ref(name)
        return self.get_job(name), self.observe(ref), self.get_request(ref)

    @abstractmethod
    def list_jobs(self) -> list[TrainJob]:
        """Return all TrainJobs, newest first. Logs a warning for one that cannot be read, and leaves it out."""

    def list_search_jobs(
        self, key: str, known: Collection[str]
    ) -> dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None]:
        """Return the TrainJobs of a search by name. One whose name is known is not read: its value is None."""
        label = naming.hash_owner_key(key)
        names = [job.name for job in self.list_jobs() if job.labels.get(SEARCH_LABEL) == label]
        found = {}
        for name in names:
            with suppress(JobNotFoundError):
                ref = self.get_ref(name)
                found[name] = None if name in known else (ref, self.get_request(ref), self.observe(ref))
        return found

    @abstractmethod
    def list_runtimes(self) -> list[Runtime]:
        """Return the runtimes that a request can name."""

    @abstractmethod
    def get_runtime(self, name: str) -> Runtime:
        """Return one runtime.

        Raises:
            RuntimeNotFoundError: The runtime does not exist; the message lists the known ones.
        """

    @abstractmethod
    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Return the Python packages of a runtime as ``name==version``.

        Raises:
            ValueError: The runtime has a built-in trainer, which runs no Python function.
        """
