"""Reuse: a training that nothing has changed for takes the result of an earlier one."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from typing import Any

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, Reuse
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import Owner, Reuse as Policy, TrainJobRequest
from trainer_core.testing.case import BackendCase, BuildRequest, Contract, applies_to
from trainer_core.testing.training_functions import return_value

_DAYS = Reuse("30d")


def _task(run: str, generation: str = "1") -> Owner:
    return Owner(key=f"dag/{run}/train", slug="train", generation=generation)


class Reusing(Contract):
    """With the option `Reuse` a training for which nothing has changed takes the result of an earlier TrainJob."""

    @pytest.fixture
    def build_run(self, case: BackendCase, build_request: BuildRequest) -> BuildRequest:
        """Builds the request of a task in a run: ``build_run("monday", {args})``."""
        image = {"image": case.image_with_digest} if case.image_with_digest else {}

        def build_run(run: str, args: dict[str, Any] | None = None, **fields: Any) -> TrainJobRequest:
            fields = {"owner": _task(run), "options": [_DAYS], **image, **fields}
            return build_request(return_value, args or {"value": 7}, **fields)

        return build_run

    @applies_to(knows_versions=True)
    def test_a_run_for_which_nothing_changed_takes_the_result_of_the_earlier_one_and_changes_nothing(
        self, client: TrainerClient, build_run: BuildRequest
    ) -> None:
        first = client.submit(build_run("monday"))
        client.wait(first)
        created: list[bool] = []
        second = client.submit(build_run("tuesday"), before_create=lambda: created.append(True))
        outcome = client.wait(second)
        assert (second, second.reused, first.reused, created) == (first, True, False, [])
        assert (outcome.result, outcome.reused, outcome.reused_from) == (7, True, first.name)
        assert TrainJobRef.from_json(second.to_json()).reused
        client.cancel(second)
        client.delete_job(second)
        assert [job.name for job in client.list_jobs()] == [first.name]
        assert client.wait(first).result == 7

    @applies_to(knows_versions=True)
    def test_another_argument_or_partition_or_a_run_without_the_option_trains(
        self, client: TrainerClient, build_run: BuildRequest
    ) -> None:
        first = client.submit(build_run("monday"))
        client.wait(first)
        others = [
            build_run("tuesday", {"value": 8}),
            build_run("wednesday").with_fields(partition="emea"),
            build_run("thursday", options=[]),
        ]
        refs = [client.submit(request) for request in others]
        assert [client.wait(ref).reused for ref in refs] == [False] * 3
        assert len({first.name, *(ref.name for ref in refs)}) == 4

    @applies_to(knows_versions=True)
    def test_what_was_deleted_is_not_reused(self, client: TrainerClient, build_run: BuildRequest) -> None:
        first = client.submit(build_run("monday"))
        client.wait(first)
        client.delete_job(first)
        second = client.submit(build_run("tuesday"))
        assert (client.wait(second).reused, second == first) == (False, False)

    @applies_to(knows_versions=True)
    def test_a_cleared_task_trains_and_its_retry_attaches(self, client: TrainerClient, build_run: BuildRequest) -> None:
        first = client.submit(build_run("monday"))
        client.wait(first)
        cleared = build_run("monday", owner=_task("monday", generation="2"))
        second = client.submit(cleared)
        assert (second == first, client.wait(second).reused) == (False, False)
        assert (client.submit(cleared) == second, client.submit(cleared).reused) == (True, False)

    @applies_to(knows_versions=True)
    def test_what_is_unknown_trains_with_a_warning_that_names_it(
        self, client: TrainerClient, build_run: BuildRequest, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = [_DAYS, Checkpoints(load="owner")]
        refs = [client.submit(build_run(run, options=options)) for run in ("monday", "tuesday")]
        assert [client.wait(ref).reused for ref in refs] == [False, False]
        assert "trains, because not all is known: Checkpoints load=owner" in caplog.text

    @applies_to(knows_versions=False)
    def test_reuse_is_refused_by_a_backend_that_does_not_know_what_it_runs(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="Reuse option is not compatible"):
            build_request(options=[_DAYS])
        with pytest.raises(ValueError, match="reuse"):
            client.submit(build_request().with_fields(reuse=Policy(within=60)))
        assert client.list_jobs() == []
