"""Whole pipelines on the host runner: the components' own commands, with KFP's own orchestration."""

import builtins
import logging
import shlex
import sys
from types import SimpleNamespace
from typing import NamedTuple, Optional

import kfp
import kfp_definitions as definitions
import pytest
from kfp import compiler, components, dsl, local
from kfp.local import config, logging_utils, subprocess_task_handler

from kfp_components.initialize_dataset import initialize_dataset
from kfp_components.promote import promote
from kfp_components.tasks import train_task
from kfp_components.testing import host_runner
from kfp_components.wait import wait
from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient

TRAINER = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})


class Outputs(NamedTuple):
    job: dict
    metric: float
    result: dict


@dsl.pipeline
def train_and_promote(registry: str, threshold: float, epochs: int = 2, learning_rate: float = 1.0) -> Outputs:
    func_args = {"epochs": epochs, "learning_rate": learning_rate}
    trained = train_task(trainer=TRAINER, runtime="python", func_args=func_args)
    waited = wait(job=trained.outputs["job"], metric_name="accuracy")
    with dsl.If(waited.outputs["metric"] >= threshold):
        promote(
            model=waited.outputs["model"],
            metric=waited.outputs["metric"],
            registry=registry,
        )
    return Outputs(job=trained.outputs["job"], metric=waited.outputs["metric"], result=waited.outputs["result"])


