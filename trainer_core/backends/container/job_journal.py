"""A container job as the engine stores it: its claim, its journal and its containers. Pure.

The journal defines the order of what happens to a job. Each entry is a volume, and an engine creates only one volume of
a name: of two processes that suspend, resume or end a job at the same moment, one writes the entry with the next
number, and the other one finds that the number is used and reads the journal again. So a job has one end, and no
observer sees an end before it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from trainer_core.backends.container import names
from trainer_core.lifecycle.restart_policy import AttemptRestarts, count_restart
from trainer_core.model.jobs import Outcome, TrainJobRef

#: Kinds of journal entries. `COPIED`: a step that needs no container has ended. `LAUNCH`: the nodes of a run are
#: created and will be started. `RESTART`: a start has failed, and its rules begin another run. `NOTE`: an
#: event that does not change the job.
SUSPEND, RESUME, RESTART, COPIED, LAUNCH, END, NOTE = "suspend", "resume", "restart", "copied", "launch", "end", "note"
#: States of a container whose process is alive, and states in which an engine knows no end of it.
ALIVE = ("running", "paused", "restarting", "stopping")
_NOT_STARTED = ("created", "configured", "initialized")
_SIGNAL_BASE = 128
_MAX_SIGNAL = 64
#: The timestamp by which engines represent an event that has not happened.
NEVER = "0001-01-01T00:00:00Z"
_FRACTION = re.compile(r"(\.\d{1,6})\d*")


@dataclass(frozen=True)
class Container:
    """One run of one step."""

    id: str
    name: str
    step: str
    #: Number of the run; 0 until the job is resumed or started again for the first time.
    run: int
    #: State as the engine reports it.
    state: str
    image: str = ""
    created: datetime | None = None
    #: When it was started; None if it never was.
    started: datetime | None = None
    finished: datetime | None = None
    #: None if it has not ended, or if the engine does not know its end, as Podman after a power cut.
    exit_code: int | None = None
    #: The engine reports that the process was killed because of its memory use.
    out_of_memory: bool = False
    message: str = ""

    @property
    def is_new(self) -> bool:
        """Whether it was created and never started."""
        return self.started is None and not self.is_running

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self.state in ALIVE

    @property
    def has_exited(self) -> bool:
        """Whether it was started and is no longer running."""
        return self.started is not None and not self.is_running

    @property
    def succeeded(self) -> bool:
        """Whether it exited with code 0."""
        return self.has_exited and self.exit_code == 0

    @property
    def failed(self) -> bool:
        """Whether it exited with another code."""
        return self.has_exited and self.exit_code != 0


@dataclass(frozen=True)
class JournalEntry:
    """One entry of a job's journal."""

    number: int
    kind: str
    at: datetime
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerJob:
    """One job."""

    namespace: str
    name: str
    uid: str
    #: Content of its claim: creation time, owner, request, plan.
    claim: Mapping[str, Any]
    #: The journal, oldest entry first.
    entries: tuple[JournalEntry, ...] = ()
    containers: tuple[Container, ...] = ()

    @property
    def ref(self) -> TrainJobRef:
        place = f"{self.claim['engine_host']}/{self.claim['engine']}"
        return TrainJobRef("container", self.namespace, self.name, self.uid, place)

    @property
    def created(self) -> datetime:
        return datetime.fromisoformat(self.claim["created"])

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan, without the commands that `plan.strip_commands` removes."""
        return dict(self.claim["plan"])

    @cached_property
    def outcome(self) -> Outcome | None:
        """The outcome; None until the job has ended."""
        last = self.entries[-1] if self.entries else None
        return Outcome.from_dict(last.data["outcome"]) if last is not None and last.kind == END else None

    @property
    def is_suspended(self) -> bool:
        last = self._find_last(SUSPEND, RESUME)
        return bool(self.plan["suspend"]) if last is None else last.kind == SUSPEND

    @property
    def run(self) -> int:
        """Number of the current run: how often the job was resumed or started again."""
        return sum(entry.kind in (RESUME, RESTART) for entry in self.entries)

    @property
    def waiting_restart(self) -> JournalEntry | None:
        """The restart whose run has no container yet; None without one."""
        last = self._find_last(SUSPEND, RESUME, RESTART)
        has_begun = self.is_launched or any(each.run == self.run for each in self.containers)
        return last if last is not None and last.kind == RESTART and not has_begun else None

    def get_attempt_restarts(self, without_waiting: bool = False) -> AttemptRestarts | None:
        """Return the restarts of this attempt and before it, with or without one whose run has not begun."""
        attempt, last = AttemptRestarts.parse(self.plan.get("restarts")), self._find_last(RESTART)
        if attempt is None or last is None:
            return attempt
        ended = Outcome.from_dict(last.data["outcome"])
        if ended.restarts is not None and without_waiting and last == self.waiting_restart:
            return replace(attempt, earlier=replace(ended.restarts, following=None))
        return replace(attempt, earlier=count_restart(ended), started_at=self.run_started.isoformat())

    @property
    def is_launched(self) -> bool:
        """Whether the nodes of the current run were started. Then none of them may be created again."""
        return any(entry.data["run"] == self.run for entry in self._launches)

    @property
    def was_ever_launched(self) -> bool:
        """Whether the nodes of any run were started. Then the data that they need has been fetched."""
        return bool(self._launches)

    @property
    def _launches(self) -> list[JournalEntry]:
        return [entry for entry in self.entries if entry.kind == LAUNCH]

    @property
    def run_started(self) -> datetime:
        """When the current run started, or starts. The deadline counts from here, so other time does not count."""
        last = self._find_last(SUSPEND, RESUME, RESTART)
        if last is not None and last.kind == RESTART:
            return last.at + timedelta(seconds=last.data["delay"])
        return self.created if last is None else last.at

    def _find_last(self, *kinds: str) -> JournalEntry | None:
        return next((entry for entry in reversed(self.entries) if entry.kind in kinds), None)

    @property
    def decisions(self) -> list[str]:
        """Kinds of the entries that change what has to be done next."""
        return [entry.kind for entry in self.entries if entry.kind not in (LAUNCH, NOTE)]

    def get_copy_result(self, step: str) -> Mapping[str, Any] | None:
        """Return the result of a step that copies a folder; None until it has ended. A restart repeats a failure."""
        last = self._find_last(RESTART)
        copies = (each for each in self.entries if each.kind == COPIED and each.data["step"] == step)
        return next((e.data for e in copies if not e.data.get("error") or last is None or e.number > last.number), None)

    def list_runs(self, step: str) -> list[Container]:
        """Return the containers of a step, oldest run first."""
        return sorted((each for each in self.containers if each.step == step), key=lambda each: each.run)

    def get_current_container(self, step: str) -> Container | None:
        return next((each for each in self.list_runs(step) if each.run == self.run), None)

    @property
    def running_containers(self) -> list[Container]:
        """The containers that are running, of any run."""
        return [each for each in self.containers if each.is_running]

    @property
    def last_change(self) -> datetime:
        """When the job last changed, as far as the engine knows."""
        times = [each.at for each in self.entries]
        for each in self.containers:
            times += [time for time in (each.created, each.started, each.finished) if time]
        return max([self.created, *times])


def parse_job(volumes: Iterable[Mapping[str, Any]], containers: Iterable[Mapping[str, Any]]) -> ContainerJob | None:
    """Return the job with these volumes and inspected containers; None if the claim is not among the volumes."""
    parsed = parse_jobs(volumes)
    if not parsed:
        return None
    (job,) = parsed
    return replace(job, containers=parse_containers(containers))


def parse_jobs(volumes: Iterable[Mapping[str, Any]]) -> list[ContainerJob]:
    """Return the jobs whose claims are among these volumes, without their containers."""
    claims: dict[str, Mapping[str, str]] = {}
    entries: dict[str, list[JournalEntry]] = {}
    for volume in volumes:
        labels = volume.get("Labels") or {}
        uid, kind = labels.get(names.UID_LABEL, ""), labels.get(names.KIND_LABEL)
        if kind == names.JOB_KIND:
            claims[uid] = labels
        elif kind in (SUSPEND, RESUME, RESTART, COPIED, LAUNCH, END, NOTE):
            entries.setdefault(uid, []).append(_parse_entry(volume["Name"], labels))
    return [_build_job(labels, entries.get(uid, [])) for uid, labels in claims.items()]


def _build_job(labels: Mapping[str, str], entries: list[JournalEntry]) -> ContainerJob:
    return ContainerJob(
        namespace=labels[names.NAMESPACE_LABEL],
        name=labels[names.NAME_LABEL],
        uid=labels[names.UID_LABEL],
        claim=json.loads(labels[names.CONTENT_LABEL]),
        entries=tuple(sorted(entries, key=lambda entry: entry.number)),
    )


def _parse_entry(volume: str, labels: Mapping[str, str]) -> JournalEntry:
    content = json.loads(labels[names.CONTENT_LABEL])
    number = int(volume.rpartition(".")[2])
    at = datetime.fromisoformat(content["at"])
    return JournalEntry(number, labels[names.KIND_LABEL], at, content["data"])


def parse_containers(inspected: Iterable[Mapping[str, Any]]) -> tuple[Container, ...]:
    return tuple(map(_parse_container, inspected))


def _parse_container(raw: Mapping[str, Any]) -> Container:
    state, config = raw["State"], raw["Config"]
    labels = config.get("Labels") or {}
    started = parse_optional_time(state.get("StartedAt"))
    # Podman reports a container whose end it has not seen as `created`, with its start and with exit code 0.
    is_known = started is not None and state["Status"] not in _NOT_STARTED
    return Container(
        id=raw["Id"],
        name=raw["Name"].lstrip("/"),
        step=labels[names.STEP_LABEL],
        run=int(labels[names.RUN_LABEL]),
        state=state["Status"],
        image=config.get("Image", ""),
        created=parse_optional_time(raw.get("Created")),
        started=started,
        finished=parse_optional_time(state.get("FinishedAt")) if started else None,
        exit_code=_parse_exit_code(int(state["ExitCode"])) if is_known else None,
        out_of_memory=bool(state.get("OOMKilled")),
        message=state.get("Error") or "",
    )


def _parse_exit_code(code: int) -> int:
    """Convert 128 + signal, as engines report it, to the negative signal number that `subprocess` uses."""
    return _SIGNAL_BASE - code if _SIGNAL_BASE < code <= _SIGNAL_BASE + _MAX_SIGNAL else code


def parse_time(text: str) -> datetime:
    """Parse a timestamp such as ``2024-01-01T00:00:00.123456789Z``."""
    return datetime.fromisoformat(_FRACTION.sub(lambda m: m[1].ljust(7, "0"), text).replace("Z", "+00:00"))


def parse_optional_time(text: str | None) -> datetime | None:
    """Parse a timestamp; None if it is empty or `NEVER`."""
    return None if not text or text.startswith(NEVER[:4]) else parse_time(text).astimezone(timezone.utc)


def format_time(time: datetime) -> str:
    """Format a time as ISO 8601 in UTC. Microseconds keep the order of events within a millisecond."""
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds")
