"""A search is one run of a real MLflow server, with the runs of its trials below it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from test_tracked_runs import BUSY

from trainer_core import (
    CustomTrainer,
    DebugBackendConfig,
    Name,
    Objective,
    Search,
    Tracking,
    TrainerClient,
    TrainJobTemplate,
    TrialConfig,
)
from trainer_core.model.request import Owner
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.search_run import open_search_run
from trainer_core.tracking.reporter import get_run_sender


def train(rate: float) -> dict[str, float]:
    return {"loss": (rate - 2) ** 2, "accuracy@1": rate}


def start(client: TrainerClient, experiment: str, *options, **changes) -> str:
    fields = {
        "search_space": {"rate": Search.choice([4.0, 2.0, 3.0])},
        "trial_config": TrialConfig(3),
        "algorithm": {"GridSearch": {}},
        "objectives": [Objective("loss")],
        **changes,
    }
    template = TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python")
    return client.optimize(template, **fields, options=[Name("tune"), Tracking(experiment=experiment), *options])


def split(runs):
    """Return the run of the search, and those of its trials by number."""
    (parent,) = [run for run in runs if "trainjob.search.key" in run["tags"]]
    trials = [run for run in runs if run is not parent]
    return parent, sorted(trials, key=lambda run: int(run["tags"]["trainjob.trial"]))


@pytest.fixture
def debug():
    return TrainerClient(DebugBackendConfig())


def test_a_search_is_a_run_with_its_best_trial_and_the_others_below_it(debug, tracked, experiment, read_runs):
    debug.wait_for_search(start(debug, experiment))
    get_run_sender().flush(60)
    parent, trials = split(read_runs())
    assert (parent["name"], parent["status"]) == ("tune", "FINISHED")
    assert parent["params"] == {
        "rate": "2.0",
        "trainjob.search.algorithm": '{"GridSearch": {}}',
        "trainjob.search.objectives": '[{"metric": "loss"}]',
        "trainjob.search.search_space.rate": "[4.0, 2.0, 3.0]",
    }
    assert parent["metrics"] == {"best": 0.0, "loss": 0.0}
    assert [point[:2] for point in parent["history"]["best"]] == [[0, 4.0], [1, 0.0], [2, 0.0]]
    assert parent["tags"]["mlflow.note.content"] == "3 of 3, best loss 0 (minimized, trial 1)"
    assert parent["tags"]["trainjob.best.job"] == trials[1]["name"]
    assert json.loads(parent["tags"]["trainjob.search.limits"])["num_trials"] == 3
    assert [run["tags"]["mlflow.parentRunId"] for run in trials] == [parent["id"]] * 3
    assert [run["params"]["rate"] for run in trials] == ["4.0", "2.0", "3.0"]


def test_an_extended_search_continues_its_run(debug, tracked, experiment, read_runs):
    for trials in (1, 3):
        name = start(debug, experiment, trial_config=TrialConfig(trials))
        debug.wait_for_search(name)
        get_run_sender().flush(60)
    debug.wait_for_search(name)  # Of a search that has ended, nothing changes.
    get_run_sender().flush(60)
    parent, trials = split(read_runs())
    assert [point[:2] for point in parent["history"]["best"]] == [[0, 4.0], [1, 0.0], [2, 0.0]]
    assert (len(trials), parent["status"], parent["tags"]["trainjob.best.trial"]) == (3, "FINISHED", "1")


@pytest.mark.parametrize(
    ("changes", "end", "status"),
    [
        ({"objectives": [Objective("f1", "maximize")]}, TrainerClient.wait_for_search, "FAILED"),
        ({}, lambda client, name: client.searches.cancel(name), "KILLED"),
        ({}, lambda client, name: client.searches.delete_job(name), "KILLED"),
    ],
)
def test_the_run_of_a_search_that_did_not_end_well_says_so(debug, tracked, experiment, read_runs, changes, end, status):
    end(debug, start(debug, experiment, **changes))
    get_run_sender().flush(60)
    parent, _ = split(read_runs())
    assert parent["status"] == status


def test_several_drivers_that_begin_at_the_same_time_have_one_run(debug, tracked, experiment, read_runs):
    definition = SearchDefinition.parse({"rate": [1]})
    request = debug.build_request(
        trainer=CustomTrainer(func=train, func_args={"rate": 1}), options=[Tracking(experiment=experiment)]
    )
    barrier = Barrier(4)

    def find_parent(_):
        run = open_search_run(None, request.policy.tracking, Owner(key="dag/run/task"), definition, "debug")
        barrier.wait()
        run.find_parent()
        barrier.wait()
        return run.find_parent()

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(find_parent, range(4)))
    assert found == {run["id"] for run in read_runs()}
    assert len(found) == 1


def test_a_search_continues_while_the_server_is_away_and_its_run_is_completed_later(
    debug, relay, experiment, read_runs, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    relay.respond = lambda path: BUSY
    outcome = debug.wait_for_search(start(debug, experiment))
    assert [trial.value for trial in outcome.trials] == [4.0, 0.0, 1.0]
    relay.respond = lambda path: None
    for trial in outcome.trials:
        debug.wait(trial.name)
    debug.wait_for_search("tune")
    get_run_sender().flush(60)
    parent, trials = split(read_runs())
    assert (parent["status"], parent["metrics"]["loss"]) == ("FINISHED", 0.0)
    assert [run["tags"]["mlflow.parentRunId"] for run in trials] == [parent["id"]] * 3
