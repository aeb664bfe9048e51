"""The next action for a job, as a function of its state and the time."""

from __future__ import annotations

import pytest
from container_jobs import (
    add_entry,
    at,
    build_job,
    build_request,
    end,
    exited,
    job_to_restart,
    new,
    running,
    with_containers,
)

from trainer_core.backends.container import job_journal, outcome
from trainer_core.backends.container.reconcile import Complete, Copy, Done, Fail, Start, Stop, Wait, next_action
from trainer_core.lifecycle.diagnosis import Category, diagnose
from trainer_core.model.jobs import Restarts
from trainer_core.model.request import TrainJobRequest


def step_names(action):
    return [step["name"] for step in action.steps]


def request_with_dataset(**fields):
    return build_request(initializer={"dataset": {"storage_uri": "hf://owner/data"}}, **fields)


def job_with_two_nodes():
    return build_job(build_request(trainer={"num_nodes": 2}))


def test_a_new_job_starts_all_of_its_nodes():
    assert step_names(next_action(job_with_two_nodes(), at(0))) == ["node-0", "node-1"]


def test_initializers_come_before_nodes():
    job = build_job(request_with_dataset())
    assert step_names(next_action(job, at(0))) == ["dataset-initializer"]
    job = with_containers(job, exited("dataset-initializer"))
    assert step_names(next_action(job, at(2))) == ["node-0"]


def test_a_folder_of_this_machine_is_copied_before_anything_runs():
    job = build_job(build_request(initializer={"dataset": {"storage_uri": "file:///data"}}))
    action = next_action(job, at(0))
    assert isinstance(action, Copy)
    assert action.step["uri"] == "file:///data"
    job = add_entry(job, job_journal.COPIED, step="dataset-initializer", log=[], path="/cache/1")
    assert step_names(next_action(job, at(0))) == ["node-0"]


def test_a_folder_that_cannot_be_copied_fails_the_job():
    job = build_job(build_request(initializer={"dataset": {"storage_uri": "file:///data"}}))
    job = add_entry(job, job_journal.COPIED, step="dataset-initializer", log=[], error="OSError: no")
    assert next_action(job, at(0)) == Fail(copy_step="dataset-initializer")


def test_an_initializer_that_fails_ends_the_job():
    failed = exited("dataset-initializer", code=1)
    assert next_action(with_containers(build_job(request_with_dataset()), failed), at(2)) == Fail(containers=[failed])


def test_an_initializer_that_takes_too_long_ends_the_job():
    job = with_containers(build_job(request_with_dataset(), initializer_timeout=5), running("dataset-initializer"))
    assert next_action(job, at(4)) == Wait(1.0)
    assert next_action(job, at(5)) == Fail(timed_out_step="dataset-initializer")


def test_a_job_is_complete_when_all_nodes_are():
    job = job_with_two_nodes()
    assert next_action(with_containers(job, exited("node-0"), running("node-1")), at(2)) == Wait()
    assert next_action(with_containers(job, exited("node-0"), exited("node-1")), at(2)) == Complete()


def test_one_failed_node_fails_the_job():
    failed = exited("node-1", code=3)
    assert next_action(with_containers(job_with_two_nodes(), running("node-0"), failed), at(2)) == Fail(
        containers=[failed]
    )


