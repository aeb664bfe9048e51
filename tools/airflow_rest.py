"""Airflow's REST API, as far as the end-to-end run needs it."""

from __future__ import annotations

from typing import Any

import httpx
import tenacity
from airflow_here import AirflowHere, AirflowHereError, until

Json = dict[str, Any]


def is_passing(error: BaseException) -> bool:
    """Say whether a refusal may be none in a moment: Airflow's processes share one SQLite file here."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error


class Api:
    """A running Airflow, asked as its admin.

    Args:
        airflow: The running one.
    """

    def __init__(self, airflow: AirflowHere) -> None:
        # Two busy cores can keep an answer waiting for long.
        self._http = httpx.Client(base_url=airflow.url, timeout=60, trust_env=False)
        token = self.ask("POST", "/auth/token", {"username": "admin", "password": airflow.password})["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: Json | None = None, **parameters: Any) -> Json:
        """Ask, and return the answer.

        Raises:
            httpx.HTTPError: There is none, or it is a refusal.
        """
        return dict(self._answer(method, path, body, parameters).json())

    @tenacity.retry(
        retry=tenacity.retry_if_exception(is_passing),
        stop=tenacity.stop_after_delay(60),
        wait=tenacity.wait_fixed(0.5),
        reraise=True,
    )
    def _answer(self, method: str, path: str, body: Json | None, parameters: Json) -> httpx.Response:
        return self._http.request(method, path, json=body, params=parameters).raise_for_status()

    def unpause(self, dag: str) -> None:
        """Let a DAG run, once Airflow has read its file."""
        until(lambda: dag in self.dags(), f"Airflow reads DAG {dag}")
        self.ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def dags(self) -> list[str]:
        """Return the DAGs that Airflow has read."""
        return [dag["dag_id"] for dag in self.ask("GET", "/api/v2/dags")["dags"]]

    def start(self, dag: str, conf: Json | None = None) -> Run:
        """Start a DAG as a person would."""
        body = {"logical_date": None, "conf": conf or {}}
        return Run(self, dag, self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def started(self, dag: str, kind: str) -> Run:
        """Wait for a run that Airflow starts by itself: ``scheduled`` or ``asset_triggered``."""
        path = f"/api/v2/dags/{dag}/dagRuns"
        (run,) = until(lambda: self.ask("GET", path, run_type=kind)["dag_runs"], f"a run of {dag} is {kind}")
        return Run(self, dag, run["dag_run_id"])

    def asset_events(self, dag: str) -> list[Json]:
        """Return how often a DAG made Assets new."""
        events = self.ask("GET", "/api/v2/assets/events", source_dag_id=dag)["asset_events"]
        return list(events)


class Run:
    """One run of a DAG.

    Args:
        api: Where to ask.
        dag: Its DAG.
        run_id: It.
    """

    def __init__(self, api: Api, dag: str, run_id: str) -> None:
        self.dag = dag
        self.run_id = run_id
        self._api = api
        self._path = f"/api/v2/dags/{dag}/dagRuns/{run_id}"

    def state(self) -> str:
        """Return the state of the run."""
        return str(self._api.ask("GET", self._path)["state"])

    def end(self) -> None:
        """Mark it failed, which ends its tasks."""
        self._api.ask("PATCH", self._path, {"state": "failed"})

    def wait(self) -> None:
        """Wait for its end, whatever it is."""
        until(lambda: self.state() in ("success", "failed"), f"the run of {self.dag} ends", patience=240)

    def tasks(self) -> list[Json]:
        """Return its task instances, in the order in which they started."""
        found = self._api.ask("GET", f"{self._path}/taskInstances")["task_instances"]
        return sorted(found, key=lambda task: task["start_date"] or "")

    def task(self, task_id: str) -> Json:
        """Return a task instance as it is now."""
        return self._api.ask("GET", f"{self._path}/taskInstances/{task_id}")

    def wait_for_task(self, task_id: str, state: str) -> None:
        """Wait until a task is in a state.

        Raises:
            AirflowHereError: It takes too long, or the run has ended before.
        """

        def reached() -> str | None:
            if self.task(task_id)["state"] == state:
                return state
            return ended if (ended := self.state()) in ("success", "failed") else None

        if (found := until(reached, f"task {task_id} of {self.dag} is {state}")) != state:
            raise AirflowHereError(f"the run of {self.dag} is {found} before its task {task_id} was {state}")

    def tries(self, task_id: str) -> list[str]:
        """Return how each try of a task ended."""
        found = self._api.ask("GET", f"{self._path}/taskInstances/{task_id}/tries")["task_instances"]
        return [str(one["state"]) for one in sorted(found, key=lambda one: one["try_number"])]

    def job(self, task_id: str) -> str | None:
        """Return the name of the TrainJob that a task has pushed the ref of, if it has."""
        entries = self._api.ask("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries")["xcom_entries"]
        if not any(entry["key"] == "ref" for entry in entries):
            return None
        entry = self._api.ask("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries/ref", deserialize=True)
        return str(entry["value"]["name"])

    def causes(self) -> list[tuple[str, str]]:
        """Return the Assets that started it, each with the DAG that made it new."""
        events = self._api.ask("GET", f"{self._path}/upstreamAssetEvents")["asset_events"]
        return [(event["name"], event["source_dag_id"]) for event in events]
