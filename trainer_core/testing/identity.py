"""Identity: what a job is called, whose it is, and how it is found again."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from trainer_core import naming
from trainer_core.client import TrainerClient
from trainer_core.errors import JobNotFoundError
from trainer_core.options import Annotations, Labels
from trainer_core.ref import TrainJobRef
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.testing.case import BackendCase, Contract, where
from trainer_core.testing.functions import returns
from trainer_core.trainers import CustomTrainer

__all__ = ["Identity"]

Ask = Callable[..., TrainJobRequest]


class Identity(Contract):
    """A job has one name and one owner, and a ref that leads to it."""

    def test_a_job_has_the_name_it_was_given(self, client: TrainerClient, ask: Ask) -> None:
        assert client.submit(ask(name="digits")).name == "digits"
        assert client.get_job("digits").name == "digits"

    def test_a_job_without_a_name_gets_one(self, case: BackendCase, client: TrainerClient) -> None:
        name = client.train(runtime=case.runtime, trainer=CustomTrainer(func=returns, image=case.image))
        assert naming.validate_name(name) == client.get_job(name).name

    @pytest.mark.parametrize("slug", ["train", "9 long Task-ids, with Ümlauts and more than a label can hold"])
    def test_the_name_of_an_owner_is_a_label_that_leaves_room_for_its_children(
        self, client: TrainerClient, ask: Ask, slug: str
    ) -> None:
        owner = Owner(key="dag/run/task", slug=slug)
        ref = client.submit(ask(owner=owner))
        assert naming.validate_name(ref.name) == naming.job_name(slug, owner.key)

    def test_owner_attempt_and_fingerprint_are_on_record(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(owner=Owner(key="dag/run/task", slug="train", generation="1"))
        name = client.submit(request).name
        (found,) = client.find(request)
        recorded = (found.name, found.owner_key, found.generation, found.attempt, found.fingerprint)
        assert recorded == (name, "dag/run/task", "1", 0, request.fingerprint())

    def test_a_job_can_say_what_was_asked_for(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(returns, {"value": "pa$$word `x` ü"}, name="digits", env={"DAY": "2024-01-01"})
        assert client.backend.request(client.submit(request)) == request

    def test_labels_and_annotations_are_on_the_job(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(options=[Labels({"team": "vision"}), Annotations({"note": "a b"})]))
        job = client.get_job("job")
        assert job.labels["team"] == "vision"
        assert job.annotations["note"] == "a b"

    def test_a_ref_leads_to_its_job_after_a_journey_as_json(self, client: TrainerClient, ask: Ask) -> None:
        ref = TrainJobRef.from_json(client.submit(ask()).to_json())
        assert client.wait(ref).job == ref == client.ref("job")

    @where(outlives_its_client=True)
    def test_another_client_finds_the_job(
        self, case: BackendCase, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        ref = client.submit(ask(returns, {"value": 7}))
        other = case.connect(tmp_path / "state")
        assert [job.name for job in other.list_jobs()] == ["job"]
        assert other.wait(ref).result == 7

    @where(outlives_its_client=False)
    def test_another_client_does_not_find_the_job(
        self, case: BackendCase, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        ref = client.submit(ask())
        other = case.connect(tmp_path / "state")
        assert other.list_jobs() == []
        with pytest.raises(JobNotFoundError):
            other.observe(ref)

    def test_jobs_are_listed_newest_first(self, client: TrainerClient, ask: Ask) -> None:
        for name in ("b", "c", "a"):
            client.submit(ask(name=name))
        jobs = client.list_jobs()
        # Some backends know the second only.
        assert jobs == sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)
        assert {job.name for job in jobs} == {"a", "b", "c"}

    def test_jobs_can_be_listed_by_runtime(self, case: BackendCase, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask())
        runtimes = {runtime.name: runtime for runtime in client.list_runtimes()}
        others = [runtime for name, runtime in runtimes.items() if name != case.runtime]
        assert [job.name for job in client.list_jobs(runtime=runtimes[case.runtime])] == ["job"]
        assert [job for runtime in others for job in client.list_jobs(runtime=runtime)] == []

    def test_every_runtime_that_is_listed_can_be_asked_for(self, case: BackendCase, client: TrainerClient) -> None:
        runtimes = client.list_runtimes()
        assert case.runtime in {runtime.name for runtime in runtimes}
        assert [client.get_runtime(runtime.name) for runtime in runtimes] == runtimes

    # An image is given where the runtimes are others' business: there may be no more than one, and its image away.
    @where(image=None)
    def test_there_is_a_runtime_where_none_is_named(self, client: TrainerClient) -> None:
        assert client.get_runtime(client.backend.default_runtime).name == client.backend.default_runtime

    @where(image=None)
    def test_the_packages_of_a_runtime_are_printed_and_returned(
        self, case: BackendCase, client: TrainerClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        packages = client.get_runtime_packages(client.get_runtime(case.runtime))
        assert capsys.readouterr().out.splitlines() == packages
        assert all("==" in package for package in packages)

    def test_a_job_tells_about_its_runtime_steps_and_times(
        self, case: BackendCase, client: TrainerClient, ask: Ask
    ) -> None:
        outcome = client.wait(client.submit(ask()))
        job = client.get_job("job")
        assert (job.runtime.name, job.num_nodes, job.status) == (case.runtime, 1, "Complete")
        assert [(step.name, step.status) for step in job.steps] == [("node-0", "Succeeded")]
        assert (job.uid, job.namespace) == (outcome.job.uid, outcome.job.namespace)
        started, finished = (datetime.fromisoformat(str(text)) for text in (outcome.started_at, outcome.finished_at))
        assert job.creation_timestamp <= started <= finished
