"""Parsing of raw pods to PodState."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from k8s_objects import CREATED, IMAGE, condition, disrupted, end, ended, pod, runs, seen, unscheduled, waits

from trainer_core.k8s import pod_state
from trainer_core.k8s.pod_state import group_pods_by_step


def test_a_running_pod_has_job_step_and_node():
    found = seen(main=runs(restarts=2))

    assert (found.job_name, found.step, found.phase, found.node_name) == ("digits", "node-0", "Running", "gpu-1")
    assert (found.main_container.restart_count, found.main_container.image) == (2, IMAGE)


@pytest.mark.parametrize("step", ["dataset-initializer", "model-initializer", "node-0", "node-11"])
def test_the_step_is_derived_from_replicated_job_and_index(step):
    assert seen(step).step == step


def test_the_index_can_be_an_annotation_on_older_clusters():
    raw = pod("node-3")
    index = raw["metadata"]["labels"].pop("batch.kubernetes.io/job-completion-index")
    raw["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": index}

    assert pod_state.parse_pod(raw).step == "node-3"


def test_the_launcher_of_an_mpi_job_is_node_0():
    assert seen("launcher", main=runs()).step == "node-0"


def test_node_pods_of_an_mpi_job_are_numbered_from_1():
    secret = {"name": "mpi-ssh-auth", "secret": {"secretName": "digits-mpi-ssh-auth"}}

    assert seen("node-0", spec={"volumes": [secret]}).step == "node-1"


def test_a_replicated_job_with_a_node_container_is_a_node_step():
    assert seen("worker-2", main=runs()).step == "node-2"


def test_a_pod_without_a_node_container_is_a_separate_step():
    assert seen("metrics-0", main=runs("server")).step == "metrics-0"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, 0), (1, 1), (137, -9), (139, -11), (143, -15), (128, 128), (192, -64), (193, 193), (255, 255)],
)
def test_exit_codes_of_signals_are_negative(code, expected):
    assert seen(main=ended(code)).main_container.terminated.exit_code == expected


def test_a_signal_in_the_status_takes_precedence_over_the_exit_code():
    assert seen(main=ended(1, signal=9)).main_container.terminated.exit_code == -9


def test_the_previous_run_is_kept_with_its_message():
    found = seen(main=waits("CrashLoopBackOff", "back-off 10s", restarts=1, last=end(1, "it said why")))

    assert (
        found.main_container.waiting_reason,
        found.main_container.last_terminated.exit_code,
        found.main_container.last_terminated.message,
    ) == (
        "CrashLoopBackOff",
        1,
        "it said why",
    )


@pytest.mark.parametrize(
    ("main", "crashes"),
    [
        (runs(), 0),
        (ended(0), 0),
        (ended(1), 1),
        (runs(restarts=1, last=end(1)), 1),
        (waits("CrashLoopBackOff", restarts=1, last=end(1)), 2),
        (ended(1, restarts=2, last=end(1)), 3),
    ],
)
def test_a_crash_is_counted_before_its_restart(main, crashes):
    assert seen(main=main).main_container.crash_count == crashes


def test_termination_messages_are_complete_and_other_messages_are_truncated():
    found = seen(main=ended(1, message="x" * 4096), message="y\n" * 9000, reason="Evicted")

    assert len(found.main_container.terminated.message) == 4096
    assert len(found.message) == 300
    assert "\n" not in found.message


def test_an_unscheduled_pod_has_a_reason():
    found = seen(**unscheduled("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))

    assert (found.unscheduled_reason, found.node_name) == ("Unschedulable", None)
    assert "Insufficient nvidia.com/gpu" in found.unscheduled_message


def test_a_disrupted_pod_has_a_reason():
    assert seen(main=runs(), **disrupted("PreemptionByScheduler")).disruption_reason == "PreemptionByScheduler"


def test_an_unresponsive_node_is_detected_by_the_conditions_of_its_pods():
    conditions = [condition("ContainersReady", "True"), condition("Ready", "False")]

    assert seen(main=runs(), conditions=conditions).disruption_reason == "NodeNotReady"


def test_a_pod_that_is_not_ready_yet_is_not_disrupted():
    conditions = [condition("ContainersReady", "False", "ContainersNotReady"), condition("Ready", "False")]

    assert seen(main=runs(), conditions=conditions).disruption_reason == ""


def test_a_sidecar_is_kept_only_if_it_has_a_problem():
    well, ill = runs("proxy"), waits("ErrImagePull", "not found", "logger")

    assert [one.name for one in seen(main=runs(), others=[well, ill]).other_containers] == ["logger"]


def test_a_failed_init_container_is_kept():
    failed = ended(1, name="prepare")
    found = seen(
        main=waits("PodInitializing"),
        spec={"initContainers": [{"name": "prepare", "image": IMAGE}]},
        initContainerStatuses=[failed],
    )

    assert [(one.name, one.crash_count) for one in found.other_containers] == [("prepare", 1)]


@pytest.mark.parametrize(
    ("limits", "device"),
    [
        ({"nvidia.com/gpu": "2", "cpu": "8"}, ("gpu", "2")),
        ({"cpu": "500m"}, ("cpu", "500m")),
        ({}, None),
        ({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1}, None),
    ],
)
def test_the_device_is_read_from_the_limits_of_the_main_container(limits, device):
    container = {"name": "node", "image": IMAGE, "resources": {"limits": limits}}

    assert seen(main=runs(), spec={"containers": [container]}).device == device


def test_a_step_starts_with_its_container():
    assert seen(main=runs()).started_at == datetime(2026, 11, 20, 10, 0, 5, tzinfo=timezone.utc)


def test_the_start_of_a_restarted_step_is_the_start_time_of_its_pod():
    assert seen(main=runs(restarts=1)).started_at == datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)


def test_a_pod_without_a_status_is_pending():
    raw = pod()
    del raw["status"]

    assert (
        pod_state.parse_pod(raw).phase,
        pod_state.parse_pod(raw).started_at,
        pod_state.parse_pod(raw).main_container.crash_count,
    ) == (
        "Pending",
        None,
        0,
    )


def test_an_initialize_only_pod_has_a_step_per_initializer():
    raw = pod("dataset-initializer", main=runs("model-initializer"), others=[runs("dataset-initializer")])
    raw["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "fetch"}
    found = pod_state.parse_pod(raw)

    assert found.job_name == "fetch"
    assert list(group_pods_by_step([found])) == ["dataset-initializer", "model-initializer"]


def test_steps_are_ordered_and_their_pods_are_sorted_by_age():
    found = group_pods_by_step(
        [
            seen("node-10"),
            seen("node-2", created="2026-11-20T10:05:00Z", rand="later"),
            seen("node-2"),
            seen("model-initializer"),
            seen("dataset-initializer"),
        ]
    )

    assert list(found) == ["dataset-initializer", "model-initializer", "node-2", "node-10"]
    assert [one.name for one in found["node-2"]] == ["digits-node-0-2-abcde", "digits-node-0-2-later"]


def test_the_state_of_a_running_pod_is_small():
    assert _size(seen(main=runs())) < 1024


def _size(record: Any) -> int:
    """Return the size in bytes of a dataclass without interned strings."""
    return sum(sys.getsizeof(part) for part in _parts(record) if not (isinstance(part, str) and part in _SHARED))


_SHARED = {"", "digits", "node", "node-0", "Running", "gpu-1", IMAGE, CREATED}


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inner = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    for part in [*inner, *(value if isinstance(value, tuple) else ())]:
        yield from _parts(part)
