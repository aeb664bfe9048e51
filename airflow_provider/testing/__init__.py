"""A pytest plug-in: run DAGs and tasks in this process, on the embedded backend or on one that only records.

pytest loads it wherever the distribution is installed, so loading it imports nothing but pytest; what a fixture needs
is imported when a test asks for the fixture.
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
    from trainer_core.testing.recorder import Recorder

_MARKER = "airflow_task"
_home_key = pytest.StashKey["AirflowHome"]()
_exit_key = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one setting."""
    parser.addini(
        "trainjob_isolate_airflow",
        "Give Airflow a temporary home before any test module imports it, not only while a test needs it.",
        type="bool",
        default=False,
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Isolate Airflow before a conftest.py can import it, if that is wanted."""
    if early_config.getini("trainjob_isolate_airflow"):
        _exits(early_config).enter_context(_airflow_home(early_config).in_force())


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(**dag_arguments): run the test inside a task of an Airflow DAG, in this process"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    _exits(config).close()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that is to run inside a task needs what runs DAGs."""
    if isinstance(item, pytest.Function) and _is_marked(item) and "run_trainjob_dag" not in item.fixturenames:
        item.fixturenames.append("run_trainjob_dag")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test inside a task."""
    if not _is_marked(pyfuncitem):
        return None
    from airflow_provider.testing.inside import call_in_task

    call_in_task(pyfuncitem, _MARKER)
    return True


@pytest.fixture
def trainjob_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """State folder of the test's local TrainJobs; none of them outlives the test."""
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
    """A client of the test's local TrainJobs."""
    from trainer_core import LocalProcessBackendConfig, TrainerClient

    return TrainerClient(LocalProcessBackendConfig(home=trainjob_home))


@pytest.fixture
def trainjob_recorder(_trainjob_recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Every backend only records what is submitted, and gives the outcomes that the test scripts."""
    from trainer_core.testing.recording import stand_in

    _trainjob_recorder.forget()
    monkeypatch.setattr("trainer_core.client.backend_class", lambda name: stand_in(name, _trainjob_recorder))
    return _trainjob_recorder


@pytest.fixture(scope="session")
def _trainjob_recorder() -> Recorder:
    # One for all tests: what watches jobs in this process may keep the client of an earlier test.
    from trainer_core.testing.recorder import Recorder

    return Recorder()


@pytest.fixture
def trainjob_airflow(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A temporary AIRFLOW_HOME with an SQLite database, in force while the test runs. The folder."""
    home = _airflow_home(pytestconfig)
    with home.in_force():
        home.migrate()
        yield home.folder


@pytest.fixture
def trainjob_dags(trainjob_airflow: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | Path], Any]]:
    """Read the DAG files of a folder: ``trainjob_dags("dags")["nightly"]``. A file that cannot be read fails the test.

    The files, and what they import from their folder, are read anew for each test.
    """
    from airflow_provider.testing.dags import load_dags

    folders: list[Path] = []

    def load(folder: str | Path) -> Any:
        folders.append(Path(folder).resolve())
        _forget_modules(folders)
        monkeypatch.syspath_prepend(str(folders[-1]))
        return load_dags(folders[-1])

    yield load
    _forget_modules(folders)


@pytest.fixture
def run_trainjob_dag(trainjob_airflow: Path, trainjob_home: Path) -> Callable[..., FinishedRun]:
    """Run a DAG in this process: its triggers, XComs, templates and Assets as in production.

    ``run_trainjob_dag(dag, run_conf=…, logical_date=…)`` takes what `DAG.test` takes.
    """
    from airflow_provider.testing.dags import run_dag

    return run_dag


@pytest.fixture
def run_trainjob_task(pytestconfig: pytest.Config, trainjob_home: Path) -> Iterator[Callable[..., FinishedTask]]:
    """Run one task in this process, without a database: rendered, executed, deferred and resumed.

    ``run_trainjob_task(operator, params=…)``; see `airflow_provider.testing.tasks.run_task`.
    """
    from airflow_provider.testing.tasks import run_task

    with _airflow_home(pytestconfig).in_force():
        yield run_task


def _airflow_home(config: pytest.Config) -> AirflowHome:
    """The one of this pytest process, made when first asked for."""
    if _home_key not in config.stash:
        from airflow_provider.testing.airflow_home import AirflowHome

        config.stash[_home_key] = _exits(config).enter_context(AirflowHome())
    return config.stash[_home_key]


def _exits(config: pytest.Config) -> ExitStack:
    return config.stash.setdefault(_exit_key, ExitStack())


def _forget_modules(folders: list[Path]) -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in folders:
            del sys.modules[name]


def _is_marked(item: Any) -> bool:
    return item.get_closest_marker(_MARKER) is not None
