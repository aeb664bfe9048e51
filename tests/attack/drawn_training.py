"""The training that `interruptions` interrupts: a tree of processes with moments, and an exact answer.

The functions travel as source: each imports what it uses.
"""

from __future__ import annotations

from typing import Any

STEPS, EVERY_STEPS = 8, 2
#: The step of the moments inside the loop; `save` is at a step that is saved anyway.
MOMENT_STEP, SAVED_STEP = 5, 4

#: A child with an environment of its own: it lives until it is killed, and tells that it runs.
HELPER = """
import fcntl, os, sys, time
alive = os.open(sys.argv[1] + "/alive", os.O_RDONLY)
fcntl.flock(alive, fcntl.LOCK_SH)
print(os.getpid(), flush=True)
time.sleep(3600)
"""


def compute_answer(world: int) -> str:
    """Return what the undisturbed training returns."""
    weight = 1.0
    for step in range(1, STEPS + 1):
        parts = [(step * 0.1) * (rank + 1) + weight * 0.3 for rank in range(world)]
        total = parts[0]
        for part in parts[1:]:
            total += part
        weight = total * 0.37
    return weight.hex()


def train(scene: str, helper: str, plan: dict[str, Any]) -> dict[str, Any]:  # noqa: C901 -- it travels as one function
    """Train with gloo where there are two ranks; at the moment of the plan, one rank tells it and waits.

    Files of the scene: ``alive`` is locked by each process as long as it lives, ``training-N`` by the trainer N, with
    what it forks. ``events`` and ``go`` are pipes. The moment comes once, whatever starts again.
    """
    import fcntl
    import json
    import multiprocessing
    import os
    import select
    import signal
    import subprocess
    import sys
    import threading
    import time
    from pathlib import Path

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    folder, habit, steps = Path(scene), plan["habit"], plan["steps"]
    alive = os.open(folder / "alive", os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_SH)
    training = os.open(folder / f"training-{rank}", os.O_RDWR)

    def overlap(began: float) -> None:
        fcntl.flock(training, fcntl.LOCK_EX)
        with (folder / "overlaps").open("a") as file:
            print(f"rank {rank} of {os.environ['TRAINJOB_NAME']}: {time.monotonic() - began:.3f} s", file=file)

    try:
        fcntl.flock(training, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with (folder / "overlaps").open("a") as file:
            print(f"rank {rank} of {os.environ['TRAINJOB_NAME']}: began beside another one", file=file)
        threading.Thread(target=overlap, args=[time.monotonic()], daemon=True).start()

    def tell(event: str, value: object = "") -> None:
        with (folder / "events").open("a") as events:
            events.write(f"{event} {value}\n")

    def eat() -> None:
        hoard = []
        while True:
            hoard.append(bytearray(b"x") * 2**26)

    def come_to(moment: str, step: int = 0) -> None:
        if (moment, rank, step or plan["step"]) != (plan["moment"], plan["actor"], plan["step"]):
            return
        try:
            (folder / "reached").touch(exist_ok=False)
        except FileExistsError:
            return
        go = os.open(folder / "go", os.O_RDONLY | os.O_NONBLOCK)
        tell("moment", step)
        while not (store and store.stopping):
            if select.select([go], [], [], 0.05)[0]:
                deed = os.read(go, 1)
                if deed == b"m":
                    eat()
                if deed == b"c":
                    program = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**26)"
                    subprocess.run([sys.executable, "-c", program], check=True, env={})
                break

    def look_after_signals() -> None:
        handler = {"ignores": signal.SIG_IGN, "default": signal.SIG_DFL}.get(habit, lambda *_: sys.exit(0))
        signal.signal(signal.SIGTERM, handler)

    if habit == "title":
        import setproctitle

        setproctitle.setproctitle(f"trainer-{rank}")
    store = last = None
    if rank == 0:
        child = subprocess.Popen(
            [sys.executable, "-c", helper, scene],
            env={},
            stdout=subprocess.PIPE,
            start_new_session=plan["helper_session"],
        )
        tell("helper", child.stdout.readline().decode().strip())
    tell(f"rank-{rank}", os.getpid())
    come_to("start")
    if habit == "exits-before":
        look_after_signals()
    from trainer_core import checkpoints

    if habit == "thread":
        thread = threading.Thread(target=checkpoints)
        thread.start()
        thread.join()
    store = checkpoints()
    if habit in ("exits", "ignores", "default"):
        look_after_signals()
    weight, begun = 1.0, 0
    if last := store.latest():
        weight, begun = float.fromhex(json.loads((last.path / f"rank-{rank}.json").read_text())), last.step
    if world > 1:
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, TensorDataset

        numbers = TensorDataset(torch.arange(1, steps + 1, dtype=torch.float64))
        batches = iter(DataLoader(numbers, None, sampler=range(begun, steps), num_workers=1))
        tell(f"worker-{rank}", batches._workers[0].pid)
        come_to("rendezvous")
        dist.init_process_group("gloo")
    else:
        context = multiprocessing.get_context("fork")
        numbers, ours = context.Pipe()

        def answer() -> None:
            if habit == "ignores":  # Else nothing ends the worker at the end of its parent.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                ours.send(float(ours.recv()))

        worker = context.Process(target=answer, daemon=True)
        worker.start()
        numbers.send(0)
        numbers.recv()  # It has the handler with which it can be ended.
        tell("worker-0", worker.pid)
    for step in range(begun + 1, steps + 1):
        if world > 1:
            number = next(batches)[0].item()
        else:
            numbers.send(step)
            number = numbers.recv()
        total = (number * 0.1) * (rank + 1) + weight * 0.3
        come_to("collective", step)
        if world > 1:
            shared = torch.tensor([total], dtype=torch.float64)
            dist.all_reduce(shared)
            total = shared.item()
        weight = total * 0.37
        come_to("between", step)
        if store.due(step):
            with store.save(step) as part:
                (part / f"rank-{rank}.json").write_text(json.dumps(weight.hex()))
                come_to("save", step)
    come_to("end")
    return {"answer": weight.hex(), "from": begun}


def train_in_a_child(program: str, result: str) -> dict[str, Any]:
    """Start a program that trains, as a launcher does."""
    import json
    import os
    import subprocess
    import sys
    from pathlib import Path

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, program], check=True, env=environment)
    return json.loads(Path(result).read_text())
