"""Collects the outcome of a job from its containers, as the content of the journal entry `END`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trainer_core.backends.container import job_journal, names, observations
from trainer_core.backends.container.engine import Engine, EngineRequestError
from trainer_core.backends.container.job_journal import Container, ContainerJob, format_time
from trainer_core.backends.container.logs import LogReader
from trainer_core.backends.container.plan import COPY, FETCH, NODE
from trainer_core.backends.container.reconcile import Fail
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model.jobs import AttemptMemory, build_complete_outcome
from trainer_core.model.resource_use import summarize_resource_use
from trainer_core.node import env, files
from trainer_core.node.termination import parse_record

_TAIL_LINES = 50


def build_failed_entry(
    job: ContainerJob, facts: Facts, now: datetime, records: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    memory = AttemptMemory.parse(job.plan.get("memory"))
    outcome = build_failed_outcome(
        job.ref,
        diagnose(replace(facts, memory=memory)),
        records,
        started_at=_format_optional(observations.get_start_time(job)),
        finished_at=format_time(max(now, observations.get_start_time(job) or now)),
        resource_use=summarize_resource_use(records),
        memory=memory,
        restarts=job.get_attempt_restarts(without_waiting=facts.cancelled),
    )
    return {"outcome": outcome.to_dict(), "progress": None}


def build_complete_entry(job: ContainerJob, engine: Engine) -> dict[str, Any]:
    """Return the content of the entry for a job that is complete. Writes the result to ``result_uri``."""
    first = job.get_current_container("node-0")
    records = read_node_records(job, engine)
    termination = records.get("node-0", {})
    progress = LogReader(engine).read_progress(first) if first else None
    if first:
        termination = {**termination, **_store_result(job, engine, first, termination)}
    restarts = job.get_attempt_restarts()
    ended = [each.finished for each in job.containers if each.finished]
    ended += [entry.at for entry in job.entries if entry.kind == job_journal.COPIED]
    outcome = build_complete_outcome(
        job.ref,
        termination,
        started_at=_format_optional(observations.get_start_time(job)),
        finished_at=_format_optional(max(ended, default=None)),
        last_progress=progress,
        fetched=dict(_list_fetched_uris(job)),
        resource_use=summarize_resource_use(records.values()),
        memory=AttemptMemory.parse(job.plan.get("memory")),
        restarts=restarts.earlier if restarts else None,
    )
    recorded = asdict(progress) if progress else {}
    recorded.pop("silent", None)  # Of a training that runs; an older version knows no such field.
    return {"outcome": outcome.to_dict(), "progress": recorded or None}


def collect_facts(job: ContainerJob, engine: Engine, failure: Fail) -> Facts:
    if failure.deadline_seconds is not None:
        return Facts(deadline_seconds=failure.deadline_seconds)
    if failure.copy_step is not None:
        result = job.get_copy_result(failure.copy_step) or {}
        step = StepFacts(failure.copy_step, exit_code=1, message=result["error"], log_tail=result["log"])
        return Facts(steps=[step])
    if failure.removed_steps:
        reason = f"{', '.join(failure.removed_steps)}: the container was removed from the engine"
        return Facts(steps=[StepFacts(step) for step in failure.removed_steps], infrastructure_error=reason)
    if failure.timed_out_step is not None:
        return Facts(steps=[_collect_timeout_facts(job, engine, failure.timed_out_step)])
    ordered = sorted(failure.containers, key=lambda each: (each.finished or job.created, each.name))
    unknown = [each.name for each in ordered if each.exit_code is None]
    reason = f"{', '.join(unknown)}: the engine does not know how the container ended; the machine may have lost power"
    lost = reason if len(unknown) == len(ordered) else None
    return Facts(steps=[_collect_step_facts(job, engine, each) for each in ordered], infrastructure_error=lost)


def _collect_timeout_facts(job: ContainerJob, engine: Engine, step: str) -> StepFacts:
    container = job.get_current_container(step)
    log = LogReader(engine).read_last(container, _TAIL_LINES) if container else []
    message = f"it did not end within {job.plan['initializer_timeout']} s (initializer_timeout)"
    # The error is given explicitly, because the last line of the log is not the reason for the failure.
    return StepFacts(step, error_type="TimeoutError", error_message=message, log_tail=log)


def _collect_step_facts(job: ContainerJob, engine: Engine, each: Container) -> StepFacts:
    return StepFacts.from_record(
        each.step,
        _read_termination_record(job, engine, each),
        exit_code=each.exit_code,
        node=each.name,
        log_tail=LogReader(engine).read_last(each, _TAIL_LINES),
        out_of_memory=each.out_of_memory,
        message=each.message,
    )


def read_node_records(job: ContainerJob, engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the termination records of the nodes, by step."""
    nodes = (step["name"] for step in job.plan["steps"] if step["kind"] == NODE)
    containers = ((name, job.get_current_container(name)) for name in nodes)
    return {name: _read_termination_record(job, engine, each) for name, each in containers if each is not None}


def _read_termination_record(job: ContainerJob, engine: Engine, each: Container) -> dict[str, Any]:
    """Return the termination record of a container; empty if it wrote none, a note if it cannot be read."""
    try:
        return parse_record(_read_file(job, engine, each, env.TERMINATION_LOG)) or {}
    except (EngineRequestError, ValueError) as error:
        return {"note": f"the result cannot be read from container {each.name}: {error}"}


def _read_file(job: ContainerJob, engine: Engine, each: Container, variable: str) -> bytes:
    """Return the content of the file that a variable of a container names; empty without one."""
    variables = (step.get("env") or {} for step in job.plan["steps"] if step["name"] == each.step)
    path = next(variables, {}).get(variable)
    return (engine.read_file(each.id, path) or b"") if path else b""


def _store_result(
    job: ContainerJob, engine: Engine, first: Container, termination: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the complete result to ``result_uri`` on this machine; return a note if this fails."""
    uri = next((step.get("result_uri") for step in job.plan["steps"] if step["kind"] == NODE), None)
    if not uri:
        return {}
    try:
        data = _read_file(job, engine, first, env.RESULT_URI)
        if not data:
            return {}
        parts = urlsplit(uri)
        path = Path(unquote(parts.path) if parts.scheme else uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data)
    except (OSError, ValueError, EngineRequestError) as error:
        note = f"the result could not be written to {uri}: {type(error).__name__}: {error}"
        return {"note": "; ".join(filter(None, (note, termination.get("note"))))}
    return {}


def _list_fetched_uris(job: ContainerJob) -> Iterator[tuple[str, str]]:
    """Yield role and URI of fetched data: copies on this machine, and volumes that outlive the job."""
    has_nodes = any(step["kind"] == NODE for step in job.plan["steps"])
    for step in job.plan["steps"]:
        if step["kind"] == COPY:
            result = job.get_copy_result(step["name"])
            if result:
                yield step["role"], result["uri"]
        elif step["kind"] == FETCH and not has_nodes:
            yield step["role"], f"pvc://{names.fetched_volume(job.namespace, job.name)}/{step['role']}"


def _format_optional(time: datetime | None) -> str | None:
    return format_time(time) if time else None
