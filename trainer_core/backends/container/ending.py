"""What a job leaves, collected from its containers at its end and written down once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trainer_core import diagnosis, outcome
from trainer_core.backends.container import book, names, observe, times
from trainer_core.backends.container.advance import Fail
from trainer_core.backends.container.book import Container, Job
from trainer_core.backends.container.engine import Engine, RefusedError
from trainer_core.backends.container.logs import near_the_end, read_on
from trainer_core.backends.container.progress import Reports
from trainer_core.backends.container.spec import COPY, FETCH, NODE, RESULT, TERMINATION
from trainer_core.diagnosis import Facts, StepFacts
from trainer_core.inside import files
from trainer_core.inside.result import parse_record
from trainer_core.observation import Progress
from trainer_core.outcome import Outcome

__all__ = ["complete", "facts_of", "failed", "record"]

_TAIL_LINES = 50


def record(left: Outcome, progress: Progress | None) -> dict[str, Any]:
    """Return an end as an entry of the book."""
    return {"outcome": left.to_dict(), "progress": asdict(progress) if progress else None}


def failed(job: Job, facts: Facts, now: datetime) -> dict[str, Any]:
    """Return the entry of a job that has failed."""
    left = Outcome(
        ref=job.ref.to_dict(),
        status="Failed",
        diagnosis=diagnosis.diagnose(facts),
        started_at=_text(observe.started(job)),
        finished_at=times.text(max(now, observe.started(job) or now)),
    )
    return record(left, None)


def complete(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the entry of a job that is complete."""
    first = job.now_of("node-0")
    left, progress = (_left_by(engine, first), Reports(engine).of(first)) if first else ({}, None)
    left = {**left, **_stored(job, engine, first, left)}
    ended = [each.finished for each in job.containers if each.finished]
    ended += [entry.at for entry in job.entries if entry.kind == book.COPIED]
    made = outcome.complete_outcome(
        job.ref,
        left,
        started_at=_text(observe.started(job)),
        finished_at=_text(max(ended, default=None)),
        last_progress=progress.metrics if progress else None,
        fetched=dict(_fetched(job)),
    )
    return record(made, progress)


def facts_of(job: Job, engine: Engine, why: Fail) -> Facts:
    """Return what is known of a failure."""
    if why.deadline_seconds is not None:
        return Facts(deadline_seconds=why.deadline_seconds)
    if why.copied is not None:
        copied = job.copied(why.copied) or {}
        return Facts(steps=[StepFacts(why.copied, exit_code=1, message=copied["error"], log_tail=copied["log"])])
    if why.gone:
        said = f"{', '.join(why.gone)}: somebody has removed the container"
        return Facts(steps=[StepFacts(step) for step in why.gone], infrastructure_error=said)
    if why.timed_out is not None:
        seconds = job.plan["initializer_timeout"]
        late = job.now_of(why.timed_out)
        said = f"it did not end within {seconds} s (initializer_timeout)"
        log = _tail(engine, late) if late else []
        # What it printed last is not why it was ended.
        return Facts(steps=[StepFacts(why.timed_out, error_type="TimeoutError", error_message=said, log_tail=log)])
    ordered = sorted(why.containers, key=lambda each: (each.finished or job.created, each.name))
    return Facts(steps=[_step_facts(engine, each) for each in ordered])


def _step_facts(engine: Engine, each: Container) -> StepFacts:
    error = _left_by(engine, each).get("error") or {}
    return StepFacts(
        name=each.step,
        exit_code=each.exit_code,
        node=each.name,
        error_type=error.get("type"),
        error_message=str(error.get("message", "")),
        traceback=error.get("traceback"),
        log_tail=_tail(engine, each),
        out_of_memory=each.out_of_memory,
        message=each.message,
    )


def _tail(engine: Engine, each: Container) -> list[str]:
    try:
        place = near_the_end(engine.frames(each.key, 0, _TAIL_LINES), _TAIL_LINES)
        lines = read_on(engine.frames(each.key, place.since), place, whole=True, most=sys.maxsize).lines
    except RefusedError:
        return []
    # What a progress bar has drawn over itself are lines, too.
    return "\n".join(lines).splitlines()[-_TAIL_LINES:]


def _left_by(engine: Engine, each: Container) -> dict[str, Any]:
    """Return the termination message of a step; empty when it left none, or none that can be read."""
    with suppress(RefusedError, ValueError):
        return parse_record(engine.read(each.key, TERMINATION) or b"") or {}
    return {}


def _stored(job: Job, engine: Engine, first: Container | None, left: Mapping[str, Any]) -> dict[str, Any]:
    """Write the whole result to this machine, where the user asked for it; say what went wrong."""
    uri = next((step.get("result_uri") for step in job.plan["steps"] if step["kind"] == NODE), None)
    if not uri or first is None:
        return {}
    try:
        data = engine.read(first.key, RESULT)
        if data is None:
            return {}
        parts = urlsplit(uri)
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise ValueError("only a path or a file:// URI of the submitter's machine can be written to")
        path = Path(unquote(parts.path) if parts.scheme else uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data)
    except (OSError, ValueError, RefusedError) as problem:
        note = f"the result could not be written to {uri}: {type(problem).__name__}: {problem}"
        return {"note": "; ".join(filter(None, (note, left.get("note"))))}
    return {}


def _fetched(job: Job) -> Iterator[tuple[str, str]]:
    """Where what was fetched lies, by role: on this machine, or in a volume."""
    for step in job.plan["steps"]:
        if step["kind"] == COPY:
            copied = job.copied(step["name"])
            if copied:
                yield step["role"], copied["uri"]
        elif step["kind"] == FETCH and not any(other["kind"] == NODE for other in job.plan["steps"]):
            yield step["role"], f"pvc://{names.fetched_volume(job.namespace, job.name)}/{step['role']}"


def _text(time: datetime | None) -> str | None:
    return times.text(time) if time else None
