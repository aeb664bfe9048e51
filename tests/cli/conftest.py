"""The command in a folder with training code: in this process, or as a user starts it in one of its own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainer_core.cli import main

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
    capsys: pytest.CaptureFixture[str]

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start it in a process of its own and return at once."""
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from trainer_core.cli import main; sys.exit(main())", *arguments],
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in this process: to start another one takes most of a second."""
        importlib.invalidate_caches()
        self.capsys.readouterr()
        code = main(arguments)
        self._forget_modules()
        return subprocess.CompletedProcess(arguments, code, *self.capsys.readouterr())

    def _forget_modules(self) -> None:
        """Those of this folder: the next test has others of the same names."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{self.folder}/"):
                del sys.modules[name]

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
def trainjob(tmp_path, monkeypatch, capsys):
    """The command with a home of its own, no terminal, no other backend."""
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRAINJOB_BACKEND", raising=False)
    command = Command(tmp_path, capsys)
    yield command
    for name in command.jobs:
        command("delete", name)
