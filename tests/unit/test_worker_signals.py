"""SIGTERM in the worker processes of a training with checkpoints, however multiprocessing starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from trainer_core.node import env

PATIENCE = 300

#: Trains with batches of torch's DataLoader, and needs more of them to save.
LOADING = """
import sys, time
import torch
from trainer_core import checkpoints

if __name__ == "__main__":
    store = checkpoints()
    loader = torch.utils.data.DataLoader(
        torch.arange(1_000_000), batch_size=1, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    batches = iter(loader)
    for step, _ in enumerate(batches, 1):
        if step == 20:
            print("ready", flush=True)
        time.sleep(0.002)
        if store.due(step):
            with store.save(step):
                print("saved", sum(1 for _ in zip(range(100), batches)), flush=True)
"""

#: A worker stops a program, gets SIGTERM from another process and from its parent; another worker is left.
WORKING = """
import multiprocessing, os, subprocess, sys, time
from trainer_core import checkpoints

def stop_a_program():
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    return program.wait()

if __name__ == "__main__":
    checkpoints()
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        (worker,) = multiprocessing.active_children()
        print("program", pool.apply(stop_a_program), flush=True)
        subprocess.run(["kill", str(worker.pid)], check=True)
        print("same worker", pool.apply(os.getpid) == worker.pid, flush=True)
    ended, left = (context.Process(target=time.sleep, args=(600,), daemon=True) for _ in range(2))
    ended.start()
    ended.terminate()
    ended.join()
    print("worker", ended.exitcode, flush=True)
    left.start()
    print("left", left.pid, flush=True)
    left.join()
"""

#: A worker inherits a handler and waits when its parent ends it.
HANDLING = """
import multiprocessing, signal, sys
from trainer_core import checkpoints

def wait(pipe):
    pipe.send("it waits")
    pipe.recv()

if __name__ == "__main__":
    checkpoints()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    worker = context.Process(target=wait, args=(theirs,), daemon=True)
    worker.start()
    ours.recv()
    worker.terminate()
    worker.join()
    print("worker", worker.exitcode, flush=True)
"""


@pytest.fixture
def train(tmp_path):
    """Start a training with one way to start workers."""
    processes = []

    def train(program, method):
        script = tmp_path / "train.py"
        script.write_text(program)
        variables = {env.CHECKPOINT_PATH: str(tmp_path / "checkpoints"), env.CHECKPOINTS: '{"grace": 120}'}
        command = [sys.executable, str(script), method]
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield train
    for process in processes:
        for each in [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []:
            each.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_data_workers_live_on_until_the_checkpoint_is_complete_when_all_processes_get_sigterm(train, method):
    process = train(LOADING, method)
    assert "ready\n" in process.stdout
    started = [*psutil.Process(process.pid).children(recursive=True)[::-1], process]
    for each in started:
        each.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert "saved 100\n" in output
    assert process.returncode == 143
    assert len(started) > 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_sigterm_ends_a_worker_if_its_parent_has_sent_it_or_has_ended(train, method):
    process = train(WORKING, method)
    lines = [process.stdout.readline().strip() for _ in range(4)]
    left = psutil.Process(int(lines.pop().removeprefix("left ")))
    assert lines == ["program -15", "same worker True", "worker -15"]
    process.kill()
    process.wait()
    left.terminate()
    assert not psutil.wait_procs([left], timeout=PATIENCE)[1]


def test_the_handler_of_a_worker_runs_while_the_worker_waits_when_its_parent_ends_it(train):
    output, _ = train(HANDLING, "fork").communicate(timeout=PATIENCE)
    assert output == "worker 3\n"
