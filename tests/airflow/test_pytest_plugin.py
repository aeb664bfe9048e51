"""The pytest plugin: its fixtures, and that it imports nothing if it is not used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset, get_current_context, task
from airflow_fakes import double

from airflow_provider.exceptions import TrainJobFailedError, TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer, Labels
from trainer_core.testing.recorder import completes, fails, runs_until_cancelled

pytestmark = pytest.mark.slow

BEGINNING = datetime(2024, 1, 1, tzinfo=timezone.utc)


def a_dag(name, **arguments):
    return DAG(name, schedule=None, start_date=BEGINNING, **arguments)


def a_task(task_id="train", **arguments):
    given = {"trainer": CustomTrainer(func=double, func_args={"number": "{{ params.number }}"}), **arguments}
    return TrainJobOperator(task_id=task_id, runtime="python", **given)


# A recording backend


def test_a_recorded_task_is_submitted_and_nothing_runs(trainjob_recorder, run_trainjob_task):
    done = run_trainjob_task(a_task(), params={"number": 4})

    assert (done.state, done.returned) == ("success", None)
    assert trainjob_recorder.job("train").args == {"number": 4}
    assert trainjob_recorder.requests[0].work.runtime.name == "python"


def test_a_recorded_job_has_the_scripted_outcome(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(
        completes(lambda job: {"doubled": 2 * job.args["number"], "artifacts": {"model": "s3://m"}})
    )
    done = run_trainjob_task(a_task(), params={"number": 4})

    assert done.returned["doubled"] == 8
    assert done.xcoms["metrics"] == {"doubled": 8.0}
    assert done.xcoms["artifacts"] == {"model": "s3://m"}


def test_a_scripted_failure_has_the_scripted_diagnosis(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(fails("OutOfMemory", "the batch is too large"))
    done = run_trainjob_task(a_task(retries=3), params={"number": 4})

    assert done.state == "failed"
    assert "OutOfMemory in node-0: the batch is too large" in str(done.error)


def test_a_retry_after_a_scripted_failure_gets_the_next_outcome(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(fails("NodeLost"), completes(3))
    first = run_trainjob_task(a_task(retries=1), params={"number": 4})
    second = first.retry()

    assert isinstance(first.error, TrainJobFailedError)
    assert (first.state, second.state, second.returned) == ("up_for_retry", "success", 3)
    assert [job.attempt for job in trainjob_recorder.get_jobs("train")] == [0, 1]


def test_a_retry_returns_the_result_of_the_recorded_job(trainjob_recorder, run_trainjob_task):
    run_trainjob_task(a_task(retries=1), params={"number": 4}).retry()

    assert len(trainjob_recorder.jobs) == 1


def test_clearing_submits_another_job(trainjob_recorder, run_trainjob_task):
    run_trainjob_task(a_task(), params={"number": 4}).clear()

    assert [job.attempt for job in trainjob_recorder.jobs] == [0, 1]


def test_each_task_can_have_its_own_script(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(completes("other"))
    trainjob_recorder.script(completes("mine"), task_id="mine")
    returned = [run_trainjob_task(a_task(name), params={"number": 1}).returned for name in ("mine", "yours")]

    assert returned == ["mine", "other"]


def test_any_backend_can_be_recorded_and_checks_its_options(trainjob_recorder, run_trainjob_task):
    operator = a_task(backend="kubernetes", options=[Labels({"team": "vision"})])
    run_trainjob_task(operator, params={"number": 1})

    job = trainjob_recorder.job()
    assert job.ref.backend == "kubernetes"
    assert job.request.policy.metadata.labels == {"team": "vision"}


def test_the_recorder_refuses_invalid_arguments_like_a_real_backend(trainjob_recorder, run_trainjob_task):
    done = run_trainjob_task(a_task(), params={"number": "many"})

    assert isinstance(done.error, TrainJobRejectedError)
    assert trainjob_recorder.jobs == []


def test_a_recorded_job_can_run_until_it_is_cancelled(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(runs_until_cancelled())
    submitted = run_trainjob_task(a_task(wait_for_completion=False), params={"number": 1})
    sensor = TrainJobSensor(task_id="wait", job=submitted.returned, timeout=0.01, poke_interval=0.01, on_kill="cancel")
    waited = run_trainjob_task(sensor)

    assert waited.state == "failed"
    assert trainjob_recorder.job().cancelled


def test_an_unavailable_backend_is_retried(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.make_unavailable()
    done = run_trainjob_task(a_task(retries=1), params={"number": 1})
    trainjob_recorder.make_available()

    assert done.state == "up_for_retry"
    assert not isinstance(done.error, TrainJobUnreachableError)
    assert done.retry().state == "success"


def test_expecting_one_job_names_the_jobs_that_exist(trainjob_recorder):
    with pytest.raises(AssertionError, match="expected one submitted TrainJob of task 'train', got 0"):
        trainjob_recorder.job("train")


def test_a_deferred_task_goes_through_its_trigger(trainjob_recorder, run_trainjob_task):
    trainjob_recorder.script(runs_until_cancelled())
    operator = a_task(deferrable=True, execution_timeout=timedelta(seconds=0.2))
    done = run_trainjob_task(operator, params={"number": 1})

    assert [type(trigger).__name__ for trigger in done.triggers] == ["TrainJobTrigger"]
    assert "exceeded its execution_timeout of" in str(done.error)
    assert trainjob_recorder.job().cancelled


# The embedded backend


def test_a_task_really_trains_on_the_embedded_backend(run_trainjob_task, trainjob_client):
    done = run_trainjob_task(a_task(), params={"number": 4})

    assert done.returned["doubled"] == 8
    assert [job.name for job in trainjob_client.list_jobs()] == [done.xcoms["ref"]["name"]]


# DAG runs


def test_a_dag_run_has_states_and_xcoms_of_its_tasks(trainjob_recorder, run_trainjob_dag):
    trainjob_recorder.script(completes(lambda job: job.args["number"]), task_id="train")
    trainjob_recorder.script(fails("UserCode"), task_id="broken")
    with a_dag("plugin_states") as dag:
        trainers = [{"func": "airflow_fakes:double", "func_args": {"number": number}} for number in (5, 6)]
        TrainJobOperator.partial(task_id="train", runtime="python").expand(trainer=trainers)
        a_task("broken", trainer=CustomTrainer(func=double, func_args={"number": 1}))
    run = run_trainjob_dag(dag)

    assert run.state == "failed"
    assert run.states == {"broken": "failed", "train[0]": "success", "train[1]": "success"}
    assert [run.xcom("train", map_index=index) for index in (0, 1)] == [5, 6]


def test_a_dag_run_has_its_asset_updates(run_trainjob_dag):
    model = Asset(name="plugin-model", uri="trainjob://plugin/model")
    with a_dag("plugin_assets") as dag:

        @task(outlets=[model])
        def publish(outlet_events):
            outlet_events[model].extra = {"accuracy": 0.9}

        publish()
    (update,) = run_trainjob_dag(dag).asset_updates

    assert (update.name, update.uri, update.task_id) == ("plugin-model", "trainjob://plugin/model", "publish")
    assert update.extra == {"accuracy": 0.9}


def test_the_error_for_an_unknown_task_names_the_tasks(run_trainjob_dag):
    with a_dag("plugin_missing") as dag:

        @task
        def there():
            return 1

        there()
    with pytest.raises(AssertionError, match="task 'gone' is not in this run; its tasks: there"):
        run_trainjob_dag(dag).xcom("gone")


A_DAG_FILE = """
from airflow.sdk import DAG
from shared_by_dags import NAME

