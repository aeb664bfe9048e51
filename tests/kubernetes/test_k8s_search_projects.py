"""A search on a cluster whose function travels with a project, continued by a process without the definition."""

from __future__ import annotations

import pytest
from k8s_scene import a_client, a_stage

from trainer_core import CustomTrainer, GridSearch, Name, TrainJobTemplate, TrialConfig
from trainer_core.base.errors import ConflictError


def test_a_search_with_a_project_is_continued_by_its_name_and_other_modules_are_refused(tmp_path):
    (tmp_path / "of_project.py").write_text("def train(x):\n    return {'loss': x}\n")
    (tmp_path / "notes.md").write_text("one")

    def start(client):
        return client.optimize(
            TrainJobTemplate(CustomTrainer("of_project:train", code=str(tmp_path)), "python"),
            search_space={"x": [1.0, 2.0]},
            algorithm=GridSearch(),
            trial_config=TrialConfig(2, 1),
            options=[Name("tune")],
        )

    with a_stage(grace=0.05) as (cluster, client):
        outcome = a_client(cluster).wait_for_search(start(client), 100)
        assert [trial.value for trial in outcome.trials] == [1.0, 2.0]
        (tmp_path / "notes.md").write_text("two")
        assert client.wait_for_search(start(client), 100) == outcome
        (tmp_path / "of_project.py").write_text("def train(x):\n    return {'loss': -x}\n")
        with pytest.raises(ConflictError, match=r"other modules of the project: of_project\.py\."):
            start(client)
