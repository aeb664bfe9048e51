"""The detached program that carries out one local job: `python -m trainer_core.backends.local.supervisor STAGED`.

It takes the job's lock, makes the staged folder the job by a rename, and says so on its standard output; until then
there is no job, afterwards the job is supervised. Secrets come by its standard input, and are in no file. A forked
guard outlives it for the moment it takes to end the job's processes, so that a supervisor that is killed leaves none
of them behind.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from trainer_core.backends.local.files import Home, JobFolder, hold, read_json, write_json

#: Answers on standard output, read by `LocalProcessBackend.create`.
CREATED = "created"
TAKEN = "taken"


def main(staged: Path) -> None:
    """Claim the staged job and run it to its end, in a process of its own."""
    home = Home(staged.parent.parent)
    secrets = json.loads(sys.stdin.read() or "{}")
    if os.fork():
        # The submitter waits for this process only; the job goes on without it.
        os._exit(0)
    # Until the loop listens a wish is only written down; it is read before the first step.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        folder, uid = _claim(home, JobFolder(staged))
    except OSError as error:
        _answer(f"error: {error}")
        os._exit(1)
    _detach(folder)
    _answer(CREATED)
    _close_answers()
    lifeline = _guard(uid)
    _run(home, folder, secrets)
    os.write(lifeline, b"1")


def _run(home: Home, folder: JobFolder, secrets: dict[str, str]) -> None:
    # Loaded only now: the submitter waits until the job is claimed, which needs none of it.
    import asyncio

    from trainer_core.backends.local import collect
    from trainer_core.backends.local.run import Run

    run = Run(home, folder, secrets)
    asyncio.run(run.to_the_end())
    # Its own is one of the jobs to keep, and the one that is not swept: it is still supervised.
    jobs, days = run.keep
    collect.sweep(home, max(0, jobs - 1), days)
    if not run.keep_environments:
        collect.sweep_environments(home)


def _claim(home: Home, staged: JobFolder) -> tuple[JobFolder, str]:
    """Make the staged folder the job, and return it with its uid. The lock is taken first and goes along."""
    lock = hold(staged.lock)
    if lock is None:
        raise OSError(f"{staged.lock} is held by somebody else")
    status = {**read_json(staged.status), "supervisor": os.getpid()}
    # Also into the lock, which nobody writes again: should the status be damaged, it says whose job this is.
    os.write(lock, json.dumps(status).encode())
    write_json(staged.status, status)
    # All that needs room on the disk comes before there is a job.
    os.close(os.open(staged.supervisor_log, os.O_WRONLY | os.O_CREAT, 0o600))
    folder = home.job(status["name"])
    try:
        staged.path.rename(folder.path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _answer(TAKEN)
        os._exit(0)
    return folder, status["uid"]


def _answer(line: str) -> None:
    with suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


def _detach(folder: JobFolder) -> None:
    """Send errors to the supervisor's own log; keep nothing of the submitter's."""
    log = os.open(folder.supervisor_log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder.workspace)


def _close_answers() -> None:
    os.dup2(2, 1)


def _guard(uid: str) -> int:
    """Fork the guard and return the lifeline: it ends the job's processes when the line is cut before its end."""
    ending, lifeline = os.pipe()
    if not os.fork():
        _watch_lifeline(uid, ending)
    os.close(ending)
    return lifeline


def _watch_lifeline(uid: str, ending: int) -> NoReturn:
    from trainer_core.backends.local import processes

    # The lock belongs to the supervisor alone: whoever asks must see at once that it is gone.
    os.dup2(ending, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(3, 1):
        processes.end_all(uid)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
