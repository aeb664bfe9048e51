"""Runs a test inside a task: with a context, XComs, Variables and connections."""

from __future__ import annotations

import inspect
import re
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, task

_START_DATE = datetime(2024, 1, 1, tzinfo=timezone.utc)


def call_in_task(item: pytest.Function, marker: str) -> None:
    """Call a test function as the only task of a DAG, and pass, fail or skip as it does."""
    applied = item.get_closest_marker(marker)
    function: Any = item.obj
    fixtures = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    results: list[BaseException | None] = []

    def call() -> None:
        try:
            function(**fixtures)
        except BaseException as error:  # noqa: BLE001 -- every exception, including a skip, is raised again for pytest
            results.append(error)
        else:
            results.append(None)

    with DAG(
        _build_dag_id(item.nodeid), schedule=None, start_date=_START_DATE, **dict(applied.kwargs if applied else {})
    ) as dag:
        decorate: Any = task
        decorate(task_id="test")(call)()
    run_dag: Any = item.funcargs["run_trainjob_dag"]
    run = run_dag(dag)
    if not results:
        pytest.fail(f"the task did not run; the DAG run is {run.state}, see the captured log", pytrace=False)
    if results[-1] is not None:
        raise results[-1]


def _build_dag_id(nodeid: str) -> str:
    """Return a valid DAG id that is unique to the test."""
    return re.sub(r"[^\w.-]+", "_", nodeid)[-200:].strip("_")
