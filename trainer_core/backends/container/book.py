"""A job as the engine has it: what was asked for, what was written down since, and its containers. Pure.

The book is the one place where it is decided what comes first. An entry is a volume, which the engine makes once:
whoever suspends, resumes or ends a job writes the next number, and of two who do so at the same moment one finds that
the other was faster, and looks again. So a job has one end, and no observer sees an end before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from trainer_core.backends.container import names
from trainer_core.backends.container.times import when
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["COPIED", "END", "LAUNCH", "NOTE", "RESUME", "SUSPEND", "Container", "Entry", "Job", "jobs", "read"]

#: Kinds of entries. `COPIED` is how a step ended that needs no container; a `LAUNCH` that the nodes of a run are
#: made and about to be started; a `NOTE` changes nothing.
SUSPEND, RESUME, COPIED, LAUNCH, END, NOTE = "suspend", "resume", "copied", "launch", "end", "note"
_SIGNALS = 128
_MOST_SIGNALS = 64


@dataclass(frozen=True)
class Container:
    """One run of one step."""

    key: str
    name: str
    step: str
    run: int
    state: str
    image: str = ""
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    exit_code: int | None = None
    out_of_memory: bool = False
    message: str = ""

    @property
    def fresh(self) -> bool:
        """Whether it was created and never started."""
        return self.started is None and not self.running

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.state in ("running", "paused", "restarting", "stopping")

    @property
    def ended(self) -> bool:
        """Whether it has run and runs no more."""
        return self.started is not None and not self.running

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.ended and self.exit_code == 0

    @property
    def failed(self) -> bool:
        """Whether it has ended otherwise."""
        return self.ended and self.exit_code != 0


@dataclass(frozen=True)
class Entry:
    """One thing that was written down of a job."""

    number: int
    kind: str
    at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One job. Whatever is asked about it is answered from here."""

    namespace: str
    name: str
    uid: str
    made: Mapping[str, Any]
    entries: tuple[Entry, ...] = ()
    containers: tuple[Container, ...] = ()

    @property
    def ref(self) -> TrainJobRef:
        """Its ref."""
        return TrainJobRef("container", self.namespace, self.name, self.uid)

    @property
    def created(self) -> datetime:
        """When it was made."""
        return datetime.fromisoformat(self.made["created"])

    @property
    def plan(self) -> Mapping[str, Any]:
        """Its plan, `spec.lean`."""
        return dict(self.made["plan"])

    @cached_property
    def outcome(self) -> Outcome | None:
        """What it left; None before its end."""
        last = self.entries[-1] if self.entries else None
        return Outcome.from_dict(last.data["outcome"]) if last is not None and last.kind == END else None

    @property
    def suspended(self) -> bool:
        """Whether it is to stand still."""
        last = self._last_turn
        return bool(self.plan["suspend"]) if last is None else last.kind == SUSPEND

    @property
    def run(self) -> int:
        """How often it was resumed."""
        return sum(entry.kind == RESUME for entry in self.entries)

    @property
    def launched(self) -> bool:
        """Whether its nodes were started in this run: none of them may be made again."""
        return any(entry.data["run"] == self.run for entry in self._launches)

    @property
    def ever_launched(self) -> bool:
        """Whether its nodes were started in this run or an earlier one: what they need is there."""
        return bool(self._launches)

    @property
    def _launches(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind == LAUNCH]

    @property
    def run_began(self) -> datetime:
        """When this run of it began; time that it was suspended counts for nothing."""
        last = self._last_turn
        return self.created if last is None else last.at

    @property
    def _last_turn(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.kind in (SUSPEND, RESUME)), None)

    @property
    def turns(self) -> list[str]:
        """What has been decided of it so far; where this is the same, what was to be done still is."""
        return [entry.kind for entry in self.entries if entry.kind not in (LAUNCH, NOTE)]

    def copied(self, step: str) -> Mapping[str, Any] | None:
        """Return how a step ended that needs no container, None before that."""
        return next((e.data for e in self.entries if e.kind == COPIED and e.data["step"] == step), None)

    def of_step(self, step: str) -> list[Container]:
        """Return the runs of a step, oldest first."""
        return sorted((each for each in self.containers if each.step == step), key=lambda each: each.run)

    def now_of(self, step: str) -> Container | None:
        """Return the container of a step in the run that is on."""
        return next((each for each in self.of_step(step) if each.run == self.run), None)

    @property
    def running(self) -> list[Container]:
        """The containers whose processes live, of whichever run."""
        return [each for each in self.containers if each.running]

    @property
    def last_change(self) -> datetime:
        """When something last happened to it, as far as the engine knows."""
        times = [each.at for each in self.entries]
        for each in self.containers:
            times += [time for time in (each.created, each.started, each.finished) if time]
        return max([self.created, *times])


def read(volumes: Iterable[Mapping[str, Any]], containers: Iterable[Mapping[str, Any]]) -> Job | None:
    """Return the job of these volumes and inspected containers; None where it is gone, or about to go."""
    found = jobs(volumes)
    if not found:
        return None
    (job,) = found
    return Job(**{**vars(job), "containers": tuple(_container(raw) for raw in containers)})


def jobs(volumes: Iterable[Mapping[str, Any]]) -> list[Job]:
    """Return the jobs of these volumes, without their containers."""
    claims: dict[str, Mapping[str, str]] = {}
    entries: dict[str, list[Entry]] = {}
    for volume in volumes:
        labels = volume.get("Labels") or {}
        uid, kind = labels.get(names.UID, ""), labels.get(names.KIND)
        if kind == names.JOB:
            claims[uid] = labels
        elif kind in (SUSPEND, RESUME, COPIED, LAUNCH, END, NOTE):
            entries.setdefault(uid, []).append(_entry(volume["Name"], labels))
    return [_job(labels, entries.get(uid, [])) for uid, labels in claims.items()]


def _job(labels: Mapping[str, str], entries: list[Entry]) -> Job:
    return Job(
        namespace=labels[names.NAMESPACE],
        name=labels[names.NAME],
        uid=labels[names.UID],
        made=json.loads(labels[names.TEXT]),
        entries=tuple(sorted(entries, key=lambda entry: entry.number)),
    )


def _entry(volume: str, labels: Mapping[str, str]) -> Entry:
    written = json.loads(labels[names.TEXT])
    number = int(volume.rpartition(".")[2])
    return Entry(number, labels[names.KIND], datetime.fromisoformat(written["at"]), written["data"])


def _container(raw: Mapping[str, Any]) -> Container:
    state, config = raw["State"], raw["Config"]
    labels = config.get("Labels") or {}
    started = when(state.get("StartedAt"))
    return Container(
        key=raw["Id"],
        name=raw["Name"].lstrip("/"),
        step=labels[names.STEP],
        run=int(labels[names.RUN]),
        state=state["Status"],
        image=config.get("Image", ""),
        created=when(raw.get("Created")),
        started=started,
        finished=when(state.get("FinishedAt")) if started else None,
        exit_code=_exit_code(int(state["ExitCode"])) if started else None,
        out_of_memory=bool(state.get("OOMKilled")),
        message=state.get("Error") or "",
    )


def _exit_code(code: int) -> int:
    """A container's engine adds 128 to the signal that ended it; `subprocess` says it with a minus."""
    return _SIGNALS - code if _SIGNALS < code <= _SIGNALS + _MOST_SIGNALS else code