def test_a_removed_node_fails_the_job():
    assert next_action(with_containers(job_with_two_nodes(), running("node-0")), at(2)) == Fail(
        removed_steps=["node-1"]
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_removed_nodes_are_not_created_again_after_the_launch(nodes):
    job = add_entry(build_job(build_request(trainer={"num_nodes": nodes})), job_journal.LAUNCH, run=0)
    assert next_action(job, at(2)) == Fail(removed_steps=[f"node-{rank}" for rank in range(nodes)])


def test_a_removed_initializer_is_created_again_only_before_the_launch():
    job = build_job(request_with_dataset())
    assert step_names(next_action(job, at(2))) == ["dataset-initializer"]
    job = with_containers(add_entry(job, job_journal.LAUNCH, run=0), running("node-0"))
    assert next_action(job, at(2)) == Wait()


def test_a_resumed_job_starts_its_nodes_if_those_of_the_last_run_were_removed():
    job = add_entry(build_job(), job_journal.LAUNCH, run=0)
    job = add_entry(add_entry(job, job_journal.SUSPEND), job_journal.RESUME)
    assert step_names(next_action(job, at(2))) == ["node-0"]


def test_the_diagnosis_names_the_removed_node():
    found = diagnose(outcome.collect_facts(job_with_two_nodes(), engine=None, failure=Fail(removed_steps=["node-1"])))
    assert (found.category, found.step) == (Category.INFRASTRUCTURE, "node-1")
    assert found.reason == "node-1: the container was removed from the engine"


def test_new_containers_are_left_to_their_creator_for_ten_seconds():
    job = with_containers(job_with_two_nodes(), new("node-0"), new("node-1", created=1))
    assert next_action(job, at(4)) == Wait(7.0)


def test_containers_that_were_never_started_are_created_again():
    job = with_containers(job_with_two_nodes(), new("node-0"))
    action = next_action(job, at(30))
    assert step_names(action) == ["node-0", "node-1"]
    assert [each.step for each in action.replacing] == ["node-0"]


def test_the_remaining_nodes_are_started_if_their_creator_died():
    job = with_containers(job_with_two_nodes(), running("node-0"), new("node-1"))
    assert step_names(next_action(job, at(30))) == ["node-1"]


def test_containers_of_an_ended_job_are_stopped():
    job = end(job_with_two_nodes())
    node = running("node-0")
    assert next_action(with_containers(job, node), at(2)) == Stop([node])
    assert next_action(with_containers(job, exited("node-0", code=-15)), at(2)) == Done()


def test_a_suspended_job_is_stopped_and_starts_nothing():
    job = add_entry(job_with_two_nodes(), job_journal.SUSPEND)
    node = running("node-0")
    assert next_action(with_containers(job, node), at(2)) == Stop([node])
    assert next_action(with_containers(job, exited("node-0", code=-15)), at(2)) == Wait()


def test_a_job_whose_functions_returned_while_it_was_suspended_is_complete():
    job = add_entry(job_with_two_nodes(), job_journal.SUSPEND)
    assert next_action(with_containers(job, exited("node-0"), exited("node-1")), at(2)) == Complete()
    assert next_action(with_containers(job, exited("node-0"), exited("node-1", code=143)), at(2)) == Wait()


@pytest.mark.parametrize(
    "request_",
    [
        TrainJobRequest.parse({"name": "digits", "trainer": {"kind": "container", "image": "train:1"}}),
        request_with_dataset().with_fields(trainer=None),
    ],
    ids=["an image", "no training"],
)
def test_a_suspended_job_without_a_function_is_not_complete_when_its_containers_end_with_0(request_):
    job = add_entry(build_job(request_), job_journal.SUSPEND)
    assert next_action(with_containers(job, exited("node-0"), exited("dataset-initializer")), at(2)) == Wait()


def test_a_resumed_job_runs_all_nodes_again_including_those_that_succeeded():
    job = add_entry(add_entry(job_with_two_nodes(), job_journal.SUSPEND), job_journal.RESUME)
    action = next_action(with_containers(job, exited("node-0"), exited("node-1", code=-15)), at(2))
    assert isinstance(action, Start)
    assert step_names(action) == ["node-0", "node-1"]


def test_a_resumed_job_does_not_fetch_again():
    job = add_entry(add_entry(build_job(request_with_dataset()), job_journal.SUSPEND), job_journal.RESUME)
    assert step_names(next_action(with_containers(job, exited("dataset-initializer")), at(2))) == ["node-0"]


def test_a_job_created_suspended_waits_until_it_is_resumed():
    job = build_job(build_request(suspend=True))
    assert next_action(job, at(0)) == Wait()
    assert step_names(next_action(add_entry(job, job_journal.RESUME), at(1))) == ["node-0"]


@pytest.mark.parametrize("containers", [(), (running("node-0"),)], ids=["before it runs", "while it runs"])
def test_a_deadline_ends_a_job(containers):
    job = with_containers(build_job(build_request(active_deadline_seconds=5)), *containers)
    assert next_action(job, at(5)) == Fail(deadline_seconds=5)


def test_suspended_time_does_not_count_for_the_deadline():
    job = build_job(build_request(active_deadline_seconds=5))
    job = add_entry(add_entry(job, job_journal.SUSPEND, seconds=4), job_journal.RESUME, seconds=100)
    assert next_action(with_containers(job, running("node-0", run=1)), at(103)) == Wait(2.0)


def test_nodes_of_a_failed_start_are_stopped_and_after_the_delay_all_are_started_again():
    job, left = job_to_restart(), running("node-1")
    assert next_action(with_containers(job, exited("node-0", code=1), left), at(31)) == Stop([left])
    stopped = with_containers(job, exited("node-0", code=1), exited("node-1", code=-15))
    assert next_action(stopped, at(31)) == Wait(9)
    assert step_names(next_action(stopped, at(40))) == ["node-0", "node-1"]
    assert next_action(end(stopped), at(41)) == Done()


def test_the_deadline_of_a_job_is_that_of_all_its_starts():
    nodes = running("node-0", run=1), running("node-1", run=1)
    job = with_containers(job_to_restart(active_deadline_seconds=60), *nodes)
    assert next_action(job, at(50)) == Wait(20)
    assert next_action(job, at(70)) == Fail(deadline_seconds=60)


def test_a_folder_that_could_not_be_copied_is_copied_again_after_a_restart():
    entries = build_request(initializer={"dataset": {"storage_uri": "file:///data"}})
    job = add_entry(build_job(entries), job_journal.COPIED, step="dataset-initializer", error="it is busy")
    assert next_action(job, at(1)) == Fail(copy_step="dataset-initializer")
    restarted = add_entry(job, job_journal.RESTART, delay=0)
    assert isinstance(next_action(restarted, at(1)), Copy)


def test_a_restart_counts_once_it_has_begun():
    waiting = job_to_restart()
    begun = add_entry(waiting, job_journal.LAUNCH, run=1)
    assert (waiting.run, waiting.get_attempt_restarts().earlier.total) == (1, 1)
    assert waiting.get_attempt_restarts(without_waiting=True).earlier == Restarts()
    assert begun.get_attempt_restarts(without_waiting=True).earlier.seconds == 30
    assert end(waiting).outcome.restarts == Restarts()


def test_running_nodes_are_not_started_again():
    job = with_containers(job_with_two_nodes(), running("node-0"), running("node-1"))
    assert next_action(job, at(1000)) == Wait()
