"""One job in the calling process: fetch, call the function, keep what it left."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from trainer_core import diagnosis
from trainer_core.backends import fetching_here
from trainer_core.diagnosis import Facts, StepFacts
from trainer_core.fetching import progress, schemes, store
from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError
from trainer_core.inside import bootstrap, contract, result
from trainer_core.inside.progress import flush, parse_progress
from trainer_core.jobs import Event
from trainer_core.observation import COMPLETE, FAILED, Progress
from trainer_core.outcome import Outcome, artifacts_of, metrics_of
from trainer_core.ref import TrainJobRef
from trainer_core.request import InitializerSource, TrainerRequest, TrainJobRequest

__all__ = ["Job", "last_progress", "now_text", "run"]


@dataclass
class Job:
    """What is remembered of a job."""

    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    created: datetime
    folder: Path
    logs: dict[str, list[str]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    outcome: Outcome | None = None


def run(job: Job, cache: Path) -> Outcome:
    """Run a job to its end.

    Args:
        job: Its logs are filled in.
        cache: Where fetched data lies.
    """
    started = now_text()
    fetched: dict[str, str] = {}
    for role, source in fetching_here.sources(job.request):
        try:
            fetched[role] = _fetch(job, role, source, cache)
        except (FetchError, OSError) as error:
            said = str(error) if isinstance(error, FetchError) else f"{type(error).__name__}: {error}"
            code = contract.TRY_AGAIN if isinstance(error, FetchError) and error.retryable else 1
            job.logs[f"{role}-initializer"] = [f"{role}: {said}"]
            return _outcome(job, started, {}, failed=_facts(job, f"{role}-initializer", {}, code))
    if job.request.trainer is None or job.request.trainer.code is None:
        return _outcome(job, started, fetched, {"result": fetched})
    left, code = _call(job, job.request.trainer)
    failed = _facts(job, "node-0", left.get("error") or {}, code) if code else None
    return _outcome(job, started, fetched, left, failed)


def _outcome(
    job: Job,
    started: str,
    fetched: dict[str, str],
    left: dict[str, Any] | None = None,
    failed: StepFacts | None = None,
) -> Outcome:
    times = {"started_at": started, "finished_at": now_text()}
    if failed:
        found = diagnosis.diagnose(Facts(steps=[failed]))
        return Outcome(ref=job.ref.to_dict(), status=FAILED, diagnosis=found, **times)
    left = left or {}
    value, last = left.get("result"), last_progress(job)
    return Outcome(
        ref=job.ref.to_dict(),
        status=COMPLETE,
        result=value,
        metrics=metrics_of(value, dict(last.metrics) if last else {}),
        artifacts={**fetched, **artifacts_of(value)},
        result_truncated=bool(left.get("truncated")),
        result_note=left.get("note"),
        **times,
    )


def _call(job: Job, trainer: TrainerRequest) -> tuple[dict[str, Any], int]:
    """Call the function as a node's only process would; return what it leaves, and its exit code."""
    lines = io.StringIO()
    termination = job.folder / "node-0.json"
    payload = trainer.code.model_dump(mode="json") if trainer.code else {}
    with _environment(job, trainer, termination), _written_to(lines):
        code = _exit_code_of(payload, job.folder / "function")
    job.logs["node-0"] = lines.getvalue().splitlines()
    return result.parse_record(termination.read_bytes()) or {}, code


def _exit_code_of(payload: dict[str, Any], folder: Path) -> int:
    """Call the function, report its end as every node does, and return the exit code its process would have."""
    try:
        value = bootstrap.call(payload, folder)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            result.report_error(stop.with_traceback(bootstrap.users_part(stop.__traceback__)))
            return stop.code if isinstance(stop.code, int) else 1
        value = None
    except Exception as error:  # noqa: BLE001 -- whatever the user's function raises is the job's failure
        error = error.with_traceback(bootstrap.users_part(error.__traceback__))
        result.report_error(error)
        traceback.print_exception(error)
        return 1
    finally:
        flush()
    result.report_result(value)
    return 0


@contextlib.contextmanager
def _written_to(lines: io.StringIO) -> Iterator[None]:
    out, err = _Tee(sys.stdout, lines), _Tee(sys.stderr, lines)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def _environment(job: Job, trainer: TrainerRequest, termination: Path) -> Iterator[None]:
    paths = {contract.DATASET_PATH: "dataset", contract.MODEL_PATH: "model", contract.OUTPUT_PATH: "output"}
    own = {contract.NAME: job.ref.name, contract.TERMINATION_LOG: str(termination)}
    own[contract.RESULT_URI] = trainer.result_uri or ""
    (job.folder / "output").mkdir(mode=0o700, exist_ok=True)
    launcher = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
    }
    before = dict(os.environ)
    own.update({key: str(job.folder / name) for key, name in paths.items()})
    os.environ.update({**launcher, **trainer.literal_env, **own})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Tee(io.TextIOBase):
    """Writes to the terminal and to the job's log."""

    def __init__(self, *targets: TextIO) -> None:
        self._targets = targets

    def write(self, text: str) -> int:
        for target in self._targets:
            target.write(text)
        return len(text)

    def flush(self) -> None:
        for target in self._targets:
            target.flush()


def _fetch(job: Job, role: str, source: InitializerSource, cache: Path) -> str:
    told = fetching_here.variables(role, source)
    given = job.request.literal_secrets.items()
    told.update({k.removeprefix(f"{role}."): v.get_secret_value() for k, v in given if k.startswith(f"{role}.")})
    wanted = schemes.source(Settings.from_env(role, told))
    where, fetched = store.fetch(wanted, cache / role, progress.reporter(role))
    (job.folder / role).symlink_to(where)
    how = "fetched into" if fetched else "found in"
    job.logs[f"{role}-initializer"] = [f"{role}: {source.storage_uri} {how} {where}"]
    return where.as_uri()


def _facts(job: Job, step: str, error: dict[str, Any], code: int) -> StepFacts:
    return StepFacts(
        step,
        exit_code=code,
        node=socket.gethostname(),
        error_type=error.get("type"),
        error_message=str(error.get("message", "")),
        traceback=error.get("traceback"),
        log_tail=job.logs.get(step, []),
    )


def last_progress(job: Job) -> Progress | None:
    """Return what the function last reported."""
    seen = [parse_progress(line) for line in job.logs.get("node-0", [])]
    last = next((data for data in reversed(seen) if data is not None), None)
    return Progress(last.get("step"), last.get("total"), last.get("metrics") or {}) if last else None


def now_text() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
