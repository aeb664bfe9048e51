"""Submitters and supervisors that kill themselves before their n-th request to the engine or process start."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import container_engine

from trainer_core import CustomTrainer, Name, Owner, RestartPolicy
from trainer_core.backends.container.plan import strip_commands
from trainer_core.backends.container.reconcile import Done
from trainer_core.backends.container.runner import ContainerJobRunner
from trainer_core.testing.training_functions import exit_with, print_lines

#: Log of a node that ran once.
EXPECTED_LOG = ["line 0"]


def die_at(number: int, only: bytes = b"") -> None:
    """Kill this process before its n-th request that begins so, or process start, from now on; 0 for never."""
    count = 0

    def hook(event, args):
        nonlocal count
        if event == "subprocess.Popen" or (event == "http.client.send" and args[1][: len(only)] == only):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def build_request(client, name):
    trainer = CustomTrainer(func=print_lines, func_args={"lines": 1}, num_nodes=2)
    return client.build_request(
        runtime="python", trainer=trainer, options=[Name(name)], owner=Owner(key=name, slug="race")
    )


def build_restarted_request(client, name):
    """Return a request that fails twice: its policy allows one restart."""
    trainer = CustomTrainer(func=exit_with, func_args={"code": 3})
    policy = RestartPolicy(max_restarts=1, exit_codes={3: "count"}, delay=0)
    return client.build_request(runtime="python", trainer=trainer, options=[Name(name), policy])


def submit(folder: Path, name: str, number: int) -> None:
    client = container_engine.client(folder)
    request = build_request(client, name)
    die_at(number)
    print(client.submit(request).to_json())


def run(folder: Path, name: str, number: int, build=build_request, only: bytes = b"") -> None:
    backend = container_engine.client(folder).backend
    request = build(container_engine.client(folder), name)
    plan = strip_commands(backend.render(request))
    # The claim names this host, so observers on it start another supervisor soon.
    job = backend._store.create_job(request, 0, plan, {"host": os.uname().nodename, "runtime": None})
    runner = ContainerJobRunner(backend._store, job.ref, {})
    die_at(number, only)
    while not isinstance(runner.reconcile_once(), Done):
        pass


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    run_restarted = partial(run, build=build_restarted_request, only=b"POST")
    program = {"submit": submit, "run": run, "restart": run_restarted}[arguments["what"]]
    program(Path(arguments["folder"]), arguments["name"], arguments["number"])
