"""TrainerClient: picks a backend, passes on, and waits."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainer_core import naming, waiting
from trainer_core.attempts import Found
from trainer_core.backends import BACKENDS, backend_class
from trainer_core.backends.base import Backend
from trainer_core.backends.following import Follower
from trainer_core.configs import BackendConfig, LocalProcessBackendConfig, config_from_dict
from trainer_core.errors import JobEndedError, JobFailedError, JobNotFoundError, TrainerError, WaitTimeoutError
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import COMPLETE, FAILED, STATUSES, Observation
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import Owner, TrainJobRequest

if TYPE_CHECKING:
    from trainer_core.build import Option, Trainer
    from trainer_core.initializers import Initializer
    from trainer_core.runtimes import Runtime

__all__ = ["TrainerClient", "backend_for"]

_log = logging.getLogger(__name__)


def backend_for(name: str) -> type[Backend]:
    """Return the class of a backend: enough to build requests for it, without reaching it.

    Raises:
        ValueError: No backend has that name.
        BackendUnavailableError: It is not part of this release yet.
    """
    return backend_class(name)


class TrainerClient:
    """Submit TrainJobs and follow them, on any backend.

    Args:
        backend_config: Where to run: one of the configurations of `trainer_core.configs`. None for what the
            environment variable ``TRAINJOB_BACKEND`` names, which is ``local`` (processes on this machine)
            where it is not set.

    Raises:
        ValueError: Not a backend configuration.
        BackendUnavailableError: The backend needs an extra that is not installed, or cannot be reached.
    """

    def __init__(self, backend_config: BackendConfig | None = None) -> None:
        if backend_config is None:
            backend_config = config_from_dict(os.environ.get("TRAINJOB_BACKEND") or "local", {})
        if not isinstance(backend_config, BackendConfig):
            raise ValueError(
                f"Invalid backend config {backend_config!r}; give a backend configuration such as "
                f"{LocalProcessBackendConfig.__name__}() (backends: {', '.join(sorted(BACKENDS))})"
            )
        # Every backend class is constructed from its own configuration.
        self.backend: Backend = backend_class(backend_config.backend)(backend_config)  # type: ignore[call-arg]

    def list_runtimes(self) -> list[Runtime]:
        """Return the runtimes a TrainJob can refer to."""
        return self.backend.list_runtimes()

    def get_runtime(self, name: str) -> Runtime:
        """Return one runtime.

        Raises:
            RuntimeNotFoundError: There is none of that name.
        """
        return self.backend.get_runtime(name)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Print and return the Python packages of a runtime, as ``name==version``."""
        packages = self.backend.get_runtime_packages(runtime)
        print("\n".join(packages))
        return packages

    def train(
        self,
        runtime: str | Runtime | None = None,
        initializer: Initializer | None = None,
        trainer: Trainer | None = None,
        options: list[Option] | None = None,
    ) -> str:
        """Create a TrainJob and return its name, without waiting for it.

        Args:
            runtime: The blueprint, or its name; None for the backend's default (``torch-distributed``).
            initializer: What to fetch first.
            trainer: What to run; None to run the runtime as it is.
            options: Such as ``[Name("my-job"), Labels({...})]``.

        Returns:
            The name: the one given by the option `Name`, else a random one.

        Raises:
            ValueError: Something in the arguments cannot be right. Nothing was created.
            RuntimeError: The TrainJob could not be created.
        """
        asked = self.request(runtime=runtime, initializer=initializer, trainer=trainer, options=options)
        return self.submit(asked).name

    def initialize(self, initializer: Initializer, options: list[Option] | None = None) -> str:
        """Create a TrainJob that only fetches, and return its name.

        Its result names where the data lies, as ``{"dataset": uri, "model": uri}``.

        Raises:
            ValueError: There is nothing to fetch. Nothing was created.
        """
        if (initializer.dataset or initializer.model) is None:
            raise ValueError("initialize needs Initializer(dataset=…, model=…) with at least one of the two")
        return self.submit(self.request(initializer=initializer, options=options)).name

    def request(
        self,
        *,
        runtime: str | Runtime | None = None,
        initializer: Initializer | None = None,
        trainer: Trainer | Mapping[str, Any] | None = None,
        options: Sequence[Option] | None = None,
        owner: Owner | None = None,
    ) -> TrainJobRequest:
        """Build the request that `train` would submit, for this backend. Nothing is created.

        With neither a name nor an owner it gets a random name.

        Raises:
            ValueError: Something in the arguments cannot be right.
        """
        from trainer_core import build  # A tenth of a second: not for those who only wait.

        asked = build.request(
            backend=self.backend,
            runtime=runtime,
            trainer=trainer,
            initializer=initializer,
            options=options,
            owner=owner,
        )
        return asked if asked.name or asked.owner else asked.named(naming.random_name())

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """Return exactly what submitting the request would create. Creates nothing."""
        return self.backend.render(request)

    def dry_run(self, request: TrainJobRequest) -> None:
        """Let the backend say whether it would take a request. Creates nothing.

        Raises:
            TrainerError: It would be refused.
        """
        self.backend.dry_run(request if request.name else request.named(naming.random_name()))

    def submit(self, request: TrainJobRequest) -> TrainJobRef:
        """Get or create the TrainJob of a request; the same request gives the same job.

        Raises:
            TrainerError: It was refused; nothing was created.
        """
        return self.backend.submit(request)

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        """Return the jobs there are with the request's name or of its owner."""
        return self.backend.find(request)

    def list_jobs(self, runtime: Runtime | None = None) -> list[TrainJob]:
        """Return the TrainJobs, newest first.

        Args:
            runtime: Only those of this runtime.
        """
        jobs = self.backend.list_jobs()
        return [job for job in jobs if runtime is None or job.runtime.name == runtime.name]

    def get_job(self, name: str) -> TrainJob:
        """Return one TrainJob.

        Raises:
            RuntimeError: There is none of that name.
        """
        return self.backend.get_job(name)

    def get_job_logs(self, name: str, step: str = "node-0", follow: bool | None = False) -> Iterator[str]:
        """Yield the log lines of one step.

        Args:
            name: The TrainJob.
            step: Such as ``node-0`` or ``dataset-initializer``.
            follow: Go on until the job has ended.

        Raises:
            RuntimeError: There is no such job.
            ValueError: The job has no such step.
        """
        return self.backend.logs(self.ref(name), step, bool(follow))

    def get_job_events(self, name: str) -> list[Event]:
        """Return what happened to a TrainJob, oldest first.

        Raises:
            RuntimeError: There is no such job.
        """
        return self.backend.events(self.ref(name))

    def wait_for_job_status(
        self,
        name: str,
        status: set[str] = {"Complete"},  # noqa: B006 - the reference's signature; never changed here
        timeout: int = 600,
        polling_interval: int = 2,
        callbacks: list[Callable[[TrainJob], None]] | None = None,
    ) -> TrainJob:
        """Wait until a TrainJob has one of the statuses.

        Args:
            name: The TrainJob.
            status: Any of Created, Suspended, Running, Complete, Failed.
            timeout: Seconds to wait at most.
            polling_interval: Seconds between looks, less than the timeout.
            callbacks: Called with the TrainJob at each look.

        Raises:
            ValueError: An argument cannot be right.
            RuntimeError: There is no such job, it failed, or it is complete and the status cannot come any more.
            TimeoutError: The time is over.
        """
        _check_waiting(status, timeout, polling_interval)
        end = time.monotonic() + timeout
        with self.follow(name) as follower:
            while True:
                seen = follower.look(min(polling_interval, max(0.0, end - time.monotonic())))
                job = follower.job()
                for callback in callbacks or ():
                    callback(job)
                if job.status in status:
                    return job
                self._refuse_to_wait_for_the_ended(job, status)
                if time.monotonic() >= end:
                    wanted = " or ".join(sorted(status))
                    why = f" ({seen.trouble.diagnosis})" if seen.trouble else ""
                    raise WaitTimeoutError(
                        f"TrainJob {name!r} is {job.status}, not {wanted}, after {timeout} s{why}; it goes on"
                    )

    def _refuse_to_wait_for_the_ended(self, job: TrainJob, status: set[str]) -> None:
        if job.status == FAILED:
            outcome = self.outcome(job.name)
            raise JobFailedError(waiting.failure_message(outcome), outcome)
        if job.status == COMPLETE:
            wanted = " or ".join(sorted(status))
            raise JobEndedError(f"TrainJob {job.name!r} is Complete and will not be {wanted} any more")

    def delete_job(self, name: str) -> None:
        """Remove a TrainJob and end every process of it. Gone already: this succeeds."""
        ref = self._ref_or_none(name)
        if ref is not None:
            self.backend.delete(ref)

    def ref(self, job: str | TrainJobRef) -> TrainJobRef:
        """Return the ref of a TrainJob by its name.

        Raises:
            JobNotFoundError: There is none.
        """
        return job if isinstance(job, TrainJobRef) else self.backend.ref(job)

    def observe(self, job: str | TrainJobRef) -> Observation:
        """Take one look at a TrainJob."""
        return self.backend.observe(self.ref(job))

    def outcome(self, job: str | TrainJobRef) -> Outcome:
        """Return what a finished TrainJob left.

        Raises:
            WaitTimeoutError: It has not ended.
            JobNotFoundError: There is none.
        """
        return self.wait(job, timeout=0)

    def wait(
        self,
        job: str | TrainJobRef,
        timeout: float | None = None,
        on_observation: Callable[[Observation], None] | None = None,
        fail_fast: bool = True,
    ) -> Outcome:
        """Wait until a TrainJob has ended, and return what it left, failed or not.

        Args:
            job: Its name or ref.
            timeout: Seconds to wait at most; None for as long as it takes.
            on_observation: Called at each look, for progress bars and log lines.
            fail_fast: End a job that cannot get well (an image that does not exist, a crash loop, no node that could
                take it for five minutes), instead of waiting until its backend gives it up.

        Raises:
            WaitTimeoutError: The time is over; the job goes on.
            JobNotFoundError: There was no such job to begin with.
        """
        ref = self.ref(job)
        state = waiting.start(ref, time.monotonic(), timeout, fail_fast)
        with self.follow(ref, progress=on_observation is not None) as follower:
            while state.outcome is None:
                try:
                    observation = follower.look(state.patience(time.monotonic(), follower.pushed))
                except TrainerError as error:
                    state = state.failed(error, time.monotonic())
                else:
                    if on_observation is not None:
                        on_observation(observation)
                    state = state.seen(observation, time.monotonic())
        return self.conclude(state)

    def conclude(self, state: waiting.Waiting) -> Outcome:
        """Return the outcome of a waiting that is over, and end the job if it was given up.

        An outcome means that its job has ended. Where ending it is not permitted, it goes on.
        """
        if state.outcome is None:
            raise ValueError(f"the waiting for TrainJob {state.ref.name!r} is not over")
        if not state.gave_up:
            with suppress(TrainerError):  # It is known here, and only kept for others.
                self.backend.note(state.outcome)
            return state.outcome
        try:
            self.backend.cancel(state.ref, because=state.outcome.diagnosis)
            return self.backend.observe(state.ref).outcome or state.outcome
        except JobNotFoundError:
            return state.outcome  # Where a job that is ended does not stay, or by somebody else.
        except TrainerError as error:
            _log.warning("TrainJob %r cannot get well and could not be ended: %s", state.ref.name, error)
            return state.outcome

    def follow(self, job: str | TrainJobRef, progress: bool = False) -> Follower:
        """Return what looks at a TrainJob again and again, and is told of changes where the backend can.

        Args:
            job: Its name or ref.
            progress: What the training reports of its progress counts as a change, too.

        Raises:
            JobNotFoundError: There is no job of that name.
        """
        return self.backend.follow(self.ref(job), progress)

    def suspend(self, job: str | TrainJobRef) -> None:
        """End the steps that run but keep the TrainJob, to `resume` it later from its beginning."""
        self.backend.suspend(self.ref(job))

    def resume(self, job: str | TrainJobRef) -> None:
        """Start a suspended TrainJob again."""
        self.backend.resume(self.ref(job))

    def cancel(self, job: str | TrainJobRef) -> None:
        """End a TrainJob for good and keep what it left. Ended already, or gone: this succeeds."""
        ref = self._ref_or_none(job)
        if ref is not None:
            self.backend.cancel(ref)

    def _ref_or_none(self, job: str | TrainJobRef) -> TrainJobRef | None:
        try:
            return self.ref(job)
        except JobNotFoundError:
            return None


def _check_waiting(status: set[str], timeout: float, polling_interval: float) -> None:
    unknown = set(status) - STATUSES
    if unknown or not status:
        raise ValueError(
            f"unknown status {', '.join(sorted(unknown)) or 'set()'}; known are {', '.join(sorted(STATUSES))}"
        )
    if timeout <= 0:
        raise ValueError(f"Timeout must be a positive number, got timeout={timeout}")
    if polling_interval <= 0:
        raise ValueError(f"Polling interval must be a positive number, got polling_interval={polling_interval}")
    if polling_interval >= timeout:
        raise ValueError(
            "Polling interval must be strictly less than timeout. "
            f"Received polling_interval={polling_interval}, timeout={timeout}"
        )
