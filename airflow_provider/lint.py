"""Finds the TrainJobs in a folder of DAG files for `trainjob lint`.

The command imports this module wherever the distribution is installed, so it imports Airflow only on use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.text import missing_extra
from trainer_core.frontend.lint import Definition

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_provider.lint_tasks import RefusedTask


def find_jobs(path: str, connections: Sequence[str] = ()) -> Iterator[Definition]:
    """Yield the TrainJobs of the DAGs in a file or folder, and the import errors of DAG files."""
    # Output of Airflow and of the DAG files must not mix with that of the command.
    with redirect_stdout(sys.stderr), _override_airflow_settings():
        dags, errors, refused = _parse_dags(Path(path).absolute())
        jobs = [job for dag in dags for job in _find_dag_jobs(dag, connections)]
        jobs += _find_lost_events(dags)
    for file, trace in sorted(errors.items()):
        # After a refused task, an error of its file usually only follows from it.
        if not any(each.file == file for each in refused):
            yield Definition(_format_location(file, trace), error=_get_message(trace))
    for task in refused:
        yield Definition(f"{_to_relative_path(task.file)}:{task.line}", task.location, error=task.error)
    yield from jobs


@contextmanager
def _override_airflow_settings() -> Iterator[None]:
    """Set Airflow's settings in the environment; Airflow reads most of them when it is imported."""
    before = dict(os.environ)
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "CRITICAL")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    # The traceback must be long enough to include the line of the DAG file.
    os.environ["AIRFLOW__CORE__DAGBAG_IMPORT_ERROR_TRACEBACK_DEPTH"] = "50"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parse_dags(path: Path) -> tuple[list[DAG], dict[str, str], list[RefusedTask]]:
    """Return the DAGs, the traceback of each file that cannot be imported, and the tasks that cannot be created."""
    try:
        dag_bag = _import_dag_bag()
    except ImportError as error:
        raise BackendUnavailableError(missing_extra("reading DAG files", str(error.name), "airflow")) from error
    # As Airflow does, so that DAG files can import other modules of their folder.
    sys.path.insert(0, str(path if path.is_dir() else path.parent))
    from airflow_provider.lint_tasks import collect_refused_tasks

    try:
        with collect_refused_tasks(path) as refused:
            bag = dag_bag(dag_folder=str(path))
    finally:
        sys.path.pop(0)
    return sorted(bag.dags.values(), key=lambda dag: (dag.fileloc, dag.dag_id)), bag.import_errors, refused


def _import_dag_bag() -> Any:
    try:
        return import_module("airflow.dag_processing.dagbag").DagBag
    except ModuleNotFoundError as error:
        if error.name != "airflow.dag_processing.dagbag":
            raise
        return import_module("airflow.models.dagbag").DagBag  # before 3.2


def _find_dag_jobs(dag: DAG, connections: Sequence[str]) -> Iterator[Definition]:
    from airflow_provider.lint_tasks import find_task_jobs

    for task in dag.tasks:
        yield from find_task_jobs(_to_relative_path(dag.fileloc), dag, task, connections)


def _find_lost_events(dags: Sequence[DAG]) -> Iterator[Definition]:
    """Yield the DAGs with an ordinary schedule on Assets whose events have a partition key: they start no run of it."""
    from airflow_provider.lint_tasks import is_partitioned, list_assets, list_partitioned_assets

    producers = {asset: dag.dag_id for dag in dags for asset in list_partitioned_assets(dag)}
    for dag in dags:
        assets = [] if is_partitioned(dag) else list_assets(getattr(dag.timetable, "asset_condition", None))
        lost = {name: producers[name] for name in assets if name in producers}
        if lost:
            warnings = [
                f"schedule: the events of Asset {name} from DAG {producer} have a partition key, so they do not start "
                "this DAG; use PartitionedAssetTimetable"
                for name, producer in lost.items()
            ]
            yield Definition(_to_relative_path(dag.fileloc), {"dag": dag.dag_id}, warnings=tuple(warnings))


def _format_location(file: str, trace: str) -> str:
    """Return the file, with the number of its line that caused the error."""
    lines = re.findall(rf'File "[^"]*{re.escape(Path(file).name)}", line (\d+)', trace)
    return f"{_to_relative_path(file)}:{lines[-1]}" if lines else _to_relative_path(file)


def _get_message(trace: str) -> str:
    """Return the exception of a traceback in one line. Airflow writes wrong arguments into a second line of it."""
    lines = trace.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    message = " ".join(" ".join(lines[frames[-1] + 1 if frames else 0 :]).split())
    return message or "the file cannot be imported"


def _to_relative_path(file: str) -> str:
    """Return a path relative to the working directory where possible."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
