"""Child processes that outlive a step: KFP waits until each has closed the step's output."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import kfp_definitions as definitions
import pytest
from kfp_driver import request_for

#: A step that waits for a child takes longer.
CHILD_SECONDS = 500


def leave_a_child():
    import subprocess

    child = subprocess.Popen(["sleep", "1000"])
    print("training has a child", flush=True)
    return {"child": child.pid}


def run(command):
    """Run a command until all of its output is closed, as the launcher does."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=CHILD_SECONDS
    )


@pytest.mark.parametrize("backend", ["debug", "local"])
def test_a_child_of_the_training_does_not_keep_the_step_running(task, backend):
    training = task("train", request=request_for(leave_a_child), backend=backend)

    finished = run(training.command)

    child = training.output("result")["child"]
    assert finished.returncode == 0, finished.stdout
    assert "training has a child" in finished.stdout
    _end(child)


def _end(pid):
    # The local backend has ended it with its job, and its number may belong to another process.
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
            os.kill(pid, 9)


def test_a_job_of_this_machine_does_not_keep_the_step_running(task, client):
    training = task("submit", request=request_for(definitions.run_for_ever), backend="local")

    finished = run(training.command)

    assert finished.returncode == 0, finished.stdout
    assert [job.status for job in client.list_jobs()] != ["Complete"]


PROGRAM = """
import os, subprocess, sys
from kfp_components.step.child_output import pipe_output
with pipe_output():
    print("from the program")
    print("to stderr", file=sys.stderr)
    subprocess.run(["echo", "from a child"], check=True)
    os.write(1, b"x" * 1_000_000)
print("after")
"""


def test_what_is_written_arrives_whole_and_where_it_was_written():
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert sorted(finished.stdout.replace("x" * 1_000_000, "").split("\n")) == [
        *("", "after", "from a child", "from the program"),
    ]
    assert finished.stderr == "to stderr\n"
