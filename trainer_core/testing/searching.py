"""Contract of hyperparameter searches: the same trials, limits and results on every backend."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core import naming
from trainer_core.client import TrainerClient
from trainer_core.errors import ConflictError
from trainer_core.jobs import SEARCH_LABEL
from trainer_core.node.env import RESOURCE_INTERVAL
from trainer_core.options import Name
from trainer_core.search.definition import GridSearch, Objective, RandomSearch, TrialConfig
from trainer_core.template import TrainJobTemplate
from trainer_core.testing.case import BackendCase, Contract, applies_to
from trainer_core.testing.training_functions import return_loss, wait_with_parameters
from trainer_core.trainers import CustomTrainer

__all__ = ["Searching"]

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
        assert client.wait_for_search(name).trials == outcome.trials
        assert self._list_names(client, name) == jobs
        with pytest.raises(ConflictError, match=r"differs in: search_space\.rate"):
            self._start(case, client, search_space={**_SPACE, "rate": {"uniform": [0, 2]}})

    def test_an_extended_grid_has_each_cell_once(self, case: BackendCase, client: TrainerClient) -> None:
        grid = {"search_space": {"rate": [1.0, 2.0], "batch": [3]}, "algorithm": GridSearch()}
        for trials in (1, 9):
            name = self._start(case, client, **grid, trial_config=TrialConfig(trials, 1))
            outcome = client.wait_for_search(name, timeout=600)
        cells = [(trial.values["rate"], trial.values["batch"]) for trial in outcome.trials]
        assert cells == [(1.0, 3), (2.0, 3)]

    @applies_to(runs_in_background=True)
    def test_after_a_cancel_nothing_of_a_search_lives_and_nothing_starts(
        self, case: BackendCase, client: TrainerClient
    ) -> None:
        template = self._build_template(case, wait_with_parameters)
        name = client.optimize(template, search_space=_SPACE, trial_config=TrialConfig(4, 1), options=[Name("tune")])
        client.cancel_optimization_job(name)
        jobs = self._list_names(client, name)
        assert [job.status for job in client.list_jobs(labels=self._label(name))] == ["Failed"] * len(jobs)
        outcome = client.wait_for_search(name, timeout=60)
        assert (outcome.status, outcome.reason) == ("Failed", "cancelled")
        assert self._list_names(client, name) == jobs
        client.delete_optimization_job(name)
        assert self._list_names(client, name) == []

    def _start(self, case: BackendCase, client: TrainerClient, **changes: object) -> str:
        fields: dict[str, object] = {
            "search_space": _SPACE,
            "objectives": [Objective("loss")],
            "trial_config": TrialConfig(2, 2),
            "algorithm": RandomSearch(random_state=7),
        }
        template = self._build_template(case, return_loss)
        return client.optimize(template, options=[Name("tune")], **{**fields, **changes})  # type: ignore[arg-type]

    def _build_template(self, case: BackendCase, func: object) -> TrainJobTemplate:
        trainer = CustomTrainer(func, env={RESOURCE_INTERVAL: "3600"}, image=case.image)  # type: ignore[arg-type]
        return TrainJobTemplate(trainer, case.runtime)

    def _list_names(self, client: TrainerClient, name: str) -> list[str]:
        return sorted(job.name for job in client.list_jobs(labels=self._label(name)))

    def _label(self, name: str) -> dict[str, str]:
        return {SEARCH_LABEL: naming.hash_owner_key(f"search/{name}")}
