"""Files of the local backend: paths, atomic writes, and the lock that a running supervisor holds.

    <home>/
      id                      random identity of this folder; another host has another one at the same path
      jobs/<name>/            one TrainJob; appears by a single rename of a staged folder
        lock                  flock held by the supervisor until it exits
        search-<hash>         empty; the hash of the search's key
        request.json plan.json
        owner-<hash>          empty; the hash of the owner's key, by which the jobs of an owner are found
        status.json           written only by the supervisor, replaced atomically
        desired.json          desired state: suspend, cancel
        events.jsonl  supervisor.log
        reserve               becomes desired.json or status.json on a disk that is full at a cancel or at the end
        logs/<step>.log logs/<step>.times  steps/<step>.json (termination message of the step)
        code  workspace/{dataset,model,output}
      staging/  trash/        jobs that are being created or removed
      cache/{dataset,model}/  fetched data, shared by jobs
      environments/           virtual environments, shared by jobs
      code/                   files of large projects, shared by jobs
      kits/<digest>/          programs of the nodes, shared by jobs, whose `code` is a link to them
      checkpoints/<owner>/g-<generation>/   checkpoints, shared by the attempts of an owner
      queue/<boot id>/        places of the jobs of one host in its queue
      ports/  runtimes/

Folders have mode 0700, files 0600.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainer_core.base import naming
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.node import env, exit_code, files, locks

#: More than an outcome with the last lines of a log.
_RESERVE_BYTES = 32_768
#: Time to wait for another process that changes the desired state of the same job. It needs about a millisecond.
_DESIRED_LOCK_SECONDS = 10.0


def _random_name() -> str:
    # As `uuid4().hex`; that module takes 10 ms.
    return os.urandom(16).hex()


class StateFolder:
    """Root folder of one local backend."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs = path / "jobs"
        self.staging = path / "staging"
        self.trash = path / "trash"
        self.cache = path / "cache"
        self.environments = path / "environments"
        self.ports = path / "ports"
        self.queue = path / "queue"
        self.checkpoints = path / "checkpoints"
        self.code = path / "code"
        self.kits = path / "kits"
        self.runtimes = path / "runtimes"
        self._id = path / "id"

    def create_folders(self) -> None:
        inner = (self.jobs, self.staging, self.trash, self.cache, self.environments, self.kits, self.queue, self.ports)
        for folder in (self.path, *inner):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.read_id():
            # Of several processes, the first one gives the folder its identity: a link never replaces a file.
            staged = self.staging / _random_name()
            files.replace(staged, _random_name().encode())
            with suppress(FileExistsError):
                self._id.hardlink_to(staged)
            staged.unlink()

    def read_id(self) -> str:
        """Return the random identity of this folder; empty if it has none yet."""
        try:
            return self._id.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def job_folder(self, name: str) -> JobFolder:
        return JobFolder(self.jobs / name)

    def list_owned_names(self, owner_key: str, part: str = "") -> list[str]:
        """Return the names of the jobs of an owner that contain a part. Reads none of the thousands that may exist."""
        return self._list_marked(JobFolder(self.jobs).owner_path(owner_key).name, part)

    def list_search_names(self, key: str) -> list[str]:
        return self._list_marked(JobFolder(self.jobs).search_path(key).name)

    def _list_marked(self, marker: str, part: str = "") -> list[str]:
        """Return the names of the jobs that have a file. Without `Path`: a submit calls it, and there are thousands."""
        return [name for name in self.list_job_names(part) if os.path.exists(f"{self.jobs}/{name}/{marker}")]  # noqa: PTH110

    def list_job_names(self, part: str = "") -> list[str]:
        try:
            entries = os.scandir(self.jobs)
            return [entry.name for entry in entries if part in entry.name and entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackendUnavailableError(
                f"state folder {self.jobs} cannot be read: {error.strerror}; fix it, or set another folder as home"
            ) from error

    @contextmanager
    def stage_job(self) -> Iterator[JobFolder]:
        """Create an empty folder for a new job. If it still exists at the end of the block, it is removed."""
        self.create_folders()
        folder = JobFolder(self.staging / _random_name())
        try:
            folder.path.mkdir(mode=0o700)
            yield folder
        finally:
            # It renames the folder first: a supervisor that is claiming it gets a complete folder or an error.
            self.remove_folder(folder.path)

    def remove_folder(self, folder: Path) -> None:
        """Remove a job, or a kit. It disappears for all observers at once; its files are deleted afterwards."""
        if not folder.exists():
            return
        self.create_folders()
        target = self.trash / _random_name()
        try:
            folder.rename(target)
        except FileNotFoundError:
            return
        shutil.rmtree(target, ignore_errors=True)


class _File:
    """A path in a folder, built when it is used: a search opens thousands of folders, and uses few paths of each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: JobFolder, _: type[JobFolder]) -> Path:
        return folder.path / self._name


class JobFolder:
    """Files of one job."""

    lock = _File("lock")
    request = _File("request.json")
    plan = _File("plan.json")
    status = _File("status.json")
    desired = _File("desired.json")
    desired_lock = _File("desired.lock")
    events = _File("events.jsonl")
    supervisor_log = _File("supervisor.log")
    reserve = _File("reserve")
    code = _File("code")
    payload = _File("payload.json")
    workspace = _File("workspace")

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def owner_path(self, owner_key: str) -> Path:
        """Return the file that exists if the job belongs to an owner."""
        return self.path / f"owner-{naming.hash_owner_key(owner_key)}"

    def search_path(self, key: str) -> Path:
        """Return the file that exists if the job belongs to a search."""
        return self.path / f"search-{naming.hash_owner_key(key)}"

    def log_path(self, step: str) -> Path:
        """Return the file that receives the output of a step."""
        return self.path / "logs" / f"{step}.log"

    def log_times_path(self, step: str) -> Path:
        """Return the file with the times at which the log of a step has grown, for `log_times`."""
        return self.path / "logs" / f"{step}.times"

    def termination_path(self, step: str) -> Path:
        """Return the file that receives the termination message of a step: its result or its error."""
        return self.path / "steps" / f"{step}.json"

    def create_folders(self) -> None:
        for folder in (self.path / "logs", self.path / "steps", self.workspace, self.workspace / "output"):
            folder.mkdir(mode=0o700)

    def allocate_reserve(self) -> None:
        """Allocate what a cancellation and the end of the job need on a full disk."""
        self.desired_lock.touch(mode=0o600)
        # Random bytes, because some file systems store zeros without allocating blocks.
        files.replace(self.reserve, os.urandom(_RESERVE_BYTES))

    def allocate_termination(self, step: str) -> None:
        """Clear the termination message of a step, with disk space for another one, and the marks of its processes."""
        files.replace(self.termination_path(step), b" " * env.RECORD_LIMIT)
        exit_code.clear_marks(self.marks_prefix(step))

    def marks_prefix(self, step: str) -> str:
        """Return the beginning of the paths of the marks of a step: see `exit_code`."""
        return f"{self.termination_path(step)}."

    def is_supervised(self) -> bool:
        """Return whether the supervisor is alive. Decided by the lock it holds, never by a process id."""
        return locks.is_locked(self.lock)

    @contextmanager
    def lock_desired(self) -> Iterator[None]:
        """Hold the lock that every process holds while it changes the desired state, or removes the folder.

        Inside the block, check that the folder still belongs to the job: another process may have removed it, and a new
        job may have its name.
        """
        try:
            descriptor = locks.acquire(self.desired_lock, _DESIRED_LOCK_SECONDS)
        except BlockingIOError:
            raise BackendUnavailableError(
                f"TrainJob {self.name!r} cannot be changed: another process has locked {self.desired_lock} for "
                f"{_DESIRED_LOCK_SECONDS:.0f} s; end that process and try again"
            ) from None
        try:
            yield
        finally:
            locks.release(descriptor)

    def read_desired(self) -> dict[str, Any]:
        """Return the desired state that clients wrote; empty if there is none, or if the file is damaged."""
        try:
            return dict(read_json(self.desired))
        except (FileNotFoundError, ValueError, TypeError):
            return {}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, data: Any, durable: bool = False, reserve: Path | None = None) -> None:
    """Replace a JSON file atomically. On a full disk the old content stays, unless there is a reserve."""
    content = json.dumps(data).encode()
    try:
        files.replace(path, content, durable)
    except OSError:
        if reserve is None:
            raise
        try:
            _replace_by_reserve(path, content, reserve)
        except OSError:
            # The content is larger than the reserve, or this file system allocates new space for each write.
            reserve.unlink(missing_ok=True)
            files.replace(path, content, durable)


def _replace_by_reserve(path: Path, content: bytes, reserve: Path) -> None:
    with reserve.open("r+b", buffering=0) as file:
        file.write(content)
        file.truncate()
        os.fsync(file.fileno())
    reserve.replace(path)
