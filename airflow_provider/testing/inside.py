"""A test that runs inside a task: with a context, XComs, Variables and connections, as its code will in production."""

from __future__ import annotations

import inspect
import re
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, task

__all__ = ["call_in_task"]

_BEGINNING = datetime(2024, 1, 1, tzinfo=timezone.utc)


def call_in_task(item: pytest.Function, marker: str) -> None:
    """Call a test function as the only task of a DAG, and end as it did.

    Args:
        item: The test.
        marker: Its marker, whose keywords are further arguments of the DAG, such as ``params={…}``.
    """
    found = item.get_closest_marker(marker)
    function: Any = item.obj
    given = {name: item.funcargs[name] for name in inspect.signature(function).parameters if name in item.funcargs}
    ended: list[BaseException | None] = []

    def call() -> None:
        try:
            function(**given)
        except BaseException as error:  # noqa: BLE001 - what a test ends with, also skipping, is for pytest and not for Airflow
            ended.append(error)
        else:
            ended.append(None)

    with DAG(_dag_id(item.nodeid), schedule=None, start_date=_BEGINNING, **dict(found.kwargs if found else {})) as dag:
        decorate: Any = task
        decorate(task_id="test")(call)()
    run_dag: Any = item.funcargs["run_trainjob_dag"]
    run = run_dag(dag)
    if not ended:
        pytest.fail(f"the task did not run; the DAG run is {run.state}, its log says why", pytrace=False)
    if ended[-1] is not None:
        raise ended[-1]


def _dag_id(nodeid: str) -> str:
    """What Airflow takes for an id, and no two tests share."""
    return re.sub(r"[^\w.-]+", "_", nodeid)[-200:].strip("_")
