"""Looks for an earlier TrainJob that trained the same, before one with the option `Reuse` is created."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainer_core.backends.initializer_sources import get_fetch_variables
from trainer_core.config import LocalProcessBackendConfig
from trainer_core.errors import JobNotFoundError, TrainerError
from trainer_core.fetch import schemes
from trainer_core.fetch.local_files import parse_local_path
from trainer_core.fetch.settings import FetchSettings
from trainer_core.jobs import REUSE_LABEL, Outcome, TrainJob
from trainer_core.lifecycle import adoption, reuse
from trainer_core.node import s3_client
from trainer_core.request import TrainJobRequest
from trainer_core.text import shorten

if TYPE_CHECKING:
    from trainer_core.client.trainer_client import TrainerClient

_log = logging.getLogger(__name__)
#: Seconds within which the content of all data must be listed.
_DIGEST_SECONDS = 30.0
#: Backends that run on this machine, and read its files.
_LOCAL = ("local", "container")


@dataclass(frozen=True)
class TrainingKey:
    """The key of a training, or why it has none."""

    key: str | None
    unknown: tuple[str, ...] = ()


def look_up(client: TrainerClient, request: TrainJobRequest) -> tuple[TrainJobRequest, Outcome | None]:
    """Return the request with its key, and the outcome of an earlier TrainJob with the same one; None without any."""
    request = request.model_copy(update={"reuse_key": None})
    if request.reuse is None or request.search is not None:
        return request, None
    decision = adoption.decide(request, client.find_jobs(request))
    if decision.action is not adoption.Action.CREATE:
        return request, None
    known = compute_key(client, request)
    if known.key is None:
        _log.warning("Reuse: TrainJob %r trains, because not all is known: %s", decision.name, "; ".join(known.unknown))
        return request, None
    within, request = request.reuse.within, request.model_copy(update={"reuse_key": known.key})
    if within is None or decision.attempt:
        return request, None
    return request, find(client, known.key, within)


def compute_key(client: TrainerClient, request: TrainJobRequest) -> TrainingKey:
    """Return the key of a request, or all that is unknown."""
    versions = client.backend.read_versions(request)
    data, problems = _list_digests(request, client.backend.name in _LOCAL)
    unknown = (*reuse.list_unknown(request), *versions.unknown, *problems)
    return TrainingKey(None if unknown else reuse.build_key(request, versions.parts, data), unknown)


def describe_reuse(name: str, finished: datetime | None) -> str:
    """Return a line for a person, such as ``reused nightly-7 of 2026-11-20: …``."""
    return f"reused {name} of {finished:%Y-%m-%d}: it trained the same, so nothing is trained again"


def find(client: TrainerClient, key: str, within: float) -> Outcome | None:
    """Return the outcome of the newest complete TrainJob with a key that ended in time, and whose artifacts exist."""
    now = datetime.now(timezone.utc)
    for job in client.list_jobs(labels={REUSE_LABEL: key}):
        outcome = _read_outcome(client, job) if reuse.is_recent(job, within, now) else None
        if outcome is not None:
            _log.warning("%s", describe_reuse(job.name, job.finished))
            return outcome
    return None


def _read_outcome(client: TrainerClient, job: TrainJob) -> Outcome | None:
    """Return the outcome of a complete TrainJob; None, with a log line, if an artifact is missing."""
    try:
        ref = client.get_job_ref(job.name)
        outcome = client.observe(ref).outcome if ref.uid == job.uid else None
        if outcome is None or not outcome.succeeded:
            return None
        is_local = client.backend.name == LocalProcessBackendConfig.backend
        missing = [uri for uri in outcome.artifacts.values() if not _exists(uri, is_local)]
        found = replace(outcome, ref=replace(ref, reused=True).to_dict())
    except JobNotFoundError:
        return None  # It was deleted meanwhile.
    except (TrainerError, OSError, ValueError) as error:  # Its storage or the backend does not answer.
        missing = [str(error)]
    if missing:
        reason = shorten("; ".join(missing))
        _log.warning("Reuse: TrainJob %r trained the same, but cannot be used: missing %s", job.name, reason)
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
    digests: dict[str, str] = {}
    problems: dict[str, str] = {}

    def read(role: str, variables: dict[str, str]) -> None:
        try:
            source = schemes.create_source(FetchSettings.from_env(role, variables))
            digests[role] = source.list_files().digest
        except Exception as error:  # noqa: BLE001 -- of any client library: content that cannot be read is unknown
            problems[role] = shorten(str(error) or type(error).__name__)

    threads = {}
    for role, source in request.initializer_sources():
        if source.secrets:
            problems[role] = "its secret is read by the TrainJob only"
        elif source.storage_uri.startswith("file:") and not reads_files:
            problems[role] = f"{source.storage_uri} is not a place of this machine"
        else:
            tokens = {
                name.removeprefix(f"{role}."): secret.get_secret_value()
                for name, secret in request.literal_secrets.items()
                if name.startswith(f"{role}.")
            }
            arguments = (role, {**get_fetch_variables(role, source), **tokens})
            # A daemon: storage that does not answer must not hold the end of the process.
            threads[role] = threading.Thread(target=read, args=arguments, daemon=True)
            threads[role].start()
    end = time.monotonic() + _DIGEST_SECONDS
    for role, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive() or not {role} & (digests.keys() | problems.keys()):
            problems[role] = f"its storage has not listed it in {_DIGEST_SECONDS:.0f} s"
    return dict(digests), [f"{role}: {problem}" for role, problem in problems.items()]
