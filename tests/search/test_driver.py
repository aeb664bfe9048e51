"""The driver against jobs in memory: killed at any call, several at once, deleted jobs, limits, cancel and clear."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manual_backend import KilledError, ManualBackend, ManualJob

from trainer_core import (
    Asha,
    Checkpoints,
    DebugBackendConfig,
    DeleteAfter,
    HuggingFaceModelInitializer,
    Initializer,
    Name,
    RandomSearch,
    Search,
    TrainerClient,
    TrialConfig,
)
from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidRequestError,
    JobNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.client.runs import JobRuns
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.jobs import Category, Outcome, Progress, TrainJobRef
from trainer_core.model.request import Code, Owner, Project, TrainerRequest, TrainJobRequest, Work
from trainer_core.packaging import code_location
from trainer_core.search import driver as driver_module, sampling, tables, template as templates
from trainer_core.search.driver import SearchDriver, SearchState
from trainer_core.search.results import Metric, Result, SearchOutcome, Trial
from trainer_core.search.snapshot import read_search

SPACE = {"x": Search.uniform(-1, 1), "y": Search.randint(1, 9)}


def train(x: float, y: int) -> dict[str, float]:
    return {"loss": x * x + y}


def add(x: float, y: int) -> dict[str, float]:
    return {"loss": x + y}


def connect(jobs: dict[str, ManualJob] | None = None) -> TrainerClient:
    client = TrainerClient(DebugBackendConfig())
    client.backend = ManualBackend(jobs)
    client.runs = JobRuns(client.backend, None, client.get_job_request)
    return client


def open_search(client: TrainerClient, owner: Owner | None = None, **changes: Any) -> SearchDriver:
    from trainer_core.search.definition import SearchDefinition

    fields: dict[str, Any] = {"search_space": SPACE, "trial_config": TrialConfig(6, 2), **changes}
    options = [*fields.pop("options", [Name("tune")] if owner is None else [])]
    template = {"trainer": CustomTrainer(train), "runtime": "python"}
    return client.searches.open(template, SearchDefinition.parse(**fields), options, owner)


def backend(client: TrainerClient) -> ManualBackend:
    assert isinstance(client.backend, ManualBackend)
    return client.backend


def finish(client: TrainerClient, name: str) -> None:
    """End a running trial with the value of its function."""
    request = client.get_job_request(name)
    assert request.work.trainer
    assert request.work.trainer.code
    backend(client).complete(name, **train(**request.work.trainer.code.args))


def run_to_end(client: TrainerClient, driver: SearchDriver) -> SearchState:
    """Let all running trials end, until the search has ended."""
    for _ in range(200):
        state = driver.step()
        if state.outcome is not None:
            return state
        for job in backend(client).list_running():
            finish(client, job.ref.name)
    raise AssertionError("the search does not end")


def list_runs(client: TrainerClient) -> list[ManualJob]:
    runs = [
        job
        for job in backend(client).jobs.values()
        if job.request.context.search and job.request.context.search.kind == "run"
    ]
    return sorted(runs, key=lambda job: job.request.context.search.entry if job.request.context.search else 0)


def list_trials(client: TrainerClient) -> list[tuple[Any, Any]]:
    return [
        (job.request.context.search.trial, job.request.context.search.parameters)
        for job in list_runs(client)
        if job.request.context.search
    ]


@pytest.fixture
def client() -> TrainerClient:
    return connect()


def test_all_trials_run_and_never_more_at_a_time_than_asked_for(client: TrainerClient) -> None:
    with open_search(client) as driver:
        most = 0
        while (state := driver.step()).outcome is None:
            running = backend(client).list_running()
            most = max(most, len(running))
            finish(client, running[-1].ref.name) if running else None
    assert most == 2
    assert [trial for trial, _ in list_trials(client)] == [0, 1, 2, 3, 4, 5]
    assert state.outcome.reason == "complete"
    values = {trial.number: trial.value for trial in state.outcome.trials}
    assert state.outcome.best is not None
    assert values[state.outcome.best.trial] == min(value for value in values.values() if value is not None)


def test_the_outcome_of_a_search_is_the_same_after_json_and_its_result_is_its_best_trial(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(2, 2)) as driver:
        table = driver.step().table
        assert tables.build_result(driver.definition, table) is None
        state = run_to_end(client, driver)
        result = tables.build_result(driver.definition, state.table)
    outcome = state.outcome
    assert outcome is not None
    assert SearchOutcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome
    assert outcome.best is not None
    best = outcome.trials[outcome.best.trial]
    assert result == Result(best.parameters, best.metrics, best.values, best.value, best.name, best.number, False)
    values = {"x": -0.770714142753, "y": 8}
    metrics = [Metric("loss", *["8.594000289839492"] * 3)]
    assert outcome.trials[0] == Trial(
        "tune-0-501524d625",
        {name: str(value) for name, value in values.items()},
        None,
        metrics,
        status="Complete",
        values=values,
        value=8.594000289839492,
    )


class ReportedRuns(JobRuns):
    """Runs of all trials, which keep what is reported to them."""

    tracks_all = True

    def __init__(self, client: TrainerClient) -> None:
        super().__init__(client.backend, None, client.get_job_request)
        self.reports: dict[str, list[tuple[str, Outcome | None]]] = {}

    @contextmanager
    def report_progress(self, ref: TrainJobRef) -> Iterator[Callable[[str, Outcome | None], None]]:
        reports = self.reports.setdefault(ref.name, [])
        yield lambda status, outcome: reports.append((status, outcome))


def test_the_run_of_a_trial_gets_its_status_and_then_its_outcome(client: TrainerClient) -> None:
    client.runs = runs = ReportedRuns(client)
    with open_search(client, trial_config=TrialConfig(1)) as driver:
        driver.step()
        driver.step()
        run_to_end(client, driver)
    (job,), (reports,) = list_runs(client), runs.reports.values()
    assert (reports[0], reports[-1]) == (("Running", None), ("Complete", job.outcome))


def test_an_ended_search_returns_its_outcome_again_and_starts_nothing(client: TrainerClient) -> None:
    with open_search(client) as driver:
        first = run_to_end(client, driver).outcome
    before = set(backend(client).jobs)
    with open_search(client) as driver:
        assert driver.step().outcome == first
    with SearchDriver.find(client, "search/tune") as driver:
        assert driver.step().outcome == first
    assert set(backend(client).jobs) == before


def test_any_job_may_be_deleted_after_the_end_except_the_record(client: TrainerClient) -> None:
    with open_search(client) as driver:
        first = run_to_end(client, driver).outcome
    assert first is not None
    for job in list_runs(client)[1:]:
        backend(client).delete(job.ref)
    with open_search(client) as driver:
        again = driver.step().outcome
    assert again is not None
    assert again.trials == first.trials


def test_a_deleted_trial_is_not_run_again(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        backend(client).delete(list_runs(client)[0].ref)
        outcome = run_to_end(client, driver).outcome
    assert [trial for trial, _ in list_trials(client)] == [1, 2, 3, 4, 5]
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Lost", *["Complete"] * 5]


def test_an_entry_that_was_created_while_the_list_was_read_is_found(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
    jobs, hidden = backend(client).jobs, {}

    def hide_the_first_from_a_list(call: str) -> None:
        if call == "list":
            hidden.update([(name := min(jobs), jobs.pop(name))])
        else:
            jobs.update(hidden)

    backend(client).on_call = hide_the_first_from_a_list
    with open_search(client) as driver:
        table = driver.step(create=False).table
    assert [trial.status for trial in table.trials.values()] == ["Running", "Running"]


def test_a_gap_that_a_new_driver_finds_is_a_deleted_trial(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        backend(client).delete(list_runs(client)[0].ref)
    with open_search(client) as driver:
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Lost", *["Complete"] * 5]


def test_values_outlive_their_jobs(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        for job in backend(client).list_running():
            finish(client, job.ref.name)
        driver.step()
    for job in list_runs(client)[:2]:
        backend(client).delete(job.ref)
    with open_search(client) as driver:
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete"] * 6


def test_a_retryable_failure_is_retried_with_the_same_parameters_and_a_limit(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(2, 1, retries=1)) as driver:
        driver.step()
        for _ in range(2):
            backend(client).fail(backend(client).list_running()[0].ref.name, Category.NODE_LOST, retryable=True)
            driver.step()
        outcome = run_to_end(client, driver).outcome
    trials = list_trials(client)
    assert [trial for trial, _ in trials] == [0, 0, 1]
    assert trials[0] == trials[1]
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Lost", "Complete"]


def test_a_failure_of_the_code_is_not_retried_and_the_search_goes_on(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        backend(client).fail(backend(client).list_running()[0].ref.name)
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Failed", *["Complete"] * 5]
    assert outcome.status == "Complete"


@pytest.mark.parametrize("config", [TrialConfig(6, 2, max_failed_trials=2), TrialConfig(6, 1), TrialConfig(2, 1)])
def test_failures_end_a_search(client: TrainerClient, config: TrialConfig) -> None:
    with open_search(client, trial_config=config) as driver:
        while (outcome := driver.step().outcome) is None:
            for job in backend(client).list_running():
                backend(client).fail(job.ref.name)
    assert (outcome.status, outcome.reason) == ("Failed", "failed")
    assert len(list_runs(client)) == min(config.max_failed_trials or 3, config.num_trials)
    assert "UserCode: it failed" in outcome.message


def test_a_slot_is_free_only_when_the_processes_of_an_ended_trial_are_gone(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        job = backend(client).list_running()[0]
        job.processes = ["process 7"]
        backend(client).fail(job.ref.name)
        state = driver.step()
        assert len(list_runs(client)) == 2
        assert driver._plan_wait(state, None)[1] <= 0.2
        job.processes = []
        driver.step()
        assert len(list_runs(client)) == 3


def test_a_goal_stops_what_runs_and_completes_the_search(client: TrainerClient) -> None:
    with open_search(client, objectives=[{"metric": "loss", "goal": 0}]) as driver:
        driver.step()
        winner, other = backend(client).list_running()
        backend(client).complete(winner.ref.name, loss=-1)
        while (outcome := driver.step().outcome) is None:
            pass
    assert other.outcome is not None
    assert other.outcome.diagnosis is not None
    assert other.outcome.diagnosis.category is Category.STOPPED_EARLY
    assert (outcome.status, outcome.reason) == ("Complete", "goal")
    assert [trial.status for trial in outcome.trials] == ["Complete", "Stopped early"]


def test_a_timeout_stops_what_runs(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(6, 2, timeout=0.001)) as driver:
        driver.step()
        while (outcome := driver.step().outcome) is None:
            pass
    assert backend(client).list_running() == []
    assert (outcome.status, outcome.reason) == ("Failed", "timeout")


def test_after_cancel_nothing_lives_and_nothing_starts(client: TrainerClient) -> None:
    other = connect(backend(client).jobs)
    with open_search(client) as driver, open_search(other) as slow:
        driver.step()
        slow.step()
        driver.cancel()
        count = len(backend(client).jobs)
        assert backend(client).list_running() == []
        assert slow.step().table.trials
        while (outcome := slow.step().outcome) is None:
            pass
    assert (outcome.status, outcome.reason) == ("Failed", "cancelled")
    assert len(backend(client).jobs) == count
    with open_search(client, trial_config=TrialConfig(20, 2)) as driver:
        assert driver.step().outcome is not None
    assert len(backend(client).jobs) == count


def test_a_new_generation_ends_the_old_trials_and_refuses_the_old_driver(client: TrainerClient) -> None:
    first = Owner(key="dag/run/tune", slug="tune", generation="0")
    with open_search(client, first) as old:
        old.step()
        with open_search(client, first.model_copy(update={"generation": "1"})) as new:
            new.step()
            running = backend(client).list_running()
            assert {job.request.context.owner.generation for job in running if job.request.context.owner} == {"1"}
            with pytest.raises(ConflictError, match="newer generation"):
                run_to_end(client, old)
            run_to_end(client, new)
    with pytest.raises(ConflictError, match="newer generation"), open_search(client, first) as old:
        old.step()


def test_an_extended_search_has_the_parameters_of_one_that_was_larger_from_the_start(client: TrainerClient) -> None:
    with open_search(client) as driver:
        run_to_end(client, driver)
    with open_search(client, trial_config=TrialConfig(9, 4)) as driver:
        outcome = run_to_end(client, driver).outcome
    larger = connect()
    with open_search(larger, trial_config=TrialConfig(9, 4)) as driver:
        run_to_end(larger, driver)
    assert list_trials(client) == list_trials(larger)
    assert outcome is not None
    assert len(outcome.trials) == 9


def test_another_definition_is_refused_and_names_the_fields(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
    with pytest.raises(ConflictError, match=r"differs in: search_space\.x"):
        open_search(client, search_space={**SPACE, "x": Search.uniform(-2, 1)})
    with pytest.raises(ConflictError, match=r"objectives"):
        open_search(client, objectives=[{"metric": "other"}])


def test_a_record_answers_only_its_own_definition(client: TrainerClient) -> None:
    with open_search(client) as driver:
        first = run_to_end(client, driver).outcome
    for job in list_runs(client):
        backend(client).delete(job.ref)
    with open_search(client) as driver:
        again = driver.step().outcome
    assert first is not None
    assert again is not None
    assert again.trials == first.trials
    with pytest.raises(ConflictError, match=r"differs in: search_space\.x.*delete it \(`--delete`\)"):
        open_search(client, search_space={**SPACE, "x": Search.uniform(-2, 1)})
    other = {"trainer": CustomTrainer(add), "runtime": "python"}
    with pytest.raises(ConflictError, match="differs in: trial"):
        client.optimize(other, search_space=SPACE, trial_config=TrialConfig(6, 2), options=[Name("tune")])


def test_a_search_without_trials_is_listed_shown_and_deleted(client: TrainerClient) -> None:
    with open_search(client) as driver:
        run_to_end(client, driver)
    for job in list_runs(client):
        backend(client).delete(job.ref)
    (listed,) = client.searches.list_jobs()
    assert (listed.name, listed.status, len(listed.trials)) == ("tune", "Complete", 6)
    assert client.searches.get_job("tune") == listed
    assert client.wait_for_search("tune").status == "Complete"
    client.searches.delete_job("tune")
    assert (client.searches.list_jobs(), backend(client).jobs) == ([], {})


def stop_before(client: TrainerClient, call: str, action: Callable[[], object]) -> None:
    """Let others act while the process of a client is stopped right before its next call of this kind."""

    def act(made: str) -> None:
        if made == call:
            backend(client).on_call = lambda _: None
            action()

    backend(client).on_call = act


@pytest.mark.parametrize("space", [SPACE, {**SPACE, "x": Search.uniform(-2, 1)}])
@pytest.mark.parametrize("trials", [0, 1, 6])
@pytest.mark.parametrize("call", ["observe", "find_jobs", "before create", "after create"])
def test_a_driver_whose_search_was_deleted_ends_and_leaves_a_new_one_of_its_name_alone(
    client: TrainerClient, monkeypatch: pytest.MonkeyPatch, call: str, trials: int, space: dict[str, Any]
) -> None:
    monkeypatch.setattr(driver_module, "_STOPPED_SECONDS", 0.0)
    other = connect(backend(client).jobs)

    def begin_again() -> None:
        other.searches.delete_job("tune")
        if trials:
            with open_search(other, search_space=space, trial_config=TrialConfig(trials, 1)) as new:
                run_to_end(other, new)

    with open_search(client) as old:
        old.step()
        for job in backend(client).list_running():
            finish(client, job.ref.name)
        stop_before(client, call, begin_again)
        with pytest.raises(TrainerError, match="was deleted while this process drove it"):
            old.step()
    quiet = connect()
    if trials:
        with open_search(quiet, search_space=space, trial_config=TrialConfig(trials, 1)) as expected:
            run_to_end(quiet, expected)
    assert list_trials(client) == list_trials(quiet)
    assert [job.outcome is not None for job in list_runs(client)] == [True] * trials


def test_an_entry_of_a_search_that_was_deleted_is_no_trial_of_the_new_one(client: TrainerClient) -> None:
    other = connect(backend(client).jobs)
    with open_search(client, trial_config=TrialConfig(3, 1)) as old:
        old.step()
        finish(client, list_runs(client)[0].ref.name)
        old.step()
        left = backend(client).jobs[list_runs(client)[1].ref.name]
        other.searches.delete_job("tune")
        with open_search(other, trial_config=TrialConfig(3, 1)) as new:
            new.step()
            backend(client).jobs[left.ref.name] = left  # Its process was killed after it had created this one.
            outcome = run_to_end(other, new).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete"] * 3
    assert left.ref.name not in {trial.name for trial in outcome.trials}
    with open_search(client, trial_config=TrialConfig(3, 1)) as again:
        assert again.step().outcome == outcome


def test_a_search_of_an_earlier_release_whose_drivers_began_at_once_is_continued(client: TrainerClient) -> None:
    with open_search(client) as old:
        old.step()
        finish(client, list_runs(client)[0].ref.name)
        old.step()
    for number, job in enumerate(list_runs(client)):
        section = job.request.context.search
        assert section is not None
        section = section.model_copy(update={"started": section.started - number, "shares_start": False})
        job.request = job.request.with_fields(search=section)
    assert [trial.number for trial in read_search(client, "search/tune").trials] == [0, 1, 2]
    with open_search(client) as driver:
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete"] * 6
    assert [trial for trial, _ in list_trials(client)] == list(range(6))
    with open_search(client) as again:
        assert again.step().outcome == outcome


def test_a_driver_that_finds_the_search_of_another_definition_before_its_first_trial_ends(
    client: TrainerClient,
) -> None:
    other = connect(backend(client).jobs)
    with open_search(client, search_space={**SPACE, "x": Search.uniform(-2, 1)}) as late:
        with open_search(other) as driver:
            driver.step()
        with pytest.raises(ConflictError, match=r"differs in: search_space\.x"):
            late.step()
    assert len(list_runs(client)) == 2


def test_a_trial_is_not_retried_by_itself(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
    name = list_runs(client)[0].ref.name
    backend(client).fail(name)
    with pytest.raises(InvalidRequestError, match=r"is a trial of search 'tune'.*`trainjob search tune --wait`"):
        client.retry(name)
    assert len(backend(client).jobs) == 2


def test_a_search_that_does_not_exist_is_named(client: TrainerClient) -> None:
    with pytest.raises(JobNotFoundError, match="search 'other' does not exist"):
        client.searches.get_job("other")


@pytest.mark.parametrize("seed", range(20))
def test_drivers_killed_at_any_call_make_the_trials_of_an_undisturbed_search(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 -- no secret
    world = connect()
    jobs = backend(world).jobs
    config = TrialConfig(12, 3)
    most = 0

    def kill_sometimes(_: str) -> None:
        if dice.random() < 0.04:
            raise KilledError

    drivers: list[SearchDriver] = []
    outcome = None
    while outcome is None:
        running = backend(world).list_running()
        most = max(most, len(running))
        for job in running:
            finish(world, job.ref.name) if dice.random() < 0.3 else None
        try:
            if len(drivers) < 2 and dice.random() < 0.5:
                other = connect(jobs)
                backend(other).on_call = kill_sometimes
                drivers.append(open_search(other, trial_config=config))
            if drivers:
                driver = dice.choice(drivers)
                outcome = driver.step().outcome
        except KilledError:
            drivers = [each for each in drivers if dice.random() < 0.5]
    quiet = connect()
    with open_search(quiet, trial_config=config) as driver:
        expected = run_to_end(quiet, driver).outcome
    assert expected is not None
    assert [(t.number, t.values, t.value, t.status) for t in outcome.trials] == [
        (t.number, t.values, t.value, t.status) for t in expected.trials
    ]
    assert list_trials(world) == list_trials(quiet)
    assert most <= 3
    entries = sorted(job.request.context.search.entry for job in jobs.values() if job.request.context.search)
    assert entries == list(range(13))


@pytest.mark.parametrize("seed", range(20))
def test_failures_deletions_and_kills_end_with_each_trial_settled_once(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 -- no secret
    world = connect()
    jobs, config = backend(world).jobs, TrialConfig(10, 3, retries=1)
    parameters: dict[int, list[Any]] = {}

    def kill_sometimes(_: str) -> None:
        if dice.random() < 0.03:
            raise KilledError

    driver = outcome = None
    while outcome is None:
        for job in list(backend(world).list_running()):
            section, chance = job.request.context.search, dice.random()
            assert section is not None
            assert section.trial is not None
            known = parameters.setdefault(section.trial, [])
            known += [section.parameters] if section.parameters not in known else []
            if chance < 0.2:
                finish(world, job.ref.name)
            elif chance < 0.3:
                backend(world).fail(job.ref.name, Category.PREEMPTED, retryable=True)
            elif chance < 0.35 and len(jobs) > section.entry + 1:
                backend(world).delete(job.ref)
        assert len(backend(world).list_running()) <= 3
        live = [job.request.context.search.trial for job in backend(world).list_running() if job.request.context.search]
        assert len(live) == len(set(live))
        with suppress(KilledError):
            if driver is None:
                other = connect(jobs)
                backend(other).on_call = kill_sometimes
                driver = open_search(other, trial_config=config)
            outcome = driver.step().outcome
            continue
        driver = None
    assert [trial.number for trial in outcome.trials] == list(range(10))
    assert all(len(known) == 1 for known in parameters.values())


def test_a_loser_is_stopped_and_its_value_is_that_of_its_rung(client: TrainerClient) -> None:
    with open_search(client, stop=Asha(factor=2), trial_config=TrialConfig(3, 2)) as driver:
        driver.step()
        winner, loser = (job.ref.name for job in backend(client).list_running())
        backend(client).report(winner, 1, 0.1)
        backend(client).report(loser, 1, 0.2)
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete", "Stopped early", "Complete"]
    assert outcome.trials[1].value == 0.2
    assert outcome.trials[1].reason == "loss 0.2 at step 1 is not the best of 2: 0.1"
    assert [trial for trial, _ in list_trials(client)] == [0, 1, 2]


@pytest.mark.parametrize(("stop", "seconds"), [(None, 30.0), (Asha(factor=2), 2.0)])
def test_trials_that_may_be_stopped_early_are_read_more_often(client: TrainerClient, stop: Any, seconds: float) -> None:
    with open_search(client, stop=stop) as driver:
        driver.step()
        assert driver._plan_wait(driver.step(), None)[1] == seconds


def test_a_step_that_must_not_create_creates_nothing(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(1, 1)) as driver:
        assert driver.step(create=False).must_create
        assert backend(client).jobs == {}
        driver.step()
        finish(client, backend(client).list_running()[0].ref.name)
        assert driver.step(create=False).must_create
        assert len(backend(client).jobs) == 1


def test_what_a_loser_has_reported_survives_a_stop_that_deletes_its_job(client: TrainerClient) -> None:
    backend(client).cancel_deletes = True
    with open_search(client, stop=Asha(factor=2), trial_config=TrialConfig(3, 2)) as driver:
        driver.step()
        winner, loser = (job.ref.name for job in backend(client).list_running())
        backend(client).report(winner, 1, 0.1)
        backend(client).report(loser, 1, 0.2)
        without_code = SearchDriver.find(client, "search/tune")
        assert without_code.step(create=False).must_create
        assert loser in backend(client).jobs
        driver.step()
        driver.close()
        assert loser not in backend(client).jobs
    with open_search(client, stop=Asha(factor=2), trial_config=TrialConfig(3, 2)) as driver:
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete", "Stopped early", "Complete"]
    assert (outcome.trials[1].value, outcome.trials[1].name) == (0.2, loser)


def test_the_first_lines_of_an_image_that_are_read_are_its_values_at_rungs(client: TrainerClient) -> None:
    with open_search(client, stop=Asha(factor=2), trial_config=TrialConfig(2, 2)) as driver:
        driver.step()
        first, second = backend(client).list_running()
        first.progress = Progress(3, None, {"loss": 0.1})
        second.progress = Progress(4, None, {"loss": 0.2})
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert outcome.trials[1].reason == "loss 0.2 at step 4 is not the best of 2: 0.1"


def test_trials_pause_at_rungs_and_the_best_is_trained_fully(client: TrainerClient) -> None:
    policy = Asha(min_step=1, max_step=4, factor=2, promote=True)
    with open_search(
        client, stop=policy, trial_config=TrialConfig(4, 1), options=[Name("tune"), Checkpoints()]
    ) as driver:
        while (outcome := driver.step().outcome) is None:
            for job in backend(client).list_running():
                section = job.request.context.search
                assert section is not None
                if section.until is None:
                    backend(client).complete(job.ref.name, loss=section.parameters["x"])
                else:
                    backend(client).report(job.ref.name, section.until, section.parameters["x"])
                    backend(client).pause(job.ref.name)
    values = [trial.values["x"] for trial in outcome.trials]
    complete = [trial.number for trial in outcome.trials if trial.status == "Complete"]
    assert complete == [values.index(min(values))]
    assert {trial.status for trial in outcome.trials} == {"Complete", "Stopped early"}


def test_a_trial_that_pauses_without_a_value_has_failed(client: TrainerClient) -> None:
    policy = Asha(min_step=1, max_step=4, factor=2, promote=True)
    options = [Name("tune"), Checkpoints()]
    with open_search(client, stop=policy, trial_config=TrialConfig(1, 1), options=options) as driver:
        driver.step()
        job = backend(client).list_running()[0]
        job.progress = Progress(1, None, {"other": 1.0})
        backend(client).pause(job.ref.name)
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert outcome.trials[0].reason == "paused at step 1 and reported no loss there"
    assert "the first: NoObjective: paused at step 1" in outcome.message


def test_trials_that_report_no_objective_fail_the_search_which_names_what_they_report(client: TrainerClient) -> None:
    with open_search(client) as driver:
        while (outcome := driver.step().outcome) is None:
            for job in backend(client).list_running():
                backend(client).complete(job.ref.name, accuracy=1.0)
    assert outcome.status == "Failed"
    assert "the first: NoObjective: reported no loss, but: accuracy" in outcome.message


def test_a_driver_takes_over_the_limits_that_another_one_was_started_with_later(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        with open_search(client, trial_config=TrialConfig(9, 3)) as other:
            other.step()
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert len(outcome.trials) == 9
    with SearchDriver.find(client, "search/tune") as found:
        assert found.definition.trial_config == TrialConfig(9, 3)


def test_the_newest_job_has_all_results_where_jobs_are_deleted_after_a_time(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(6, 1), options=[Name("tune"), DeleteAfter(60)]) as driver:
        for _ in range(5):
            driver.step()
            finish(client, backend(client).list_running()[0].ref.name)
        driver.step()
    for job in list_runs(client)[:-1]:
        backend(client).delete(job.ref)
    with SearchDriver.find(client, "search/tune") as driver:
        outcome = run_to_end(client, driver).outcome
    assert outcome is not None
    assert [trial.status for trial in outcome.trials] == ["Complete"] * 6
    (record,) = (job.request for job in backend(client).jobs.values() if job.request.context.search.kind == "record")
    assert record.policy.delete_after_seconds == 60


def test_the_best_so_far_is_logged_once_by_all_drivers(client: TrainerClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainer_core.search.driver")
    with open_search(client, trial_config=TrialConfig(3, 1)) as driver:
        driver.step()
        finish(client, backend(client).list_running()[0].ref.name)
        driver.step()
    with SearchDriver.find(client, "search/tune") as driver:
        driver.step(create=False)
    assert [record.message for record in caplog.records if "best so far" in record.message] == [
        f"Search tune: trial 0 is the best so far: loss {driver.step(create=False).table.trials[0].value}"
    ]


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_parameters_do_not_depend_on_the_number_of_slots(client: TrainerClient, parallel: int) -> None:
    with open_search(client, trial_config=TrialConfig(6, parallel)) as driver:
        run_to_end(client, driver)
    expected = [sampling.suggest(driver.definition.space, RandomSearch(), driver.seed, n, (), {}) for n in range(6)]
    assert [parameters for _, parameters in list_trials(client)] == expected


def test_secrets_as_text_are_refused_before_anything_is_created(client: TrainerClient) -> None:
    template = {"trainer": CustomTrainer(train, env={"TOKEN": "x"}), "runtime": "python"}
    initializer = Initializer(model=HuggingFaceModelInitializer("hf://owner/model", access_token="hf_secret"))
    with pytest.raises(InvalidRequestError, match="a search takes secrets as references only") as refused:
        client.optimize({**template, "initializer": initializer}, search_space=SPACE, options=[Name("tune")])
    assert "hf_secret" not in str(refused.value)
    assert backend(client).jobs == {}


def test_a_backend_that_does_not_answer_for_a_moment_changes_nothing(client: TrainerClient) -> None:
    dice = random.Random(1)  # noqa: S311 -- no secret

    def fail_sometimes(_: str) -> None:
        if dice.random() < 0.3:
            raise BackendUnavailableError("the server is restarted")

    other = connect(backend(client).jobs)
    with open_search(other) as driver:
        backend(other).on_call = fail_sometimes
        states: list[SearchState] = []
        while not states or states[-1].outcome is None:
            states.append(driver.try_step())
            for job in backend(client).list_running() if len(states) % 2 else []:
                finish(client, job.ref.name)
    assert any(state.is_stale for state in states)
    assert [trial for trial, _ in list_trials(client)] == list(range(6))
    assert len(backend(client).jobs) == 7


def test_the_files_of_a_project_are_packed_once(client: TrainerClient, tmp_path: Path) -> None:
    (tmp_path / "project_train.py").write_text("def train(x):\n    return {'loss': x}\n")
    trainer = CustomTrainer("project_train:train", code=str(tmp_path))
    name = client.optimize(
        {"trainer": trainer, "runtime": "python"}, search_space={"x": [1, 2, 3]}, options=[Name("tune")]
    )
    (tmp_path / "project_train.py").write_text("def train(x):\n    return {'loss': -x}\n")
    with client.searches.find(name) as driver:
        for _ in range(3):
            backend(client).complete(backend(client).list_running()[0].ref.name, loss=1)
            driver.step()
    projects = {job.request.project for job in list_runs(client)}
    assert len(list_runs(client)) > 1
    assert len(projects) == 1
    assert projects != {None}


@pytest.fixture
def objects(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which the files of large projects go."""
    folder = tmp_path_factory.mktemp("objects")
    monkeypatch.setattr(
        ManualBackend, "resolve_request", lambda _, request: code_location.resolve(request, folder.as_uri(), ("file",))
    )
    return folder


