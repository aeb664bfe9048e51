"""The option Reuse in a task: an earlier result is returned or the task skipped; the other job stays as it is."""

from __future__ import annotations

import pytest

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.manage import DeleteTrainJobOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer, Reuse
from trainer_core.testing.recorder import completes, fails

MODEL = ModelAsset("digits")


def score(value: float = 0.5) -> dict:
    return {"r2": value}


def a_task(**arguments):
    return TrainJobOperator(
        **{
            "task_id": "train",
            "runtime": "python",
            "trainer": CustomTrainer(score),
            "options": [Reuse("30d")],
            **arguments,
        }
    )


@pytest.fixture
def first(trainjob_recorder, run_trainjob_task):
    """The run that trained."""
    trainjob_recorder.script(completes({"r2": 0.5}))
    return run_trainjob_task(a_task(outlets=[MODEL]))


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_run_for_which_nothing_changed_returns_the_result_of_the_earlier_one(
    first, trainjob_recorder, run_trainjob_task, deferrable
):
    second = run_trainjob_task(a_task(outlets=[MODEL], deferrable=deferrable))

    assert (second.state, second.returned, second.triggers) == ("success", first.returned, ())
    assert second.xcoms["ref"] == {**first.xcoms["ref"], "reused": True}
    assert [second.xcoms[key] for key in ("status", "metrics")] == ["Complete", {"r2": 0.5}]
    assert second.get_asset_extra(MODEL)["reused"] is True
    assert "reused" not in first.get_asset_extra(MODEL)
    assert len(trainjob_recorder.jobs) == 1


@pytest.mark.parametrize("wait_for_completion", [True, False])
def test_a_run_for_which_nothing_changed_can_be_skipped(
    first, trainjob_recorder, run_trainjob_task, wait_for_completion
):
    second = run_trainjob_task(a_task(on_reuse="skip", wait_for_completion=wait_for_completion))

    assert (second.state, second.xcoms["metrics"]) == ("skipped", {"r2": 0.5})
    assert str(second.error) == f"nothing has changed since TrainJob {first.xcoms['ref']['name']} (Reuse)"
    assert len(trainjob_recorder.jobs) == 1


def test_a_run_that_trains_is_not_skipped(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes({"r2": 0.5}))
    assert run_trainjob_task(a_task(on_reuse="skip")).state == "success"


def test_a_sensor_says_that_the_result_is_reused(first, trainjob_recorder, run_trainjob_task):
    ref = run_trainjob_task(a_task(wait_for_completion=False)).returned
    waited = run_trainjob_task(TrainJobSensor(task_id="wait", job=ref, outlets=[MODEL]))

    assert (waited.returned, waited.get_asset_extra(MODEL)["reused"]) == ({"r2": 0.5}, True)


def test_the_end_of_a_run_deletes_no_job_of_another_run(first, trainjob_recorder, run_trainjob_task):
    second = run_trainjob_task(a_task())
    for job in (second.xcoms["ref"], first.xcoms["ref"]):
        left = [not each.deleted for each in trainjob_recorder.jobs]
        run_trainjob_task(DeleteTrainJobOperator(task_id="delete", job=job))
    assert (left, trainjob_recorder.jobs[0].deleted) == ([True], True)


def test_a_task_that_is_killed_does_not_cancel_the_job_of_another_run(first, trainjob_recorder):
    from airflow_provider.testing.tasks import StandInTaskInstance

    task = a_task(wait_for_completion=False)
    task.execute({"ti": StandInTaskInstance()})
    trainjob_recorder.jobs[0].outcome = None  # As if it still ran.
    task.on_kill()
    assert not trainjob_recorder.jobs[0].cancelled


def test_a_cleared_task_trains_whether_it_trained_before_or_not(first, trainjob_recorder, run_trainjob_task):
    second = run_trainjob_task(a_task())
    for finished in (first, second):
        cleared = finished.clear()
        assert (cleared.state, "reused" in cleared.xcoms["ref"]) == ("success", False)
    assert len(trainjob_recorder.jobs) == 3


def test_the_next_try_after_a_worker_was_lost_gets_the_same_result(first, trainjob_recorder, run_trainjob_task):
    second = run_trainjob_task(a_task(retries=1))
    assert second.retry().xcoms["ref"] == second.xcoms["ref"]
    assert len(trainjob_recorder.jobs) == 1


def test_a_failed_run_is_not_reused(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(fails("UserCode"), completes({"r2": 0.5}))
    assert [run_trainjob_task(a_task()).state for _ in range(2)] == ["failed", "success"]


def test_what_happens_with_an_earlier_result_is_checked_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match=r"^on_reuse must be one of return, skip; got 'keep'$"):
        a_task(on_reuse="keep")
