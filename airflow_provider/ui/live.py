"""What the backend itself says of a TrainJob, for an API server that can reach it.

The XCom of a task only claims a job: a DAG could name a job of another DAG. So every way to a backend goes through
`reach`, which believes the claim when the job carries that task as its owner.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core import naming
from trainer_core.client import TrainerClient
from trainer_core.configs import CONFIGS, LocalProcessBackendConfig, config_from_dict
from trainer_core.errors import BackendUnavailableError, TrainerError
from trainer_core.inside.progress import parse_progress
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import COMPLETE, FAILED, Observation
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from airflow_provider.ui.store import Pushed

__all__ = ["Log", "Look", "UnreachableError", "log", "look", "reach", "rendered", "unfinished"]

#: Lines of a log that a browser is given at once; of a longer one, the last.
_LINES = 500
#: Points of a curve that a browser is given at once.
_POINTS = 1000


class UnreachableError(Exception):
    """The job cannot be asked about here; the message says why, for the person at the page."""


@dataclass(frozen=True)
class Look:
    """One look at a job."""

    job: TrainJob
    observation: Observation
    events: list[Event]


@dataclass(frozen=True)
class Log:
    """A part of a step's log.

    Attributes:
        lines: The lines that are there to be read.
        points: What `progress` reported in between.
        next: Where the next part begins.
        left_out: Lines before these that were left out.
    """

    lines: list[str]
    points: list[dict[str, Any]]
    next: int
    left_out: int


def reach(pushed: Pushed) -> TrainerClient:
    """Return a client that reaches the job, which is the task's own.

    Raises:
        UnreachableError: There is no such way from here.
    """
    try:
        naming.validate_name(pushed.ref.name)
        client = _client(pushed)
        owner = client.backend.request(pushed.ref).owner
    except (TrainerError, ValueError, AirflowNotFoundException) as error:
        raise UnreachableError(str(error)) from error
    if owner is None or owner.key != pushed.task.owner_key:
        raise UnreachableError(f"TrainJob {pushed.ref.name!r} belongs to another task")
    return client


def look(client: TrainerClient, ref: TrainJobRef) -> Look:
    """Take one look at a job.

    Raises:
        UnreachableError: It has gone meanwhile, or its backend does not answer.
    """
    try:
        return Look(client.get_job(ref.name), client.observe(ref), client.backend.events(ref))
    except TrainerError as error:
        raise UnreachableError(str(error)) from error


def unfinished(all_pushed: Iterable[Pushed]) -> Iterator[tuple[Pushed, TrainJob | None]]:
    """Add to each job that has not ended, as far as its task knows, what its backend says.

    A backend that does not answer is asked once, not once for each job.
    """
    silent = set()
    for pushed in all_pushed:
        backend = (pushed.conn_id, pushed.ref.backend, pushed.ref.namespace)
        if pushed.left.get("status") in (COMPLETE, FAILED) or backend in silent:
            yield pushed, None
            continue
        try:
            yield pushed, reach(pushed).get_job(pushed.ref.name)
        except (UnreachableError, TrainerError) as error:
            if isinstance(error.__cause__ or error, BackendUnavailableError):
                silent.add(backend)
            yield pushed, None


def log(client: TrainerClient, ref: TrainJobRef, step: str, after: int) -> Log:
    """Return the lines of a step after so many.

    Raises:
        TrainerError: There is no such step, or its log cannot be read.
    """
    lines: deque[str] = deque(maxlen=_LINES)
    points: deque[dict[str, Any]] = deque(maxlen=_POINTS)
    count = texts = 0
    read = client.backend.logs(ref, step)
    if sum(1 for _ in islice(read, after)) < after:
        # It began anew: a resumed job has other pods, and a kubelet keeps only the newest part of a long log.
        after, read = 0, client.backend.logs(ref, step)
    for line in read:
        count += 1
        point = parse_progress(line)
        if point:
            points.append(point)
        else:
            texts += 1
            lines.append(line)
    return Log(list(lines), list(points), after + count, texts - len(lines))


def rendered(client: TrainerClient, ref: TrainJobRef) -> dict[str, Any]:
    """Return the job as its backend was given it.

    Raises:
        TrainerError: It cannot be had.
    """
    return client.render(client.backend.request(ref))


def _client(pushed: Pushed) -> TrainerClient:
    """The client of the connection that the task named; without one, only of this machine's own jobs.

    Raises:
        UnreachableError: There is none.
    """
    ref = pushed.ref
    known = CONFIGS[ref.backend].model_fields if ref.backend in CONFIGS else {}
    hook = TrainJobHook(pushed.conn_id, ref.backend, {"namespace": ref.namespace} if "namespace" in known else None)
    if isinstance(hook.config, LocalProcessBackendConfig):
        client = hook.client
        # A ref names a folder, and a DAG that claims one must not make this server read there.
        if client.ref(ref.name) != ref:
            raise UnreachableError(f"TrainJob {ref.name!r} is not where this API server looks")
        return client
    if pushed.conn_id is None:
        raise UnreachableError("its DAG names no connection, so that only its task reaches it")
    TrainJobHook.get_connection(pushed.conn_id)
    return _cached_client(ref.backend, hook.config.model_dump_json(exclude_unset=True))


@lru_cache(maxsize=64)
def _cached_client(backend: str, settings: str) -> TrainerClient:
    """Connecting costs several requests, so a client stays for as long as its connection says the same."""
    return TrainerClient(config_from_dict(backend, json.loads(settings)))
