"""Looks for an earlier TrainJob that trained the same, before one with the option `Reuse` is created."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

from trainer_core.backends.initializer_sources import get_fetch_variables
from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.base.text import shorten
from trainer_core.fetch import schemes
from trainer_core.fetch.local_files import parse_local_path
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import Snapshot
from trainer_core.lifecycle import adoption, reuse
from trainer_core.model.config import LocalProcessBackendConfig
from trainer_core.model.jobs import REUSE_LABEL, Observation, Outcome, TrainJob, TrainJobRef
from trainer_core.model.request import TrainJobRequest
from trainer_core.node import s3_client

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

_log = logging.getLogger(__name__)
#: Seconds within which storage must answer: what data is there, and whether artifacts exist.
_STORAGE_SECONDS = 30.0
#: Data of this machine up to this size is identified by its content, larger data by its path, sizes and times.
_HASHED_BYTES = 256 * 2**20
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
    return request, find(client, known.key, within)


def compute_key(client: _JobReader, request: TrainJobRequest) -> TrainingKey:
    """Return the key of a request, or all that is unknown."""
    versions = client.backend.read_versions(request)
    data, problems = _list_digests(request, client.backend.name in _LOCAL)
    unknown = (*reuse.list_unknown(request), *versions.unknown, *problems)
    return TrainingKey(None if unknown else reuse.build_key(request, versions.parts, data), unknown)


def describe_reuse(name: str, finished: datetime | None) -> str:
    """Return a line for a person, such as ``reused nightly-7 of 2026-11-20: …``."""
    return f"reused {name} of {finished:%Y-%m-%d}: it trained the same, so nothing is trained again"


def find(client: _JobReader, key: str, within: float) -> Outcome | None:
    """Return the outcome of the newest complete TrainJob with a key that ended in time, and whose artifacts exist."""
    now, end = datetime.now(timezone.utc), time.monotonic() + _STORAGE_SECONDS
    for job in client.list_jobs(labels={REUSE_LABEL: key}):
        outcome = _read_outcome(client, job, end) if reuse.is_recent(job, within, now) else None
        if outcome is not None:
            _log.warning("%s", describe_reuse(job.name, job.finished))
            return outcome
    return None


def _read_outcome(client: _JobReader, job: TrainJob, end: float) -> Outcome | None:
    """Return the outcome of a complete TrainJob; None, with a log line, if an artifact is not known to exist."""
    try:
        ref = client.get_job_ref(job.name)
        outcome = client.observe(ref).outcome if ref.uid == job.uid else None
        if outcome is None or not outcome.succeeded:
            return None
        is_local = client.backend.name == LocalProcessBackendConfig.backend
        uris = list(outcome.artifacts.values())
        answer = _call({"": lambda: [f"{uri} is missing" for uri in uris if not _exists(uri, is_local)]}, end)[""]
        problems = [str(answer)] if isinstance(answer, Exception) else answer
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


def _exists(uri: str, is_local: bool) -> bool:
    """Return whether an artifact exists, as far as this process can look; others are believed."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        bucket, key = s3_client.Bucket(parts.netloc), parts.path.lstrip("/")
        return bucket.exists(key) or bool(bucket.list_objects(f"{key.rstrip('/')}/"))
    if is_local and parts.scheme in ("", "file"):
        path = Path(uri) if not parts.scheme else parse_local_path(uri)
        return path.exists() if path.is_absolute() else True
    return True


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
            calls[role] = partial(_compute_digest, role, {**get_fetch_variables(role, source), **tokens})
    answers = _call(calls, time.monotonic() + _STORAGE_SECONDS)
    digests = {role: answer for role, answer in answers.items() if isinstance(answer, str)}
    problems |= {role: shorten(str(each)) for role, each in answers.items() if isinstance(each, Exception)}
    return digests, [f"{role}: {problem}" for role, problem in problems.items()]


def _compute_digest(role: str, variables: Mapping[str, str]) -> str:
    """Return a hash of the content of a source, without its place where the content is known.

    Each run of a pipeline has its own URIs for the same data, and each clone of a repository its own times.
    """
    settings = FetchSettings.from_env(role, variables)
    snapshot = schemes.create_source(settings).list_files()
    if settings.uri.startswith("s3:") and all(file.tag for file in snapshot.files):
        return Snapshot("", snapshot.files).digest
    if settings.uri.startswith("file:") and snapshot.size <= _HASHED_BYTES:
        path = parse_local_path(settings.uri)
        files = ((path / each.path if path.is_dir() else path, each) for each in snapshot.files)
        hashed = (replace(each, tag=hashlib.sha256(file.read_bytes()).hexdigest()) for file, each in files)
        return Snapshot("", tuple(hashed)).digest
    return snapshot.digest


def _call(calls: Mapping[str, Callable[[], _T]], end: float) -> dict[str, _T | Exception]:
    """Return what functions return or raise until a time; TimeoutError for one that has not."""
    answers: dict[str, _T | Exception] = {}

    def call(name: str) -> None:
        try:
            answers[name] = calls[name]()
        except Exception as error:  # noqa: BLE001 -- of any client library: what cannot be read is unknown
            answers[name] = error if str(error) else RuntimeError(type(error).__name__)

    # Daemons: storage that does not answer must not hold the end of the process.
    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = TimeoutError(f"its storage has not answered in {_STORAGE_SECONDS:.0f} s")
    return {name: answers.get(name, late) for name in calls}
