"""More memory: the next attempt after one that ran out of memory asks for more."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, MoreMemory
from trainer_core.model.jobs import AttemptMemory, Category
from trainer_core.model.request import MoreMemory as Policy, Owner, TrainJobRequest
from trainer_core.testing.case import BuildRequest, Contract, Submit, applies_to
from trainer_core.testing.training_functions import run_out_of_memory

_TASK = Owner(key="dag/run/task", slug="train", generation="1")
#: The same task after a user has cleared it.
_CLEARED = Owner(key="dag/run/task", slug="train", generation="2")
_OPTIONS = [Checkpoints(every_steps=1), MoreMemory("768Mi")]
_RESOURCES = {"memory": "512Mi"}


class MemoryOfAttempts(Contract):
    """With the option `MoreMemory` an attempt asks for more memory than the one that ran out of it."""

    @applies_to(limits_memory=True)
    def test_an_attempt_after_one_without_enough_memory_asks_for_more_up_to_the_limit(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(run_out_of_memory, owner=_TASK, options=_OPTIONS, resources_per_node=_RESOURCES)
        outcomes = []
        for _ in range(2):
            ref = client.submit(request)

            outcomes.append(client.wait(ref))
        first, second = [outcome.diagnosis for outcome in outcomes]
        assert [outcome.memory for outcome in outcomes] == [
            AttemptMemory(amount="512Mi", asked="512Mi", next="768Mi"),
            AttemptMemory(amount="768Mi", asked="512Mi"),
        ]
        assert first is not None
        assert second is not None
        assert (first.category, first.retryable) == (Category.OUT_OF_MEMORY, True)
        assert "512Mi was not enough, the next attempt asks for 768Mi" in first.reason
        assert (second.category, second.retryable) == (Category.OUT_OF_MEMORY, False)
        assert "768Mi, the limit of MoreMemory, was not enough" in second.reason
        assert (outcomes[1].resumed_from or 0) >= 1
        assert len({job.fingerprint for job in client.find_jobs(request)}) == 1

    @applies_to(limits_memory=True)
    def test_a_cleared_task_asks_for_the_memory_of_the_request(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        def ask(owner: Owner) -> TrainJobRequest:
            return build_request(run_out_of_memory, owner=owner, options=_OPTIONS, resources_per_node=_RESOURCES)

        client.wait(client.submit(ask(_TASK)))
        cleared = client.wait(client.submit(ask(_CLEARED)))
        assert cleared.memory == AttemptMemory(amount="512Mi", asked="512Mi", next="768Mi")

    @applies_to(limits_memory=True)
    def test_more_memory_without_the_memory_of_the_first_attempt_is_refused(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        with pytest.raises(ValueError, match=r"^MoreMemory: the request names no memory"):
            submit(options=[MoreMemory("1Gi")])
        assert client.list_jobs() == []

    @applies_to(limits_memory=False)
    def test_more_memory_is_refused_by_a_backend_that_does_not_limit_it(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="MoreMemory option is not compatible"):
            build_request(options=[MoreMemory("1Gi")])
        with pytest.raises(ValueError, match="more_memory"):
            client.submit(build_request().with_fields(more_memory=Policy(limit="1Gi")))
        assert client.list_jobs() == []
