"""Training functions for the faults of local jobs, and how the tests look at processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil

#: Seconds to wait for what must happen; far more than it takes, so that a busy machine fails no test.
PATIENCE = 60


def returns(value=1):
    return value


def waits_at(gate: str):
    """Runs until somebody opens the FIFO and closes it."""
    from pathlib import Path

    print("it runs")
    return Path(gate).read_text()


def keeps_children(gate: str):
    """Has a child, and one that has left the session, while it waits at the FIFO."""
    import subprocess
    import sys
    from pathlib import Path

    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleeper)
    subprocess.Popen(sleeper, start_new_session=True)
    print("it runs")
    Path(gate).read_text()


def leaves_a_child():
    import subprocess
    import sys

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def leaves_a_child_and_no_log():
    """Fails with a folder where its log was, which no supervisor can read."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    log = Path(os.environ["TRAINJOB_TERMINATION_LOG"]).parents[1] / "logs" / "node-0.log"
    log.unlink()
    log.mkdir()
    raise RuntimeError("no luck")


def ignores_being_told_to_stop(gate: str):
    import signal
    from pathlib import Path

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("it runs")
    Path(gate).read_text()


def fails_when_told_to_stop(gate: str):
    """Its first run waits at the FIFO and fails when it is told to stop; the second one ends."""
    import os
    import signal
    from pathlib import Path

    def fail(*_):
        raise RuntimeError("told to stop")

    before = Path(os.environ["TRAINJOB_OUTPUT_PATH"]) / "before"
    if before.exists():
        return "the second run"
    before.touch()
    signal.signal(signal.SIGTERM, fail)
    print("it runs")
    return Path(gate).read_text()


def fails_at_rank(rank: int, gate: str):
    import os
    from pathlib import Path

    if int(os.environ["RANK"]) == rank:
        raise ValueError(f"rank {rank} has enough")
    Path(gate).read_text()


def returns_setting(name: str):
    import os

    return os.environ.get(name)


def processes_of(uid: str) -> list[psutil.Process]:
    """Every process that carries the mark of a job."""
    return [process for process in psutil.process_iter() if _setting(process, "TRAINJOB_UID") == uid]


def _setting(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def gone(processes: list[psutil.Process]) -> bool:
    """Wait until the processes have ended, whether or not somebody has taken notice."""
    end = time.monotonic() + PATIENCE
    while any(_runs(process) for process in processes) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def supervisor_of(home: Path, name: str) -> psutil.Process:
    return psutil.Process(json.loads((home / "jobs" / name / "status.json").read_text())["supervisor"])


def kill(process: psutil.Process) -> None:
    """kill -9, and wait until it is dead."""
    process.kill()
    assert gone([process])


def left(home: Path, name: str) -> bool:
    """Wait until the supervisor of a job that has ended has done the rest of its work."""
    try:
        return gone([supervisor_of(home, name)])
    except psutil.NoSuchProcess:
        return True
