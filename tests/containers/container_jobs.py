"""Jobs as the engine would tell of them, for tests of what is pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from trainer_core import packaging
from trainer_core.backends.container import book, ending, spec
from trainer_core.backends.container.book import Container, Entry, Job
from trainer_core.backends.container.runtimes import Runtimes
from trainer_core.configs import ContainerBackendConfig
from trainer_core.diagnosis import Facts
from trainer_core.request import TrainJobRequest
from trainer_core.testing.functions import returns

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
PACKAGED = Runtimes([])


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def request(**fields) -> TrainJobRequest:
    """A job of a function, with fields of the trainer under ``trainer``."""
    trainer = {"kind": "custom", "code": packaging.package(returns), **fields.pop("trainer", {})}
    return TrainJobRequest.parse({"name": "digits", "runtime": {"name": "python"}, "trainer": trainer, **fields})


def runtime(name: str = "python", **pod) -> dict:
    """A packaged runtime, with fields laid over the pod spec of its nodes."""
    raw = PACKAGED.get(name)
    job = raw["spec"]["template"]["spec"]["replicatedJobs"][0]
    spec_ = {**job["template"]["spec"]["template"]["spec"], **pod}
    job = {**job, "template": {**job["template"], "spec": {"template": {"spec": spec_}}}}
    return {**raw, "spec": {**raw["spec"], "template": {"spec": {"replicatedJobs": [job]}}}}


def plan(asked: TrainJobRequest | None = None, raw: dict | None = None, **settings) -> dict:
    asked = asked or request()
    raw = raw or PACKAGED.get(asked.runtime.name if asked.runtime else "python")
    return spec.render(asked, raw, ContainerBackendConfig(**settings))


def job(asked: TrainJobRequest | None = None, **settings) -> Job:
    """A job just made, at `START`."""
    asked = asked or request()
    made = {"created": START.isoformat(), "attempt": 0, "fingerprint": "", "request": asked.to_dict()}
    return Job("default", "digits", "u" * 32, {**made, "plan": spec.lean(plan(asked, **settings))})


def with_containers(made: Job, *containers: Container) -> Job:
    return replace(made, containers=containers)


def written(made: Job, kind: str, seconds: float = 0, **data) -> Job:
    """The job after another entry in its book."""
    entry = Entry(len(made.entries), kind, at(seconds), data)
    return replace(made, entries=(*made.entries, entry))


def ended(made: Job) -> Job:
    """The job after somebody has cancelled it."""
    return written(made, book.END, **ending.failed(made, Facts(cancelled=True), at(60)))


def fresh(step: str, created: float = 0, run: int = 0) -> Container:
    return Container(step, f"digits-{step}", step, run, "created", created=at(created))


def running(step: str, started: float = 0, run: int = 0) -> Container:
    return replace(fresh(step, started, run), state="running", started=at(started))


def exited(step: str, code: int = 0, finished: float = 1, run: int = 0) -> Container:
    return replace(running(step, run=run), state="exited", exit_code=code, finished=at(finished))