@pytest.mark.parametrize("limit", [400_000, 0], ids=["small", "large"])
def test_files_beside_the_code_may_change_while_a_search_is_extended_and_modules_may_not(
    client: TrainerClient,
    tmp_path: Path,
    objects: Path,
    limit: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_location, "_MAX_ARCHIVE_BESIDE_PLACE", limit)
    (tmp_path / "project_train.py").write_text("def train(x):\n    return {'loss': x}\n")
    definition = tmp_path / "tune.yaml"

    def start(trials: int) -> str:
        definition.write_text(f"trial_config: {{num_trials: {trials}}}\n")
        trainer = CustomTrainer("project_train:train", code=str(tmp_path))
        return client.optimize(
            {"trainer": trainer, "runtime": "python"},
            search_space={"x": Search.uniform(0, 1)},
            trial_config=TrialConfig(trials, 2),
            options=[Name("tune")],
        )

    start(2)
    start(3)
    assert "Search tune continues with the files that it began with; changed are tune.yaml" in caplog.text
    for job in backend(client).list_running():
        backend(client).complete(job.ref.name, loss=1)
    start(3)
    assert [trial for trial, _ in list_trials(client)] == [0, 1, 2]
    (tmp_path / "project_train.py").write_text("def train(x):\n    return {'loss': -x}\n")
    message = r"other modules of the project: project_train\.py\..*`trainjob search tune --wait`"
    with pytest.raises(ConflictError, match=message):
        start(3)
    assert len({job.request.project for job in list_runs(client)}) == 1
    assert len(list(objects.iterdir())) == (limit == 0)


