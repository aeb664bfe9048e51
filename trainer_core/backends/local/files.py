"""Every path of the local backend, and how its files are written and locked.

    <home>/
      jobs/<name>/            one TrainJob, created whole by a rename
        lock                  held by the supervisor for as long as it lives
        request.json plan.json
        status.json           replaced atomically by the supervisor, read by everybody
        desired.json          what people want of it: suspended, cancelled
        events.jsonl  supervisor.log
        reserve               room to say how the job ended, should the disk be full by then
        logs/<step>.log  steps/<step>.json (what the step left: its termination message)
        code/  workspace/{dataset,model,output}
      staging/  trash/        half-made and half-removed jobs
      cache/{dataset,model}/  what initializers fetched, by content
      environments/           virtual environments, by what is installed in them
      ports/  runtimes/

Folders are 0700 and files 0600.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer_core.errors import BackendUnavailableError

__all__ = ["Home", "JobFolder", "hold", "is_held", "read_json", "write_json"]

_RESERVE_BYTES = 16_384


class Home:
    """The state folder of one local backend."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs = path / "jobs"
        self.staging = path / "staging"
        self.trash = path / "trash"
        self.cache = path / "cache"
        self.environments = path / "environments"
        self.ports = path / "ports"
        self.runtimes = path / "runtimes"

    def make(self) -> None:
        """Create the folders that are missing."""
        for folder in (self.path, self.jobs, self.staging, self.trash, self.cache, self.environments, self.ports):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def job(self, name: str) -> JobFolder:
        """Return the folder of a job, whether it exists or not."""
        return JobFolder(self.jobs / name)

    def job_names(self) -> list[str]:
        """Return the names of all jobs there are.

        Raises:
            BackendUnavailableError: The folder cannot be read.
        """
        try:
            return [entry.name for entry in os.scandir(self.jobs) if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackendUnavailableError(
                f"{self.jobs} cannot be read: {error.strerror}; mend it, or give another home"
            ) from error

    @contextmanager
    def staged(self) -> Iterator[JobFolder]:
        """Give a folder to make a job in; what is left of it afterwards is removed."""
        self.make()
        folder = JobFolder(self.staging / uuid.uuid4().hex)
        try:
            folder.path.mkdir(mode=0o700)
            yield folder
        finally:
            # Moved first: a supervisor that is about to make it the job gets all of it or nothing.
            self.discard(folder)

    def discard(self, folder: JobFolder) -> None:
        """Take a job away: at once for everybody who looks, then its files."""
        self.make()
        grave = self.trash / uuid.uuid4().hex
        try:
            folder.path.rename(grave)
        except FileNotFoundError:
            return
        shutil.rmtree(grave, ignore_errors=True)


class JobFolder:
    """The files of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.request = path / "request.json"
        self.plan = path / "plan.json"
        self.status = path / "status.json"
        self.desired = path / "desired.json"
        self.events = path / "events.jsonl"
        self.supervisor_log = path / "supervisor.log"
        self.reserve = path / "reserve"
        self.code = path / "code"
        self.payload = path / "payload.json"
        self.workspace = path / "workspace"

    @property
    def name(self) -> str:
        """The job's name."""
        return self.path.name

    def log(self, step: str) -> Path:
        """Return where a step's output goes."""
        return self.path / "logs" / f"{step}.log"

    def termination(self, step: str) -> Path:
        """Return where a step leaves its result or its error."""
        return self.path / "steps" / f"{step}.json"

    def make_folders(self) -> None:
        """Create the folders inside a staged job."""
        for folder in (self.path / "logs", self.path / "steps", self.workspace, self.workspace / "output"):
            folder.mkdir(mode=0o700)

    def make_reserve(self) -> None:
        """Take some room on the disk, to be given back when the job's end is written."""
        # Not zeros, which some file systems store without taking room.
        _write(self.reserve, os.urandom(_RESERVE_BYTES))

    def supervised(self) -> bool:
        """Whether the supervisor lives. Answered by the lock it holds, never by a process id."""
        return is_held(self.lock)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Replace a file atomically: a reader sees the old or the new, and a full disk leaves the old."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _write(temporary, json.dumps(data, ensure_ascii=False).encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def hold(path: Path) -> int | None:
    """Take an exclusive lock for as long as the returned descriptor stays open; None if somebody has it.

    `fcntl.flock` itself and not a lock library: the lock must pass to a forked child, and be asked about (see
    `is_held`) without ever being taken from somebody who wants it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock. Shared, so that any number of observers may ask at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
