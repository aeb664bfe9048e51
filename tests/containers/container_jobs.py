"""Builds jobs in given states, for tests of the pure modules."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from trainer_core.backends.container import job_journal, outcome
from trainer_core.backends.container.job_journal import Container, ContainerJob, JournalEntry
from trainer_core.backends.container.plan import render_plan, strip_commands
from trainer_core.backends.container.runtimes import RuntimeCatalog
from trainer_core.lifecycle.diagnosis import Facts, build_failed_outcome
from trainer_core.lifecycle.restart_policy import get_attempt_restarts
from trainer_core.model.config import ContainerBackendConfig
from trainer_core.model.jobs import Category, Diagnosis
from trainer_core.model.request import TrainJobRequest
from trainer_core.packaging import serializer
from trainer_core.testing.training_functions import return_value

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
PACKAGED = RuntimeCatalog([])


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def build_request(**fields) -> TrainJobRequest:
    trainer = {"kind": "custom", "code": serializer.package(return_value), **fields.pop("trainer", {})}
    return TrainJobRequest.parse({"name": "digits", "runtime": {"name": "python"}, "trainer": trainer, **fields})


def build_runtime(name: str = "python", **pod) -> dict:
    """Return a packaged runtime with other fields in the pod spec of its nodes."""
    raw = PACKAGED.get(name)
    job = raw["spec"]["template"]["spec"]["replicatedJobs"][0]
    spec_ = {**job["template"]["spec"]["template"]["spec"], **pod}
    job = {**job, "template": {**job["template"], "spec": {"template": {"spec": spec_}}}}
    return {**raw, "spec": {**raw["spec"], "template": {"spec": {"replicatedJobs": [job]}}}}


def build_plan(request: TrainJobRequest | None = None, raw: dict | None = None, **settings) -> dict:
    request = request or build_request()
    raw = raw or PACKAGED.get(request.work.runtime.name if request.work.runtime else "python")
    return render_plan(request, raw, ContainerBackendConfig(**settings))


def build_job(request: TrainJobRequest | None = None, **settings) -> ContainerJob:
    """Return a job that was created at `START`."""
    request = request or build_request()
    claim = {"created": START.isoformat(), "attempt": 0, "fingerprint": "", "request": request.to_dict()}
    claim |= {"engine_host": "here", "engine": "e" * 32}
    return ContainerJob(
        "default", "digits", "u" * 32, {**claim, "plan": strip_commands(build_plan(request, **settings))}
    )


def with_containers(job: ContainerJob, *containers: Container) -> ContainerJob:
    return replace(job, containers=containers)


def add_entry(job: ContainerJob, kind: str, seconds: float = 0, **data) -> ContainerJob:
    entry = JournalEntry(len(job.entries), kind, at(seconds), data)
    return replace(job, entries=(*job.entries, entry))


def job_to_restart(**fields) -> ContainerJob:
    """Return a job whose two nodes are started again 10 seconds after a failure, 30 seconds after its begin."""
    request = build_request(trainer={"num_nodes": 2}, restart_policy={"free": ["NodeLost"]}, **fields)
    diagnosis = Diagnosis(category=Category.NODE_LOST, reason="it is gone", retryable=True)
    times = {"started_at": at(0).isoformat(), "finished_at": at(30).isoformat()}
    failed = build_failed_outcome(build_job().ref, diagnosis, restarts=get_attempt_restarts(request), **times)
    return add_entry(build_job(request), job_journal.RESTART, seconds=30, outcome=failed.to_dict(), delay=10)


def end(job: ContainerJob) -> ContainerJob:
    return add_entry(job, job_journal.END, **outcome.build_failed_entry(job, Facts(cancelled=True), at(60)))


def new(step: str, created: float = 0, run: int = 0) -> Container:
    return Container(step, f"digits-{step}", step, run, "created", created=at(created))


def running(step: str, started: float = 0, run: int = 0) -> Container:
    return replace(new(step, started, run), state="running", started=at(started))


def exited(step: str, code: int = 0, finished: float = 1, run: int = 0) -> Container:
    return replace(running(step, run=run), state="exited", exit_code=code, finished=at(finished))
