"""The option Reuse in KFP: another run takes the outputs of an earlier one, and its exit task deletes nothing."""

from __future__ import annotations

import kfp_definitions as definitions
import pytest
from kfp_driver import request_for

REQUEST = {**request_for(definitions.train_a_little, {"epochs": 2, "learning_rate": 0.1}), "reuse": {"within": 86400}}


@pytest.fixture
def first(task):
    """The task of the run that trains."""
    training = task("train", "first", run_id="run-1", request=REQUEST, metric_name="accuracy")
    finished = training.run()
    assert finished.returncode == 0, finished.stderr
    return training


def test_a_run_for_which_nothing_changed_has_the_outputs_of_the_earlier_one(task, client, first):
    second = task("train", "second", run_id="run-2", request=REQUEST, metric_name="accuracy")

    finished = second.run()

    assert (finished.returncode, len(client.list_jobs())) == (0, 1), finished.stderr
    assert (first.output("reused"), second.output("reused")) == (False, True)
    for name in ("status", "result", "metric"):
        assert second.output(name) == first.output(name)
    assert second.artifact("model").read_text() == "weights"


def test_data_of_another_run_with_the_same_content_is_the_same(task, client, tmp_path):
    """KFP gives each run separate URIs."""
    reused = []
    for run, content in (("1", "a,b"), ("2", "a,b"), ("3", "a,c")):
        data = tmp_path / f"run-{run}" / "data"
        data.mkdir(parents=True)
        (data / "ü.csv").write_text(content)
        training = task("train", run, run_id=f"run-{run}", request=REQUEST, artifacts={"dataset": data})
        assert training.run().returncode == 0
        reused.append(training.output("reused"))
    assert reused == [False, True, False]


def test_the_exit_tasks_of_a_run_delete_no_job_of_another_run(task, client, first):
    submitted = task("submit", "second", run_id="run-2", request=REQUEST)
    submitted.run()
    by_ref = task("delete", "by ref", run_id="run-2", job=submitted.output("job"))
    of_run = task("delete", "of run", run_id="run-2")

    for deleting in (by_ref, of_run):
        deleting.run()

    assert [deleting.output("deleted") for deleting in (by_ref, of_run)] == [[], []]
    assert len(client.list_jobs()) == 1


def test_a_task_that_waits_for_a_reused_job_says_so(task, first):
    submitted = task("submit", "second", run_id="run-2", request=REQUEST)
    submitted.run()
    waiting = task("wait", "waits", run_id="run-2", job=submitted.output("job"))

    waiting.run()

    assert (waiting.output("status"), waiting.output("reused")) == ("Complete", True)
