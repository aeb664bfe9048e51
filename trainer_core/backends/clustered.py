"""ClusterBackend: what all backends whose jobs are objects of a Kubernetes cluster do alike.

Such a backend says how its jobs are spelled (a `Dialect`), what it creates for a request, and what runtimes there are.
"""

# ruff: noqa: D102 -- what the verbs promise is written at `Backend`

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer_core.attempts import Found
from trainer_core.backends import packages
from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.backends.following import MOST, Follower
from trainer_core.backends.watching import Watching
from trainer_core.cluster import connect, kinds, observe
from trainer_core.cluster.answers import TakenError
from trainer_core.cluster.api import Api
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.ending import Changes
from trainer_core.cluster.looks import Looks
from trainer_core.cluster.raw import Raw
from trainer_core.configs import ClusterConfig
from trainer_core.errors import BackendUnavailableError, InvalidRequestError, JobNotFoundError, TrainerError
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import Observation, Tail
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["ClusterBackend"]

#: Seconds in which the garbage collector deletes what belonged to a job that is gone.
_SECONDS_GONE = 5.0


class ClusterBackend(Backend):
    """Jobs that are objects of a cluster.

    Everything about a job is on the cluster, so any process that reaches it can follow, suspend or delete the job.

    Args:
        config: Which cluster, and where in it.
        dialect: How its jobs are spelled.

    Raises:
        BackendUnavailableError: The extra is not installed, or there is no cluster to be found.
    """

    def __init__(self, config: ClusterConfig, dialect: Dialect) -> None:
        self.dialect = dialect
        self._connection = connect.connect(config)
        self._api = Api(self._connection)
        self._looks = Looks(self._api, self.dialect)
        self._changes = Changes(self._api, self.dialect)

    @property
    def namespace(self) -> str:
        """Where jobs are created and looked for."""
        return self._connection.namespace

    @abstractmethod
    def _rendered(self, request: TrainJobRequest, attempt: int) -> list[dict[str, Any]]:
        """The objects of a job in the order in which they are created; the job itself is the last."""

    def _beside(self, request: TrainJobRequest, ref: TrainJobRef) -> Raw | None:
        """What is made beside a job, as soon as it is there; it belongs to the job."""
        return None

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        made = self._rendered(request, attempt=0)
        return made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made}

    def dry_run(self, request: TrainJobRequest) -> None:
        for each in self._rendered(request, attempt=0):
            with suppress(TakenError):  # Of that name there is one, which says nothing of the rest.
                self._api.create(kinds.of(each), each, dry_run=True)

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        owned = self._looks.of_owner(request.owner.key, self.namespace) if request.owner else []
        found = [self._found(raw) for raw in owned]
        last = max((job.attempt for job in found), default=-1)
        # A stranger may have the name of the first attempt, or of the next one.
        for name in {request.attempt_name(0), request.attempt_name(last + 1)} - {job.name for job in found}:
            with suppress(JobNotFoundError):
                found.append(self._found(self._looks.raw(name, self.namespace)))
        return found

    def _found(self, raw: Raw) -> Found:
        return observe.found(raw, self.dialect.read)

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        *before, job = self._rendered(request, attempt)
        made = [each for each in before if self._made(each)]
        try:
            created = self._api.create(kinds.of(job), job)
        except TakenError as error:
            # Whoever was faster uses the claim that was made for it.
            raise NameTakenError(request.require_name()) from error
        except TrainerError as error:
            # Where the server went away in the middle, the job may be there, and need its claim.
            if not isinstance(error, BackendUnavailableError) or not error.transient:
                self._undo(made)
            raise
        ref = observe.ref_of(self.dialect.read(created))
        try:
            self._complete(ref, request, patience=_SECONDS_GONE)
        except TrainerError:
            self.delete(ref)
            raise
        return ref

    def complete(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        self._complete(ref, request)

    def _complete(self, ref: TrainJobRef, request: TrainJobRequest, patience: float = 0.0) -> None:
        beside = self._beside(request, ref)
        if beside is not None:
            self._made(beside, patience)

    def _made(self, raw: Raw, patience: float = 0.0) -> bool:
        """Create what may be there already; say whether it was not.

        Args:
            raw: The object.
            patience: Seconds for which one of that name may be left over from an earlier job, about to go.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

        again = Retrying(
            retry=retry_if_exception_type(TakenError),
            stop=stop_after_delay(patience),
            wait=wait_exponential(0.05, max=1.0),
            reraise=True,
        )
        try:
            again(self._api.create, kinds.of(raw), raw)
        except TakenError:
            return False
        return True

    def _undo(self, made: Sequence[Raw]) -> None:
        for raw in made:
            with suppress(TrainerError):
                self._api.delete(kinds.of(raw), raw["metadata"]["name"], namespace=self.namespace)

    def note(self, outcome: Outcome) -> None:
        self._changes.note(outcome)

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observe.request_of(self._looks.of(ref))

    def ref(self, name: str) -> TrainJobRef:
        return observe.ref_of(self.dialect.read(self._looks.raw(name, self.namespace)))

    def observe(self, ref: TrainJobRef) -> Observation:
        return self._looks.observation(ref)

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        # Progress is in the log, which no watch tells of.
        if progress or ref.namespace != self.namespace:
            return super().follow(ref, progress)
        return Watching(self._looks, self._connection, self.dialect, ref)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        job = self._looks.train_job(ref)
        steps = [known.name for known in job.steps]
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return self._looks.log(ref, step, follow)

    def tail(self, ref: TrainJobRef, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        job = self.dialect.read(self._looks.of(ref))
        return self._looks.tail(job, self._looks.pods(job), place, whole, most)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return self._looks.events(ref)

    def suspend(self, ref: TrainJobRef) -> None:
        self._changes.suspend(self._looks.of(ref), suspend=True)

    def resume(self, ref: TrainJobRef) -> None:
        self._changes.suspend(self._looks.of(ref), suspend=False)

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        with suppress(JobNotFoundError):
            self._changes.cancel(self._looks.of(ref), because)

    def delete(self, ref: TrainJobRef) -> None:
        with suppress(JobNotFoundError):
            self._changes.delete(self._looks.of(ref))

    def get_job(self, name: str) -> TrainJob:
        return self._looks.named_train_job(name, self.namespace)

    def list_jobs(self) -> list[TrainJob]:
        return self._looks.train_jobs(self.namespace)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        return packages.of(self, runtime)
