"""A walk at random that saves after each step, and is struck by a signal at a chosen operation inside a save."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from trainer_core.node import env
from trainer_core.packaging import serializer

#: The walk is the same as without an interruption only if the whole state of its checkpoint is loaded. Each start walks
#: until its target, or until its second save has ended: the first one is never struck, so that each start gets on.
WALK = """
import json, os, random, sys
from trainer_core import checkpoints

target, event, number, operations = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
saves = seen = 0

def strike(name, args):
    global seen
    if saves == 2 and name in operations:
        seen += 1
        if seen == event:
            print("struck", flush=True)
            os.kill(os.getpid(), number)

store, dice, place, step = checkpoints(), random.Random(7), 0.0, 0
if store.latest():
    state = json.loads((store.latest().path / f"rank-{store.rank}.json").read_text())
    version, internal, gauss = state["dice"]
    dice.setstate((version, tuple(internal), gauss))
    place, step = state["place"], store.latest().step
print("from", step, flush=True)
sys.addaudithook(strike)
while step < target:
    step += 1
    place += dice.gauss(0, 1)
    store.due(step)
    saves += 1
    with store.save(step) as folder:
        (folder / f"rank-{store.rank}.json").write_text(json.dumps({"dice": dice.getstate(), "place": place}))
    print("saved", step, flush=True)
    if event and saves == 2:
        break
print("place", place.hex(), flush=True)
"""
#: Audit events of Python at which a save is struck: before the operation.
FILES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime")
REQUESTS = ("http.client.send",)


@dataclass
class Chaos:
    """Starts the walk again and again, as an orchestrator does."""

    #: For the programs and the logs.
    folder: Path
    #: Folder or URI of the checkpoints.
    root: str
    #: Audit events at which a save is struck.
    operations: tuple[str, ...] = FILES
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        serializer.ship(self.folder / "shipped")

    def start(
        self, target: int, event: int = 0, number: int = 0, rank: int = 0, world: int = 1
    ) -> subprocess.Popen[str]:
        """Start a rank; with an event, it is struck by a signal at that operation of its second save."""
        kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name == "TMPDIR"}
        variables = {
            **kept,
            "PYTHONPATH": str(self.folder / "shipped"),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            env.CHECKPOINT_PATH: self.root,
            env.CHECKPOINTS: json.dumps({"grace": 120, "keep": 1, "every_seconds": 0}),
        }
        command = [sys.executable, "-S", "-c", WALK, str(target), str(event), str(number), ",".join(self.operations)]
        process = subprocess.Popen(
            command, env=variables, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def run(self, target: int, event: int = 0, number: int = 0) -> tuple[int, list[str]]:
        """Run a walk of one rank to its end; return its exit code and what it printed of its steps."""
        process = self.start(target, event, number)
        out = process.communicate(timeout=600)[0]
        lines = [line for line in out.splitlines() if line.startswith(("from ", "saved ", "place ", "struck"))]
        assert process.returncode in (0, -number, 128 + number), out
        return process.returncode, lines
