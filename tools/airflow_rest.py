"""Client of Airflow's REST API for the end-to-end run."""

from __future__ import annotations

from typing import Any

import httpx
import tenacity
from airflow_here import AirflowHere, AirflowHereError, wait_until

Json = dict[str, Any]


def is_server_error(error: BaseException) -> bool:
    """Return whether the request can succeed on retry: Airflow's processes share one SQLite file here."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error


class Api:
    """REST API of a running Airflow, as its admin.

    Args:
        airflow: The running Airflow.
    """

    def __init__(self, airflow: AirflowHere) -> None:
        # On two busy cores, a response can take long.
        self._http = httpx.Client(base_url=airflow.url, timeout=300, trust_env=False)
        token = self.request("POST", "/auth/token", {"username": "admin", "password": airflow.password})["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def request(self, method: str, path: str, body: Json | None = None, **parameters: Any) -> Json:
        """Send a request and return the response.

        Raises:
            httpx.HTTPError: The request failed.
        """
        return dict(self._send(method, path, body, parameters).json())

    @tenacity.retry(
        retry=tenacity.retry_if_exception(is_server_error),
        stop=tenacity.stop_after_delay(60),
        wait=tenacity.wait_fixed(0.5),
        reraise=True,
    )
    def _send(self, method: str, path: str, body: Json | None, parameters: Json) -> httpx.Response:
        return self._http.request(method, path, json=body, params=parameters).raise_for_status()

    def unpause(self, dag: str) -> None:
        """Unpause a DAG, once Airflow has parsed its file."""
        wait_until(lambda: dag in self.dags(), f"Airflow has parsed DAG {dag}")
        self.request("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def dags(self) -> list[str]:
        return [dag["dag_id"] for dag in self.request("GET", "/api/v2/dags")["dags"]]

    def start(self, dag: str, conf: Json | None = None) -> Run:
        body = {"logical_date": None, "conf": conf or {}}
        return Run(self, dag, self.request("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def wait_for_run(self, dag: str, kind: str) -> Run:
        """Wait for a run that Airflow itself starts: ``scheduled`` or ``asset_triggered``."""
        path = f"/api/v2/dags/{dag}/dagRuns"
        (run,) = wait_until(lambda: self.request("GET", path, run_type=kind)["dag_runs"], f"a run of {dag} is {kind}")
        return Run(self, dag, run["dag_run_id"])

    def asset_events(self, dag: str) -> list[Json]:
        events = self.request("GET", "/api/v2/assets/events", source_dag_id=dag)["asset_events"]
        return list(events)


class Run:
    """A DAG run.

    Args:
        api: Client of the REST API.
        dag: Id of its DAG.
        run_id: Id of the run.
    """

    def __init__(self, api: Api, dag: str, run_id: str) -> None:
        self.dag = dag
        self.run_id = run_id
        self._api = api
        self._path = f"/api/v2/dags/{dag}/dagRuns/{run_id}"

    def state(self) -> str:
        return str(self._api.request("GET", self._path)["state"])

    def fail(self) -> None:
        """Mark the run as failed, which stops its tasks."""
        self._api.request("PATCH", self._path, {"state": "failed"})

    def wait(self) -> None:
        wait_until(lambda: self.state() in ("success", "failed"), f"the run of {self.dag} ends")

    def tasks(self) -> list[Json]:
        """Return its task instances in the order of their start."""
        found = self._api.request("GET", f"{self._path}/taskInstances")["task_instances"]
        return sorted(found, key=lambda task: task["start_date"] or "")

    def task(self, task_id: str) -> Json:
        return self._api.request("GET", f"{self._path}/taskInstances/{task_id}")

    def wait_for_task(self, task_id: str, state: str) -> None:
        """Wait until a task is in a state.

        Raises:
            AirflowHereError: The timeout has passed, or the run has ended.
        """

        def reached() -> str | None:
            if self.task(task_id)["state"] == state:
                return state
            return ended if (ended := self.state()) in ("success", "failed") else None

        if (found := wait_until(reached, f"task {task_id} of {self.dag} is {state}")) != state:
            raise AirflowHereError(f"the run of {self.dag} is {found} before its task {task_id} was {state}")

    def tries(self, task_id: str) -> list[str]:
        return [str(one["state"]) for one in self.list_tries(task_id)]

    def list_tries(self, task_id: str) -> list[Json]:
        found = self._api.request("GET", f"{self._path}/taskInstances/{task_id}/tries")["task_instances"]
        return sorted(found, key=lambda one: one["try_number"])

    def job(self, task_id: str) -> str | None:
        """Return the name of the TrainJob whose ref the task has pushed; None if it has pushed none."""
        entries = self._api.request("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries")["xcom_entries"]
        if not any(entry["key"] == "ref" for entry in entries):
            return None
        entry = self._api.request("GET", f"{self._path}/taskInstances/{task_id}/xcomEntries/ref", deserialize=True)
        return str(entry["value"]["name"])

    def causes(self) -> list[tuple[str, str]]:
        """Return the Assets that started the run, each with the DAG that updated it."""
        events = self._api.request("GET", f"{self._path}/upstreamAssetEvents")["asset_events"]
        return [(event["name"], event["source_dag_id"]) for event in events]
