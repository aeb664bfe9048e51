"""The detached program that carries a job out: `python -m trainer_core.backends.container.supervisor`.

What to do is read from its standard input. The job does not need this process: all it knows is on the engine, so that
another one goes on where this one was killed. A lock keeps two of them from doing one job on the same machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["FIRST_LOOK", "lock_path"]

#: Seconds between looks, at first and at most.
FIRST_LOOK, _MAX_LOOK = 0.1, 2.0
_SLOWER = 1.2
#: Seconds after which an engine that does not answer is given up; whoever looks at the job later goes on.
_AWAY_SECONDS = 3600.0
#: Who only asks whether the lock is held has it for a moment.
_LOCK_SECONDS = 2.0


def lock_path(uid: str) -> Path:
    """Return the file that is locked while a job of this machine is carried out."""
    from trainer_core.backends.container import places

    return places.home() / "supervisors" / f"{uid}.lock"


def main() -> None:
    """Read what to do and do it, in a process of its own."""
    told = json.loads(sys.stdin.read())
    if os.fork():
        # The submitter waits for this process only; the job goes on without it.
        os._exit(0)
    _detach()
    _carry_out(told)


def _detach() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _carry_out(told: dict[str, Any]) -> None:
    # Loaded only now: the submitter does not wait for it.
    from filelock import FileLock, Timeout

    from trainer_core.ref import TrainJobRef

    ref = TrainJobRef.from_dict(told["ref"])
    lock = lock_path(ref.uid)
    log = logging.FileHandler(lock.with_suffix(".log"), delay=True)
    logging.basicConfig(handlers=[log], format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        with FileLock(lock, timeout=_LOCK_SECONDS, mode=0o600):
            _to_the_end(told, ref)
            lock.unlink(missing_ok=True)
    except Timeout:
        return
    except Exception:
        # The boundary of the process: nobody else would hear of it.
        logging.getLogger(__name__).exception("TrainJob %s", ref.name)
        raise


def _to_the_end(told: dict[str, Any], ref: Any) -> None:
    from trainer_core.backends.container.advance import Done, Wait
    from trainer_core.backends.container.carry import Carrier
    from trainer_core.backends.container.detect import connect
    from trainer_core.backends.container.store import Store
    from trainer_core.configs import ContainerBackendConfig
    from trainer_core.errors import BackendUnavailableError, JobNotFoundError

    engine = connect(ContainerBackendConfig(**told["config"]))
    carrier = Carrier(Store(engine, ref.namespace), ref, told["secrets"])
    pause, away_since = FIRST_LOOK, None
    while True:
        try:
            action = carrier.step()
        except JobNotFoundError:
            return
        except BackendUnavailableError:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > _AWAY_SECONDS:
                raise
            action = Wait()
        else:
            away_since = None
        if isinstance(action, Done):
            return
        # Whatever was done, something may come of it at once.
        pause = min(_MAX_LOOK, pause * _SLOWER) if isinstance(action, Wait) else FIRST_LOOK
        most = action.seconds if isinstance(action, Wait) and action.seconds is not None else pause
        time.sleep(max(0.0, min(pause, most)))


if __name__ == "__main__":
    main()
