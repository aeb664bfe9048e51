"""Checkpoints: what a later attempt of a job resumes from."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from trainer_core.base.errors import UnsupportedError
from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, Name
from trainer_core.k8s import resources
from trainer_core.k8s.resources import ApiResource
from trainer_core.model.jobs import Category, Observation, Outcome
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.testing.case import (
    BackendCase,
    BuildRequest,
    Contract,
    Run,
    Submit,
    applies_to,
    count_nodes,
    wait_until_suspended,
)
from trainer_core.testing.training_functions import return_after_stop, save_checkpoints

if TYPE_CHECKING:
    from trainer_core.k8s.client import ApiClient

#: Seconds to wait for a checkpoint; far more than needed.
_TIMEOUT = 300.0
_NODES = ApiResource("", "v1", "nodes", "Node", namespaced=False)


def _build_owner(generation: int = 0, key: str | None = None) -> Owner:
    return Owner(key=key or f"owner/{uuid4().hex}", slug="train", generation=str(generation))


def _run_until_complete(client: TrainerClient, request: TrainJobRequest) -> list[Outcome]:
    """Submit a request until an attempt is complete, as an orchestrator; return the outcomes."""
    outcomes = [client.wait(client.submit(request))]
    while outcomes[-1].diagnosis and outcomes[-1].diagnosis.retryable and len(outcomes) < 4:
        outcomes.append(client.wait(client.submit(request)))
    return outcomes


def _wait_for_progress(client: TrainerClient, field: str) -> float:
    """Wait until a field of the progress has a value, and return it."""
    end = time.monotonic() + _TIMEOUT
    while not (value := getattr(client.observe("job").progress, field, None)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return float(value)


def _list_pods(client: TrainerClient) -> list[str]:
    return [step.pod_name for step in client.get_job("job").steps if step.pod_name]


def _get_api(case: BackendCase, client: TrainerClient) -> ApiClient:
    assert case.get_api is not None
    return case.get_api(client)


class Checkpointing(Contract):
    """Attempts of one owner and generation share checkpoints; no other job has them."""

    def test_a_retried_job_resumes_from_its_last_checkpoint(self, client: TrainerClient, submit: Submit) -> None:
        owner, options = _build_owner(), [Checkpoints(every_steps=1)]
        observations: list[Observation] = []

        def train(fail_at: int) -> Outcome:
            ref = submit(save_checkpoints, {"steps": 4, "fail_at": fail_at}, owner=owner, options=options)
            observations.clear()
            return client.wait(ref, on_observation=observations.append)

        failed = train(3)
        assert (failed.status, failed.checkpoint) == ("Failed", 2)
        resumed = train(0)
        assert (resumed.status, resumed.checkpoint, resumed.resumed_from) == ("Complete", 4, 2)
        assert resumed.result == {"from": 2, "saved": "2", "ranks": 1}
        # No step before the checkpoint is reported again.
        assert {each.progress.step for each in observations if each.progress} <= {None, 3, 4}

    def test_a_job_that_failed_before_its_first_checkpoint_starts_from_the_beginning(self, run: Run) -> None:
        owner, options = _build_owner(), [Checkpoints(every_steps=1)]
        for _ in range(2):
            args = {"steps": 2, "fail_at": 1}
            failed = run(save_checkpoints, args, owner=owner, options=options)
            assert (failed.status, failed.checkpoint, failed.resumed_from) == ("Failed", None, None)

    def test_a_cleared_task_starts_from_the_beginning_unless_it_asks_for_those_of_its_owner(self, run: Run) -> None:
        key = _build_owner().key

        def train(generation: int, steps: int, load: str = "fresh") -> object:
            owner, option = _build_owner(generation, key), Checkpoints(every_steps=1, load=load)
            return run(save_checkpoints, {"steps": steps}, owner=owner, options=[option]).result

        assert train(0, steps=2) == {"from": 0, "saved": "0", "ranks": 1}
        assert train(1, steps=1) == {"from": 0, "saved": "0", "ranks": 1}
        assert train(2, steps=3, load="owner") == {"from": 1, "saved": "1", "ranks": 1}

    def test_a_job_that_is_deleted_and_created_again_starts_from_the_beginning(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        for _ in range(2):
            request = build_request(save_checkpoints, {"steps": 2}, options=[Checkpoints(every_steps=1)])
            assert client.wait(client.submit(request)).result == {"from": 0, "saved": "0", "ranks": 1}
            client.delete_job("job")

    @applies_to(runs_in_background=True)
    def test_a_suspended_job_saves_and_resumes_where_it_was(self, client: TrainerClient, submit: Submit) -> None:
        # The only checkpoint is that of the suspension, for which a data worker must still live.
        options = [Checkpoints(every_steps=1_000_000)]
        submit(save_checkpoints, {"steps": 1_000_000, "has_worker": True}, options=options)
        reached = _wait_for_progress(client, "step")
        client.suspend("job")
        wait_until_suspended(client, "job")
        client.resume("job")
        assert _wait_for_progress(client, "resumed_from") >= reached

    def _start_training(self, client: TrainerClient, build_request: BuildRequest, nodes: int) -> float:
        """Start a training that does not end, and return the step of a checkpoint."""
        options = [Checkpoints(every_steps=10)]
        client.submit(build_request(save_checkpoints, {"steps": 1_000_000}, options=options, num_nodes=nodes))
        return _wait_for_progress(client, "checkpoint")

    @applies_to(runs_multiple_nodes=True, shares_checkpoints=True)
    def test_all_nodes_resume_from_the_same_checkpoint_after_a_process_of_one_was_killed(
        self, case: BackendCase, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        # The other process waits for the killed one until its grace is over.
        options = [Checkpoints(every_steps=1, grace=5)]
        args = {"steps": 4, "kill_at": 3}
        *failed, complete = _run_until_complete(
            client, build_request(save_checkpoints, args, owner=_build_owner(), options=options, num_nodes=2)
        )
        assert complete.result == {"from": 2, "saved": "2", "ranks": 2}
        assert (len(failed), complete.resumed_from) == (not case.restarts_processes, 2)

    @applies_to(runs_multiple_nodes=True, shares_checkpoints=False)
    def test_several_nodes_are_refused_where_one_node_can_mount_the_checkpoints(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        with pytest.raises(UnsupportedError, match="which one node can mount"):
            submit(save_checkpoints, {"steps": 1}, options=[Checkpoints()], num_nodes=2)
        assert client.list_jobs() == []

    def test_a_job_of_which_one_process_is_stopped_saves_and_resumes_at_the_same_step_on_all_nodes(
        self, case: BackendCase, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        options, nodes = [Checkpoints(every_seconds=0)], count_nodes(case)
        args = {"steps": 1_000_000, "stop_at": 3}
        *failed, complete = _run_until_complete(
            client, build_request(save_checkpoints, args, owner=_build_owner(), options=options, num_nodes=nodes)
        )
        resumed = complete.resumed_from
        assert resumed is not None
        assert resumed >= 3
        assert complete.result == {"from": resumed, "saved": f"{resumed:.0f}", "ranks": nodes}
        assert {each.diagnosis.category for each in failed if each.diagnosis} <= {Category.PREEMPTED}

    def test_a_function_that_returns_after_it_was_told_to_stop_has_its_result(self, run: Run) -> None:
        outcome = run(return_after_stop, options=[Checkpoints()])
        assert (outcome.status, outcome.result) == ("Complete", True)

    @applies_to(replaces_pods=True)
    def test_a_job_resumes_after_its_pod_was_deleted(
        self, case: BackendCase, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        saved = self._start_training(client, build_request, nodes=1)
        (pod,) = _list_pods(client)
        _get_api(case, client).delete(resources.PODS, pod, foreground=False)
        assert _wait_for_progress(client, "resumed_from") >= saved

    @applies_to(replaces_pods=True)
    def test_a_job_resumes_after_its_kubernetes_node_was_drained(
        self, case: BackendCase, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        saved = self._start_training(client, build_request, nodes=count_nodes(case))
        api, pods = _get_api(case, client), _list_pods(client)
        # No other pods are evicted: the cluster may have other users.
        node = api.get(resources.PODS, pods[-1])["spec"]["nodeName"]
        api.patch(_NODES, node, {"spec": {"unschedulable": True}})
        try:
            for pod in pods:
                if api.get(resources.PODS, pod)["spec"]["nodeName"] == node:
                    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
                    api.create(ApiResource("", "v1", f"pods/{pod}/eviction", "Eviction"), eviction)
        finally:
            api.patch(_NODES, node, {"spec": {"unschedulable": None}})
        assert _wait_for_progress(client, "resumed_from") >= saved

    def test_a_place_that_the_backend_does_not_have_is_refused_before_anything_is_created(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        options = [Checkpoints("s3://bucket", load="pvc://claim"), Name("job")]
        with pytest.raises(UnsupportedError, match="Checkpoints load: pvc://claim is at another kind of place"):
            submit(save_checkpoints, {"steps": 1}, options=options)
        assert client.list_jobs() == []
