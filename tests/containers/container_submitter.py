"""Programs of submitters and supervisors that are killed before the n-th thing they say to an engine or start."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import container_engine

from trainer_core import CustomTrainer, Name, Owner
from trainer_core.backends.container import advance, spec
from trainer_core.backends.container.carry import Carrier
from trainer_core.testing.functions import prints

#: What a job that ran once has printed.
ONCE = ["line 0"]


def die_at(number: int) -> None:
    """Die before something is sent for the n-th time from now on, or a program started; 0 for never."""
    count = 0

    def hook(event, _):
        nonlocal count
        if event in ("http.client.send", "subprocess.Popen"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def request_of(client, name):
    trainer = CustomTrainer(func=prints, func_args={"lines": 1}, num_nodes=2)
    return client.request(runtime="python", trainer=trainer, options=[Name(name)], owner=Owner(key=name, slug="race"))


def submit(folder: Path, name: str, number: int) -> None:
    """Submit a job and say its ref."""
    client = container_engine.client(folder)
    request = request_of(client, name)
    die_at(number)
    print(client.submit(request).to_json())


def carry(folder: Path, name: str, number: int) -> None:
    """Make a job that nobody carries out, and carry it out."""
    backend = container_engine.client(folder).backend
    request = request_of(container_engine.client(folder), name)
    plan = spec.lean(backend.render(request))
    # Of another machine, so that it is not for whoever looks first to have it done.
    job = backend._store.make(request, 0, plan, {"host": os.uname().nodename, "runtime": None})
    carrier = Carrier(backend._store, job.ref, {})
    die_at(number)
    while not isinstance(carrier.step(), advance.Done):
        pass


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    {"submit": submit, "carry": carry}[told["what"]](Path(told["folder"]), told["name"], told["number"])
