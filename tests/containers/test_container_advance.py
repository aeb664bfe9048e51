"""What is to be done next with a job, whoever asks."""

from __future__ import annotations

import pytest
from container_jobs import at, ended, exited, fresh, job, request, running, with_containers, written

from trainer_core.backends.container import book, ending
from trainer_core.backends.container.advance import Complete, Copy, Done, Fail, Start, Stop, Wait, decide
from trainer_core.diagnosis import Category, diagnose


def names(action):
    return [step["name"] for step in action.steps]


def fetching(**fields):
    return request(initializer={"dataset": {"storage_uri": "hf://owner/data"}}, **fields)


def two_nodes():
    return job(request(trainer={"num_nodes": 2}))


def test_a_new_job_starts_all_of_its_nodes():
    assert names(decide(two_nodes(), at(0))) == ["node-0", "node-1"]


def test_initializers_come_before_nodes():
    made = job(fetching())
    assert names(decide(made, at(0))) == ["dataset-initializer"]
    made = with_containers(made, exited("dataset-initializer"))
    assert names(decide(made, at(2))) == ["node-0"]


def test_a_folder_of_this_machine_is_copied_before_anything_runs():
    made = job(request(initializer={"dataset": {"storage_uri": "file:///data"}}))
    action = decide(made, at(0))
    assert isinstance(action, Copy)
    assert action.step["uri"] == "file:///data"
    made = written(made, book.COPIED, step="dataset-initializer", log=[], path="/cache/1")
    assert names(decide(made, at(0))) == ["node-0"]


def test_a_folder_that_cannot_be_copied_fails_the_job():
    made = job(request(initializer={"dataset": {"storage_uri": "file:///data"}}))
    made = written(made, book.COPIED, step="dataset-initializer", log=[], error="OSError: no")
    assert decide(made, at(0)) == Fail(copied="dataset-initializer")


def test_an_initializer_that_fails_ends_the_job():
    failed = exited("dataset-initializer", code=1)
    assert decide(with_containers(job(fetching()), failed), at(2)) == Fail(containers=[failed])


def test_an_initializer_that_takes_too_long_ends_the_job():
    made = with_containers(job(fetching(), initializer_timeout=5), running("dataset-initializer"))
    assert decide(made, at(4)) == Wait(1.0)
    assert decide(made, at(5)) == Fail(timed_out="dataset-initializer")


def test_a_job_is_complete_when_all_nodes_are():
    made = two_nodes()
    assert decide(with_containers(made, exited("node-0"), running("node-1")), at(2)) == Wait()
    assert decide(with_containers(made, exited("node-0"), exited("node-1")), at(2)) == Complete()


def test_one_failed_node_fails_the_job():
    failed = exited("node-1", code=3)
    assert decide(with_containers(two_nodes(), running("node-0"), failed), at(2)) == Fail(containers=[failed])


def test_a_node_that_somebody_removed_fails_the_job():
    assert decide(with_containers(two_nodes(), running("node-0")), at(2)) == Fail(gone=["node-1"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_that_somebody_removed_are_not_started_again(nodes):
    made = written(job(request(trainer={"num_nodes": nodes})), book.LAUNCH, run=0)
    assert decide(made, at(2)) == Fail(gone=[f"node-{rank}" for rank in range(nodes)])


def test_an_initializer_that_somebody_removed_is_started_again_unless_the_nodes_were():
    made = job(fetching())
    assert names(decide(made, at(2))) == ["dataset-initializer"]
    made = with_containers(written(made, book.LAUNCH, run=0), running("node-0"))
    assert decide(made, at(2)) == Wait()


def test_a_resumed_job_starts_its_nodes_although_those_of_its_last_run_are_gone():
    made = written(job(), book.LAUNCH, run=0)
    made = written(written(made, book.SUSPEND), book.RESUME)
    assert names(decide(made, at(2))) == ["node-0"]


def test_a_removed_node_is_named():
    found = diagnose(ending.facts_of(two_nodes(), engine=None, why=Fail(gone=["node-1"])))
    assert (found.category, found.step) == (Category.INFRASTRUCTURE, "node-1")
    assert found.reason == "node-1: somebody has removed the container"


def test_what_somebody_is_about_to_start_is_left_to_him_for_a_while():
    made = with_containers(two_nodes(), fresh("node-0"), fresh("node-1", created=1))
    assert decide(made, at(4)) == Wait(7.0)


def test_what_a_dead_starter_has_created_is_created_anew():
    made = with_containers(two_nodes(), fresh("node-0"))
    action = decide(made, at(30))
    assert names(action) == ["node-0", "node-1"]
    assert [each.step for each in action.replacing] == ["node-0"]


def test_a_starter_that_died_between_two_nodes_is_gone_on_for():
    made = with_containers(two_nodes(), running("node-0"), fresh("node-1"))
    assert names(decide(made, at(30))) == ["node-1"]


def test_a_job_that_has_ended_is_stopped_and_then_left_alone():
    made = ended(two_nodes())
    node = running("node-0")
    assert decide(with_containers(made, node), at(2)) == Stop([node])
    assert decide(with_containers(made, exited("node-0", code=-15)), at(2)) == Done()


def test_a_suspended_job_is_stopped_and_starts_nothing():
    made = written(two_nodes(), book.SUSPEND)
    node = running("node-0")
    assert decide(with_containers(made, node), at(2)) == Stop([node])
    assert decide(with_containers(made, exited("node-0", code=-15)), at(2)) == Wait()


def test_a_resumed_job_runs_all_nodes_again_also_those_that_had_ended_well():
    made = written(written(two_nodes(), book.SUSPEND), book.RESUME)
    action = decide(with_containers(made, exited("node-0"), exited("node-1", code=-15)), at(2))
    assert isinstance(action, Start)
    assert names(action) == ["node-0", "node-1"]


def test_a_resumed_job_fetches_nothing_twice():
    made = written(written(job(fetching()), book.SUSPEND), book.RESUME)
    assert names(decide(with_containers(made, exited("dataset-initializer")), at(2))) == ["node-0"]


def test_a_job_created_suspended_waits_until_it_is_resumed():
    made = job(request(suspend=True))
    assert decide(made, at(0)) == Wait()
    assert names(decide(written(made, book.RESUME), at(1))) == ["node-0"]


@pytest.mark.parametrize("containers", [(), (running("node-0"),)], ids=["before it runs", "while it runs"])
def test_a_deadline_ends_a_job(containers):
    made = with_containers(job(request(active_deadline_seconds=5)), *containers)
    assert decide(made, at(5)) == Fail(deadline_seconds=5)


def test_time_that_a_job_is_suspended_does_not_count_for_its_deadline():
    made = job(request(active_deadline_seconds=5))
    made = written(written(made, book.SUSPEND, seconds=4), book.RESUME, seconds=100)
    assert decide(with_containers(made, running("node-0", run=1)), at(103)) == Wait(2.0)


def test_nothing_that_runs_is_started_again():
    made = with_containers(two_nodes(), running("node-0"), running("node-1"))
    assert decide(made, at(1000)) == Wait()
