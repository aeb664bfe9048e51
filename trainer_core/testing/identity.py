"""Identity: names, owners, refs and listings of jobs."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from trainer_core.base import naming
from trainer_core.base.errors import ConflictError, JobNotFoundError
from trainer_core.client import TrainerClient
from trainer_core.definition.options import Annotations, Labels, Partition
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import Owner
from trainer_core.testing.case import BackendCase, BuildRequest, Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import return_env, return_value


class Identity(Contract):
    """A job has one name and one owner, and its ref finds it."""

    def test_a_job_has_its_given_name(self, client: TrainerClient, submit: Submit) -> None:
        assert submit(name="digits").name == "digits"
        assert client.get_job("digits").name == "digits"

    def test_a_job_without_a_name_gets_a_generated_name(self, case: BackendCase, client: TrainerClient) -> None:
        name = client.train(runtime=case.runtime, trainer=CustomTrainer(func=return_value, image=case.image))
        assert naming.validate_name(name) == client.get_job(name).name

    @pytest.mark.parametrize("slug", ["train", "9 long Task-ids, with Ümlauts and more than a label can hold"])
    def test_a_name_derived_from_the_owner_is_a_valid_dns_label(self, slug: str, submit: Submit) -> None:
        owner = Owner(key="dag/run/task", slug=slug)
        ref = submit(owner=owner)
        assert naming.validate_name(ref.name) == naming.build_job_name(slug, owner.key)

    def test_a_job_records_owner_attempt_and_fingerprint(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(owner=Owner(key="dag/run/task", slug="train", generation="1"))
        name = client.submit(request).name
        (existing,) = client.find_jobs(request)
        recorded = (existing.name, existing.owner_key, existing.generation, existing.attempt, existing.fingerprint)
        assert recorded == (name, "dag/run/task", "1", 0, request.fingerprint())

    def test_a_job_returns_its_request(self, client: TrainerClient, build_request: BuildRequest) -> None:
        request = build_request(return_value, {"value": "pa$$word `x` ü"}, name="digits", env={"DAY": "2024-01-01"})
        assert client.get_job_request(client.submit(request)) == request

    def test_a_job_has_the_labels_and_annotations_of_its_request(self, client: TrainerClient, submit: Submit) -> None:
        submit(options=[Labels({"team": "vision"}), Annotations({"note": "a b"})])
        job = client.get_job("job")
        assert job.labels["team"] == "vision"
        assert job.annotations["note"] == "a b"

    def test_a_job_of_a_partition_is_listed_by_it_and_its_function_finds_the_key(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        key = "EMEA / $(HOME) ü"
        ref = submit(return_env, {"name": "TRAINJOB_PARTITION"}, options=[Partition(key)])
        submit(name="other", options=[Partition("emea")])
        assert client.wait(ref).result == key
        assert [(job.name, job.partition) for job in client.list_jobs(partition=key)] == [("job", key)]

    def test_a_job_of_another_partition_is_not_attached_to(self, client: TrainerClient, submit: Submit) -> None:
        submit(options=[Partition("emea")])
        assert submit(options=[Partition("emea")]) == client.get_job_ref("job")
        with pytest.raises(ConflictError, match=r"'job' trains for partition 'emea', not 'apac'; choose another"):
            submit(options=[Partition("apac")])

    def test_a_ref_parsed_from_json_finds_its_job(self, client: TrainerClient, submit: Submit) -> None:
        ref = TrainJobRef.from_json(submit().to_json())
        assert client.wait(ref).job == ref == client.get_job_ref("job")

    @applies_to(is_visible_to_other_clients=True)
    def test_another_client_finds_the_job(self, case: BackendCase, tmp_path: Path, submit: Submit) -> None:
        ref = submit(return_value, {"value": 7})
        other = case.connect(tmp_path / "state")
        assert [job.name for job in other.list_jobs()] == ["job"]
        assert other.wait(ref).result == 7

    @applies_to(is_visible_to_other_clients=False)
    def test_another_client_does_not_find_the_job(self, case: BackendCase, tmp_path: Path, submit: Submit) -> None:
        ref = submit()
        other = case.connect(tmp_path / "state")
        assert other.list_jobs() == []
        with pytest.raises(JobNotFoundError):
            other.observe(ref)

    def test_jobs_are_listed_newest_first(self, client: TrainerClient, submit: Submit) -> None:
        for name in ("b", "c", "a"):
            submit(name=name)
        jobs = client.list_jobs()
        # Some backends store the creation time in whole seconds.
        assert jobs == sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)
        assert {job.name for job in jobs} == {"a", "b", "c"}

    def test_jobs_can_be_listed_by_runtime(self, case: BackendCase, client: TrainerClient, submit: Submit) -> None:
        submit()
        runtimes = {runtime.name: runtime for runtime in client.list_runtimes()}
        others = [runtime for name, runtime in runtimes.items() if name != case.runtime]
        assert [job.name for job in client.list_jobs(runtime=runtimes[case.runtime])] == ["job"]
        assert [job for runtime in others for job in client.list_jobs(runtime=runtime)] == []

    def test_every_listed_runtime_can_be_read(self, case: BackendCase, client: TrainerClient) -> None:
        runtimes = client.list_runtimes()
        assert case.runtime in {runtime.name for runtime in runtimes}
        assert [client.get_runtime(runtime.name) for runtime in runtimes] == runtimes

    # On a real cluster (image is set) the default runtime may be missing, and its image may not exist.
    @applies_to(image=None)
    def test_the_default_runtime_exists(self, client: TrainerClient) -> None:
        assert client.get_runtime(client.backend.default_runtime).name == client.backend.default_runtime

    @applies_to(image=None)
    def test_the_packages_of_a_runtime_are_printed_and_returned(
        self, case: BackendCase, client: TrainerClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        packages = client.get_runtime_packages(client.get_runtime(case.runtime))
        assert capsys.readouterr().out.splitlines() == packages
        assert packages
        assert all("==" in package for package in packages)

    def test_a_complete_job_has_runtime_steps_and_timestamps(
        self, case: BackendCase, client: TrainerClient, run: Run
    ) -> None:
        outcome = run()
        job = client.get_job("job")
        assert (job.runtime.name, job.num_nodes, job.status) == (case.runtime, 1, "Complete")
        assert [(step.name, step.status) for step in job.steps] == [("node-0", "Succeeded")]
        assert (job.uid, job.namespace) == (outcome.job.uid, outcome.job.namespace)
        started, finished = (datetime.fromisoformat(str(text)) for text in (outcome.started_at, outcome.finished_at))
        assert job.creation_timestamp <= started <= finished
