"""What a search needs of the client of its trials. `TrainerClient`, which offers searches to users, has it."""

# ruff: noqa: D102 -- the classes that have the methods document them
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from trainer_core.model.jobs import Event, Observation, Outcome, TrainJob, TrainJobRef
from trainer_core.model.request import TrainJobRequest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trainer_core.backends.base import Backend
    from trainer_core.model.config import BackendConfig
    from trainer_core.tracking.server import MlflowServer

_T = TypeVar("_T")


class TrialRuns(Protocol):
    """The MLflow runs of a search and of its trials; see `JobRuns`."""

    server: MlflowServer | None

    @property
    def tracks_all(self) -> bool: ...

    def report_progress(self, ref: TrainJobRef) -> AbstractContextManager[Callable[[str, Outcome | None], None]]: ...


class TrialClient(Protocol):
    """Submits, reads and deletes TrainJobs; see `TrainerClient`."""

    @property
    def backend(self) -> Backend: ...
    @property
    def config(self) -> BackendConfig: ...
    @property
    def runs(self) -> TrialRuns: ...

    @property
    def build_request(self) -> Callable[..., TrainJobRequest]: ...
    def submit(self, request: TrainJobRequest) -> TrainJobRef: ...
    def observe(self, job: TrainJobRef) -> Observation: ...
    def list_jobs(self, *, labels: Mapping[str, str] | None = None) -> list[TrainJob]: ...
    def get_job_ref(self, name: str) -> TrainJobRef: ...
    def get_job_request(self, name: str | TrainJobRef) -> TrainJobRequest: ...
    def get_job_logs(self, name: str, *, follow: bool) -> Iterator[str]: ...
    def get_job_events(self, name: TrainJobRef) -> list[Event]: ...
    def delete_job(self, name: TrainJobRef) -> None: ...
    def repeat_while_unavailable(self, what: str, send: Callable[[], _T]) -> _T: ...
