"""A pytest plugin that runs DAGs and tasks in the test process, on the embedded backend or on a recording backend.

pytest loads the plugin wherever the distribution is installed, so it imports nothing but pytest; a fixture imports what
it needs on use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_provider.testing.airflow_home import AirflowHome
    from airflow_provider.testing.dags import FinishedRun
    from airflow_provider.testing.tasks import FinishedTask
    from trainer_core.client import TrainerClient
    from trainer_core.testing.recorder import JobRecorder

_MARKER = "airflow_task"
_home_key = pytest.StashKey["AirflowHome"]()
_exit_key = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option of the plugin."""
    parser.addini(
        "trainjob_isolate_airflow",
        "Set AIRFLOW_HOME to a temporary folder before any test module imports Airflow, not only during tests.",
        type="bool",
        default=False,
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Isolate Airflow before a conftest.py can import it, if the ini option is set."""
    if early_config.getini("trainjob_isolate_airflow"):
        _get_exit_stack(early_config).enter_context(_get_airflow_home(early_config).activate())


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(**dag_arguments): run the test inside a task of an Airflow DAG, in this process"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove temporary folders."""
    _get_exit_stack(config).close()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the fixture that runs DAGs to tests with the marker."""
    if isinstance(item, pytest.Function) and _is_marked(item) and "run_trainjob_dag" not in item.fixturenames:
        item.fixturenames.append("run_trainjob_dag")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the marker inside a task."""
    if not _is_marked(pyfuncitem):
        return None
    from airflow_provider.testing.task_marker import call_in_task

    call_in_task(pyfuncitem, _MARKER)
    return True


@pytest.fixture
def trainjob_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """State folder of the test's local TrainJobs; all jobs are deleted after the test."""
    folder = tmp_path / "trainjob"
    monkeypatch.setenv("TRAINJOB_HOME", str(folder))
    yield folder
    if not folder.exists():
        return
    from trainer_core import LocalProcessBackendConfig, TrainerClient

    client = TrainerClient(LocalProcessBackendConfig(home=folder))
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.fixture
def trainjob_client(trainjob_home: Path) -> TrainerClient:
    """TrainerClient of the test's local TrainJobs."""
    from trainer_core import LocalProcessBackendConfig, TrainerClient

    return TrainerClient(LocalProcessBackendConfig(home=trainjob_home))


@pytest.fixture
def trainjob_recorder(_trainjob_recorder: JobRecorder, monkeypatch: pytest.MonkeyPatch) -> JobRecorder:
    """Replace every backend by one that records submissions and returns the outcomes that the test sets."""
    from trainer_core.testing.recorder import build_recording_backend

    _trainjob_recorder.reset()
    monkeypatch.setattr(
        "trainer_core.client.trainer_client.backend_class",
        lambda name: build_recording_backend(name, _trainjob_recorder),
    )
    return _trainjob_recorder


@pytest.fixture(scope="session")
def _trainjob_recorder() -> JobRecorder:
    # Shared by all tests: cached clients in this process may refer to the recorder of an earlier test.
    from trainer_core.testing.recorder import JobRecorder

    return JobRecorder()


@pytest.fixture
def trainjob_airflow(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Temporary AIRFLOW_HOME with an SQLite database, active during the test. Returns the folder."""
    home = _get_airflow_home(pytestconfig)
    with home.activate():
        home.migrate()
        yield home.folder


@pytest.fixture
def trainjob_dags(trainjob_airflow: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | Path], Any]]:
    """Read the DAG files of a folder: ``trainjob_dags("dags")["nightly"]``. An import error fails the test.

    The files, and the modules that they import from their folder, are imported again for each test.
    """
    from airflow_provider.testing.dags import load_dags

    folders: list[Path] = []

    def load(folder: str | Path) -> Any:
        folders.append(Path(folder).resolve())
        _unload_modules(folders)
        monkeypatch.syspath_prepend(str(folders[-1]))
        return load_dags(folders[-1])

    yield load
    _unload_modules(folders)


@pytest.fixture
def run_trainjob_dag(trainjob_airflow: Path, trainjob_home: Path) -> Callable[..., FinishedRun]:
    """Run a DAG in this process, with its triggers, XComs, templates and Assets.

    ``run_trainjob_dag(dag, run_conf=…, logical_date=…)`` accepts the arguments of `DAG.test`.
    """
    from airflow_provider.testing.dags import run_dag

    return run_dag


@pytest.fixture
def run_trainjob_task(pytestconfig: pytest.Config, trainjob_home: Path) -> Iterator[Callable[..., FinishedTask]]:
    """Run one task in this process, without a database: render, execute, defer and resume it.

    ``run_trainjob_task(operator, params=…)``; see `airflow_provider.testing.tasks.run_task`.
    """
    from airflow_provider.testing.tasks import run_task

    with _get_airflow_home(pytestconfig).activate():
        yield run_task


def _get_airflow_home(config: pytest.Config) -> AirflowHome:
    """Return the AirflowHome of this pytest process; created on first use."""
    if _home_key not in config.stash:
        from airflow_provider.testing.airflow_home import AirflowHome

        config.stash[_home_key] = _get_exit_stack(config).enter_context(AirflowHome())
    return config.stash[_home_key]


def _get_exit_stack(config: pytest.Config) -> ExitStack:
    return config.stash.setdefault(_exit_key, ExitStack())


def _unload_modules(folders: list[Path]) -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in folders:
            del sys.modules[name]


def _is_marked(item: Any) -> bool:
    return item.get_closest_marker(_MARKER) is not None
