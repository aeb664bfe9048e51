"""The routes of the TrainJobs page: who may ask for what. What they answer is gathered elsewhere.

Routes of a plugin are open to everybody unless each says otherwise, so here each one does. A job is addressed by its
task, never by a name: the permission is that of the task's DAG, and what the task wrote says which job it is. The DAG
stands in the path, because before Airflow 3.2 that is the only place where the permission looks for it.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import yaml
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_authenticated
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.sdk._shared.secrets_masker import redact
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from pydantic import AwareDatetime

from airflow_provider.ui import live, store, view
from airflow_provider.ui.store import Pushed, Task
from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError

__all__ = ["create_app"]

_STATIC = Path(__file__).with_name("static")
#: Rows of the list at once, and how many jobs are looked at for them.
_ROWS, _SCANNED = 50, 1000
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OF_A_DAG = "/api/dags/{dag_id}"
_Id = Annotated[str, Query(min_length=1, max_length=250)]


def _task(dag_id: str, run_id: _Id, task_id: _Id, map_index: Annotated[int, Query(ge=-1)] = -1) -> Task:
    return Task(dag_id, run_id, task_id, map_index)


def _pushed(task: Annotated[Task, Depends(_task)], session: SessionDep) -> Pushed:
    """What the task wrote, for a user who may read it: every route that takes this also asks for the permission."""
    found = store.one(session, task)
    if found is None:
        raise HTTPException(404, "This task has no TrainJob: it has not submitted one yet, or it was cleared.")
    return found


_PushedDep = Annotated[Pushed, Depends(_pushed)]


def _reached(pushed: _PushedDep) -> TrainerClient:
    try:
        return live.reach(pushed)
    except live.UnreachableError as error:
        raise HTTPException(409, str(error)) from error


_ClientDep = Annotated[TrainerClient, Depends(_reached)]


def _from_this_page(request: Request) -> None:
    """Refuse what another site makes a browser send.

    Airflow's cookie is not sent with it (SameSite=Lax); beyond that, a header of one's own needs a permission that
    other sites do not have, and browsers say where a request comes from.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if request.headers.get("x-trainjobs") != "1" or site != "same-origin":
        raise HTTPException(403, "Changes are taken from the TrainJobs page only.")


def _may(method: Any, entity: DagAccessEntity) -> Any:
    return Depends(requires_access_dag(method, entity))


_LOGGED_IN = [Depends(requires_authenticated())]
_READ = [_may("GET", DagAccessEntity.TASK_INSTANCE)]
#: What Airflow calls the permission that an action needs. The last two are Airflow's own: its API is asked by the page.
_METHODS: dict[str, Any] = {"suspend": "PUT", "resume": "PUT", "delete": "DELETE", "end": "PUT", "rerun": "PUT"}
_READ_LOGS = [*_READ, _may("GET", DagAccessEntity.TASK_LOGS)]


def page_of_all() -> FileResponse:
    """The list."""
    return FileResponse(_STATIC / "jobs.html")


def page_of_one() -> FileResponse:
    """One job."""
    return FileResponse(_STATIC / "job.html")


def asset(name: str) -> FileResponse:
    """What the pages consist of."""
    files = {path.name: path for path in _STATIC.iterdir() if path.suffix in (".js", ".css", ".svg")}
    if name not in files:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(files[name])