dag = DAG(NAME, schedule=None)
"""


def test_dag_files_and_their_modules_are_imported_again_for_each_test(trainjob_dags, tmp_path):
    found = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shared_by_dags.py").write_text(f"NAME = {name!r}")
        (folder / "a_dag_file.py").write_text(A_DAG_FILE)
        found += trainjob_dags(folder)

    assert found == ["first", "second"]


def test_a_dag_file_with_an_import_error_fails_the_test(trainjob_dags, tmp_path):
    (tmp_path / "broken_dag.py").write_text("from airflow.sdk import DAG\nDAG(1 / 0)")
    with pytest.raises(AssertionError, match=r"(?s)broken_dag\.py.*ZeroDivisionError"):
        trainjob_dags(tmp_path)


# Tests inside a task


@pytest.mark.airflow_task(params={"epochs": 3})
def test_a_marked_test_runs_inside_a_task(tmp_path):
    context = get_current_context()

    assert context["params"]["epochs"] == 3
    assert tmp_path.is_dir()


INSIDE_TASKS = """
import pytest
from airflow.sdk import get_current_context

@pytest.mark.airflow_task
def test_passes():
    assert get_current_context()["ti"].task_id == "test"

@pytest.mark.airflow_task
def test_fails():
    assert 1 == 2

