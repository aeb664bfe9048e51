"""Exit tasks, gates, metrics as outputs and sweeps, with KFP's own orchestration on the host runner."""

import kfp_definitions as definitions
import pytest
import yaml
from kfp import compiler, dsl

from kfp_components.best_of import best_of
from kfp_components.delete import delete
from kfp_components.evaluate_gate import evaluate_gate
from kfp_components.promote import promote
from kfp_components.tasks import train_task, wait_task
from kfp_components.testing import host_runner
from trainer_core import CustomTrainer

TRAINER = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})


@pytest.fixture(autouse=True)
def _runner(tmp_path, client):
    with host_runner(tmp_path / "runs"):
        yield


def test_an_exit_task_deletes_the_jobs_of_a_local_run(client):
    @dsl.pipeline
    def pipeline():
        with dsl.ExitHandler(delete()):
            train_task(trainer=TRAINER, runtime="python", wait=True)

    pipeline()

    assert client.list_jobs() == []


def test_a_task_can_ignore_the_failure_of_those_before_it(tmp_path):
    @dsl.pipeline
    def pipeline():
        trained = train_task(trainer=TRAINER, runtime="python", wait=True)
        delete().after(trained).ignore_upstream_failure()

    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))

    tasks = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())["root"]["dag"]["tasks"]
    assert tasks["delete"]["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}


def test_a_gate_and_a_metric_by_its_name_decide_what_is_promoted(tmp_path):
    @dsl.pipeline
    def pipeline(registry: str, least: float) -> float:
        trained = train_task(trainer=TRAINER, runtime="python")
        waited = wait_task(job=trained.outputs["job"], metrics=["accuracy"])
        gate = evaluate_gate(metrics=waited.outputs["metrics"], at_least={"accuracy": least})
        with dsl.If(gate.outputs["passed"] == True):  # noqa: E712 - KFP compares, not Python
            promote(
                model=waited.outputs["model"],
                metric=waited.outputs["accuracy"],
                registry=registry,
            )
        return waited.outputs["accuracy"]

    metric = pipeline(registry=str(tmp_path / "good"), least=0.9).output
    pipeline(registry=str(tmp_path / "bad"), least=0.95)

    assert metric == 0.9
    assert [(tmp_path / name).exists() for name in ("good", "bad")] == [True, False]


def test_the_best_of_a_sweep_is_picked(client):
    score = CustomTrainer(func=definitions.score, func_args={"rate": 0.0})

    @dsl.pipeline
    def pipeline(rates: list[float]) -> dict:
        with dsl.ParallelFor(rates) as rate:
            trained = train_task(trainer=score, runtime="python", func_args={"rate": rate}, wait=True)
        best = best_of(jobs=dsl.Collected(trained.outputs["job"]), metric_name="error", higher_is_better=False)
        return best.outputs["result"]

    result = pipeline(rates=[0.1, 0.5, 1.0]).output

    assert result == {"rate": 0.5, "error": 0.0}
    assert len(client.list_jobs()) == 3


def test_a_definition_that_travels_as_an_argument_trains():
    given = {"epochs": 1, "learning_rate": 0.1}
    long = CustomTrainer(func=definitions.train_a_little, func_args=given, env={"TEXT": "x" * 20_000})

    @dsl.pipeline
    def pipeline() -> float:
        return train_task(trainer=long, runtime="python", wait=True, metrics=["accuracy"]).outputs["accuracy"]

    assert pipeline().output == 0.9
