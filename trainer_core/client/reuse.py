"""Looks for an earlier TrainJob that trained the same, before one with the option `Reuse` is created."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from trainer_core.backends.initializer_sources import get_fetch_variables
from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.base.text import shorten
from trainer_core.fetch import schemes
from trainer_core.fetch.settings import FetchSettings
from trainer_core.lifecycle import adoption, reuse
from trainer_core.model.config import LocalProcessBackendConfig
from trainer_core.model.jobs import REUSE_LABEL, Observation, Outcome, TrainJob, TrainJobRef
from trainer_core.model.request import TrainJobRequest
from trainer_core.node import artifact_stamps

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

_log = logging.getLogger(__name__)
#: Seconds within which storage must answer: what data is there, and whether artifacts exist.
_STORAGE_SECONDS = 30.0
#: Name of a folder of a cache: the digest of its content.
_CACHED = re.compile(r"file:.*/([0-9a-f]{32})(-[0-9a-f]{8})?")
#: Backends that run on this machine, and read its files.
_LOCAL = ("local", "container")
_T = TypeVar("_T")


class _JobReader(Protocol):
    """What reads the TrainJobs of a backend; see `TrainerClient`."""

    @property
    def backend(self) -> Backend: ...
    def find_jobs(self, request: TrainJobRequest) -> Sequence[adoption.ExistingJob]: ...
    def list_jobs(self, *, labels: Mapping[str, str] | None = None) -> list[TrainJob]: ...
    def get_job_ref(self, name: str) -> TrainJobRef: ...
    def observe(self, job: TrainJobRef) -> Observation: ...


@dataclass(frozen=True)
class TrainingKey:
    """The key of a training, or why it has none."""

    key: str | None
    unknown: tuple[str, ...] = ()
    #: Digest of the data by role.
    data: Mapping[str, str] = field(default_factory=dict)


def look_up(client: _JobReader, request: TrainJobRequest) -> tuple[TrainJobRequest, Outcome | None]:
    """Return the request with its key, and the outcome of an earlier TrainJob with the same one; None without any."""
    request = request.with_fields(reuse_key=None)
    if request.policy.reuse is None or request.context.search is not None:
        return request, None
    decision = adoption.decide(request, client.find_jobs(request))
    if decision.action is not adoption.Action.CREATE:
        return request, None
    known = compute_key(client, request)
    if known.key is None:
        _log.warning("Reuse: TrainJob %r trains, because not all is known: %s", decision.name, "; ".join(known.unknown))
        return request, None
    within, request = request.policy.reuse.within, request.with_fields(reuse_key=known.key)
    if within is None or decision.attempt:
        return request, None
    return request, find(client, known, within)


def compute_key(client: _JobReader, request: TrainJobRequest) -> TrainingKey:
    """Return the key of a request, or all that is unknown."""
    versions = client.backend.read_versions(request)
    data, problems = _list_digests(request, client.backend.name in _LOCAL)
    unknown = (*reuse.list_unknown(request), *versions.unknown, *problems)
    return TrainingKey(None if unknown else reuse.build_key(request, versions.parts, data), unknown, data)


def describe_reuse(name: str, finished: datetime | None) -> str:
    """Return a line for a person, such as ``reused nightly-7 of 2026-11-20: …``."""
    return f"reused {name} of {finished:%Y-%m-%d}: it trained the same, so nothing is trained again"


def find(client: _JobReader, known: TrainingKey, within: float) -> Outcome | None:
    """Return the outcome of the newest complete TrainJob with a key that ended in time, if its artifacts are intact."""
    now, end = datetime.now(timezone.utc), time.monotonic() + _STORAGE_SECONDS
    for job in client.list_jobs(labels={REUSE_LABEL: known.key or ""}):
        outcome = _read_outcome(client, job, known.data, end) if reuse.is_recent(job, within, now) else None
        if outcome is not None:
            _log.warning("%s", describe_reuse(job.name, job.finished))
            return outcome
    return None


def _read_outcome(client: _JobReader, job: TrainJob, data: Mapping[str, str], end: float) -> Outcome | None:
    """Return the outcome of a complete TrainJob; None, with a log line, if an artifact or its data is another one."""
    try:
        ref = client.get_job_ref(job.name)
        outcome = client.observe(ref).outcome if ref.uid == job.uid else None
        if outcome is None or not outcome.succeeded:
            return None
        is_local = client.backend.name == LocalProcessBackendConfig.backend
        problems = _list_changes(outcome, is_local, end)
        problems += [
            f"its {role} was changed between submit and fetch"
            for role, uri in (outcome.fetched or {}).items()
            if (cached := _CACHED.fullmatch(uri)) and cached[1] != data.get(role)
        ]
        found = replace(outcome, ref=replace(ref, reused=True).to_dict())
    except JobNotFoundError:
        return None  # It was deleted meanwhile.
    except (TrainerError, OSError, ValueError) as error:  # Its storage or the backend does not answer.
        problems = [str(error)]
    if problems:
        reason = shorten("; ".join(problems))
        _log.warning("Reuse: TrainJob %r trained the same, but cannot be used: %s", job.name, reason)
        return None
    return found


def _list_changes(outcome: Outcome, is_local: bool, end: float) -> list[str]:
    """Return why artifacts are not those that a TrainJob left, as far as this process can read them."""
    calls = {
        name: partial(artifact_stamps.find_change, uri, (outcome.stamps or {}).get(name), outcome.finished_at)
        for name, uri in outcome.artifacts.items()
        if is_local or uri.startswith("s3:")
    }
    return [str(each) for each in artifact_stamps.call_all(calls, end).values() if each]


def _list_digests(request: TrainJobRequest, reads_files: bool) -> tuple[dict[str, str], list[str]]:
    """Return the digest of the content of each initializer by role, and what cannot be read."""
    problems: dict[str, str] = {}
    calls: dict[str, Callable[[], str]] = {}
    for role, source in request.initializer_sources():
        if source.secrets:
            problems[role] = "its secret is read by the TrainJob only"
        elif source.storage_uri.startswith("file:") and not reads_files:
            problems[role] = f"{source.storage_uri} is not a place of this machine"
        else:
            tokens = {
                name.removeprefix(f"{role}."): secret.get_secret_value()
                for name, secret in request.context.literal_secrets.items()
                if name.startswith(f"{role}.")
            }
            calls[role] = partial(_read_digest, role, {**get_fetch_variables(role, source), **tokens})
    answers = artifact_stamps.call_all(calls, time.monotonic() + _STORAGE_SECONDS)
    digests = {role: answer for role, answer in answers.items() if isinstance(answer, str)}
    problems |= {role: shorten(str(each)) for role, each in answers.items() if isinstance(each, Exception)}
    return digests, [f"{role}: {problem}" for role, problem in problems.items()]


def _read_digest(role: str, variables: Mapping[str, str]) -> str:
    """Return the digest by which the initializer names what it fetches."""
    return schemes.create_source(FetchSettings.from_env(role, variables)).list_files().digest
