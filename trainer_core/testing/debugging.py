"""Debugging: the function of a failed job runs again on this machine."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core.base.errors import UnsupportedError
from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints
from trainer_core.testing.case import BuildRequest, Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import raise_error, save_checkpoints

_PROJECT = {
    "steps/__init__.py": "",
    "steps/loss.py": "def divide(step):\n    return 1 / (9 - step)\n",
    "steps/train.py": "from .loss import divide\n\ndef train():\n    return [divide(step) for step in range(12)]\n",
}


def _fail_at_step_10(client: TrainerClient, build_request: BuildRequest) -> None:
    args, options = {"steps": 12, "fail_at": 10}, [Checkpoints(every_steps=3)]
    client.wait(client.submit(build_request(save_checkpoints, args, options=options)))


def _read_state(client: TrainerClient) -> tuple[object, ...]:
    """Return what is final once a job has ended. A cluster still removes its pods, which changes steps and events."""
    jobs = [(job.name, job.status) for job in client.list_jobs()]
    return jobs, client.get_job_outcome("job"), client.get_job_request("job")


class Debugging(Contract):
    """`debug` runs the function of a job on this machine, compares how it ends, and changes nothing of the job."""

    @applies_to(is_visible_to_other_clients=True)
    def test_a_deterministic_failure_recurs_here_at_the_same_line_and_the_job_stays_as_it_was(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        _fail_at_step_10(client, build_request)
        before = _read_state(client)
        result = client.debug("job", pdb=False)
        assert str(result) == "same error as job: UserCode in node-0: RuntimeError: failed at step 10"
        assert (result.same_error, result.outcome.checkpoint, result.outcome.resumed_from) == (True, 9, None)
        assert _read_state(client) == before

    @applies_to(is_visible_to_other_clients=True, reads_checkpoints=True)
    def test_it_starts_from_a_copy_of_a_checkpoint(self, client: TrainerClient, build_request: BuildRequest) -> None:
        _fail_at_step_10(client, build_request)
        saved = client.list_checkpoints("job")
        results = [client.debug("job", pdb=False, from_checkpoint=step) for step in (True, 6)]
        assert [(each.same_error, each.outcome.resumed_from) for each in results] == [(True, 9), (True, 6)]
        assert client.list_checkpoints("job") == saved

    @applies_to(is_visible_to_other_clients=True, reads_checkpoints=False)
    def test_a_checkpoint_that_only_nodes_can_read_is_refused(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        _fail_at_step_10(client, build_request)
        with pytest.raises(UnsupportedError, match=r"by nodes that mount it; .*; leave out from_checkpoint"):
            client.debug("job", pdb=False, from_checkpoint=True)

    @applies_to(is_visible_to_other_clients=True)
    def test_the_files_of_a_project_are_those_of_the_job(self, client: TrainerClient, tmp_path: Path, run: Run) -> None:
        for name, text in _PROJECT.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run("steps.train:train", code=tmp_path / "project")
        # Since then the user has edited it.
        (tmp_path / "project" / "steps" / "loss.py").write_text("raise ValueError\n")
        result = client.debug("job", pdb=False)
        assert str(result) == "same error as job: UserCode in node-0: ZeroDivisionError: division by zero"

    @applies_to(is_visible_to_other_clients=False)
    def test_a_job_of_this_process_is_not_debugged_elsewhere(self, client: TrainerClient, submit: Submit) -> None:
        submit(raise_error, {"reason": "no luck"})
        with pytest.raises(UnsupportedError, match=r"ran in this process: put breakpoint\(\) into its function"):
            client.debug("job")
