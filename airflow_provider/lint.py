"""The TrainJobs of a folder of DAGs, for `trainjob lint`: as Airflow parses them, with what is known before a run.

Loading this loads no Airflow: the command asks for it wherever the distribution is installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.errors import BackendUnavailableError
from trainer_core.lint import Found

if TYPE_CHECKING:
    from airflow.sdk import DAG

__all__ = ["found"]


def found(path: str) -> Iterator[Found]:
    """Yield the TrainJobs of the DAGs below a path, and what kept files from being read.

    Raises:
        BackendUnavailableError: Airflow is not installed.
    """
    # What Airflow and the files print is none of the command's output.
    with redirect_stdout(sys.stderr), _settings_of_airflow():
        dags, errors = _parsed(Path(path).absolute())
        jobs = [job for dag in dags for job in _jobs(dag)]
    for file, trace in sorted(errors.items()):
        yield Found(_with_line(file, trace), mistake=_last_line(trace))
    yield from jobs


@contextmanager
def _settings_of_airflow() -> Iterator[None]:
    """Airflow reads its settings from the environment, most of them when it is imported."""
    before = dict(os.environ)
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    # Deep enough to reach from our own lines to the line of the DAG file.
    os.environ["AIRFLOW__CORE__DAGBAG_IMPORT_ERROR_TRACEBACK_DEPTH"] = "50"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parsed(path: Path) -> tuple[list[DAG], dict[str, str]]:
    """The DAGs, and the trace of each file that has none because of a mistake."""
    try:
        dag_bag = _dag_bag()
    except ImportError as error:
        raise BackendUnavailableError(
            f"DAGs are read by Airflow, which is not installed ({error}): pip install 'trainjob-workflows[airflow]'"
        ) from error
    # As Airflow does with the folder of DAGs, so that files find their neighbours.
    sys.path.insert(0, str(path if path.is_dir() else path.parent))
    try:
        bag = dag_bag(dag_folder=str(path))
    finally:
        sys.path.pop(0)
    return sorted(bag.dags.values(), key=lambda dag: (dag.fileloc, dag.dag_id)), bag.import_errors


def _dag_bag() -> Any:
    try:
        return import_module("airflow.dag_processing.dagbag").DagBag
    except ModuleNotFoundError as error:
        if error.name != "airflow.dag_processing.dagbag":
            raise
        return import_module("airflow.models.dagbag").DagBag  # before 3.2


def _jobs(dag: DAG) -> Iterator[Found]:
    from airflow_provider.lint_tasks import jobs

    for task in dag.tasks:
        yield from jobs(_shown(dag.fileloc), dag, task)


def _with_line(file: str, trace: str) -> str:
    """The file, with the line in it that led to the error."""
    lines = re.findall(rf'File "[^"]*{re.escape(Path(file).name)}", line (\d+)', trace)
    return f"{_shown(file)}:{lines[-1]}" if lines else _shown(file)


def _last_line(trace: str) -> str:
    return next((line for line in reversed(trace.splitlines()) if line.strip()), "cannot be read")


def _shown(file: str) -> str:
    """A path as one would type it here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
