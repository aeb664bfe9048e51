"""The promise every backend makes, with the meaning of each verb.

`submit` is written here once, so that no backend decides what attaching means; a backend says what it finds and
makes one job, or says that the name was taken meanwhile.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from trainer_core import attempts
from trainer_core.attempts import Action, Decision, Found
from trainer_core.backends.following import MOST, Follower, Polling
from trainer_core.errors import ConflictError, JobNotFoundError
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import Observation, Tail
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["Backend", "NameTakenError"]

_log = logging.getLogger(__name__)

#: Each round is lost only to another submitter who created or ended a job meanwhile.
_MAX_ROUNDS = 20


class NameTakenError(Exception):
    """Raised by `Backend.create`: somebody else has created a job of that name first."""


class Backend(ABC):
    """Where TrainJobs run.

    A backend class can be read without its client library: `name`, `accepts` and the defaults are class
    attributes, and only an instance connects to anything.
    """

    #: How refs, connections and configurations name this backend.
    name: ClassVar[str]
    #: Class names of the options that can be used with it.
    accepts: ClassVar[frozenset[str]]
    #: Runtime used when a request names none.
    default_runtime: ClassVar[str] = "torch-distributed"

    def submit(self, request: TrainJobRequest) -> TrainJobRef:
        """Get or create the TrainJob of a request, and return at once.

        Submitting the same request again, from any process, at any time, gives the same job; when a submitter
        dies at any instant there is one job or none.

        Raises:
            InvalidRequestError: A value cannot be right. Nothing was created.
            UnsupportedError: This backend cannot do what is asked for. Nothing was created.
            RuntimeNotFoundError: No such runtime. Nothing was created.
            ConflictError: The name belongs to another owner or request.
            BackendUnavailableError: The backend cannot be reached.
        """
        self.render(request if request.name else request.named("check"))
        for _ in range(_MAX_ROUNDS):
            decision = attempts.decide(request, self.find(request))
            try:
                return self._carry_out(request, decision)
            except (NameTakenError, JobNotFoundError):
                # Somebody else created or deleted it since it was looked for.
                continue
        raise ConflictError(
            f"TrainJob {decision.name!r} is created and deleted by others all the time; try again later"
        )

    def _carry_out(self, request: TrainJobRequest, decision: Decision) -> TrainJobRef:
        for name in decision.end_first:
            self.cancel(self.ref(name))
        if decision.action is Action.CREATE:
            return self.create(request.named(decision.name), decision.attempt)
        self._warn_if_different(request, decision)
        ref = self.ref(decision.name)
        self.complete(ref, request)
        return ref

    def _warn_if_different(self, request: TrainJobRequest, decision: Decision) -> None:
        if decision.differs:
            fields = ", ".join(request.differences(self.request(self.ref(decision.name)))) or "its definition"
            _log.warning(
                "TrainJob %r goes on as it was first submitted, although this try asks for something else in: %s. "
                "Keep what differs between tries (try_number, now()) out of the definition.",
                decision.name,
                fields,
            )

    @abstractmethod
    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """Return exactly what would be created, as plain data. Creates nothing; equal requests, equal data.

        Raises:
            UnsupportedError: This backend cannot do what is asked for.
            RuntimeNotFoundError: No such runtime.
        """

    def dry_run(self, request: TrainJobRequest) -> None:
        """Say whether a named request would be taken, as the backend's server sees it. Creates nothing.

        Raises:
            InvalidRequestError: It would not.
            UnsupportedError: This backend cannot do what is asked for.
            RuntimeNotFoundError: No such runtime.
        """
        self.render(request)

    @abstractmethod
    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        """Return every job there is with the request's name or of its owner."""

    @abstractmethod
    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        """Create the job of a named request, whole or not at all.

        Raises:
            NameTakenError: A job of that name exists.
        """

    def complete(self, ref: TrainJobRef, request: TrainJobRequest) -> None:  # noqa: B027 -- most have nothing to do
        """Make sure that all of a job is there that was found: its submitter may have died before its last step."""

    def note(self, outcome: Outcome) -> None:  # noqa: B027 -- most keep what a job left anyway
        """Keep with a job that has ended what it left, where it would be lost in time. Gone already: this succeeds."""

    @abstractmethod
    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        """Return the request a job was made from.

        Raises:
            JobNotFoundError: The job is gone.
        """

    @abstractmethod
    def ref(self, name: str) -> TrainJobRef:
        """Return the ref of the job that has this name now.

        Raises:
            JobNotFoundError: There is none.
        """

    @abstractmethod
    def observe(self, ref: TrainJobRef) -> Observation:
        """Take one look. Read-only, quick, from any process.

        Raises:
            JobNotFoundError: The job is gone, or its name has passed to another job.
        """

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        """Return what looks at the job again and again; nothing is asked before its first look.

        Here it asks each time; a backend that is told of changes has a better one.

        Args:
            ref: The job.
            progress: What the training reports of its progress counts as a change, too.
        """
        return Polling(self, ref)

    @abstractmethod
    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        """Yield the lines of a step's log, without line ends; none lost, none twice, over restarts too.

        Args:
            ref: The job.
            step: Such as ``node-0``.
            follow: Go on until the job has ended, waiting for a step that has not started.

        Raises:
            JobNotFoundError: The job is gone.
            InvalidRequestError: The job has no such step; the message names those it has.
        """

    def tail(self, ref: TrainJobRef, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        """Return what came into the logs of all steps since a place, and the place after it. Nothing is waited for.

        Lines come whole and in order; none is lost and none comes twice, whoever reads on from the place returned,
        in whichever process. Here logs are read from their start and the lines are counted; a backend that can go to
        a place has a better one.

        Args:
            ref: The job.
            place: The place of the tail before; empty for the beginning.
            whole: The job has ended: a last line counts although nothing followed it.
            most: How many lines to return at most, about.

        Raises:
            JobNotFoundError: The job is gone.
        """
        lines: list[tuple[str, str]] = []
        reached, complete = dict(place), True
        for step in [known.name for known in self.get_job(ref.name).steps]:
            given, room = int(place.get(step, 0)), most - len(lines)
            new = list(islice(self.logs(ref, step), given, given + room + 1))
            more = len(new) > room
            # Whether the last line is whole shows when another one follows it.
            if new and (more or not whole):
                new.pop()
            complete = complete and not more
            lines += [(step, line) for line in new]
            reached[step] = given + len(new)
        return Tail(lines, reached, complete)

    @abstractmethod
    def events(self, ref: TrainJobRef) -> list[Event]:
        """Return what happened to the job, oldest first.

        Raises:
            JobNotFoundError: The job is gone.
        """

    @abstractmethod
    def suspend(self, ref: TrainJobRef) -> None:
        """End the steps that run but keep the job. Suspended already, or ended: this succeeds."""

    @abstractmethod
    def resume(self, ref: TrainJobRef) -> None:
        """Start a suspended job again from its beginning. Not suspended: this succeeds."""

    @abstractmethod
    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        """End the job for good and keep what it left. Ended already, or gone: this succeeds.

        Args:
            ref: The job.
            because: Of what it will be said to have failed; None for being cancelled.
        """

    @abstractmethod
    def delete(self, ref: TrainJobRef) -> None:
        """Remove the job and every process of it. Gone already: this succeeds.

        The name is free afterwards.
        """

    def reap(self) -> list[str]:
        """Delete what has ended longer ago than it is to be kept; return the names.

        Backends that see to it by themselves have nothing to do.
        """
        return []

    @abstractmethod
    def get_job(self, name: str) -> TrainJob:
        """Return one job with its steps.

        Raises:
            JobNotFoundError: There is none of that name.
        """

    @abstractmethod
    def list_jobs(self) -> list[TrainJob]:
        """Return every job, newest first. A job that cannot be read is left out with a warning."""

    @abstractmethod
    def list_runtimes(self) -> list[Runtime]:
        """Return the runtimes a request can name."""

    @abstractmethod
    def get_runtime(self, name: str) -> Runtime:
        """Return one runtime.

        Raises:
            RuntimeNotFoundError: There is none; the message names those there are.
        """

    @abstractmethod
    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Return the Python packages a training function finds in this runtime, as ``name==version``."""
