"""What a checkpoint costs: saving and loading against torch and boto3, and steps with and without checkpoints.

python benchmarks/checkpoints.py                                            # 1 GB; about two minutes
python benchmarks/checkpoints.py --megabytes 256 --folder /scratch --rounds 5

The measurements of a row alternate, so that another load on the machine slows both; a ratio is that of their medians.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import torch

from trainer_core.node import env
from trainer_core.node.checkpoint_folder import seal
from trainer_core.node.checkpoint_s3 import CheckpointBucket
from trainer_core.node.checkpoint_tree import list_tree
from trainer_core.node.checkpoints import CheckpointStore

_FAKES = Path(__file__).resolve().parents[1] / "tests" / "fakes"
_PART = ".part-000000000001-0-1"


def main() -> int:
    """Measure, print the rows, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the large checkpoint (default: 1024)")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary folder)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind (default: 3)")
    args = parser.parse_args()
    state = {f"layer.{number}": torch.rand(args.megabytes * 2**20 // 4 // 16) for number in range(16)}
    is_missed = False
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        for measure in (measure_saves, measure_background, measure_resume, measure_steps, measure_small):
            folder = Path(name) / measure.__name__
            folder.mkdir()
            with contextlib.redirect_stdout(io.StringIO()):
                rows = measure(folder, state, args.rounds)
            for what, value, target in rows:
                verdict = "" if target is None else f"target {target}   {'ok' if value <= target else 'MISSED'}"
                is_missed = is_missed or (target is not None and value > target)
                print(f"{what:72} {value:10.6f}   {verdict}".rstrip(), flush=True)
            shutil.rmtree(folder)
    return int(is_missed)


Rows = list[tuple[str, float, "float | None"]]
State = dict[str, torch.Tensor]


def measure_saves(folder: Path, state: State, rounds: int) -> Rows:
    """A save that is on the disk when it returns, and one that may be lost by a power failure."""
    store, plain, fast = _create_store(folder / "ours"), folder / "plain", folder / "fast"
    plain.mkdir()
    fast.mkdir()

    def save(number: int) -> None:
        with store.save(number) as part:
            torch.save(state, part / "state.pt")

    seconds = _alternate(
        rounds,
        lambda number: _save_and_rename(plain, number, state, sync=True),
        save,
        lambda number: _save_and_rename(fast, number, state, sync=False),
    )
    return [
        (f"save {_describe(state)} / torch.save, fsync and os.replace", seconds[1] / seconds[0], 1.15),
        ("the same / torch.save and os.replace, which a power failure can lose", seconds[1] / seconds[2], None),
    ]


def measure_background(folder: Path, state: State, rounds: int) -> Rows:
    """How long training waits for a save in the background: for a copy of its state, or until the files are written."""
    # The steps of a store only increase, and the two kinds of saves alternate.
    copies, files = _create_store(folder / "copies"), _create_store(folder / "files")
    copy = {name: torch.empty_like(tensor) for name, tensor in state.items()}

    def copy_state(number: int) -> None:
        del number
        for name, tensor in state.items():
            copy[name].copy_(tensor)

    def save_copy(number: int) -> None:
        copy_state(number)
        copies.save_in_background(number, lambda part: torch.save(copy, part / "state.pt"))

    def save(number: int) -> None:
        with files.save(number, background=True) as part:
            torch.save(state, part / "state.pt")

    def write(number: int) -> None:
        torch.save(state, folder / f"state-{number}.pt")
        (folder / f"state-{number}.pt").unlink()

    def flush() -> None:
        copies.flush()
        files.flush()

    copied, bare_copy, written, bare = _alternate(rounds, save_copy, copy_state, save, write, after=flush)
    return [
        (f"training waits for save_in_background of {_describe(state)}, seconds", copied, 0.25),
        ("the same / a copy of the state in memory", copied / bare_copy, None),
        ("training waits for save(background=True) / torch.save without fsync", written / bare, 1.15),
    ]


def measure_resume(folder: Path, state: State, rounds: int) -> Rows:
    """A checkpoint from a bucket on the loopback, whose server sends files from the cache of the system."""
    step = folder / "served" / "runs" / "train" / "g-0" / "step-000000000001"
    (step / _PART).mkdir(parents=True)
    torch.save(state, step / _PART / "state.pt")
    manifest = {"step": 1, "metrics": {}, "world_size": 1, "job": "", "time": 0, "part": _PART}
    (step / "manifest.json").write_text(json.dumps(seal({**manifest, "files": list_tree(step / _PART)})))
    key = f"runs/train/g-0/step-000000000001/{_PART}/state.pt"
    with _serve(folder / "served") as url:
        os.environ.update(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")  # noqa: S106
        client = boto3.client("s3", region_name="us-east-1")
        place = CheckpointBucket("s3://bucket/runs/train/g-0")

        def resume(number: int) -> None:
            found = place.find_newest()
            if found is None or not (found.path / "state.pt").stat().st_size:
                raise FileNotFoundError(f"round {number} has no checkpoint")

        def clean() -> None:
            place.close()
            for path in folder.glob("state-*"):
                path.unlink()

        def download(number: int) -> None:
            client.download_file("bucket", key, str(folder / f"state-{number}"))

        ours, plain = _alternate(rounds, resume, download, after=clean)
    return [(f"resume {_describe(state)} from S3 / boto3's download_file", ours / plain, 1.3)]


def measure_steps(folder: Path, state: State, rounds: int) -> Rows:
    """A training whose steps take a millisecond."""
    del state
    stores = [_create_store(folder / f"steps-{number}", 100) for number in range(2 * (rounds + 1))]
    bare, saved, in_background = _alternate(
        rounds,
        lambda number: _run_steps(None),
        lambda number: _run_steps(stores[2 * number]),
        lambda number: _run_steps(stores[2 * number + 1], background=True),
    )
    return [
        ("1,000 steps of 1 ms, a save every 100 / without", saved / bare, 1.03),
        ("the same with save(background=True)", in_background / bare, None),
    ]


def measure_small(folder: Path, state: State, rounds: int) -> Rows:
    """What a save and a question cost besides the writing."""
    del state
    store = _create_store(folder / "ours")

    def ask(number: int) -> None:
        for step in range(10_000):
            store.due(number * 10_000 + step)

    save, due = _alternate(10 * rounds, lambda number: _save_bytes(store, number), ask)
    return [("save 1 KB, seconds", save, 0.005), ("due() that says no, seconds", due / 10_000, 20e-6)]


def _create_store(root: Path, every_steps: int | None = None) -> CheckpointStore:
    os.environ[env.CHECKPOINT_PATH] = str(root)
    os.environ[env.CHECKPOINTS] = json.dumps({"grace": 0, "keep": 1, "every_steps": every_steps})
    return CheckpointStore()


def _alternate(rounds: int, *runs: Callable[[int], object], after: Callable[[], object] = lambda: None) -> list[float]:
    """Return the median seconds of each, after one round that does not count."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, measured in zip(runs, seconds, strict=True):
            # What others have written must not be written to the disk at the cost of this one.
            os.sync()
            begin = time.perf_counter()
            run(number)
            measured.append(time.perf_counter() - begin)
            after()
    return [statistics.median(each[1:]) for each in seconds]


def _save_and_rename(folder: Path, number: int, state: State, sync: bool) -> None:
    new, path = folder / "state.tmp", folder / "state.pt"
    torch.save(state, new)
    if sync:
        with new.open("rb") as file:
            os.fsync(file.fileno())
    new.replace(path)


def _save_bytes(store: CheckpointStore, step: int, background: bool = False) -> None:
    with store.save(step, background=background) as folder:
        (folder / "state").write_bytes(b"x" * 1024)


def _run_steps(store: CheckpointStore | None, background: bool = False) -> None:
    for step in range(1, 1001):
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        if store is not None and store.due(step):
            _save_bytes(store, step, background)
    if store is not None:
        store.flush()


@contextlib.contextmanager
def _serve(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "s3_storage.static", str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(_FAKES)}
    server = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        yield next(word for line in server.stdout or () for word in line.split() if word.startswith("http://"))
    finally:
        server.kill()
        server.communicate()


def _describe(state: State) -> str:
    return f"{sum(tensor.nbytes for tensor in state.values()) / 2**20:.0f} MB"


if __name__ == "__main__":
    raise SystemExit(main())
