"""The command `trainjob` for tests: in this process, or in a separate one, as a user starts it."""

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


@dataclass
class Command:
    """Runs `trainjob` in a folder."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start it in a separate process and return at once."""
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from trainer_core.cli import main; sys.exit(main())", *arguments],
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in this process: to start another one takes most of a second."""
        importlib.invalidate_caches()
        for path in self.folder.glob("*.py"):  # A test before may have loaded another one of this name.
            sys.modules.pop(path.stem, None)
        self.capsys.readouterr()
        code = main(arguments)
        self.forget_modules()
        return subprocess.CompletedProcess(arguments, code, *self.capsys.readouterr())

    def forget_modules(self) -> None:
        """Those of this folder: the next test has others of the same names."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{self.folder}/"):
                del sys.modules[name]

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def jobs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "home" / "jobs").glob("*"))
