#!/usr/bin/env python
"""Time and database rows of the list of TrainJobs with 10,000 of them in Airflow's metadata database (SQLite).

    benchmarks/trainjobs_page.py [NUMBER OF TRAINJOBS]

The alternative is Airflow's own list of as many task instances, from the same API server and database. Yardsticks: a
page opens within a second and reads at most 200 rows, in addition to Airflow's one row for each DAG.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

# Instead of the folder of this file, whose packaging.py Airflow would import.
sys.path[0] = str(Path(__file__).parents[1] / "tests/fakes")

_REPEAT = 7
_AIRFLOW = "/api/v2/dags/~/dagRuns/~/taskInstances?limit=50&order_by=-run_after"
_VIEWS = {
    "the newest": "",
    "with columns, sorted": "?column=param.lr&column=metric.loss&column=duration&sort=-metric.loss",
    "failed ones (none)": "?status=Failed",
    "a text in 1 of 10,000": "?text=train-7777",
    "a text in none": "?text=nothing-like-it",
}


def main(number: int = 10_000) -> int:
    """Print the medians; return 1 if one is above its yardstick."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        from airflow.utils.db import initdb
        from airflow_database import many_jobs

        initdb()
        with many_jobs(number, ended=number - 100, sensors=50):
            return _measure(number)


def _measure(number: int) -> int:
    from airflow.api_fastapi.app import cached_app
    from airflow_database import count_rows
    from fastapi.testclient import TestClient

    client = TestClient(cached_app(apps="core"), base_url="http://airflow")
    token = client.get("/auth/token").json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"

    def open_page(url: str) -> tuple[float, int]:
        times, rows = [], 0
        for _ in range(_REPEAT + 1):
            begin = time.perf_counter()
            with count_rows() as counted:
                client.get(url).raise_for_status()
            times.append(time.perf_counter() - begin)
            rows = counted.rows
        return statistics.median(times[1:]), rows  # the first compiles the queries

    alternative, airflow_rows = open_page(_AIRFLOW)
    print(
        f"{number:,} TrainJobs; Airflow's list of 50 task instances: {alternative * 1000:.0f} ms, {airflow_rows} rows"
    )
    failed = 0
    for name, query in _VIEWS.items():
        seconds, rows = open_page(f"/trainjobs/api/jobs{query}")
        print(f"{name:<24} {seconds * 1000:6.0f} ms, {rows:4} rows: {seconds / alternative:.2f} times Airflow's list")
        failed |= int(seconds > 1 or rows > 200 + 20)
    return failed


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
