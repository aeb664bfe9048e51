"""The supervisor reports the use of resources of a local job's nodes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections import deque

import pytest

from trainer_core.backends.local import runner
from trainer_core.backends.local.processes import UsageReader
from trainer_core.model.resource_use import parse_resource_report, strip_resource_report

#: What nvidia-smi prints for the query; it repeats it as `--loop` asks.
SMI = "#!/bin/sh\nprintf '0, 90, 4000, 8000\\n1, 0, 10, 8000\\n'\nexec sleep 600\n"


def wait_for_gpus():
    import os
    import time
    from pathlib import Path

    print("step 1: ", end="", flush=True)
    print("done", flush=True)
    record = Path(os.environ["TRAINJOB_TERMINATION_LOG"])
    while not (record.is_file() and "gpu_memory_peak" in record.read_text()):
        time.sleep(0.02)


def test_gpus_are_read_with_nvidia_smi_and_end_with_the_job(client, ask, tmp_path):
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    path = f"{smi.parent}:{os.environ['PATH']}"

    outcome = client.wait(client.submit(ask(wait_for_gpus, env={"PATH": path, "TRAINJOB_RESOURCE_INTERVAL": "0.2"})))

    use = outcome.resource_use
    assert (use.gpus, use.gpu_percent, use.gpu_idle_share) == (2, 45.0, 0.5)
    assert (use.gpu_memory_peak, use.gpu_memory_limit) == (4000 * 2**20, 8000 * 2**20)
    assert use.gpu_hours > 0
    lines = list(client.get_job_logs("job", raw=True))
    assert [line for line in lines if strip_resource_report(line) is not None] == ["step 1: done"]
    gpus = [gpu for line in lines if (report := parse_resource_report(line)) for gpu in report["gpus"]]
    assert {"number": 0, "utilization": 90, "memory": 4000 * 2**20, "memory_limit": 8000 * 2**20} in gpus


@pytest.mark.parametrize(("text", "expected"), [("", "a\nb\n"), ("line\n", "line\na\nb\n")])
def test_reports_are_written_after_the_end_of_a_line(tmp_path, text, expected):
    log, waiting = tmp_path / "log", deque(["a\n", "b\n"])
    log.write_text(text)
    runner._append_lines(log, waiting)
    assert (log.read_text(), list(waiting)) == (expected, [])


def test_reports_wait_for_the_end_of_an_unfinished_line(tmp_path):
    log, waiting = tmp_path / "log", deque(["a\n"])
    log.write_text("epoch 1:")
    runner._append_lines(log, waiting)
    assert (log.read_text(), list(waiting)) == ("epoch 1:", ["a\n"])


def test_reports_are_dropped_with_their_log(tmp_path):
    waiting = deque(["a\n"])
    runner._append_lines(tmp_path / "log", waiting)
    assert list(tmp_path.iterdir()) == []


def test_the_use_of_a_process_includes_its_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    child = "block = b'x' * 50_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        usage = UsageReader(process.pid).read()
        process.communicate(b"\n")
    assert 50_000_000 < usage.memory < usage.memory_limit
    assert usage.cpus > 0


def test_memory_that_forked_workers_share_counts_once():
    code = """
import os, signal
block, parent = os.urandom(50_000_000), os.getpid()
for _ in range(4):
    os.getpid() == parent and os.fork()
os.write(1, b"ready\\n")
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert [process.stdout.readline() for _ in range(5)] == [b"ready\n"] * 5
            usage = UsageReader(process.pid).read()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert 50_000_000 < usage.memory < 2 * 50_000_000


def test_a_process_that_has_ended_uses_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    usage = UsageReader(process.pid).read()
    assert (usage.cpu_seconds, usage.memory) == (0.0, 0)
