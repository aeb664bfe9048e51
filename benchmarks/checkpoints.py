"""What a checkpoint costs: saving against a plain write and rename, and steps with and without `due`.

python benchmarks/checkpoints.py                    # about half a minute
python benchmarks/checkpoints.py --megabytes 1024 --folder /scratch
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trainer_core.node import env
from trainer_core.node.checkpoints import CheckpointStore

#: Targets: time of a large save, and how long one in the background blocks; share of 1,000 steps of 1 ms, seconds of a
#: small save, seconds of `due`.
SAVE_RATIO, BACKGROUND_RATIO, STEPS_RATIO, SMALL_SECONDS, DUE_SECONDS = 1.15, 1.15, 1.03, 0.005, 20e-6
_ROUNDS = 3


def main() -> int:
    """Measure, print the ratios, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of the large checkpoint (default: 256)")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        data = os.urandom(2**20) * args.megabytes
        plain = _measure(lambda number: _write_and_rename(folder / "plain", number, data))
        store = _create_store(folder / "ours")
        ours = _measure(lambda number: _save(store, number, data))
        written = _measure(lambda number: (folder / f"written-{number}").write_bytes(data))
        blocking = _measure(lambda number: _save(store, 10 + number, data, background=True), after=store.flush)
        small = _measure(lambda number: _save(store, 100 + number, b"x" * 1024))
        due = _measure(lambda number: [store.due(1000 + step) for step in range(10_000)]) / 10_000
        bare_steps = _measure(lambda number: _run_steps(None, number))
        saved_steps = _measure(lambda number: _run_steps(_create_store(folder / f"steps-{number}", 100), number))
    rows = [
        (f"save {args.megabytes} MB / write, fsync and rename", ours / plain, SAVE_RATIO),
        (f"save {args.megabytes} MB in the background / write without fsync", blocking / written, BACKGROUND_RATIO),
        ("1,000 steps of 1 ms, a save every 100 / without", saved_steps / bare_steps, STEPS_RATIO),
        ("save 1 KB, seconds", small, SMALL_SECONDS),
        ("due() that says no, seconds", due, DUE_SECONDS),
    ]
    for what, value, target in rows:
        print(f"{what:55} {value:10.6f}   target {target}   {'ok' if value <= target else 'MISSED'}")
    return int(any(value > target for _, value, target in rows))


def _create_store(root: Path, every_steps: int | None = None) -> CheckpointStore:
    os.environ[env.CHECKPOINT_PATH] = str(root)
    os.environ[env.CHECKPOINTS] = json.dumps({"grace": 0, "keep": 1, "every_steps": every_steps})
    return CheckpointStore()


def _measure(run: Callable[[int], object], after: Callable[[], None] = lambda: None) -> float:
    seconds = []
    for number in range(1, _ROUNDS + 1):
        begin = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - begin)
        after()
    return statistics.median(seconds)


def _write_and_rename(folder: Path, number: int, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "state.tmp").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    (folder / "state.tmp").replace(folder / f"state-{number}")


def _save(store: CheckpointStore, step: int, data: bytes, background: bool = False) -> None:
    with store.save(step, background=background) as folder:
        (folder / "state").write_bytes(data)


def _run_steps(store: CheckpointStore | None, number: int) -> None:
    del number
    for step in range(1, 1001):
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        if store is not None and store.due(step):
            _save(store, step, b"x" * 1024)


if __name__ == "__main__":
    raise SystemExit(main())
