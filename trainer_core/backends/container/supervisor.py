"""The supervisor of one container job: how it is started, and the program, which is this module.

The program reads the ref, the configuration and the secrets from standard input. The state of the job is on the engine,
so another supervisor can continue if this one is killed. A lock prevents two supervisors of a job on one machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.backends.container.paths import lock_path
from trainer_core.node import locks

if TYPE_CHECKING:
    from trainer_core.model.jobs import TrainJobRef

#: Seconds between two polls of the engine: initial value, maximum and growth while nothing changes.
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.1, 2.0
_POLL_BACKOFF = 1.2
#: The supervisor exits if the engine does not answer for this time. A later observer of the job starts another one.
_MAX_UNAVAILABLE_SECONDS = 3600.0
#: `is_supervised` shares the lock for a moment, which must not end this process.
_LOCK_TIMEOUT_SECONDS = 2.0


def launch_supervisor(ref: TrainJobRef, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Start a supervisor. If one is already running on this machine, the new one exits."""
    from trainer_core.backends.supervisor_process import start_supervisor
    from trainer_core.base.errors import BackendUnavailableError

    folder = lock_path(ref.uid).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        finished = start_supervisor(
            __name__, [], stdin=json.dumps({"ref": ref.to_dict(), "config": config, "secrets": dict(secrets)})
        )
    except OSError as error:
        raise BackendUnavailableError(f"supervisor of TrainJob {ref.name!r} cannot be started: {error}") from error
    if finished.returncode != 0:
        reason = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        raise BackendUnavailableError(f"supervisor of TrainJob {ref.name!r} did not start: {reason}")


def is_supervised(uid: str) -> bool:
    """Return whether a supervisor of a job is running on this machine."""
    return locks.is_locked(lock_path(uid))


def main() -> None:
    """Read the arguments from standard input and run the job in a detached process."""
    arguments = json.loads(sys.stdin.read())
    if os.fork():
        # The submitter waits for this process only; the child continues without it.
        os._exit(0)
    _detach()
    _run_locked(arguments)


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _run_locked(arguments: dict[str, Any]) -> None:
    # Imported late: the submitter does not wait for it.
    from trainer_core.model.jobs import TrainJobRef

    ref = TrainJobRef.from_dict(arguments["ref"])
    lock = lock_path(ref.uid)
    log = logging.FileHandler(lock.with_suffix(".log"), delay=True)
    logging.basicConfig(handlers=[log], format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        with locks.locked(lock, _LOCK_TIMEOUT_SECONDS):
            _run_to_end(arguments, ref)
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        return  # Another supervisor of the job runs on this machine.
    except Exception:
        # Boundary of the process: the error would be lost otherwise.
        logging.getLogger(__name__).exception("supervisor of TrainJob %s failed", ref.name)
        raise


def _run_to_end(arguments: dict[str, Any], ref: Any) -> None:
    from trainer_core.backends.container.engine import connect_engine
    from trainer_core.backends.container.reconcile import Done, Wait
    from trainer_core.backends.container.runner import ContainerJobRunner
    from trainer_core.backends.container.store import JobStore
    from trainer_core.base.errors import BackendUnavailableError, JobElsewhereError, JobNotFoundError
    from trainer_core.model.config import ContainerBackendConfig

    engine = connect_engine(ContainerBackendConfig(**arguments["config"]))
    runner = ContainerJobRunner(JobStore(engine, ref.namespace), ref, arguments["secrets"])
    poll, unavailable_since = _MIN_POLL_SECONDS, None
    while True:
        try:
            action = runner.reconcile_once()
        except (JobNotFoundError, JobElsewhereError):
            # Deleted, or the engine behind the address has lost its volumes. On another engine, nothing is to be done.
            return
        except BackendUnavailableError:
            unavailable_since = unavailable_since or time.monotonic()
            if time.monotonic() - unavailable_since > _MAX_UNAVAILABLE_SECONDS:
                raise
            action = Wait()
        else:
            unavailable_since = None
        if isinstance(action, Done):
            return
        # After an action, the next one may be due at once.
        poll = min(_MAX_POLL_SECONDS, poll * _POLL_BACKOFF) if isinstance(action, Wait) else _MIN_POLL_SECONDS
        limit = action.seconds if isinstance(action, Wait) and action.seconds is not None else poll
        time.sleep(max(0.0, min(poll, limit)))


if __name__ == "__main__":
    main()
