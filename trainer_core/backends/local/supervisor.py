"""The supervisor program of one local job: `python -m trainer_core.backends.local.supervisor STAGED_FOLDER`.

It acquires the lock of the job, renames the staged folder to the folder of the job, and prints that the job is
created. Before the rename the job does not exist; afterwards it is supervised. Secrets arrive on standard input and are
written to no file. A forked guard process in a separate session outlives the supervisor: if the supervisor is
killed, the guard kills the processes of the job.
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

from trainer_core.backends.local import processes
from trainer_core.backends.local.job_queue import JobQueue, Ticket
from trainer_core.backends.local.job_store import JobFolder, StateFolder, read_json, write_json
from trainer_core.node import locks


def main(staged: Path) -> None:
    """Claim the staged job and run it to its end in a detached process.

    Prints ``created``, ``taken`` (another job has the name) or ``error: …`` for `LocalProcessBackend.create`.
    """
    state = StateFolder(staged.parent.parent)
    secrets = json.loads(sys.stdin.read() or "{}")
    if os.fork():
        # The submitter waits for this process only; the child continues without it.
        os._exit(0)
    # Until the event loop runs, a change of the desired state is only written down. It is read before the first step.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        folder, uid, ticket = _claim_job(state, JobFolder(staged))
    except OSError as error:
        _print_answer(f"error: {error}")
        os._exit(1)
    _detach(folder)
    _print_answer("created")
    # The pipe to the submitter is closed; further output goes to the log of the supervisor.
    os.dup2(2, 1)
    guard = _fork_guard(uid)
    _run_job(state, folder, secrets, ticket)
    os.write(guard, b"1")


def _run_job(state: StateFolder, folder: JobFolder, secrets: dict[str, str], ticket: Ticket) -> None:
    # Imported late: the submitter waits until the job is claimed, which needs none of these modules.
    # asyncio does without TLS, which takes 5 MB and 10 ms.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio

    from trainer_core.backends.local import gc
    from trainer_core.backends.local.runner import LocalJobRunner

    runner = LocalJobRunner(state, folder, secrets, ticket)
    asyncio.run(runner.run())
    # This job counts as one of the jobs to keep. It is not removed itself, because it is still supervised.
    jobs, days = runner.retention
    gc.remove_old_jobs(state, max(0, jobs - 1), days)
    gc.remove_unused_code(state)
    if not runner.keep_environments:
        gc.remove_unused_environments(state)


def _claim_job(state: StateFolder, staged: JobFolder) -> tuple[JobFolder, str, Ticket]:
    """Rename the staged folder to the folder of the job. The lock stays on the renamed file until this process ends."""
    locks.acquire(staged.lock, 0)
    plan = read_json(staged.plan)
    # Also in the plan, where another program that removes the status leaves it: a deletion needs it.
    plan["record"]["supervisor"] = os.getpid()
    write_json(staged.plan, plan)
    write_json(staged.status, plan["record"], durable=True)
    # Everything that can fail on a full disk happens before the job exists.
    os.close(os.open(staged.supervisor_log, os.O_WRONLY | os.O_CREAT, 0o600))
    folder = state.job_folder(plan["record"]["name"])
    ticket = JobQueue(state.queue).join()
    try:
        staged.path.rename(folder.path)
    except OSError as error:
        ticket.release()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _print_answer("taken")
        os._exit(0)
    return folder, plan["record"]["uid"], ticket


def _print_answer(line: str) -> None:
    with suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


def _detach(folder: JobFolder) -> None:
    """Redirect standard error to the log of the supervisor, and leave the submitter's working directory."""
    log = os.open(folder.supervisor_log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder.workspace)


def _fork_guard(uid: str) -> int:
    read_end, write_end = os.pipe()
    if not os.fork():
        _run_guard(uid, read_end)
    os.close(read_end)
    return write_end


def _run_guard(uid: str, pipe: int) -> NoReturn:
    # A signal to the session or the process group of the supervisor must not end the guard.
    os.setsid()
    # The guard closes its copy of the lock, so that the lock is released the moment the supervisor dies.
    os.dup2(pipe, 3)
    # Not all numbers up to the limit: it can be 2^30, and not each Python closes a range with one call.
    for number in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # The descriptor of the list is closed.
            if number > 3:
                os.close(number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(3, 1):
        processes.kill_job_processes([uid])
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
