"""The use of processor, memory and GPUs by one node: a line in its log every ten seconds, and totals for the outcome.

Not a thread of the training: in a container a forked process reports, on the local backend the supervisor. The totals
are in the termination record, which also survives a kill by the kernel for lack of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from . import env, termination
from .cgroup import find_cgroup, read_words

#: Default seconds between two reports.
INTERVAL = 10.0
#: A GPU whose utilisation is below this many percent is idle.
_IDLE_PERCENT = 5
_GPU_QUERY = ["--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]
#: Number of the system call `clone` by machine.
_CLONE = {"aarch64": 220, "x86_64": 56}
#: Seconds between two checks that the launcher lives, where the kernel cannot notify of its end (Linux before 5.3).
_POLL_SECONDS = 1.0


class Usage(NamedTuple):
    """The use of processor and memory at one moment."""

    cpu_seconds: float
    #: Number of processors that may be used.
    cpus: float
    memory: int
    #: Memory that may be used, in bytes.
    memory_limit: int


class Gpu(NamedTuple):
    """One reading of a GPU; None for what it does not report."""

    #: Its index on the machine.
    number: int
    #: Percent of the time in which it computed.
    utilization: int | None
    memory: int | None
    #: Its memory in bytes.
    memory_limit: int | None


def get_interval(environ: Mapping[str, str]) -> float:
    """Return the seconds between two reports; 0 for no reports. Anything but a number is the default."""
    try:
        return max(0.0, float(environ[env.RESOURCE_INTERVAL]))
    except (KeyError, ValueError):
        return INTERVAL


def read_usage(root: Path = Path("/")) -> Usage:
    """Return the use of the container of this process: of its cgroup, version 2 or 1, or of the machine without one.

    Memory is the working set, as the kubelet and ``kubectl top`` compute it: without file caches that are not in use.
    """
    machine = read_words(root / "proc/meminfo")
    total = _get(machine, "MemTotal:") * 1024
    cpus = float(len(os.sched_getaffinity(0)))
    v2 = find_cgroup(root, "", "memory.current")
    v1 = find_cgroup(root, "memory", "memory.usage_in_bytes")
    cpu, spent = find_cgroup(root, "cpu", "cpu.cfs_quota_us"), find_cgroup(root, "cpuacct", "cpuacct.usage")
    if v2:
        seconds, quota = _get(read_words(v2 / "cpu.stat"), "usage_usec") / 1e6, read_words(v2 / "cpu.max")
        memory, limit, cache = v2 / "memory.current", v2 / "memory.max", "inactive_file"
    elif v1 and cpu and spent:
        seconds = int(read_words(spent / "cpuacct.usage")[0]) / 1e9
        quota = read_words(cpu / "cpu.cfs_quota_us") + read_words(cpu / "cpu.cfs_period_us")
        memory, limit, cache = v1 / "memory.usage_in_bytes", v1 / "memory.limit_in_bytes", "total_inactive_file"
    else:
        # user, nice, system, [idle, iowait,] irq, softirq, steal
        ticks = read_words(root / "proc/stat")[1:9]
        seconds = sum(map(int, ticks[:3] + ticks[5:])) / os.sysconf("SC_CLK_TCK")
        return Usage(seconds, cpus, total - _get(machine, "MemAvailable:") * 1024, total)
    # No limit is `max` or -1 of processors, `max` or a number near 2^63 of memory.
    if quota and quota[0].isdecimal():
        cpus = min(cpus, int(quota[0]) / int(quota[1]))
    bound = read_words(limit)
    total = min(total, int(bound[0])) if bound and bound[0].isdecimal() else total
    used = int(read_words(memory)[0]) - _get(read_words(memory.parent / "memory.stat"), cache)
    return Usage(seconds, cpus, used, total)


def parse_gpus(text: str, visible: str = "") -> list[Gpu]:
    """Parse the output of ``nvidia-smi``. Other lines, such as errors, are left out."""
    gpus = []
    numbers = [each.strip() for each in visible.split(",") if each.strip().isdecimal()]
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[0].isdecimal() and (not numbers or fields[0] in numbers):
            # What a GPU does not report is [N/A] or [Not Supported].
            used, memory, limit = (int(field) if field.isdecimal() else None for field in fields[1:])
            mib = 2**20
            gpus.append(Gpu(int(fields[0]), used, memory and memory * mib, limit and limit * mib))
    return gpus


class GpuQuery:
    """Reads the GPUs from one ``nvidia-smi`` that keeps running: to start it takes much longer than a reading."""

    def __init__(self, environ: Mapping[str, str], interval: float) -> None:
        self._visible, self._path = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("PATH")
        self._command = [] if self._visible in ("", "-1") else [*_GPU_QUERY, f"--loop={max(1, int(interval))}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def read(self) -> list[Gpu]:
        """Return the readings since the last call, without waiting; the first call starts the program.

        A program that has ended is started again, unless it failed: then there is no driver.
        """
        if self._process is None or self._process.stdout is None:
            program = self._command and shutil.which("nvidia-smi", path=self._path)
            if program:
                command, null = [program, *self._command], subprocess.DEVNULL
                self._process = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null)
            return []
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(output, 65_536):
                self._rest += data
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._process.returncode != 0:
                self._command = []
            self.close()
        lines, _, self._rest = self._rest.rpartition(b"\n")
        return parse_gpus(lines.decode("utf-8", "replace"), self._visible or "")

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None


class Monitor:
    """Samples the use of resources, and reports at every second sample."""

    def __init__(
        self,
        read: Callable[[], Usage],
        gpus: GpuQuery,
        write: Callable[[str], object],
        record: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._gpus, self._write, self._record, self._clock = read, gpus, write, record, clock
        self._reported = clock()
        self._samples: list[tuple[float, Usage]] = []
        self._readings: list[Gpu] = []
        self._totals: dict[str, float] = {}

    def sample(self) -> None:
        """Take a sample; every second one is reported. Never raises."""
        with contextlib.suppress(Exception):  # Whatever cannot be read must not end the one who samples.
            self._samples.append((self._clock(), self._read()))
            self._readings += self._gpus.read()
            # The sample of one report is the first of the next; the first report has none before it.
            if len(self._samples) == 2 + bool(self._totals):
                samples, self._samples = self._samples, self._samples[-1:]
                readings, self._readings = self._readings, []
                self._report(samples, readings)

    def close(self) -> None:
        self._gpus.close()

    def _report(self, samples: list[tuple[float, Usage]], readings: list[Gpu]) -> None:
        (before, first), (now, last) = samples[0], samples[-1]
        seconds, self._reported = now - self._reported, now
        available = last.cpus * (now - before)
        # Less than before if a process has ended that its parent does not wait for.
        used = min(available, max(0.0, last.cpu_seconds - first.cpu_seconds))
        memory = max(usage.memory for _, usage in samples)
        self._add(seconds=seconds, cpu_seconds=used, cpu_available_seconds=available)
        self._note_peak("memory", memory, last.memory_limit)
        gpus = {gpu.number: gpu for gpu in readings}
        self._totals["gpus"] = max(len(gpus), self._totals.get("gpus", 0))
        self._add(gpu_seconds=len(gpus) * seconds)
        for gpu in readings:
            share = len(gpus) * seconds / len(readings)
            if gpu.utilization is not None:
                self._add(gpu_read_seconds=share, gpu_busy_seconds=share * gpu.utilization / 100)
                self._add(gpu_idle_seconds=share * (gpu.utilization < _IDLE_PERCENT))
            if gpu.memory and gpu.memory_limit:
                self._note_peak("gpu_memory", gpu.memory, gpu.memory_limit)
        report = {
            "t": int(time.time() * 1000),
            "cpu": round(100 * used / available, 1),
            "memory": memory,
            "memory_limit": last.memory_limit,
            "gpus": [gpu._asdict() for _, gpu in sorted(gpus.items())],
        }
        with contextlib.suppress(OSError):
            self._write(env.RESOURCE_PREFIX + json.dumps(report) + "\n")
        totals = {name: round(value, 6) for name, value in self._totals.items()}
        termination.report_values(self._record, resources=totals)

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._totals[name] = self._totals.get(name, 0.0) + value

    def _note_peak(self, name: str, used: int, limit: int) -> None:
        if used >= self._totals.get(f"{name}_peak", 0):
            self._totals.update({f"{name}_peak": used, f"{name}_limit": limit})


def start_process() -> None:
    """Report the use of this container from a new process, until this process, or what it becomes, has ended.

    The new process is a child of the training, which does not notice it: see `_fork`. The kernel wakes it when the
    training ends, so that it does not hold the output open.
    """
    interval = get_interval(os.environ)
    # Of the processes that mpirun starts on a node, one reports.
    if not interval or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") != "0":
        return
    launcher = os.getpid()
    try:
        if _fork():
            return
    except OSError:
        return
    try:
        _report_until_end(launcher, interval / 2)
    finally:
        os._exit(0)


def _fork() -> int:
    """Fork a process for which `os.wait()` of its parent does not wait, and whose end sends no signal.

    That is a clone with the signal number 0. `os.fork` cannot do it, and is used where ctypes or the system call cannot
    be. To fork twice is not enough: an orphan in a container is a child of process 1, which is the training.
    """
    number = _CLONE.get(os.uname().machine) if sys.maxsize > 2**32 else None
    try:
        from ctypes import pythonapi  # Some images do not have it.

        # As in `os.fork`. The functions are looked up before, because in between Python is locked.
        clone, child, parent = pythonapi.syscall, pythonapi.PyOS_AfterFork_Child, pythonapi.PyOS_AfterFork_Parent
    except (ImportError, AttributeError):
        number = None
    if number is None:
        return os.fork()
    pythonapi.PyOS_BeforeFork()
    made = clone(number, 0, 0, 0, 0, 0)
    (parent if made else child)()
    return os.fork() if made < 0 else made


def _report_until_end(launcher: int, pause: float) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    notice = []
    with contextlib.suppress(AttributeError, OSError):
        notice.append(os.pidfd_open(launcher))
    # Standard error: container engines keep the lines of the two streams apart, and results go to standard output.
    monitor = Monitor(
        read_usage,
        GpuQuery(os.environ, pause),
        lambda line: os.write(2, line.encode()),
        Path(env.setting(env.TERMINATION_LOG)),
    )
    due = time.monotonic() + pause
    while os.getppid() == launcher:
        rest = max(0.0, due - time.monotonic())
        select.select(notice, [], [], rest if notice else min(rest, _POLL_SECONDS))
        if time.monotonic() >= due and os.getppid() == launcher:
            monitor.sample()
            due = time.monotonic() + pause
    monitor.close()


def _get(words: list[str], name: str) -> int:
    """Return the number after a word; 0 without it."""
    return int(words[words.index(name) + 1]) if name in words else 0