def test_files_of_a_search_that_are_gone_are_named_when_others_are_given(
    client: TrainerClient,
    tmp_path: Path,
    objects: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_location, "_MAX_ARCHIVE_BESIDE_PLACE", 0)
    (tmp_path / "project_train.py").write_text("def train(x):\n    return {'loss': x}\n")

    def start() -> None:
        trainer = CustomTrainer("project_train:train", code=str(tmp_path))
        template = {"trainer": trainer, "runtime": "python"}
        client.optimize(template, search_space={"x": Search.uniform(0, 1)}, options=[Name("tune")])

    start()
    (tmp_path / "notes.md").write_text("one")
    for path in objects.iterdir():
        path.unlink()
    with pytest.raises(ConflictError, match="exists with another definition"):
        start()
    assert f"The files that the search began with, {objects.as_uri()}/" in caplog.text


def test_projects_that_fill_a_cluster_are_refused_with_both_sizes() -> None:
    code = Code.model_construct(project=Project.model_construct(archive="x" * 800_000))
    request = TrainJobRequest(work=Work.model_construct(trainer=TrainerRequest.model_construct(code=code)))
    templates.check_project_size(request, 60)
    with pytest.raises(InvalidRequestError, match=r"have 800 kB, and 70 trials would store 56 MB"):
        templates.check_project_size(request, 70)
    templates.check_project_size(request.with_project(uri="s3://code/of-all.json.zlib"), 70)


