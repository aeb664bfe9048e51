"""`trainjob checkpoints` lists and prunes the checkpoints of a TrainJob; `trainjob reap --checkpoints` expires them."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trainer_core import (
    Checkpoints,
    CustomTrainer,
    LocalProcessBackendConfig,
    Name,
    RestartPolicy,
    TrainerClient,
    TrainJobRequest,
)
from trainer_core.base.errors import UnsupportedError
from trainer_core.client.saved_checkpoints import list_saved
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
    submit("job", 4, Checkpoints(every_steps=1, keep=9, keep_best="loss", mode="max", after="all")).wait("job")

    header, *lines = trainjob("checkpoints", "job").stdout.splitlines()
    assert header.split() == ["STEP", "SIZE", "SAVED", "JOB", "WHICH", "METRICS"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    assert [line.split("job")[1].split()[:-1] for line in lines] == [["best"], [], [], ["newest"]]
    found = trainjob.json("checkpoints", "job")
    assert [(each["step"], each["newest"], each["best"], each["loaded"]) for each in found] == [
        (1, False, True, False),
        (2, False, False, False),
        (3, False, False, False),
        (4, True, False, False),
    ]
    assert (found[3]["size"], found[3]["metrics"], found[3]["job"]) == (1, {"loss": 0.25}, "job")
    assert Path(urlsplit(found[3]["uri"]).path, "rank-0.txt").read_text() == "4"

    assert [each["step"] for each in trainjob.json("checkpoints", "job", "--prune")] == [2, 3]
    assert [each["step"] for each in trainjob.json("checkpoints", "job")] == [1, 4]


def train_until_broken(marker: str) -> list:
    """Save steps 1 and 2 and fail; continue after the marker exists."""
    import pathlib

    from trainer_core import checkpoints

    store = checkpoints()
    last = store.latest()
    first = last.step + 1 if last else 1
    for step in range(first, 5):
        with store.save(step) as folder:
            (folder / "state.txt").write_text(str(step))
        if step == 2 and not pathlib.Path(marker).exists():
            raise ValueError("broken")
    return [first, 4]


@pytest.fixture
def broken(tmp_path):
    """Client of a job, `nightly`, that has failed after two checkpoints; the cause is gone."""
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    trainer = CustomTrainer(func=train_until_broken, func_args={"marker": str(tmp_path / "marker")})
    options = [Name("nightly"), Checkpoints(every_steps=1, after="all")]
    client.wait(client.train(runtime="python", trainer=trainer, options=options))
    (tmp_path / "marker").touch()
    return client


def test_a_retry_continues_from_the_last_checkpoint_and_is_started_once(trainjob, broken):
    done = trainjob("retry", "nightly", "--wait")
    assert (done.returncode, done.stdout) == (0, "nightly-1 Complete [3, 4]\n")
    assert broken.get_job_outcome("nightly-1").resumed_from == 2
    assert broken.retry("nightly").name == "nightly-1"
    assert sorted(job.name for job in broken.list_jobs()) == ["nightly", "nightly-1"]
    again = trainjob("retry", "nightly-1")
    assert (again.returncode, again.stderr) == (
        2,
        "trainjob: TrainJob 'nightly-1' is Complete; only a failed one can be retried\n",
    )


def test_a_retry_of_a_retry_that_saved_nothing_continues_too(trainjob, broken, tmp_path):
    (tmp_path / "marker").unlink()
    first = broken.get_job_request("nightly").policy.checkpoints
    broken.backend.cancel(broken.retry("nightly"))
    broken.wait("nightly-1")
    (tmp_path / "marker").touch()
    assert broken.retry("nightly-1").name == "nightly-2"
    assert broken.wait("nightly-2").result[1] == 4
    assert broken.get_job_outcome("nightly-2").resumed_from >= 2
    assert first.nonce in broken.get_job_request("nightly-2").policy.checkpoints.scope


def test_a_job_can_start_from_the_uri_of_a_listed_checkpoint(trainjob, broken, tmp_path):
    uri = trainjob.json("checkpoints", "nightly")[0]["uri"]
    trainer = CustomTrainer(func=train_until_broken, func_args={"marker": str(tmp_path / "marker")})
    options = [Name("other"), Checkpoints(every_steps=1, load=uri)]
    assert broken.wait(broken.train(runtime="python", trainer=trainer, options=options)).result == [2, 4]


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
    Path(urlsplit(trainjob.json("checkpoints", "job")[1]["uri"]).path, "manifest.json").write_text("{")

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


def exit_once(marker: str) -> str:
    import pathlib
    import sys

    if not pathlib.Path(marker).exists():
        pathlib.Path(marker).touch()
        sys.exit(17)
    return "trained"


def test_a_command_that_waits_reports_a_restart_and_get_shows_it(trainjob, tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    trainer = CustomTrainer(func=exit_once, func_args={"marker": str(tmp_path / "begun")})
    policy = RestartPolicy(exit_codes={17: "free"}, delay=0)
    client.train(runtime="python", trainer=trainer, options=[Name("job"), policy])
    waited = trainjob("wait", "job")
    assert (waited.returncode, waited.stdout) == (0, "job Complete trained\n"), waited.stderr
    assert "restarts: 0 of 3 (UserCode; 1 was free)\n" in trainjob("get", "job").stdout
