"""A backend whose TrainJobs take a number of seconds of its own clock, and a model of a wait for their attempts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from clock import Clock
from manual_backend import ManualBackend

from trainer_core import DebugBackendConfig, TrainerClient
from trainer_core.backends.base import Prepared
from trainer_core.backends.follower import Follower
from trainer_core.base.change_event import ChangeEvent
from trainer_core.client.runs import JobRuns
from trainer_core.lifecycle.restart_policy import decide_outcome, get_attempt_restarts
from trainer_core.model.jobs import Observation, TrainJob, TrainJobRef
from trainer_core.model.request import TrainJobRequest


class ScriptedBackend(ManualBackend):
    """Each TrainJob fails after `run_seconds` in a way that a retry can help. Only a wait takes time."""

    name = "debug"  # That of the configuration of its client.
    accepts = ManualBackend.accepts | {"RestartPolicy"}

    def __init__(self, run_seconds: float) -> None:
        super().__init__()
        self.run_seconds = run_seconds
        self.clock: Any = Clock()
        self._ends: dict[str, float] = {}

    def create(self, prepared: Prepared) -> TrainJobRef:
        ref = super().create(prepared)
        self._ends[ref.name] = self.clock.now + self.run_seconds
        return ref

    def seconds_left(self, ref: TrainJobRef) -> float:
        return max(0.0, self._ends[ref.name] - self.clock.now)

    def observe(self, ref: TrainJobRef) -> Observation:
        job = self._get(ref)
        if job.outcome is None and not self.seconds_left(ref):
            self.fail(ref.name, retryable=True)
            assert job.outcome is not None
            ended_at = datetime.fromtimestamp(self.clock.now, timezone.utc).isoformat()
            job.outcome = replace(job.outcome, finished_at=ended_at)
            restarts = get_attempt_restarts(job.request)
            if restarts is not None:
                job.outcome = decide_outcome(job.outcome, restarts, None)
        return super().observe(ref)

    def get_job(self, name: str) -> TrainJob:
        self.observe(self.get_ref(name))
        return super().get_job(name)

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        return _ScriptedFollower(self, ref)


class _ScriptedFollower(Follower):
    """Its waits move the clock of the backend."""

    def __init__(self, backend: ScriptedBackend, ref: TrainJobRef) -> None:
        self._backend, self._ref = backend, ref
        self._changed = ChangeEvent()

    @property
    def changed(self) -> ChangeEvent:
        return self._changed

    def next_observation(self, timeout: float) -> Observation:
        self._backend.clock.sleep(min(timeout, self._backend.seconds_left(self._ref)))
        return self._backend.observe(self._ref)

    async def next_observation_async(self, timeout: float) -> Observation:
        return self.next_observation(timeout)

    def get_job(self) -> TrainJob:
        return self._backend.get_job(self._ref.name)

    def tail(self, *_: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def create_scripted_client(run_seconds: float) -> TrainerClient:
    client = TrainerClient(DebugBackendConfig())
    client.backend = ScriptedBackend(run_seconds)
    client.runs = JobRuns(client.backend, None, client.get_job_request)
    return client


def ask(**fields: Any) -> TrainJobRequest:
    trainer = {"kind": "container", "image": "custom:1"}
    return TrainJobRequest.parse({"trainer": trainer, "runtime": {"name": "python"}, **fields})


@dataclass(frozen=True)
class Plan:
    """A training that fails at each of its `attempts`, which take `run` seconds, with a `delay` between them."""

    run: float
    delay: float
    attempts: int
    timeout: float | None

    @property
    def policy(self) -> dict[str, Any]:
        """A RestartPolicy for it, whose delay does not grow with two attempts."""
        return {"max_restarts": self.attempts - 1, "delay": self.delay, "no_progress": 9}

    @property
    def full_seconds(self) -> float:
        return self.attempts * self.run + self._delays(self.attempts)

    def _delays(self, attempts: int) -> float:
        return self.delay * (attempts - 1)

    def expect(self) -> tuple[float, bool, int]:
        """Return how long a wait takes, whether it times out, and how many TrainJobs there are then."""
        limit = float("inf") if self.timeout is None else self.timeout
        started = sum(number * self.run + self._delays(number + 1) <= limit for number in range(self.attempts))
        return min(limit, self.full_seconds), limit < self.full_seconds, started


#: With a delay of 0, at the ends of attempts and delays, and between them.
PLANS = [
    Plan(run, delay, attempts, timeout)
    for run, delay, attempts in [(10, 0, 1), (10, 0, 3), (10, 5, 2), (7, 20, 2)]
    for timeout in (None, 4, 12, 14, 16, 26, 40)
]
