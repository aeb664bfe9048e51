"""Checkpoints: what a later attempt of a job resumes from."""

# ruff: noqa: S101, D102 -- tests use assert, and their names describe them

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from trainer_core.client import TrainerClient
from trainer_core.errors import UnsupportedError
from trainer_core.jobs import Outcome
from trainer_core.options import Checkpoints, Name
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.testing.case import Contract, applies_to, wait_until_suspended
from trainer_core.testing.training_functions import save_checkpoints

__all__ = ["Checkpointing"]

BuildRequest = Callable[..., TrainJobRequest]
#: Seconds to wait for a checkpoint; far more than needed.
_TIMEOUT = 300.0


def _build_owner(generation: int = 0, key: str | None = None) -> Owner:
    return Owner(key=key or f"owner/{uuid4().hex}", slug="train", generation=str(generation))


def _wait_for_checkpoint(client: TrainerClient, name: str) -> float:
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        progress = client.observe(name).progress
        if progress is not None and progress.checkpoint:
            return progress.checkpoint
        time.sleep(0.05)
    raise AssertionError(f"{name} has no checkpoint")


class Checkpointing(Contract):
    """Attempts of one owner and generation share checkpoints; no other job has them."""

    def test_a_retried_job_resumes_from_its_last_checkpoint(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        owner, options = _build_owner(), [Checkpoints(every_steps=1)]

        def submit(fail_at: int) -> Outcome:
            args = {"steps": 4, "fail_at": fail_at}
            return client.wait(client.submit(build_request(save_checkpoints, args, owner=owner, options=options)))

        failed = submit(3)
        assert (failed.status, failed.checkpoint) == ("Failed", 2)
        resumed = submit(0)
        assert (resumed.status, resumed.checkpoint, resumed.resumed_from) == ("Complete", 4, 2)
        assert resumed.result == {"from": 2, "saved": "2", "ranks": 1}

    def test_a_job_that_failed_before_its_first_checkpoint_starts_from_the_beginning(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        owner, options = _build_owner(), [Checkpoints(every_steps=1)]
        for _ in range(2):
            args = {"steps": 2, "fail_at": 1}
            failed = client.wait(client.submit(build_request(save_checkpoints, args, owner=owner, options=options)))
            assert (failed.status, failed.checkpoint, failed.resumed_from) == ("Failed", None, None)

    def test_a_cleared_task_starts_from_the_beginning_unless_it_asks_for_those_of_its_owner(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        key = _build_owner().key

        def run(generation: int, steps: int, load: str = "fresh") -> object:
            owner, option = _build_owner(generation, key), Checkpoints(every_steps=1, load=load)
            request = build_request(save_checkpoints, {"steps": steps}, owner=owner, options=[option])
            return client.wait(client.submit(request)).result

        assert run(0, steps=2) == {"from": 0, "saved": "0", "ranks": 1}
        assert run(1, steps=1) == {"from": 0, "saved": "0", "ranks": 1}
        assert run(2, steps=3, load="owner") == {"from": 1, "saved": "1", "ranks": 1}

    def test_a_job_that_is_deleted_and_created_again_starts_from_the_beginning(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        for _ in range(2):
            request = build_request(save_checkpoints, {"steps": 2}, options=[Checkpoints(every_steps=1)])
            assert client.wait(client.submit(request)).result == {"from": 0, "saved": "0", "ranks": 1}
            client.delete_job("job")

    @applies_to(runs_in_background=True)
    def test_a_suspended_job_saves_and_resumes_where_it_was(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        args = {"steps": 1_000_000}
        client.submit(build_request(save_checkpoints, args, options=[Checkpoints(every_steps=10)]))
        first = _wait_for_checkpoint(client, "job")
        client.suspend("job")
        wait_until_suspended(client, "job")
        client.resume("job")
        end = time.monotonic() + _TIMEOUT
        while (progress := client.observe("job").progress) is None or not progress.resumed_from:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert progress.resumed_from >= first
        client.cancel("job")

    @applies_to(runs_multiple_nodes=True)
    def test_all_nodes_resume_from_the_same_checkpoint(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        owner, options = _build_owner(), [Checkpoints(every_steps=1)]
        for status, fail_at in (("Failed", 3), ("Complete", 0)):
            args = {"steps": 4, "fail_at": fail_at}
            request = build_request(save_checkpoints, args, owner=owner, options=options, num_nodes=2)
            outcome = client.wait(client.submit(request))
            assert outcome.status == status
        assert outcome.result == {"from": 2, "saved": "2", "ranks": 2}

    def test_a_place_that_the_backend_does_not_have_is_refused_before_anything_is_created(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        options = [Checkpoints("s3://bucket", load="pvc://claim"), Name("job")]
        request = build_request(save_checkpoints, {"steps": 1}, options=options)
        with pytest.raises(UnsupportedError, match="Checkpoints load: pvc://claim is at another kind of place"):
            client.submit(request)
        assert client.list_jobs() == []
