"""The command `trainjob` in a folder with training code."""

from __future__ import annotations

import pytest
from trainjob_command import Command

TRAINING = """
import time

LIMIT = 3


def train(x: int, rate: float = 0.5, fail: bool = False):
    from trainer_core import progress

    for step in range(4):
        progress(step=step + 1, total=4, metrics={"loss": 1 / (step + 1)})
    print(f"x is {x!r}, rate is {rate!r}")
    if fail:
        raise ValueError("as asked")
    return {"x": x, "accuracy": rate}


def wait_for(path: str):
    import time
    from pathlib import Path

    print("waiting", flush=True)
    while not Path(path).exists():
        time.sleep(0.02)
    return "seen"


def ends_by_a_signal(deaths: str, times: int):
    import os
    import signal

    with open(deaths, "a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        if len(file.read()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def uses_a_global():
    return LIMIT
"""


@pytest.fixture
def trainjob(tmp_path, monkeypatch, capsys):
    """The command with the local backend, an empty home folder, and no terminal."""
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRAINJOB_BACKEND", raising=False)
    command = Command(tmp_path, capsys)
    yield command
    for name in command.jobs:
        command("delete", name)
