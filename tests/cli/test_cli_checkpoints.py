"""`trainjob checkpoints` lists and prunes the checkpoints of a TrainJob; `trainjob reap --checkpoints` expires them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer_core import (
    Checkpoints,
    CustomTrainer,
    LocalProcessBackendConfig,
    Name,
    TrainerClient,
    TrainJobRequest,
)
from trainer_core.errors import UnsupportedError
from trainer_core.saved_checkpoints import list_saved
from trainer_core.testing.training_functions import save_checkpoints


@pytest.fixture
def submit(trainjob, tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))

    def submit(name, steps, *options):
        trainer = CustomTrainer(func=save_checkpoints, func_args={"steps": steps})
        client.train(runtime="python", trainer=trainer, options=[Name(name), *options])
        return client

    return submit


def test_the_checkpoints_of_a_job_are_listed_and_pruned(trainjob, submit):
    submit("job", 4, Checkpoints(every_steps=1, keep=9, keep_best="-loss", after="all")).wait("job")

    header, *lines = trainjob("checkpoints", "job").stdout.splitlines()
    assert header.split() == ["STEP", "SIZE", "SAVED", "JOB", "WHICH", "METRICS"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    found = trainjob.json("checkpoints", "job")
    assert [(each["step"], each["newest"], each["best"], each["loaded"]) for each in found] == [
        (1, False, True, False),
        (2, False, False, False),
        (3, False, False, False),
        (4, True, False, False),
    ]
    assert (found[3]["size"], found[3]["metrics"], found[3]["job"]) == (1, {"loss": 0.25}, "job")
    assert Path(found[3]["uri"], "rank-0.txt").read_text() == "4"

    assert [each["step"] for each in trainjob.json("checkpoints", "job", "--prune")] == [2, 3]
    assert [each["step"] for each in trainjob.json("checkpoints", "job")] == [1, 4]


def save_without_progress() -> None:
    from trainer_core import checkpoints

    with checkpoints().save(1) as folder:
        (folder / "state.txt").write_text("state")


def test_the_log_of_a_job_that_reports_checkpoints_only_is_printed(trainjob, tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    trainer = CustomTrainer(func=save_without_progress)
    client.wait(client.train(runtime="python", trainer=trainer, options=[Name("job"), Checkpoints()]))
    done = trainjob("logs", "job")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("trainjob: checkpoint of step 1 is complete")


def test_a_damaged_checkpoint_is_not_listed_and_the_list_stays_json(trainjob, submit):
    submit("job", 2, Checkpoints(every_steps=1, after="all")).wait("job")
    Path(trainjob.json("checkpoints", "job")[1]["uri"], "manifest.json").write_text("{")

    assert [each["step"] for each in trainjob.json("checkpoints", "job")] == [1]


def test_the_checkpoints_of_a_job_that_has_not_ended_are_not_pruned(trainjob, submit):
    client = submit("job", 1_000_000, Checkpoints(every_steps=1))
    refused = trainjob("checkpoints", "job", "--prune")
    assert (refused.returncode, "has not ended" in refused.stderr) == (2, True)
    client.cancel("job")
    client.wait("job")
    assert trainjob("checkpoints", "job", "--prune").returncode == 0


def test_a_job_without_the_option_has_no_checkpoints_to_list(trainjob, submit):
    submit("job", 1).wait("job")
    refused = trainjob("checkpoints", "job")
    assert (refused.returncode, "'job' has no option Checkpoints" in refused.stderr) == (2, True)


def test_checkpoints_in_a_claim_are_read_by_nodes_only():
    trainer = {"kind": "container", "image": "x:1"}
    request = TrainJobRequest.parse({"name": "job", "trainer": trainer, "checkpoints": {"uri": "pvc://claim"}})
    with pytest.raises(UnsupportedError, match="pvc://claim can only be read by nodes that mount it"):
        list_saved(request, "pvc://claim")


def test_reap_deletes_checkpoints_whose_time_is_over(trainjob, submit, tmp_path):
    place = tmp_path / "place"
    for name, ttl in (("kept", 0), ("young", 3600), ("old", 3600)):
        submit(name, 1, Checkpoints(place.as_uri(), every_steps=1, ttl=ttl)).wait(name)
    for name in ("kept", "old"):
        (start,) = place.glob(f"{name}-*/g-0/start.json")
        os.utime(start, (0, 0))

    done = trainjob("reap", "--checkpoints", place.as_uri())

    assert done.stdout.strip() == str(next(place.glob("old-*/")) / "g-0")
    assert sorted(path.parent.parent.name.partition("-")[0] for path in place.glob("*/*/step-*")) == ["kept", "young"]
    refused = trainjob("reap", "--checkpoints", "pvc://claim")
    assert "can only be read by nodes" in refused.stderr
