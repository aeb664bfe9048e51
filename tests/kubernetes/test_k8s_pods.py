"""A raw pod in, what is known of a step out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
from k8s_objects import CREATED, IMAGE, condition, disrupted, end, ended, pod, runs, seen, unscheduled, waits

from trainer_core.cluster import pods
from trainer_core.cluster.pods import by_step


def test_a_running_pod_tells_its_job_step_and_machine():
    found = seen(main=runs(restarts=2))

    assert (found.job, found.step, found.phase, found.node) == ("digits", "node-0", "Running", "gpu-1")
    assert (found.main.restarts, found.main.image) == (2, IMAGE)


@pytest.mark.parametrize("step", ["dataset-initializer", "model-initializer", "node-0", "node-11"])
def test_the_step_follows_from_replicated_job_and_index(step):
    assert seen(step).step == step


def test_the_index_of_older_clusters_is_an_annotation():
    raw = pod("node-3")
    index = raw["metadata"]["labels"].pop("batch.kubernetes.io/job-completion-index")
    raw["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": index}

    assert pods.read(raw).step == "node-3"


def test_the_launcher_of_an_mpi_job_is_the_first_node():
    assert seen("launcher", main=runs()).step == "node-0"


def test_nodes_behind_a_launcher_are_numbered_from_one():
    secret = {"name": "mpi-ssh-auth", "secret": {"secretName": "digits-mpi-ssh-auth"}}

    assert seen("node-0", spec={"volumes": [secret]}).step == "node-1"


def test_a_replicated_job_of_any_name_is_nodes_if_its_container_trains():
    assert seen("worker-2", main=runs()).step == "node-2"


def test_a_pod_that_only_helps_is_a_step_of_its_own():
    assert seen("metrics-0", main=runs("server")).step == "metrics-0"


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0), (1, 1), (137, -9), (139, -11), (143, -15), (128, 128), (255, 255)]
)
def test_exit_codes_of_signals_are_negative(code, expected):
    assert seen(main=ended(code)).main.ended.exit_code == expected


def test_a_signal_that_is_told_counts():
    assert seen(main=ended(1, signal=9)).main.ended.exit_code == -9


def test_the_run_before_is_remembered_with_its_message():
    found = seen(main=waits("CrashLoopBackOff", "back-off 10s", restarts=1, last=end(1, "it said why")))

    assert (found.main.waiting, found.main.last.exit_code, found.main.last.message) == (
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
def test_crashes_are_counted_also_before_the_restart_that_follows(main, crashes):
    assert seen(main=main).main.crashes == crashes


def test_a_termination_message_is_kept_whole_and_other_texts_are_cut():
    found = seen(main=ended(1, message="x" * 4096), message="y\n" * 9000, reason="Evicted")

    assert len(found.main.ended.message) == 4096
    assert len(found.message) == 300
    assert "\n" not in found.message


def test_a_pod_that_no_machine_takes_says_why():
    found = seen(**unscheduled("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))

    assert (found.unscheduled, found.node) == ("Unschedulable", None)
    assert "Insufficient nvidia.com/gpu" in found.unscheduled_message


def test_a_pod_that_has_to_leave_says_why():
    assert seen(main=runs(), **disrupted("PreemptionByScheduler")).disruption == "PreemptionByScheduler"


def test_a_machine_that_does_not_answer_is_seen_by_the_conditions_of_its_pods():
    conditions = [condition("ContainersReady", "True"), condition("Ready", "False")]

    assert seen(main=runs(), conditions=conditions).disruption == "NodeNotReady"


def test_a_pod_that_is_not_ready_yet_is_not_disrupted():
    conditions = [condition("ContainersReady", "False", "ContainersNotReady"), condition("Ready", "False")]

    assert seen(main=runs(), conditions=conditions).disruption == ""


def test_a_sidecar_is_kept_only_where_something_is_wrong_with_it():
    well, ill = runs("proxy"), waits("ErrImagePull", "not found", "logger")

    assert [one.name for one in seen(main=runs(), others=[well, ill]).others] == ["logger"]


def test_an_init_container_that_fails_is_kept():
    failed = ended(1, name="prepare")
    found = seen(
        main=waits("PodInitializing"),
        spec={"initContainers": [{"name": "prepare", "image": IMAGE}]},
        initContainerStatuses=[failed],
    )

    assert [(one.name, one.crashes) for one in found.others] == [("prepare", 1)]


@pytest.mark.parametrize(
    ("limits", "device"),
    [
        ({"nvidia.com/gpu": "2", "cpu": "8"}, ("gpu", "2")),
        ({"cpu": "500m"}, ("cpu", "500m")),
        ({}, None),
        ({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1}, None),
    ],
)
def test_the_device_is_what_the_main_container_is_limited_to(limits, device):
    container = {"name": "node", "image": IMAGE, "resources": {"limits": limits}}

    assert seen(main=runs(), spec={"containers": [container]}).device == device


def test_a_step_began_when_its_container_did():
    assert seen(main=runs()).started == datetime(2026, 11, 20, 10, 0, 5, tzinfo=timezone.utc)


def test_a_step_that_was_started_again_began_when_its_machine_took_it():
    assert seen(main=runs(restarts=1)).started == datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)


def test_a_pod_of_which_nothing_is_known_yet_is_pending():
    raw = pod()
    del raw["status"]

    assert (pods.read(raw).phase, pods.read(raw).started, pods.read(raw).main.crashes) == ("Pending", None, 0)


def test_a_job_that_only_initializes_is_a_step_for_each_initializer():
    raw = pod("dataset-initializer", main=runs("model-initializer"), others=[runs("dataset-initializer")])
    raw["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "fetch"}
    found = pods.read(raw)

    assert found.job == "fetch"
    assert list(by_step([found])) == ["dataset-initializer", "model-initializer"]


def test_steps_are_in_order_and_their_pods_oldest_first():
    found = by_step(
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


def test_what_is_kept_of_a_running_pod_is_small():
    assert _size(seen(main=runs())) < 1024


def _size(record: Any) -> int:
    """Bytes of a record without the texts that all pods share."""
    return sum(sys.getsizeof(part) for part in _parts(record) if not (isinstance(part, str) and part in _SHARED))


_SHARED = {"", "digits", "node", "node-0", "Running", "gpu-1", IMAGE, CREATED}


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inner = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    for part in [*inner, *(value if isinstance(value, tuple) else ())]:
        yield from _parts(part)
