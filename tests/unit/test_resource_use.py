"""The use of resources of a job: its summary, its lines in the log, and the diagnosis of a lack of memory."""

from __future__ import annotations

import pytest

from trainer_core.base.text import format_memory
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, diagnose
from trainer_core.model.jobs import Category, Outcome
from trainer_core.model.resource_use import (
    ResourceUse,
    parse_resource_report,
    strip_resource_report,
    summarize_resource_use,
)
from trainer_core.tracking.reporter import build_system_metrics

REPORT = (
    '[trainjob:resources] {"t": 1790000000000, "cpu": 71.5, "memory": 400, "memory_limit": 1000, '
    '"gpus": [{"number": 0, "utilization": 93, "memory": 30, "memory_limit": 80}]}'
)
SMALL = {
    "seconds": 100.0,
    "cpu_seconds": 50.0,
    "cpu_available_seconds": 200.0,
    "memory_peak": 400_000_000,
    "memory_limit": 1_000_000_000,
}
LARGE = {
    **SMALL,
    "seconds": 90.0,
    "cpu_seconds": 150.0,
    "memory_peak": 3_900_000_000,
    "memory_limit": 4_000_000_000,
    "gpus": 2.0,
    "gpu_seconds": 180.0,
    "gpu_read_seconds": 180.0,
    "gpu_busy_seconds": 90.0,
    "gpu_idle_seconds": 45.0,
    "gpu_memory_peak": 70_000_000_000,
    "gpu_memory_limit": 80_000_000_000,
}


def test_the_nodes_of_a_job_are_summarized():
    use = summarize_resource_use([{"result": 1, "resources": SMALL}, None, {}, {"resources": LARGE}])
    assert use == ResourceUse(
        nodes=2,
        seconds=100.0,
        cpu_percent=50.0,
        memory_peak=3_900_000_000,
        memory_limit=4_000_000_000,
        gpus=2,
        gpu_percent=50.0,
        gpu_memory_peak=70_000_000_000,
        gpu_memory_limit=80_000_000_000,
        gpu_hours=0.05,
        gpu_idle_share=0.25,
    )
    assert str(use) == (
        "peak memory 3.63 GiB of 3.73 GiB, processor use 50%, GPUs 2, GPU hours 0.05, GPU use 50%, GPU idle 25%, "
        "peak GPU memory 65.2 GiB of 74.5 GiB"
    )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [None, {}],
        [{"result": 1}],
        [{"resources": "many"}],
        [{"resources": {**SMALL, "memory_peak": "much"}}],
        [{"resources": {**SMALL, "seconds": float("nan")}}],
    ],
)
def test_without_totals_there_is_no_summary(records):
    assert summarize_resource_use(records) is None


def test_an_outcome_keeps_its_use_of_resources_through_json():
    ref = {"backend": "local", "namespace": "n", "name": "job", "uid": "u"}
    outcome = Outcome(ref=ref, status="Complete", resource_use=summarize_resource_use([{"resources": LARGE}]))
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert outcome.to_dict()["resource_use"]["gpu_hours"] == 0.05


def test_a_report_is_parsed():
    assert parse_resource_report(REPORT) == {
        "t": 1790000000000,
        "cpu": 71.5,
        "memory": 400,
        "memory_limit": 1000,
        "gpus": [{"number": 0, "utilization": 93, "memory": 30, "memory_limit": 80}],
    }


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.5",
        "[trainjob:resources] ",
        "[trainjob:resources] 5",
        "[trainjob:resources] {}",
        '[trainjob:resources] {"t": 1, "cpu": 1, "memory": 1, "memory_limit": 1, "gpus": 1}',
        '[trainjob:resources] {"t": 1, "cpu": "all", "memory": 1, "memory_limit": 1, "gpus": []}',
        f"[trainjob:resources] {'[' * 100_000}",
    ],
)
def test_a_line_that_is_no_report_is_not_parsed(line):
    assert parse_resource_report(line) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (REPORT, None),
        ("[trainjob:resources] cut off", None),
        ("loss 0.5", "loss 0.5"),
        ("", ""),
        (f"epoch 1: {REPORT}", "epoch 1: "),
    ],
)
def test_a_report_is_cut_out_of_a_line(line, text):
    assert strip_resource_report(line) == text


RECORD = {"resources": LARGE}
HOST = "it ran out of memory{}; request more, or use smaller batches"
GPU = "it ran out of GPU memory{}; use smaller batches, or a GPU with more"
HOST_USE = " (limit 3.73 GiB; the highest sample before its end was 3.63 GiB)"
GPU_USE = " (limit 74.5 GiB; the highest sample before its end was 65.2 GiB)"
OF_GPU = {"error_type": "torch.OutOfMemoryError"}
OF_JAX = {"error_type": "XlaRuntimeError", "error_message": "RESOURCE_EXHAUSTED: x"}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (StepFacts("node-0", out_of_memory=True, record=RECORD), HOST.format(HOST_USE)),
        (StepFacts("node-0", error_type="MemoryError", record=RECORD), HOST.format(HOST_USE)),
        (StepFacts("node-0", **OF_GPU, record=RECORD), GPU.format(GPU_USE)),
        (StepFacts("node-0", **OF_JAX, record=RECORD), GPU.format(GPU_USE)),
        (StepFacts("node-0", out_of_memory=True), HOST.format("")),
        (StepFacts("node-0", **OF_GPU, record={"resources": SMALL}), GPU.format("")),
    ],
)
def test_the_diagnosis_of_a_lack_of_memory_quotes_peak_and_limit(step, reason):
    diagnosis = diagnose(Facts(steps=[step]))
    assert diagnosis.category is Category.OUT_OF_MEMORY
    assert diagnosis.reason == reason


def test_the_log_lines_of_a_diagnosis_have_no_reports():
    tail = [REPORT, *(f"line {number}" for number in range(20)), REPORT]
    assert diagnose(Facts(steps=[StepFacts("node-0", exit_code=1, log_tail=tail)])).log_tail == tuple(tail[1:-1])


def test_a_report_has_the_names_and_units_of_system_metrics_of_mlflow():
    report = REPORT.replace('"memory": 400, "memory_limit": 1000', '"memory": 4000000, "memory_limit": 16000000')
    points = list(build_system_metrics("node-0", report.replace("30", "30000000").replace("80}", "80000000}")))
    assert {name: value for name, value, *_ in points} == {
        "system/cpu_utilization_percentage": 71.5,
        "system/system_memory_usage_megabytes": 4.0,
        "system/system_memory_usage_percentage": 25.0,
        "system/gpu_0_utilization_percentage": 93,
        "system/gpu_0_memory_usage_megabytes": 30.0,
        "system/gpu_0_memory_usage_percentage": 37.5,
    }
    assert {(time, step) for *_, time, step in points} == {(1790000000000, 0)}


def test_the_system_metrics_of_a_further_node_have_its_name():
    assert next(build_system_metrics("node-1", REPORT))[0] == "system/node-1/cpu_utilization_percentage"


def test_a_line_of_the_training_is_no_system_metric():
    assert list(build_system_metrics("node-0", "loss 0.5")) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (300 * 2**20, "300 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**20 - 1, "1 MiB"),
        (99.96 * 2**10, "100 KiB"),
        (2 * 2**40, "2.0 TiB"),
    ],
)
def test_memory_has_the_units_in_which_limits_are_given(size, text):
    assert format_memory(size) == text
