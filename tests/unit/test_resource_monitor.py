"""How a node measures its use of processor, memory and GPUs, and what it reports."""

from __future__ import annotations

import itertools
import json
import os
import select
import stat

import pytest

from trainer_core.model.resource_use import parse_resource_report, summarize_resource_use
from trainer_core.node import env, resource_monitor, termination
from trainer_core.node.resource_monitor import Gpu, GpuQuery, Monitor, Usage, get_interval, parse_gpus, read_usage

MIB, GIB = 2**20, 2**30
MACHINE = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   12582912 kB\n",
    "proc/stat": "cpu  1000 200 300 9000 50 0 25 5 0 0\ncpu0 1000 200 300 9000 50 0 25 5 0 0\n",
}
V2 = {
    "memory.current": "3221225472\n",
    "memory.stat": "anon 2147483648\ninactive_file 1073741824\nactive_file 0\n",
    "memory.max": "4294967296\n",
    "cpu.stat": "usage_usec 12500000\nuser_usec 12000000\nsystem_usec 500000\n",
    "cpu.max": "50000 100000\n",
}
V1 = {
    "memory/{}memory.usage_in_bytes": "3221225472\n",
    "memory/{}memory.stat": "cache 5\ninactive_file 1\ntotal_inactive_file 1073741824\n",
    "memory/{}memory.limit_in_bytes": "4294967296\n",
    "cpuacct/{}cpuacct.usage": "12500000000\n",
    "cpu/{}cpu.cfs_quota_us": "50000\n",
    "cpu/{}cpu.cfs_period_us": "100000\n",
}
#: What nvidia-smi prints for the query on a machine with two GPUs, one of which is divided (MIG).
SMI = "0, 93, 30521, 81920\n1, [N/A], 12, 81920\n"


@pytest.fixture
def place(tmp_path):
    def place(files, folder=""):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return place


@pytest.mark.parametrize(("group", "folder"), [("/", ""), ("/job/node-0", "job/node-0"), ("/../host/path", "")])
def test_the_cgroup_of_version_2_is_read_without_unused_file_caches(place, group, folder):
    place({**MACHINE, "proc/self/cgroup": f"0::{group}\n"})
    root = place(V2, f"sys/fs/cgroup/{folder}")
    assert read_usage(root) == Usage(12.5, 0.5, 2 * GIB, 4 * GIB)


@pytest.mark.parametrize("folder", ["", "docker/1234/"])
def test_the_cgroup_of_version_1_is_read_without_unused_file_caches(place, folder):
    groups = "9:name=systemd:/x y\n4:memory:/docker/1234\n2:cpu,cpuacct:/docker/1234\n0::/\n"
    place({**MACHINE, "proc/self/cgroup": groups})
    root = place({name.format(folder): text for name, text in V1.items()}, "sys/fs/cgroup")
    assert read_usage(root) == Usage(12.5, 0.5, 2 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    "files",
    [
        {**V2, "memory.max": "max\n", "cpu.max": "max 100000\n"},
        {name: text for name, text in V2.items() if not name.endswith(".max")},
        {**V2, "memory.max": "9223372036854771712\n", "cpu.max": "6400000 100000\n"},
    ],
)
def test_without_a_limit_of_the_cgroup_those_of_the_machine_apply(place, files):
    place(MACHINE)
    usage = read_usage(place(files, "sys/fs/cgroup"))
    assert (usage.cpus, usage.memory_limit) == (len(os.sched_getaffinity(0)), 16 * GIB)


def test_an_unlimited_quota_of_version_1_is_no_quota(place):
    place({**MACHINE, "proc/self/cgroup": "1:cpu:/\n"})
    files = {name.format(""): text for name, text in V1.items()}
    root = place({**files, "cpu/cpu.cfs_quota_us": "-1\n"}, "sys/fs/cgroup")
    assert read_usage(root).cpus == len(os.sched_getaffinity(0))


def test_without_a_cgroup_the_machine_is_measured(place):
    ticks = os.sysconf("SC_CLK_TCK")
    assert read_usage(place(MACHINE)) == Usage(1530 / ticks, len(os.sched_getaffinity(0)), 4 * GIB, 16 * GIB)


def test_this_machine_can_be_measured():
    usage = read_usage()
    assert usage.memory > 0
    assert usage.cpus >= 0.01


def test_the_output_of_nvidia_smi_is_parsed():
    assert parse_gpus(SMI) == [Gpu(0, 93, 30521 * MIB, 81920 * MIB), Gpu(1, None, 12 * MIB, 81920 * MIB)]


