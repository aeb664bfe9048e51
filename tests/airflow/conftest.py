"""Airflow for tests: an Airflow home, a metadata database and a TrainJob state folder of their own."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile

_HOME = pathlib.Path(tempfile.mkdtemp(prefix="trainjob-airflow-"))
# Airflow reads these when it is imported, so they must be there before.
os.environ.update(
    {
        "AIRFLOW_HOME": str(_HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__CORE__DAGS_FOLDER": str(_HOME / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "TRAINJOB_HOME": str(_HOME / "trainjob"),
    }
)
(_HOME / "dags").mkdir()

import pytest  # noqa: E402
from airflow_fakes import wait_for_file  # noqa: E402

from trainer_core import CustomTrainer, LocalProcessBackendConfig, TrainerClient  # noqa: E402


def pytest_collection_modifyitems(items) -> None:
    """Warnings of our own code are errors; those that Airflow earns with its own dependencies are not ours to mend."""
    ours = pytest.mark.filterwarnings("ignore", "error:::airflow_provider", "error:::trainer_core")
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(ours)


def pytest_sessionfinish() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The state folder of this test's TrainJobs; none of them outlives the test."""
    folder = tmp_path / "trainjob"
    monkeypatch.setenv("TRAINJOB_HOME", str(folder))
    yield folder
    client = TrainerClient(LocalProcessBackendConfig(home=folder))
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.fixture
def client(home):
    return TrainerClient(LocalProcessBackendConfig(home=home))


@pytest.fixture
def submit(client):
    """Submit a function and return the ref."""

    def run(func, **arguments):
        return client.ref(client.train(runtime="python", trainer=CustomTrainer(func, arguments)))

    return run


@pytest.fixture
def running(submit, tmp_path):
    """The ref of a job that goes on until it is ended."""
    return submit(wait_for_file, path=str(tmp_path / "never"))


@pytest.fixture(scope="session")
def airflow_db():
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils import db

    db.initdb()
    DagBundlesManager().sync_bundles_to_db()


@pytest.fixture
def run_dag(airflow_db, home):
    """Run a DAG in this process, with triggers, XComs and templates as in production."""

    def run(dag, **arguments):
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.serialization.definitions.dag import SerializedDAG
        from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG
        from airflow.utils.session import create_session

        # `dag.test` runs what the database knows, so the DAG is written there first.
        with create_session() as session:
            session.merge(DagBundleModel(name="testing"))
            session.flush()
            SerializedDAG.bulk_write_to_db("testing", None, [dag], session=session)
            lazy = LazyDeserializedDAG(data=DagSerialization.to_dict(dag))
            SerializedDagModel.write_dag(lazy, "testing", None, session=session)
        return dag.test(**arguments)

    return run


@pytest.fixture
def xcom():
    """Read what a task of a DAG run has pushed."""

    def read(dag_run, task_id, key="return_value", map_index=-1):
        ti = dag_run.get_task_instance(task_id, map_index=map_index)
        return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)

    return read


@pytest.fixture
def task_log():
    """What is written into the task's log, as one text; to be called after it was."""
    import structlog

    with structlog.testing.capture_logs() as entries:
        yield lambda: "\n".join(_text(entry) for entry in entries)


def _text(entry) -> str:
    arguments = entry.get("positional_args", ())
    return entry["event"] % arguments if arguments else entry["event"]
