"""Training functions of the tests. They run in separate processes without Airflow."""

from __future__ import annotations


def double(number: int) -> dict:
    print(f"doubling {number}")
    return {"doubled": 2 * number, "metrics": {"number": number}, "artifacts": {"model": "file:///model"}}


def wait_for_file(path: str, started: str = "") -> str:
    import pathlib
    import time

    if started:
        pathlib.Path(started).touch()
    print(f"waiting for {path}")
    while not pathlib.Path(path).exists():
        time.sleep(0.02)
    return "it came"


def fail(message: str) -> None:
    print("about to fail")
    raise ValueError(message)


def die() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def kill_supervisor_once(marker: str, gate: str = "") -> str:
    """Kill the supervisor at the first start, so that it cannot start the training again; then wait for a file."""
    import os
    import signal
    import time
    from pathlib import Path

    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    while gate and not Path(gate).exists():
        time.sleep(0.02)
    return "trained"
