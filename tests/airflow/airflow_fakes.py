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