@pytest.fixture
def runner(tmp_path, client):
    with host_runner(tmp_path / "runs"):
        yield


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Of one pipeline: a model that is good enough, then one that is not; folder, outputs and number of jobs."""
    folder = tmp_path_factory.mktemp("two runs")
    client = TrainerClient(LocalProcessBackendConfig(home=folder / "home"))
    with pytest.MonkeyPatch.context() as patch, host_runner(folder / "runs"):
        patch.setenv("TRAINJOB_HOME", str(folder / "home"))
        good = train_and_promote(registry=str(folder / "good"), threshold=0.9).outputs
        bad = train_and_promote(registry=str(folder / "bad"), threshold=0.91, epochs=3, learning_rate=1.0).outputs
    jobs = client.list_jobs()
    for job in jobs:
        client.delete_job(job.name)
    return SimpleNamespace(folder=folder, good=good, bad=bad, jobs=len(jobs))


def test_a_pipeline_trains_waits_and_promotes(two_runs):
    assert two_runs.good["metric"] == 0.9
    assert [path.read_text() for path in two_runs.folder.glob("good/versions/*/*")] == ["weights"]


def test_a_model_below_the_threshold_is_not_promoted(two_runs):
    assert not (two_runs.folder / "bad").exists()


def test_pipeline_parameters_arrive_in_the_function_as_real_types(two_runs):
    expected = {"epochs": 3, "learning_rate": 1.0, "note": "", "tags": None}
    assert two_runs.bad["result"]["given"] == repr(expected)


def test_each_run_has_a_job_of_its_own(two_runs):
    assert two_runs.jobs == 2


def loaded(pipeline, folder):
    """A pipeline as it comes back from its compiled YAML."""
    compiler.Compiler().compile(pipeline, str(folder / "pipeline.yaml"))
    return components.load_component_from_file(str(folder / "pipeline.yaml"))


@pytest.mark.usefixtures("runner")
def test_a_compiled_pipeline_runs_too(tmp_path):
    pipeline = loaded(train_and_promote, tmp_path)

    assert pipeline(registry=str(tmp_path / "registry"), threshold=1.0).outputs["metric"] == 0.9


@pytest.mark.usefixtures("runner")
def test_a_dataset_that_was_fetched_once_serves_several_trainings(tmp_path, client):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.csv").write_text("1,2")
    reader = CustomTrainer(func=definitions.read_the_dataset)

    @dsl.pipeline
    def pipeline(storage_uri: str) -> dict:
        fetched = initialize_dataset(storage_uri=storage_uri)
        first = train_task(trainer=reader, runtime="python", dataset=fetched.outputs["dataset"], wait=True)
        second = train_task(trainer=reader, runtime="python", dataset=fetched.outputs["dataset"], wait=True)
        second.after(first)
        return second.outputs["result"]

    output = pipeline(storage_uri=(tmp_path / "source").as_uri()).output

    assert output == {"files": {"a.csv": "1,2"}}
    assert len(client.list_jobs()) == 3


@pytest.mark.usefixtures("runner")
def test_iterations_of_a_loop_have_jobs_of_their_own(client):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2, 3]) as epochs:
            train_task(trainer=TRAINER, runtime="python", func_args={"epochs": epochs}, wait=True)

    pipeline()

    assert len(client.list_jobs()) == 3


@pytest.mark.usefixtures("runner")
def test_a_failed_job_fails_the_pipeline(capfd):
    @dsl.pipeline
    def pipeline():
        trained = train_task(trainer=CustomTrainer(func=definitions.fail_with_markup), runtime="python")
        wait(job=trained.outputs["job"])

    with pytest.raises(RuntimeError, match=r"Inner task failed: .*wait"):
        pipeline()
    assert "ValueError: <b>no luck</b> (a retry will not help)" in capfd.readouterr().out


@pytest.mark.usefixtures("runner")
def test_a_retry_of_the_pipeline_runs_a_failed_job_again(tmp_path, client):
    trainer = CustomTrainer(func=definitions.fail_once, func_args={"marker": str(tmp_path / "marker")})

    @dsl.pipeline
    def pipeline():
        train_task(trainer=trainer, runtime="python", wait=True).set_retry(1, backoff_duration="0s")

    pipeline()

    assert sorted(job.status for job in client.list_jobs()) == ["Complete", "Failed"]


def with_nulls() -> dict:
    return {"accuracy": 0.9, "note": None, "history": [{"loss": None}]}


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("prepare", [lambda pipeline, folder: pipeline, loaded])
def test_nulls_in_results_and_optional_parameters_pass_as_in_the_launcher(tmp_path, prepare):
    @dsl.pipeline
    def pipeline(name: Optional[str] = None) -> dict:  # noqa: UP045 - KFP reads no other spelling
        trained = train_task(trainer=CustomTrainer(func=with_nulls), runtime="python", wait=True, job_name=name)
        return trained.outputs["result"]

    assert prepare(pipeline, tmp_path)().output == with_nulls()


def test_the_host_runner_leaves_kfp_as_it_was(tmp_path):
    handler = subprocess_task_handler.SubprocessTaskHandler
    before = handler.validate_not_container_component, config.LocalExecutionConfig.instance

    with host_runner(tmp_path):
        pass

    assert (handler.validate_not_container_component, config.LocalExecutionConfig.instance) == before


@pytest.mark.parametrize("told_by", [logging_utils.indented_print, logging_utils.local_logger_context])
def test_tasks_that_ran_at_the_same_time_leave_print_and_logging_as_they_were(tmp_path, told_by):
    before = builtins.print, logging.getLogger().handlers[:]

    with host_runner(tmp_path):
        first, second = told_by(), told_by()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)

    assert (builtins.print, logging.getLogger().handlers) == before


def test_lightweight_python_components_still_run_on_the_host_runner(tmp_path, monkeypatch):
    python = tmp_path / "a path with blanks"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))

    @dsl.component(base_image="python:3.12", install_kfp_package=False)
    def double(number: int) -> int:
        return 2 * number

    with host_runner(tmp_path):
        assert double(number=2).output == 4


def test_an_unknown_version_of_kfp_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kfp, "__version__", "2.99.0")

    with pytest.raises(RuntimeError, match=r"written for kfp 2\.17\.x, found 2\.99\.0"), host_runner(tmp_path):
        pass


def test_without_the_host_runner_kfp_still_refuses_container_components(tmp_path, monkeypatch):
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path))

    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="only supports running Lightweight Python"):
        wait(job={})