@pytest.mark.parametrize(("visible", "numbers"), [("1", [1]), ("0, 1", [0, 1]), ("GPU-5f3", [0, 1]), ("", [0, 1])])
def test_gpus_that_the_training_does_not_see_are_left_out(visible, numbers):
    assert [gpu.number for gpu in parse_gpus(SMI, visible)] == numbers


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, 93\n", "Failed to initialize NVML: 1, 2, 3, 4\n"])
def test_an_error_of_nvidia_smi_is_no_gpu(text):
    assert parse_gpus(text) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("0.5", 0.5), ("0", 0.0), ("-1", 0.0), ("", 10.0), ("off", 10.0)]
)
def test_the_interval_is_a_number_of_seconds(text, seconds):
    assert get_interval({env.RESOURCE_INTERVAL: text}) == seconds


def test_the_default_interval_is_ten_seconds():
    assert get_interval({}) == 10.0


class Readings:
    """GPUs whose readings the test gives, one list per sample."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.closed = False

    def read(self):
        return self.readings.pop(0) if self.readings else []

    def close(self):
        self.closed = True


@pytest.fixture
def watch(tmp_path):
    """Takes samples five seconds apart; returns the reports and the totals in the record."""

    def watch(*usages, gpus=()):
        lines, record, times = [], tmp_path / "record.json", itertools.count(0.0, 5.0)
        left = list(usages)
        monitor = Monitor(lambda: left.pop(0), Readings(*gpus), lines.append, record, times.__next__)
        for _ in usages:
            monitor.sample()
        reports = [parse_resource_report(line) for line in lines]
        return reports, termination.parse_record(record.read_bytes()) if record.exists() else None

    return watch


def test_every_second_sample_is_reported_with_the_highest_memory_since_the_last_report(watch):
    reports, record = watch(
        Usage(100.0, 2.0, 300, 1000),
        Usage(105.0, 2.0, 200, 1000),
        Usage(105.0, 2.0, 500, 1000),
        Usage(115.0, 2.0, 100, 1000),
    )
    assert [(report["cpu"], report["memory"], report["memory_limit"]) for report in reports] == [
        (50.0, 300, 1000),
        (50.0, 500, 1000),
    ]
    use = summarize_resource_use([record])
    assert (use.seconds, use.cpu_percent, use.memory_peak, use.memory_limit, use.gpus) == (20.0, 50.0, 500, 1000, 0)


def test_a_training_of_less_than_an_interval_reports_nothing(watch):
    assert watch(Usage(100.0, 2.0, 300, 1000)) == ([], None)


def test_processor_time_that_got_less_counts_as_none(watch):
    reports, _ = watch(Usage(100.0, 2.0, 300, 1000), Usage(90.0, 2.0, 300, 1000))
    assert reports[0]["cpu"] == 0.0


def test_gpu_time_and_idle_time_are_added_up(watch):
    usage = Usage(100.0, 2.0, 300, 1000)
    busy, idle = Gpu(0, 80, 6 * GIB, 8 * GIB), Gpu(1, 0, GIB, 8 * GIB)
    reports, record = watch(usage, usage, usage, usage, gpus=[[], [busy, idle], [busy, idle], [busy, idle]])
    assert reports[0]["gpus"] == [busy._asdict(), idle._asdict()]
    use = summarize_resource_use([record])
    assert (use.gpus, use.gpu_percent, use.gpu_idle_share) == (2, 40.0, 0.5)
    assert (use.gpu_memory_peak, use.gpu_memory_limit) == (6 * GIB, 8 * GIB)
    assert use.gpu_hours == round(2 * 20 / 3600, 4)


def test_a_gpu_that_does_not_report_its_utilisation_counts_as_gpu_time_only(watch):
    usage = Usage(100.0, 2.0, 300, 1000)
    _, record = watch(usage, usage, gpus=[[], [Gpu(0, None, None, None)]])
    use = summarize_resource_use([record])
    assert (use.gpus, use.gpu_percent, use.gpu_idle_share, use.gpu_memory_peak) == (1, None, None, None)
    assert use.gpu_hours > 0


def test_what_cannot_be_read_or_written_does_not_end_the_monitor(tmp_path):
    def fail(*_):
        raise OSError("no such file")

    usages = iter([fail, *[lambda: Usage(1.0, 1.0, 1, 1)] * 4])
    record = tmp_path / "record.json"
    monitor = Monitor(lambda: next(usages)(), Readings(), fail, record)
    for _ in range(3):
        monitor.sample()
    assert summarize_resource_use([termination.parse_record(record.read_bytes())]).memory_peak == 1


@pytest.fixture
def smi(tmp_path):
    """Puts a stand-in for nvidia-smi on a path; returns the environment."""

    def smi(script):
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{path.parent}:/usr/bin:/bin"}

    return smi


def read_until(query, done):
    """Read until there are readings. Between two reads, wait until the program has printed something or has ended."""
    while not done():
        if readings := query.read():
            return readings
        if query._process is not None:
            assert select.select([query._process.stdout], [], [], 60.0)[0]
    return []


def test_nvidia_smi_is_asked_for_the_documented_query_and_keeps_running(smi, tmp_path):
    query = GpuQuery(smi(f'echo "$@" > {tmp_path}/arguments; printf "0, 93, 30521, 81920\\n"; exec sleep 600'), 5.0)
    assert query.read() == []
    process = query._process
    assert read_until(query, lambda: False) == [Gpu(0, 93, 30521 * MIB, 81920 * MIB)]
    assert process.poll() is None
    query.close()
    assert process.poll() is not None
    assert (tmp_path / "arguments").read_text().split() == [
        "--query-gpu=index,utilization.gpu,memory.used,memory.total",
        "--format=csv,noheader,nounits",
        "--loop=5",
    ]


def test_an_nvidia_smi_that_prints_once_is_started_again(smi):
    query = GpuQuery(smi('printf "0, 93, 30521, 81920\\n"'), 0.1)
    first, second = read_until(query, lambda: False), read_until(query, lambda: False)
    assert first == second == [Gpu(0, 93, 30521 * MIB, 81920 * MIB)]
    query.close()


def test_an_nvidia_smi_that_fails_is_not_started_again(smi, tmp_path):
    query = GpuQuery(smi(f"echo x >> {tmp_path}/starts; exit 9"), 0.1)
    assert read_until(query, lambda: query._process is None and not query._command) == []
    assert query.read() == query.read() == []
    assert (tmp_path / "starts").read_text() == "x\n"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_training_that_sees_no_gpu_needs_no_nvidia_smi(smi, visible):
    query = GpuQuery({**smi("exit 0"), "CUDA_VISIBLE_DEVICES": visible}, 1.0)
    assert (query.read(), query.read(), query._process) == ([], [], None)


@pytest.mark.parametrize("environ", [{env.RESOURCE_INTERVAL: "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}])
def test_no_process_is_started_where_reports_are_switched_off_or_another_process_reports(monkeypatch, environ):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(resource_monitor, "_fork", lambda: pytest.fail("a process was started"))
    resource_monitor.start_process()


# ---- the termination record --------------------------------------------------------------------------------------

TOTALS = {"seconds": 10.0, "cpu_seconds": 1.0, "cpu_available_seconds": 20.0, "memory_peak": 5, "memory_limit": 9}


@pytest.fixture
def record(tmp_path, monkeypatch):
    path = tmp_path / "termination-log"
    monkeypatch.setenv(env.TERMINATION_LOG, str(path))
    return path


def test_the_totals_stay_in_the_record_of_a_result(record):
    record.write_text("")
    termination.report_values(record, resources=TOTALS)
    termination.report_result({"loss": 0.5})
    assert termination.parse_record(record.read_bytes()) == {"result": {"loss": 0.5}, "resources": TOTALS}


def test_the_totals_stay_in_the_record_of_an_error_and_are_updated(record):
    termination.report_values(record, resources=TOTALS)
    termination.report_error(ValueError("no"))
    termination.report_values(record, resources={**TOTALS, "memory_peak": 6})
    read = termination.parse_record(record.read_bytes())
    assert (read["error"]["message"], read["resources"]["memory_peak"]) == ("no", 6)


def test_a_result_that_fits_only_without_the_totals_is_kept_whole(record):
    termination.report_values(record, resources=TOTALS)
    value = "x" * (env.RECORD_LIMIT - len('{"result":""}'))
    termination.report_result(value)
    termination.report_values(record, resources=TOTALS)
    assert json.loads(record.read_text()) == {"result": value}


def test_what_another_program_wrote_to_the_termination_log_is_kept(record):
    record.write_text("disk quota exceeded")
    termination.report_values(record, resources=TOTALS)
    assert record.read_text() == "disk quota exceeded"
