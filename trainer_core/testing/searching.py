"""Contract of hyperparameter searches: the same trials, values at rungs, limits and results on every backend."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainer_core.base.errors import ConflictError
from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, Name
from trainer_core.definition.template import TrainJobTemplate
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.jobs import Category, Diagnosis, ObjectiveReport
from trainer_core.model.request import Owner
from trainer_core.node import env
from trainer_core.search.definition import Asha, GridSearch, Objective, RandomSearch, SearchDefinition, TrialConfig
from trainer_core.testing.case import BackendCase, Contract, Run, Submit, applies_to, count_nodes
from trainer_core.testing.training_functions import report_loss, return_loss, wait_with_parameters

#: Seconds to wait for a report; far more than needed.
_TIMEOUT = 300.0
#: What `RandomSearch(random_state=7)` draws from it, on every machine.
_SPACE = {"rate": {"uniform": [0, 1]}, "batch": [16, 32]}
_EXPECTED = [{"rate": 0.13245110711, "batch": 16}, {"rate": 0.874033335824, "batch": 16}]


class Searching(Contract):
    """Searches: what `TrainerClient.optimize` and its relatives promise."""

    def test_a_search_runs_each_trial_once_and_another_process_continues_it_by_its_name(
        self, case: BackendCase, client: TrainerClient, tmp_path: Path
    ) -> None:
        name = self._start(case, client)
        other = case.connect(tmp_path / "state") if case.is_visible_to_other_clients else client
        outcome = other.wait_for_search(name, timeout=600)
        assert (outcome.status, outcome.reason) == ("Complete", "complete")
        assert [trial.values for trial in outcome.trials] == _EXPECTED
        values = [trial.value for trial in outcome.trials]
        assert values == [values_of["rate"] * values_of["batch"] for values_of in _EXPECTED]
        assert outcome.best is not None
        assert outcome.best.value == min(value for value in values if value is not None)
        jobs = self._list_names(client, name)
        client.delete_job(outcome.trials[0].name)
        assert client.wait_for_search(name).trials == outcome.trials
        assert self._list_names(client, name) == sorted({*jobs} - {outcome.trials[0].name})
        with pytest.raises(ConflictError, match=r"differs in: search_space\.rate"):
            self._start(case, client, search_space={**_SPACE, "rate": {"uniform": [0, 2]}})

    def test_an_extended_grid_has_each_cell_once(self, case: BackendCase, client: TrainerClient) -> None:
        grid = {"search_space": {"rate": [1.0, 2.0], "batch": [3]}, "algorithm": GridSearch()}
        for trials in (1, 9):
            name = self._start(case, client, **grid, trial_config=TrialConfig(trials, 1))
            outcome = client.wait_for_search(name, timeout=600)
        cells = [(trial.values["rate"], trial.values["batch"]) for trial in outcome.trials]
        assert cells == [(1.0, 3), (2.0, 3)]

    def test_an_unknown_parameter_is_refused_before_anything_is_created(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        with pytest.raises(ValueError, match=r"return_loss has no parameter .*nope"):
            self._start(case, client, search_space={**_SPACE, "nope": [1]})
        assert client.backend.list_jobs() == []

    @applies_to(runs_in_background=False)
    def test_a_stop_policy_is_skipped_with_a_warning(
        self, case: BackendCase, client: TrainerClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = self._start(case, client, stop=Asha(), trial_config=TrialConfig(1, 1))
        assert client.wait_for_search(name).status == "Complete"
        assert "the stop policy is skipped" in caplog.text

    @applies_to(runs_in_background=True)
    def test_a_loser_is_stopped_is_no_failure_and_never_starts_again(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        # The second trial waits before its second step, until it is stopped.
        name = self._start_reporting(case, client, {"steps": 2, "wait_at": 2}, stop=Asha())
        outcome = client.wait_for_search(name, timeout=600)
        assert (outcome.status, outcome.reason) == ("Complete", "complete")
        assert [(trial.status, trial.value) for trial in outcome.trials] == [("Complete", 0.25), ("Stopped early", 1.0)]
        loser = client.get_job_outcome(client.get_job_ref(outcome.trials[1].name))
        assert loser.diagnosis is not None
        assert str(loser.diagnosis) == "StoppedEarly: val_loss 1 at step 1 is not the best of 2: 0.5"
        assert len(self._list_names(client, name)) == 2

    @applies_to(runs_in_background=True)
    def test_trials_pause_at_a_rung_and_the_best_one_continues_from_its_checkpoint(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        # All ranks end at the rung by themselves.
        policy = Asha(max_step=2, factor=2, promote=True)
        name = self._start_reporting(case, client, {"steps": 2}, nodes=count_nodes(case), stop=policy)
        outcome = client.wait_for_search(name, timeout=600)
        assert [(trial.status, trial.value) for trial in outcome.trials] == [("Complete", 0.25), ("Stopped early", 1.0)]
        best = outcome.trials[0].name
        assert client.get_job_outcome(client.get_job_ref(best)).resumed_from == 1
        assert client.get_job(best).num_nodes == count_nodes(case)
        assert len(self._list_names(client, name)) == 3

    @applies_to(runs_in_background=True)
    def test_at_the_goal_what_runs_is_stopped_and_two_drivers_are_one_search(
        self, case: BackendCase, client: TrainerClient, tmp_path: Path
    ) -> None:
        # The second trial waits before its first step, until it is stopped.
        goal: dict[str, Any] = {"trial_config": TrialConfig(3, 2), "objectives": [Objective("val_loss", goal=0.5)]}
        name = self._start_reporting(case, client, {"steps": 1, "wait_at": 1}, **goal)
        drivers = [client, case.connect(tmp_path / "state")]
        with ThreadPoolExecutor() as pool:
            outcomes = list(pool.map(lambda each: each.wait_for_search(name, timeout=600), drivers))
        assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("Complete", "goal")] * 2
        assert [trial.status for trial in outcomes[0].trials] == ["Complete", "Stopped early"]
        jobs = client.backend.list_search_jobs(f"search/{name}", ())
        assert sorted(job[1].context.search.entry for job in jobs.values() if job and job[1].context.search) == [
            0,
            1,
            2,
        ]

    @applies_to(runs_in_background=True)
    def test_a_newer_generation_or_a_cancel_ends_all_trials_and_a_delete_removes_all_generations(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        template = self._build_template(case, wait_with_parameters)
        definition = SearchDefinition.parse(_SPACE, trial_config=TrialConfig(4, 1))
        owners = [Owner(key="search/tune", slug="tune", generation=generation) for generation in ("0", "1")]
        with client.searches.open(template, definition, owner=owners[0]) as old:
            old.step()
            (first,) = self._list_names(client, "tune")
            client.searches.start(template, definition, owner=owners[1])
            assert client.get_job(first).status == "Failed"
            with pytest.raises(ConflictError, match="newer generation"):
                old.run(timeout=300)
        client.searches.cancel("tune")
        jobs = self._list_names(client, "tune")
        assert [client.get_job(job).status for job in jobs] == ["Failed"] * 2
        outcome = client.wait_for_search("tune", timeout=600)
        assert (outcome.status, outcome.reason) == ("Failed", "cancelled")
        assert self._list_names(client, "tune") == jobs
        client.searches.delete_job("tune")
        assert client.backend.list_search_jobs("search/tune", ()) == {}

    def _start(self, case: BackendCase, client: TrainerClient, **changes: object) -> str:
        fields: dict[str, object] = {
            "search_space": _SPACE,
            "objectives": [Objective("loss")],
            "trial_config": TrialConfig(2, 2),
            "algorithm": RandomSearch(random_state=7),
        }
        template = self._build_template(case, return_loss)
        return client.optimize(template, options=[Name("tune")], **{**fields, **changes})  # type: ignore[arg-type]

    def _start_reporting(
        self, case: BackendCase, client: TrainerClient, args: dict[str, int], nodes: int = 1, **changes: object
    ) -> str:
        """Start a search of two trials, one after the other, with the values 0.5 and 1 at step 1."""
        fields = {"trial_config": TrialConfig(2, 1), "objectives": [Objective("val_loss")], **changes}
        template = self._build_template(case, report_loss, args, nodes)
        options = [Name("tune"), Checkpoints()]
        space = {"rate": [0.5, 1.0]}
        return client.optimize(template, search_space=space, algorithm=GridSearch(), options=options, **fields)  # type: ignore[arg-type]

    def _build_template(
        self, case: BackendCase, func: object, args: dict[str, int] | None = None, nodes: int = 1
    ) -> TrainJobTemplate:
        fields = {"func": func, "func_args": args, "num_nodes": nodes, "image": case.image}
        trainer = CustomTrainer(env={env.RESOURCE_INTERVAL: "3600"}, **fields)  # type: ignore[arg-type]
        return TrainJobTemplate(trainer, case.runtime)

    def _list_names(self, client: TrainerClient, name: str) -> list[str]:
        """Return the names of the trials' jobs."""
        jobs = client.backend.list_search_jobs(f"search/{name}", ())
        entries = {found: job[1].context.search for found, job in jobs.items() if job}
        return sorted(found for found, entry in entries.items() if entry and entry.kind == "run")


