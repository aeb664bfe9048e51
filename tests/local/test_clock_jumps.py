"""Deadlines and timeouts use the monotonic clock, so jumps of the wall clock do not change them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A sitecustomize module that makes the wall clock of a process jump by up to a year with each call.
JUMPING = """
import datetime, itertools, time

real_time, real_datetime = time.time, datetime.datetime
jumps = itertools.cycle([0, 60 * 60 * 24 * 365, -60 * 60 * 24 * 365, 3600, -3600])

class JumpingDatetime(real_datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

time.time = lambda: real_time() + next(jumps)
datetime.datetime = JumpingDatetime
"""

PROGRAM = """
import sys, time
from trainer_core import ActiveDeadlineSeconds, CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient
from trainer_core import WaitTimeoutError
assert abs(time.time() - time.time()) > 600, "the clock does not jump"
home, gate = sys.argv[1:]
client = TrainerClient(LocalProcessBackendConfig(home=home, keep_finished_days=10_000))

def submit(name, seconds):
    trainer = CustomTrainer(func="local_jobs:waits_at", func_args={"gate": gate})
    options = [Name(name), ActiveDeadlineSeconds(seconds)]
    return client.submit(client.build_request(runtime="python", trainer=trainer, options=options))

early, late = submit("early", 1), submit("late", 1000)
print(client.wait(early, timeout=1000).diagnosis.category.value)
try:
    client.wait(late, timeout=0.1)
except WaitTimeoutError:
    print("not yet")
with open(gate, "w") as fifo:
    fifo.write("go")
print(client.wait(late, timeout=1000).result)
print(client.wait_for_job_status("late", timeout=1000).status)
print(sorted(job.name for job in client.list_jobs()))
"""


@pytest.fixture
def jumping_clock(tmp_path):
    """Environment variables with which every Python process has a jumping wall clock."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING)
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "clock"), str(here)])}


def test_deadlines_and_timeouts_are_not_affected_by_clock_jumps(jumping_clock, client, home, gate):
    program = [sys.executable, "-c", PROGRAM, str(home), gate]
    done = subprocess.run(program, env=jumping_clock, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["Deadline", "not yet", "go", "Complete", "['early', 'late']"]
