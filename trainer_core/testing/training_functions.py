"""Training functions of the contract suite. Each is packaged as its source, and so imports modules in its body."""

from __future__ import annotations


def return_value(value=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 -- returns any value unchanged
    return value


def return_loss(rate: float, batch: int) -> object:
    return {"loss": rate * batch}


def wait_with_parameters(rate: float, batch: int) -> None:
    import time

    del rate, batch
    time.sleep(600)


def return_env(name: str) -> object:
    import os

    return os.environ.get(name)


def return_object() -> object:
    return object()


def return_rank() -> object:
    import os

    rank = int(os.environ["RANK"])
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}")
    return {"rank": rank}


def print_lines(lines: int) -> None:
    for number in range(lines):
        print(f"line {number}")


def write_text(text: str) -> None:
    import sys

    print("to stderr", file=sys.stderr, flush=True)
    sys.stdout.write(text)


def report_progress(steps: int, lines: int = 0) -> object:
    from trainer_core import progress

    for step in range(steps):
        progress(step=step + 1, total=steps, metrics={"loss": 1 / (step + 1)})
    for number in range(lines):
        print(f"line {number} without progress")
    return {"metrics": {"accuracy": 0.75}, "artifacts": {"model": "file:///models/digits"}}


def diverge() -> object:
    from datetime import date

    from trainer_core import progress

    progress(1, 3, {"accuracy": 0.95, "loss": 0.5})
    progress(2, 3, {"val_loss": 0.25, "f1": 0.75, "half \udcff": 1.0})
    progress(3, 3, {"loss": 0.125})
    metrics = {"accuracy": float("nan"), "f1": None, "recall": 0.5, "half \udcfe": 2}
    return {"metrics": metrics, "day": date(2026, 1, 2), "raw": b"\0", "artifacts": {"model": "file:///m"}}


def report_status() -> object:
    """Report as a library does that knows the status protocol of Kubeflow Trainer; return the codes of the answers."""
    import http.client
    import json
    import os
    from pathlib import Path
    from urllib.parse import urlsplit

    url = urlsplit(os.environ["KUBEFLOW_TRAINER_SERVER_URL"])
    token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()

    def send(token: str, percent: int, **metrics: str) -> int:
        status = {
            "progressPercentage": percent,
            "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
            "lastUpdatedTime": "2026-11-24T05:30:00+00:00",
        }
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        connection.request(
            "POST", url.path, json.dumps({"trainerStatus": status}), {"Authorization": f"Bearer {token}"}
        )
        return connection.getresponse().status

    codes = [send(token, 0, total_steps="4"), send(token, 75, loss="0.25", current_step="3", total_steps="4")]
    return {"codes": [*codes, send("guessed", 100, loss="0")]}


def read_files(role: str) -> object:
    from trainer_core import dataset_path, model_path

    root = dataset_path() if role == "dataset" else model_path()
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def raise_error(reason: str) -> None:
    print("before the failure")
    raise KeyError(reason)


def exit_with(code: int) -> None:
    import sys

    sys.exit(code)


def end_process() -> None:
    """End with code 0 in the middle of the training."""
    import os

    os._exit(0)


def crash_at_exit() -> object:
    """Return, and crash when Python ends."""
    import atexit
    import os
    import signal

    atexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    return {"loss": 0.5}


def clear_environment() -> object:
    import os

    os.environ.clear()
    os.environ["RANK"] = "1"
    return {"loss": 0.5}


def exit_on_stop() -> None:
    """Exit with 0 when it is told to stop."""
    import signal
    import sys
    import time

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("it runs")
    time.sleep(600)


def return_undone() -> object:
    """Return the work that was to be done."""
    return {"losses": map(abs, [1, 2])}


def exit_in_turn(codes: list[int]) -> int:
    """Save a checkpoint, one step after the last one, and exit with the code of this start.

    1 is a lack of memory, 2 the loss of a peer.
    """
    import sys

    from trainer_core import checkpoints

    store = checkpoints()
    last = store.latest()
    step = last.step + 1 if last else 1
    with store.save(step) as folder:
        (folder / "weights.txt").write_text("1")
    if step <= len(codes):
        if codes[step - 1] == 1:
            raise MemoryError
        if codes[step - 1] == 2:
            raise RuntimeError("Connection closed by peer [10.0.0.2]:4711")
        sys.exit(codes[step - 1])
    return step


