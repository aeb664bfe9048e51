"""A training of two ranks whose result shows whether it was continued exactly, and ways to interrupt it."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

from trainer_core import Checkpoints, CustomTrainer, Owner, TrainerClient, TrainJobRef
from trainer_core.backends.local import observations, processes

#: Steps between two checkpoints.
INTERVAL = 5


def walk(steps: int, seconds: float, finish: str | None = None, trace: str | None = None) -> dict[str, Any]:
    """Walk at random; with the state of its checkpoint the walk is the same as without an interruption.

    Without the file `finish` the walk is too slow after step 260 to end before it is killed. Rank 0 appends each step
    that it has done to the file `trace`.
    """
    import json
    import random
    import time
    from pathlib import Path

    from trainer_core import checkpoints, progress

    store, dice, place, begun = checkpoints(), random.Random(7), 0.0, 0  # noqa: S311
    if last := store.latest():
        state = json.loads((last.path / f"rank-{store.rank}.json").read_text())
        version, internal, gauss = state["dice"]
        dice.setstate((version, tuple(internal), gauss))
        place, begun = state["place"], last.step
    for step in range(begun + 1, steps + 1):
        place += dice.gauss(0, 1)
        time.sleep(1 if step > 260 and finish and not Path(finish).exists() else seconds)
        if trace and store.rank == 0:
            with Path(trace).open("a") as file:
                print(step, file=file)
        progress(step=step, total=steps)
        if store.due(step):
            with store.save(step) as folder:
                state = json.dumps({"dice": dice.getstate(), "place": place})
                (folder / f"rank-{store.rank}.json").write_text(state)
    return {"place": place, "from": begun}


def submit(
    client: TrainerClient,
    owner: Owner,
    steps: int = 400,
    seconds: float = 0.002,
    finish: str | None = None,
    trace: str | None = None,
    **settings: Any,
) -> TrainJobRef:
    trainer = CustomTrainer(
        func=walk, func_args={"steps": steps, "seconds": seconds, "finish": finish, "trace": trace}, num_nodes=2
    )
    option = Checkpoints(**{"every_steps": INTERVAL, **settings})
    return client.submit(client.build_request(runtime="python", trainer=trainer, options=[option], owner=owner))


def list_pids(client: TrainerClient, ref: TrainJobRef) -> list[int]:
    return [int(step.pod_name.partition("-")[2]) for step in client.get_job(ref.name).steps if step.pod_name]


def wait_for_step(client: TrainerClient, ref: TrainJobRef, least: int) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        observation = client.observe(ref)
        reached = observation.progress.step if observation.progress else None
        if observation.outcome or (reached or 0) >= least:
            return
        time.sleep(0.02)
    raise AssertionError("no progress")


def kill_rank(client: TrainerClient, ref: TrainJobRef, chance: random.Random) -> None:
    os.kill(chance.choice(list_pids(client, ref)), signal.SIGKILL)


def kill_all(client: TrainerClient, ref: TrainJobRef, chance: random.Random) -> None:
    processes.kill_job_processes([ref.uid])


def kill_supervisor(client: TrainerClient, ref: TrainJobRef, chance: random.Random) -> None:
    os.kill(observations.read_record(client.backend._get_folder(ref)).supervisor, signal.SIGKILL)


def terminate_rank(client: TrainerClient, ref: TrainJobRef, chance: random.Random) -> None:
    os.kill(chance.choice(list_pids(client, ref)), signal.SIGTERM)
