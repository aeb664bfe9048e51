"""Submitters and supervisors that kill themselves before their n-th request to the engine or process start."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import container_engine

from trainer_core import CustomTrainer, Name, Owner
from trainer_core.backends.container.plan import strip_commands
from trainer_core.backends.container.reconcile import Done
from trainer_core.backends.container.runner import ContainerJobRunner
from trainer_core.testing.training_functions import print_lines

#: Log of a node that ran once.
EXPECTED_LOG = ["line 0"]


def die_at(number: int) -> None:
    """Kill this process before its n-th request or process start from now on; 0 for never."""
    count = 0

    def hook(event, _):
        nonlocal count
        if event in ("http.client.send", "subprocess.Popen"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def build_request(client, name):
    trainer = CustomTrainer(func=print_lines, func_args={"lines": 1}, num_nodes=2)
    return client.build_request(
        runtime="python", trainer=trainer, options=[Name(name)], owner=Owner(key=name, slug="race")
    )


def submit(folder: Path, name: str, number: int) -> None:
    """Submit a job and print its ref."""
    client = container_engine.client(folder)
    request = build_request(client, name)
    die_at(number)
    print(client.submit(request).to_json())


def run(folder: Path, name: str, number: int) -> None:
    """Create a job without a supervisor, and run it in this process."""
    backend = container_engine.client(folder).backend
    request = build_request(container_engine.client(folder), name)
    plan = strip_commands(backend.render(request))
    # The claim names this host, so observers on it start another supervisor soon.
    job = backend._store.create_job(request, 0, plan, {"host": os.uname().nodename, "runtime": None})
    runner = ContainerJobRunner(backend._store, job.ref, {})
    die_at(number)
    while not isinstance(runner.reconcile_once(), Done):
        pass


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    program = {"submit": submit, "run": run}[arguments["what"]]
    program(Path(arguments["folder"]), arguments["name"], arguments["number"])
