"""Runs a packaged function as a node process does: a real interpreter, a real payload, a real termination log."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer_core.node import termination
from trainer_core.packaging import serializer

#: An interpreter without anything installed, trainer_core included.
BARE = (sys.executable, "-I", "-S")
#: The interpreter of the tests.
FULL = (sys.executable,)


@dataclass(frozen=True)
class Ended:
    """What is left of a node process."""

    code: int
    stdout: str
    stderr: str
    record: dict[str, Any] | None

    @property
    def result(self) -> Any:
        assert self.code == 0, self.stderr
        assert self.record is not None, self.stderr
        return self.record["result"]

    @property
    def error(self) -> dict[str, Any]:
        assert self.record is not None, self.stderr
        return self.record["error"]


class Node:
    """A node of a job: its folder, and the processes that run in it."""

    def __init__(self, folder: Path, shipped: Path) -> None:
        self.folder = folder
        self.shipped = shipped
        self.log = folder / "termination.json"

    def start(self, code: dict[str, Any] | str, python: tuple[str, ...] = BARE, **env: str) -> subprocess.Popen[str]:
        # Replaced, never written over: another process of the node may be reading it.
        payload, new = self.folder / "payload.json", self.folder / "payload.new"
        new.write_text(code if isinstance(code, str) else serializer.payload(code), encoding="utf-8")
        new.replace(payload)
        settings = {
            "PATH": os.environ["PATH"],
            "TRAINJOB_PAYLOAD": str(payload),
            "TRAINJOB_TERMINATION_LOG": str(self.log),
            "TRAINJOB_OUTPUT_PATH": str(self.folder / "output"),
        }
        return subprocess.Popen(
            [*python, str(self.shipped / serializer.BOOTSTRAP)],
            env={**settings, **env},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for a process and read what the node reports."""
        try:
            stdout, stderr = process.communicate(timeout=500)
        finally:
            process.kill()
        record = termination.parse_record(self.log.read_bytes()) if self.log.exists() else None
        return Ended(process.returncode, stdout, stderr, record)

    def run(self, code: dict[str, Any] | str, python: tuple[str, ...] = BARE, **env: str) -> Ended:
        return self.end(self.start(code, python, **env))


def module_of(path: Path, text: str | None = None) -> ModuleType:
    """Import a file of user code, written first if its text is given."""
    if text is not None:
        path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(value: Any) -> Any:
    """What a value is after a journey as JSON."""
    return json.loads(json.dumps(value))