def list_jobs(
    session: SessionDep,
    user: GetUserDep,
    dag: Annotated[str | None, Query(max_length=250)] = None,
    status: Annotated[str | None, Query(max_length=20)] = None,
    text: Annotated[str, Query(max_length=250)] = "",
    before: AwareDatetime | None = None,
) -> dict[str, Any]:
    """The jobs of the DAGs that the user may read, newest first."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    wanted = readable & {dag} if dag else readable
    found = list(store.newest(session, wanted, before, _SCANNED))
    named = [pushed for pushed in found if pushed.deletion is None and view.matches(pushed, text)]
    looked = ((pushed, view.row(pushed, job)) for pushed, job in live.unfinished(named))
    rows = list(islice((each for each in looked if status in (None, each[1].get("status"))), _ROWS))
    # Either the page is full, or so many jobs were gone through that there may be others before them.
    last = rows[-1][0] if len(rows) == _ROWS else found[-1] if len(found) == _SCANNED else None
    older = last.at.isoformat() if last else None
    return _shown({"dags": store.dag_ids(session, readable), "jobs": [row for _, row in rows], "older": older})


def get_job(request: Request, pushed: _PushedDep, user: GetUserDep) -> dict[str, Any]:
    """One job."""
    look, unreachable = None, None
    try:
        look = live.look(live.reach(pushed), pushed.ref)
    except live.UnreachableError as error:
        unreachable = str(error)
    found = view.job(pushed, look, unreachable)
    possible = found.get("actions", [])
    found["actions"] = [action for action in possible if _may_act(action, request, user)]
    found["read_only"] = bool(possible) and not found["actions"]
    return _shown(found)


def get_log(
    pushed: _PushedDep,
    client: _ClientDep,
    step: Annotated[str, Query(pattern=r"^[a-z0-9-]{1,63}$")] = "node-0",
    after: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, Any]:
    """The lines of a step that came after so many."""
    return _shown(view.log(live.log(client, pushed.ref, step, after)))


def get_manifest(pushed: _PushedDep, client: _ClientDep) -> dict[str, str]:
    """What the backend was given, as YAML."""
    shown = view.manifest(live.rendered(client, pushed.ref), _mask)
    return {"yaml": yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}


def suspend(pushed: _PushedDep, client: _ClientDep) -> Response:
    """End what runs of a job but keep it."""
    client.suspend(pushed.ref)
    return Response(status_code=204)


def resume(pushed: _PushedDep, client: _ClientDep) -> Response:
    """Start a suspended job again."""
    client.resume(pushed.ref)
    return Response(status_code=204)


def delete(pushed: _PushedDep, client: _ClientDep, session: SessionDep, user: GetUserDep) -> Response:
    """Remove a job with everything it has."""
    client.backend.delete(pushed.ref)
    store.deleted(session, pushed.task, by=user.get_name())
    return Response(status_code=204)


def create_app() -> FastAPI:
    """Return the application, to be mounted by Airflow."""
    app = FastAPI(title="TrainJobs", docs_url=None, redoc_url=None, openapi_url=None)
    get, post = app.get, app.post
    get("/", dependencies=_LOGGED_IN)(page_of_all)
    get("/job", dependencies=_LOGGED_IN)(page_of_one)
    get("/assets/{name}", dependencies=_LOGGED_IN)(asset)
    get("/api/jobs", dependencies=_READ)(list_jobs)
    # Its diagnosis quotes the log.
    get(f"{_OF_A_DAG}/job", dependencies=_READ_LOGS)(get_job)
    get(f"{_OF_A_DAG}/log", dependencies=_READ_LOGS)(get_log)
    get(f"{_OF_A_DAG}/manifest", dependencies=[*_READ, _may("GET", DagAccessEntity.CODE)])(get_manifest)
    for action in (suspend, resume, delete):
        post(f"{_OF_A_DAG}/{action.__name__}", dependencies=_change(action.__name__))(action)
    app.middleware("http")(_with_headers)
    app.exception_handler(TrainerError)(_refusal)
    app.exception_handler(401)(_to_the_login)
    return app


def _change(action: str) -> list[Any]:
    """What a change needs: our page, the permission, and an entry in Airflow's audit log."""
    permission = _may(_METHODS[action], DagAccessEntity.TASK_INSTANCE)
    return [Depends(_from_this_page), permission, Depends(action_logging(f"trainjob_{action}"))]


def _may_act(action: str, request: Request, user: Any) -> bool:
    try:
        requires_access_dag(_METHODS[action], DagAccessEntity.TASK_INSTANCE)(request, user)
    except HTTPException:
        return False
    return True


def _shown(data: dict[str, Any]) -> dict[str, Any]:
    """Without any secret that Airflow knows."""
    shown: dict[str, Any] = view.masked(data, _mask)
    return shown


def _mask(text: str, name: str | None = None) -> str:
    return str(redact(text, name))


async def _with_headers(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


async def _refusal(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": _mask(str(error))}, status_code=409)


async def _to_the_login(request: Request, error: Any) -> Response:
    """A person who opens a page is sent to the login; a program is told."""
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": error.detail}, status_code=401)
    return RedirectResponse(get_auth_manager().get_url_login(next_url=str(request.url)), status_code=302)