@pytest.mark.airflow_task
def test_skips():
    pytest.skip("not today")
"""

GIVEN_BACK = """
import os
from airflow import settings

OWN = str(settings.engine.url), os.environ["AIRFLOW_HOME"]

def test_one(trainjob_airflow):
    assert str(trainjob_airflow) in str(settings.engine.url)
    assert os.environ["AIRFLOW_HOME"] == str(trainjob_airflow)

def test_two():
    assert (str(settings.engine.url), os.environ["AIRFLOW_HOME"]) == OWN
"""

ISOLATED = """
import airflow.sdk
from airflow.configuration import AIRFLOW_HOME

def test_one(trainjob_airflow):
    assert AIRFLOW_HOME == str(trainjob_airflow)
"""

UNCONCERNED = """
import os, sys

def test_nothing_is_loaded():
    assert {"airflow", "trainer_core", "pydantic"} & set(sys.modules) == set()
    assert not any(name.startswith(("AIRFLOW", "TRAINJOB")) for name in os.environ)
"""


class Project:
    """Runs tests of another project with this plugin only."""

    def __init__(self, folder, ini="", **tests):
        self.own_airflow, self.temporary = folder / "own-airflow", folder / "temporary"
        for path in (self.own_airflow, self.temporary):
            path.mkdir()
        for name, text in tests.items():
            (folder / f"test_{name}.py").write_text(text)
        (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TRAINJOB"))}
        plugins = ["--disable-plugin-autoload", "-p", "airflow_provider.testing", "-p", "no:cacheprovider"]
        options = ["-q", "-rA", "-W", "ignore", "--basetemp", str(folder / "base")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *plugins],
            cwd=folder,
            env={**clean, "TMPDIR": str(self.temporary), **self.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said = done.stdout

    def environment(self):
        return {"AIRFLOW_HOME": str(self.own_airflow)}

    def ended(self, name):
        """Return the result of each test of a file by its name."""
        return {test: how for how, test in re.findall(rf"^([A-Z]+) test_{name}\.py::(\w+)", self.said, re.M)}


class WithoutAirflow(Project):
    """A project without Airflow settings in its environment."""

    def environment(self):
        return {}


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """A project whose Airflow settings are restored after each test."""
    return Project(tmp_path_factory.mktemp("ordinary"), inside=INSIDE_TASKS, back=GIVEN_BACK)


def tests_of_the_guide():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "airflow-testing.md").read_text()
    return dict(re.findall(r"```python\n# test_(\w+)\.py\n(.*?)^```$", page, re.M | re.S))


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """A project that isolates Airflow from the start."""
    ini = "trainjob_isolate_airflow = true"
    return Project(tmp_path_factory.mktemp("isolated"), ini, isolated=ISOLATED, **tests_of_the_guide())


def test_a_test_inside_a_task_passes_fails_and_skips_like_any_other(ordinary):
    assert "1 failed" in ordinary.said, ordinary.said
    assert "assert 1 == 2" in ordinary.said
    assert {"test_passes": "PASSED", "test_fails": "FAILED"}.items() <= ordinary.ended("inside").items()
    assert "1 skipped" in ordinary.said


def test_the_airflow_settings_are_restored_after_the_test(ordinary):
    assert ordinary.ended("back") == {"test_one": "PASSED", "test_two": "PASSED"}, ordinary.said
    assert not (ordinary.own_airflow / "airflow.db").exists()


def test_airflow_can_be_isolated_before_it_is_imported(isolated):
    assert isolated.ended("isolated") == {"test_one": "PASSED"}, isolated.said
    assert list(isolated.own_airflow.iterdir()) == []


def test_the_tests_of_the_guide_pass(isolated):
    ended = [how for name in tests_of_the_guide() for how in isolated.ended(name).values()]
    assert ended == ["PASSED"] * 4, isolated.said


@pytest.mark.parametrize("project", ["ordinary", "isolated"])
def test_temporary_folders_are_removed(project, request):
    assert list(request.getfixturevalue(project).temporary.glob("trainjob-*")) == []


def test_the_plugin_imports_neither_airflow_nor_the_core_until_used(tmp_path):
    project = WithoutAirflow(tmp_path, unconcerned=UNCONCERNED)

    assert project.ended("unconcerned") == {"test_nothing_is_loaded": "PASSED"}, project.said


def test_the_distribution_registers_the_plugin():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"trainjob": "airflow_provider.testing"}
