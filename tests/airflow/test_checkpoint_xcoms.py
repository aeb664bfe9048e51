"""Checkpoints of a task's job: a retry resumes, and both tries have the steps in their XComs."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import Checkpoints, CustomTrainer
from trainer_core.testing.training_functions import save_checkpoints


def execute(ti, fail_at):
    trainer = CustomTrainer(func=save_checkpoints, func_args={"steps": 4, "fail_at": fail_at})
    options = [Checkpoints(every_steps=1)]
    return TrainJobOperator(task_id=ti.task_id, runtime="python", trainer=trainer, options=options).execute({"ti": ti})


def test_a_task_has_the_steps_of_its_checkpoints_as_xcoms(home):
    first = StandInTaskInstance()
    with pytest.raises(AirflowException, match="failed at step 3"):
        execute(first, fail_at=3)
    assert first.xcoms["checkpoint"] == 2
    assert "resumed_from" not in first.xcoms

    retry = first.next_try()
    assert execute(retry, fail_at=0)["from"] == 2
    assert (retry.xcoms["checkpoint"], retry.xcoms["resumed_from"]) == (4, 2)


def test_mapped_tasks_have_checkpoints_of_their_own(home):
    one, other = (StandInTaskInstance(run_id="run", map_index=index) for index in (0, 1))
    with pytest.raises(AirflowException, match="failed at step 3"):
        execute(one, fail_at=3)

    assert execute(other, fail_at=0)["from"] == 0
    assert execute(one.next_try(), fail_at=0)["from"] == 2
