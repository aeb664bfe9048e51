"""The command as a user starts it: a process of its own in a folder with training code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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


def uses_a_global():
    return LIMIT
"""


@dataclass
class Command:
    """Runs `trainjob` in a folder."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """Its own home, no terminal, no other backend."""
        env = {key: value for key, value in os.environ.items() if key != "TRAINJOB_BACKEND"}
        return {**env, "TRAINJOB_HOME": str(self.folder / "home"), "COLUMNS": "80"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from trainer_core.cli import main; sys.exit(main())", *arguments],
            cwd=self.folder,
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        """Run it and read what it prints."""
        done = self(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs there are on disk."""
        return sorted(path.name for path in (self.folder / "home" / "jobs").glob("*"))


@pytest.fixture
def trainjob(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    command = Command(tmp_path)
    yield command
    for name in command.jobs:
        command("delete", name)