def run_forever() -> None:
    import time

    print("it runs")
    time.sleep(600)


def end_slowly() -> None:
    """Take a second to end after SIGTERM."""
    import signal
    import time

    def end(*_: object) -> None:
        time.sleep(1)
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, end)
    print("it runs")
    time.sleep(600)


def return_after_stop() -> object:
    """Return although it was told to stop."""
    import signal

    from trainer_core import checkpoints

    store = checkpoints()
    signal.raise_signal(signal.SIGTERM)
    return store.stopping


def run_out_of_memory() -> None:
    """Save a checkpoint, one step after the last one."""
    from trainer_core import checkpoints

    store = checkpoints()
    last = store.latest()
    with store.save((last.step if last else 0) + 1) as folder:
        (folder / "weights.txt").write_text("1")
    raise MemoryError


def hang_once() -> object:
    """Hang, unless there is a checkpoint; return its step."""
    import threading

    from trainer_core import checkpoints, progress

    store = checkpoints()
    last = store.latest()
    if last:
        return last.step
    with store.save(1) as folder:
        (folder / "weights.txt").write_text("1")
    progress(step=1)
    threading.Event().wait()
    return None


def save_checkpoints(
    steps: int, fail_at: int = 0, kill_at: int = 0, stop_at: int = 0, has_worker: bool = False
) -> object:
    """Save a checkpoint when it is due; fail before one of the steps.

    The last rank of a start without a checkpoint is killed or gets SIGTERM before one of the steps. A start after that
    SIGTERM trains no further. A rank with a worker fails when the worker dies, as with torch's DataLoader.
    """
    import multiprocessing
    import os
    import signal
    import time

    from trainer_core import checkpoints, progress

    store = checkpoints()
    last = store.latest()
    begun = last.step if last else 0
    saved = (last.path / f"rank-{store.rank}.txt").read_text() if last else "0"
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True)
    if has_worker:
        worker.start()
    for step in range(begun + 1, 0 if stop_at and begun else steps + 1):
        if step == fail_at:
            raise RuntimeError(f"failed at step {step}")
        if worker.exitcode is not None:
            raise RuntimeError(f"the worker exited with {worker.exitcode}")
        is_victim = store.rank == store.world_size - 1 and begun == 0
        if step == kill_at and is_victim:
            os.kill(os.getpid(), signal.SIGKILL)
            # The first process of a container cannot kill itself.
            os._exit(137)
        if step == stop_at and is_victim:
            signal.raise_signal(signal.SIGTERM)
        progress(step=step, total=steps)
        if store.due(step):
            with store.save(step, {"loss": 1 / step}) as folder:
                (folder / f"rank-{store.rank}.txt").write_text(str(step))
        if steps > 100:
            time.sleep(0.01)
    return {"from": begun, "saved": saved, "ranks": store.world_size}


def wait_for_resource_report(seconds: float = 300.0) -> None:
    import os
    import time
    from pathlib import Path

    record = Path(os.environ.get("TRAINJOB_TERMINATION_LOG") or "/dev/termination-log")
    end = time.monotonic() + seconds
    # The totals are written after the line.
    while not (record.is_file() and "memory_peak" in record.read_text(encoding="utf-8")):
        if time.monotonic() > end:
            raise TimeoutError("no report of the use of resources")
        time.sleep(0.02)
    try:
        # A training that waits for all of its children does not wait for the process that reports.
        raise RuntimeError(f"os.wait() returned {os.wait()}")
    except ChildProcessError:
        pass


def report_loss(steps: int, wait_at: int = 0, rate: float = 1.0) -> int:
    """Report rate/step as ``val_loss`` at each step, with checkpoints; wait for SIGTERM before one if rate ≥ 1."""
    import os
    import time

    from trainer_core import checkpoints, progress

    store = checkpoints() if os.environ.get("TRAINJOB_CHECKPOINT_PATH") else None
    last = store.latest() if store else None
    for step in range((last.step if last else 0) + 1, steps + 1):
        while step == wait_at and rate >= 1 and not (store and store.stopping):
            time.sleep(0.02)
        progress(step=step, total=steps, metrics={"val_loss": rate / step})
        if store and store.due(step):
            with store.save(step) as folder:
                (folder / "step.txt").write_text(str(step))
    return steps
