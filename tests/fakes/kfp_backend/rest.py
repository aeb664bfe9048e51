"""KFP's API over HTTP, as far as `kfp.Client` needs it to start runs and to schedule them.

Calls of the service definitions in kubeflow/pipelines, ``backend/api/v2beta1``: experiments, runs and recurring runs.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

from aiohttp import web

from kfp_backend.api_server import InvalidRunError
from kfp_backend.backend import Backend, RunResult


class ApiServer:
    """The API of an installation."""

    def __init__(self, backend: Backend) -> None:
        self.experiments: dict[str, dict[str, Any]] = {}
        #: As the API shows them, by id.
        self.runs: dict[str, dict[str, Any]] = {}
        self.recurring_runs: dict[str, dict[str, Any]] = {}
        #: Results of the runs that have ended, in order.
        self.results: list[RunResult] = []
        self._backend = backend
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**25)
        api = "/apis/v2beta1"
        app.router.add_get(f"{api}/healthz", self._get_healthz)
        app.router.add_get(f"{api}/experiments", self._list_experiments)
        app.router.add_post(f"{api}/experiments", self._create_experiment)
        app.router.add_get(f"{api}/experiments/{{id}}", self._get_experiment)
        app.router.add_post(f"{api}/runs", self._create_run)
        app.router.add_get(f"{api}/runs/{{id}}", self._get_run)
        app.router.add_get(f"{api}/recurringruns", self._list_recurring_runs)
        app.router.add_post(f"{api}/recurringruns", self._create_recurring_run)
        app.router.add_delete(f"{api}/recurringruns/{{id}}", self._delete_recurring_run)
        return app

    def run_scheduled(self, name: str) -> RunResult:
        """Run what the recurring run of a name starts when its time has come."""
        (spec,) = (each for each in self.recurring_runs.values() if each["display_name"] == name)
        return self._execute(spec)

    def _execute(self, spec: dict[str, Any]) -> RunResult:
        pipeline = spec["pipeline_spec"]
        documents = (
            [pipeline["pipeline_spec"], pipeline["platform_spec"]] if "platform_spec" in pipeline else [pipeline]
        )
        result = self._backend.run(documents, spec.get("runtime_config", {}).get("parameters", {}))
        self.results.append(result)
        return result

    async def _get_healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"multi_user": False})

    async def _list_experiments(self, request: web.Request) -> web.Response:
        (wanted,) = (each["stringValue"] for each in json.loads(request.query["filter"])["predicates"])
        found = [each for each in self.experiments.values() if each["display_name"] == wanted]
        return web.json_response({"experiments": found} if found else {})

    async def _create_experiment(self, request: web.Request) -> web.Response:
        return web.json_response(self._add(self.experiments, "experiment_id", await request.json()))

    async def _get_experiment(self, request: web.Request) -> web.Response:
        return web.json_response(self.experiments[request.match_info["id"]])

    async def _create_run(self, request: web.Request) -> web.Response:
        run = self._add(self.runs, "run_id", {**await request.json(), "state": "RUNNING"})
        task = asyncio.create_task(self._follow(run))
        self._tasks.add(task)
        return web.json_response(run)

    async def _follow(self, run: dict[str, Any]) -> None:
        try:
            result = await asyncio.to_thread(self._execute, run)
        except InvalidRunError as error:
            # The API server itself refuses CreateRun.
            run.update(state="FAILED", error={"message": str(error)})
        else:
            run["state"] = result.phase.upper()

    async def _get_run(self, request: web.Request) -> web.Response:
        return web.json_response(self.runs[request.match_info["id"]])

    async def _list_recurring_runs(self, request: web.Request) -> web.Response:
        return web.json_response({"recurringRuns": list(self.recurring_runs.values())})

    async def _create_recurring_run(self, request: web.Request) -> web.Response:
        return web.json_response(self._add(self.recurring_runs, "recurring_run_id", await request.json()))

    async def _delete_recurring_run(self, request: web.Request) -> web.Response:
        del self.recurring_runs[request.match_info["id"]]
        return web.json_response({})

    @staticmethod
    def _add(kind: dict[str, dict[str, Any]], key: str, body: dict[str, Any]) -> dict[str, Any]:
        made = {**body, key: str(uuid4())}
        kind[made[key]] = made
        return made
