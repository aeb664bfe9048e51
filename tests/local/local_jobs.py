"""Training functions for tests of local jobs, and helpers to find and kill processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil

#: Timeout in seconds; much longer than needed, so that no test fails on a busy machine.
PATIENCE = 300


def returns(value=1):
    return value


def waits_at(gate: str):
    """Runs until the test writes to the FIFO."""
    from pathlib import Path

    print("it runs")
    return Path(gate).read_text()


def keeps_children(gate: str):
    """Starts a child, and another one in a new session, and waits at the FIFO."""
    import subprocess
    import sys
    from pathlib import Path

    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
    # While a process begins another program, it has no environment, by which the tests find it.
    while not all(Path(f"/proc/{child.pid}/environ").read_bytes() for child in children):
        pass
    print("it runs")
    Path(gate).read_text()


def hides(gate: str):
    """Has no process with the environment of the job: it has a child, and sets its title. Waits at the FIFO."""
    import subprocess
    import sys
    from pathlib import Path

    def set_title():
        # As setproctitle does: the title is written over the environment.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(b"\0" * (end - start))

    sleeper = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    child = subprocess.Popen(sleeper, env={}, start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    set_title()
    print("it runs")
    Path(gate).read_text()


def leaves_a_child():
    import subprocess
    import sys

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def leaves_a_child_and_no_log():
    """Replaces its log by a folder, which the supervisor cannot read, and fails."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    log = Path(os.environ["TRAINJOB_TERMINATION_LOG"]).parents[1] / "logs" / "node-0.log"
    log.unlink()
    log.mkdir()
    raise RuntimeError("no luck")


def ignores_sigterm(gate: str):
    import signal
    from pathlib import Path

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("it runs")
    Path(gate).read_text()


def fails_on_sigterm(gate: str):
    """The first run waits at the FIFO and fails on SIGTERM; the second one returns."""
    import os
    import signal
    from pathlib import Path

    def fail(*_):
        raise RuntimeError("SIGTERM received")

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
        raise ValueError(f"rank {rank} fails")
    Path(gate).read_text()


def counts_and_exits(starts: str):
    import os
    import sys

    descriptor = os.open(starts, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"one start\n")
    sys.exit(3)


def returns_setting(name: str):
    import os

    return os.environ.get(name)


def processes_of(uid: str) -> list[psutil.Process]:
    """Return the processes whose environment has the uid of the job."""
    return [process for process in psutil.process_iter() if _setting(process, "TRAINJOB_UID") == uid]


def _setting(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def wait_until_dead(processes: list[psutil.Process], seconds: float = PATIENCE) -> bool:
    """Wait until the processes have ended or are zombies; return whether they have."""
    end = time.monotonic() + seconds
    while any(_is_alive(process) for process in processes) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(_is_alive(process) for process in processes)


def _is_alive(process: psutil.Process) -> bool:
    """Whether any thread of a process runs: the first one can be a zombie while others still hold the files open."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def supervisor_of(home: Path, name: str) -> psutil.Process:
    return psutil.Process(json.loads((home / "jobs" / name / "status.json").read_text())["supervisor"])


def kill(process: psutil.Process) -> None:
    process.kill()
    assert wait_until_dead([process])


def wait_for_supervisor_exit(home: Path, name: str) -> bool:
    """Wait until the supervisor of a finished job has removed old jobs and exited."""
    try:
        return wait_until_dead([supervisor_of(home, name)])
    except psutil.NoSuchProcess:
        return True
