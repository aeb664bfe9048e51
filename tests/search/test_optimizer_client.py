"""OptimizerClient, as a program of the Kubeflow SDK uses it. `tests/unit/test_public_api.py` has its signatures."""

from __future__ import annotations

import pytest

from trainer_core import (
    CustomTrainer,
    DebugBackendConfig,
    JobNotFoundError,
    Objective,
    OptimizationJob,
    OptimizerClient,
    Search,
    TrainJobTemplate,
    TrialConfig,
)
from trainer_core.search import driver


def train(rate: str, batch: str = "1") -> dict[str, float]:
    print(f"rate {rate}")
    return {"loss": float(rate) * float(batch), "accuracy": 1.0}


@pytest.fixture
def client() -> OptimizerClient:
    return OptimizerClient(DebugBackendConfig())


def start(client: OptimizerClient, **changes: object) -> str:
    fields: dict[str, object] = {
        "search_space": {"rate": Search.choice([3.0, 2.0]), "batch": Search.choice([1])},
        "objectives": [Objective(), Objective("accuracy")],
        "trial_config": TrialConfig(num_trials=2),
        "algorithm": {"GridSearch": {}},
        **changes,
    }
    template = TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python")
    return client.optimize(template, **fields)  # type: ignore[arg-type]


def test_a_program_of_the_kubeflow_sdk_finds_the_best_parameters_metrics_and_trainjobs(client: OptimizerClient) -> None:
    name = start(client)
    seen: list[OptimizationJob] = []
    job = client.wait_for_job_status(name, timeout=600, callbacks=[seen.append])
    assert (job.name, job.status, seen[-1].status) == (name, "Complete", "Complete")
    best = client.get_best_results(name)
    assert best is not None
    assert best.parameters == {"rate": "2.0", "batch": "1"}
    assert {metric.name: metric.latest for metric in best.metrics} == {"loss": "2.0", "accuracy": "1.0"}
    assert [trial.parameters["rate"] for trial in job.trials] == ["3.0", "2.0"]
    trainjobs = [trial.trainjob for trial in job.trials if trial.trainjob is not None]
    assert [(each.name, each.status) for each in trainjobs] == [(trial.name, "Complete") for trial in job.trials]
    assert list(client.get_job_logs(name)) == ["rate 2.0"]
    assert list(client.get_job_logs(name, trial_name=job.trials[0].name)) == ["rate 3.0"]


def test_searches_have_names_of_their_own_and_are_listed_with_the_newest_first(client: OptimizerClient) -> None:
    names = [start(client), start(client)]
    assert len(set(names)) == 2
    jobs = client.list_jobs()
    assert [job.name for job in jobs] == names[::-1]
    assert {trial.trainjob is not None for job in jobs for trial in job.trials} == {True}
    client.delete_job(names[0])
    assert [job.name for job in client.list_jobs()] == names[1:]
    with pytest.raises(JobNotFoundError, match=f"'{names[0]}' does not exist"):
        client.get_job(names[0])


def test_a_search_that_fails_ends_the_wait_for_its_success_at_once(
    client: OptimizerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(driver, "wait_any", lambda _, seconds: pauses.append(seconds))
    name = start(client, objectives=[Objective("f1", "maximize")])
    with pytest.raises(RuntimeError, match=r"is Failed: .*reported no f1, but: accuracy, loss"):
        client.wait_for_job_status(name, timeout=600)
    assert client.get_best_results(name) is None
    assert set(pauses) == {0.0}
