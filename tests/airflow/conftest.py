"""Fixtures for Airflow tests: those of the plugin `airflow_provider.testing`, with shorter names."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest
from airflow_fakes import wait_for_file
from browser import run_browser
from mlflow_double import serve_mlflow

from airflow_provider import cancellation
from trainer_core import CustomTrainer

# Tasks of these tests that name no backend train here. Workers and nested runs of pytest inherit it.
os.environ["AIRFLOW__TRAINJOB__BACKEND"] = "local"

# standalone.py starts Airflow with tools/airflow_here.py.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "tools"))


def pytest_configure(config) -> None:
    """Ignore warnings of Airflow 3.1, which imports some of its modules by deprecated names."""
    config.addinivalue_line("filterwarnings", r"ignore:The .airflow\.operators\.branch\.BaseBranchOperator")
    config.addinivalue_line("filterwarnings", r"ignore:The anyio\.abc\.BlockingPortal alias")


def pytest_collection_modifyitems(items) -> None:
    """Treat warnings of the project as errors, but not those that Airflow causes in its dependencies."""
    ours = pytest.mark.filterwarnings("ignore", "error:::airflow_provider", "error:::trainer_core")
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(ours)


@pytest.fixture(autouse=True)
def patient_on_kill(monkeypatch):
    """`on_kill` waits until the job is cancelled, also on a busy machine."""
    monkeypatch.setattr(cancellation, "_SIGNAL_HANDLER_SECONDS", 300.0)


@pytest.fixture
def home(trainjob_home):
    """State folder of the test's TrainJobs, which are deleted after the test."""
    return trainjob_home


@pytest.fixture
def client(trainjob_client):
    return trainjob_client


@pytest.fixture
def submit(client):
    """Submit a function and return the ref."""

    def run(func, **arguments):
        return client.get_job_ref(client.train(runtime="python", trainer=CustomTrainer(func, arguments)))

    return run


@pytest.fixture
def running(submit, tmp_path):
    """Ref of a job that runs until it is cancelled."""
    return submit(wait_for_file, path=str(tmp_path / "never"))


@pytest.fixture
def mlflow(monkeypatch):
    """A double of an MLflow server, to which the connection mlflow_default leads."""
    with serve_mlflow() as server:
        uri = {"conn_type": "mlflow", "host": "http://127.0.0.1", "port": server.port}
        extra = {"ui_url": "https://ui.example"}
        connection = {**uri, "login": "ada", "password": "s3cr3t-word", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
        yield server


@pytest.fixture
def airflow_db(trainjob_airflow):
    return trainjob_airflow


@pytest.fixture
def run_dag(run_trainjob_dag):
    """Run a DAG in this process, with triggers, XComs and templates; return Airflow's DagRun."""
    return lambda dag, **arguments: run_trainjob_dag(dag, **arguments).dag_run


@pytest.fixture(scope="module")
def routed_pages():
    from routed_pages import RoutedPages  # Airflow 3.1 warns when its API server is imported; see pytest_configure.

    with run_browser() as browser:
        yield RoutedPages(browser)


@pytest.fixture
def open_page(routed_pages):
    """Opens a TrainJobs page with these answers of the API, by path. Script errors fail the test."""
    yield routed_pages
    assert routed_pages.leave_all() == []


@pytest.fixture
def xcom():
    """Read an XCom of a task of a DAG run."""

    def read(dag_run, task_id, key="return_value", map_index=-1):
        ti = dag_run.get_task_instance(task_id, map_index=map_index)
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)

    return read


@pytest.fixture
def task_log():
    """Return the task's log as one string."""
    import structlog

    with structlog.testing.capture_logs() as entries:
        yield lambda: "\n".join(_text(entry) for entry in entries)


def _text(entry) -> str:
    arguments = entry.get("positional_args", ())
    return entry["event"] % arguments if arguments else entry["event"]