def test_a_driver_that_waits_in_vain_leaves_the_trials_alone(client: TrainerClient) -> None:
    with open_search(client) as driver, pytest.raises(WaitTimeoutError, match="has not ended after 0 s"):
        driver.run(timeout=0)
    assert len(backend(client).list_running()) == 2


def test_the_outcome_of_each_trial_is_stored_for_later_readers(
    client: TrainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[Outcome] = []
    monkeypatch.setattr(client.backend, "observe", lambda ref: replace(observe(ref), outcome_is_stored=False))
    observe = ManualBackend(backend(client).jobs).observe
    monkeypatch.setattr(client.backend, "store_outcome", stored.append)
    with open_search(client) as driver:
        run_to_end(client, driver)
    assert sorted(outcome.job.name for outcome in stored) == sorted(job.ref.name for job in list_runs(client))


def test_the_next_delete_completes_one_that_was_interrupted_before_the_records(client: TrainerClient) -> None:
    with open_search(client) as driver:
        run_to_end(client, driver)
    for job in list_runs(client):
        backend(client).delete(job.ref)
    client.searches.delete_job("tune")
    assert backend(client).jobs == {}


def test_a_trial_that_was_deleted_while_it_ran_is_not_listed_with_the_jobs_that_exist(client: TrainerClient) -> None:
    with open_search(client) as driver:
        driver.step()
        first, second = (job.ref for job in list_runs(client)[:2])
        backend(client).delete(first)
        driver.step()
        assert first not in driver.list_refs()
        assert second in driver.list_refs()


def test_a_driver_keeps_at_hand_only_the_trials_that_can_change_and_the_newest_entry(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(40, 2)) as driver:
        while driver.step().outcome is None:
            assert len(driver._open) <= 3
            finish(client, backend(client).list_running()[0].ref.name)
        assert len(driver._entries) == 41
        # A table of all trials is in every 32nd entry, and would be in memory as often.
        assert not any(entry.section.settled for entry in driver._entries.values())


def test_an_entry_has_the_trials_that_have_ended_since_the_last_table_of_all_also_with_another_driver(
    client: TrainerClient,
) -> None:
    with open_search(client, trial_config=TrialConfig(40, 1)) as driver:
        run_to_end(client, driver)
    with open_search(client, trial_config=TrialConfig(41, 1)) as driver:
        driver.step()
    section = list_runs(client)[-1].request.context.search
    assert section is not None
    # Entry 32 has the table of all trials that had ended before it.
    assert [line[0] for line in section.settled] == list(range(32, 40))


def test_a_trial_that_had_settled_is_retried_when_another_driver_allows_it(client: TrainerClient) -> None:
    with open_search(client, trial_config=TrialConfig(3, 1, retries=0)) as driver:
        driver.step()
        backend(client).fail(list_runs(client)[0].ref.name, Category.NODE_LOST, retryable=True)
        assert driver.step(create=False).table.trials[0].status == "Lost"
        with open_search(client, trial_config=TrialConfig(3, 1, retries=1)) as other:
            other.step()
        driver._list_entries()
        assert driver.step(create=False).table.trials[0].settled is None


def test_a_job_of_the_debug_backend_leaves_no_folder_in_the_import_path() -> None:
    client, path = TrainerClient(DebugBackendConfig()), list(sys.path)
    client.wait(client.train(runtime="python", trainer=CustomTrainer(train, func_args={"x": 1.0, "y": 1})))
    assert sys.path == path


_DEBUG_JOBS = """
from test_driver import train
from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient
client = TrainerClient(DebugBackendConfig())
for number in range(3):
    client.train(runtime="python", trainer=CustomTrainer(train, func_args={"x": 1.0, "y": number}))
"""


def test_the_debug_backend_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    variables = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _DEBUG_JOBS], env=variables, check=True)
    assert list(tmp_path.iterdir()) == []