def _build_settings(until: int | None = None) -> dict[str, str]:
    """Return the variable that tells nodes the objective, with rungs at steps 1, 3 and 9."""
    settings = {"metric": "val_loss", "best": "min", "value": "last", "at": [1, 3, 9], "until": until, "trial": 0}
    return {env.OBJECTIVE: json.dumps(settings)}


def _list_rungs(objective: ObjectiveReport | None) -> list[tuple[Any, ...]]:
    assert objective is not None
    return [rung[:3] for rung in objective.rungs]


class EarlyStops(Contract):
    """The values of a trial at rungs are known while it runs, and of each trial that has ended."""

    def test_rungs_between_two_lines_of_progress_are_in_the_outcome(self, run: Run) -> None:
        outcome = run(report_loss, {"steps": 4}, env=_build_settings())
        assert _list_rungs(outcome.objective) == [(0, 1, 1.0), (1, 3, 1 / 3)]
        assert outcome.objective is not None
        assert (outcome.objective.value, outcome.objective.step, outcome.objective.best) == (0.25, 4, 0.25)
        assert (outcome.status, outcome.paused_at) == ("Complete", None)

    @applies_to(runs_in_background=True)
    def test_a_trial_pauses_at_its_rung_with_a_checkpoint_and_is_complete(self, run: Run) -> None:
        outcome = run(report_loss, {"steps": 30}, env=_build_settings(until=3), options=[Checkpoints()])
        assert (outcome.status, outcome.paused_at, outcome.checkpoint, outcome.result) == ("Complete", 3, 3, None)
        assert _list_rungs(outcome.objective) == [(0, 1, 1.0), (1, 3, 1 / 3)]

    @applies_to(runs_in_background=True)
    def test_a_trial_that_is_stopped_early_keeps_its_reason_and_its_values(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        # It reports one step, and waits for SIGTERM before the second one.
        ref = submit(report_loss, {"steps": 2, "wait_at": 2}, env=_build_settings(), options=[Checkpoints()])
        end = time.monotonic() + _TIMEOUT
        while (progress := client.observe(ref).progress) is None or progress.objective is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert _list_rungs(progress.objective) == [(0, 1, 1.0)]

        reason = "val_loss 1 at step 1 is not the best of 2: 0.5"
        diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason=reason, objective=progress.objective)
        client.backend.cancel(ref, diagnosis)
        outcome = client.wait(ref)
        assert (outcome.status, outcome.diagnosis) == ("Failed", diagnosis)
        assert client.get_job("job").reason == f"StoppedEarly: {reason}"
