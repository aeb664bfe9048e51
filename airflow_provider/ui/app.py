"""Routes of the TrainJobs page, with their permissions.

Airflow serves routes of a plugin without authentication, so each route here requires its own permissions. A job is
addressed by its task, never by name: the permission is that of the task's DAG, and the task's XComs identify the job.
The DAG id is part of the path, because before Airflow 3.2 the permission check finds it nowhere else.

A request passes through four files: a route here checks permissions and finds the job of the task (`xcom_queries`),
`backend_view` reads the job from its backend where the API server reaches that, and `serializers` builds the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import yaml
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AssetDetails, DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_authenticated
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.sdk._shared.secrets_masker import redact
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, StreamingResponse
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from airflow_provider.ui import backend_view, search_view, serializers, xcom_queries
from airflow_provider.ui.xcom_queries import JobFilter, SubmittedJob, TaskKey
from trainer_core.base.errors import TrainerError
from trainer_core.client import TrainerClient
from trainer_core.frontend import job_table
from trainer_core.model.jobs import FAILED, TrainJob
from trainer_core.search.snapshot import SearchSnapshot

_STATIC = Path(__file__).with_name("static")
#: Rows of one page of the list: by default, and the largest number, which is also the largest number of jobs that are
#: read for it from the database and from backends.
_ROWS, _MAX_ROWS = 50, 100
#: Largest number of columns that a user can choose, and of jobs to compare.
_MAX_COLUMNS, _MAX_COMPARED = 50, 10
#: Larger numbers are no map index of Airflow's database; longer strings are no cursor.
_MAX_MAP_INDEX, _MAX_CURSOR = 2**31 - 1, 8_000
#: Headers of every response.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_DAG_PATH = "/api/dags/{dag_id}"
_Step = Annotated[str, Query(pattern=r"^[a-z0-9-]{1,63}$")]
_Column = Annotated[str, AfterValidator(job_table.check_column)]
_Id = Annotated[str, Query(min_length=1, max_length=250)]


def _get_task_key(
    dag_id: str, run_id: _Id, task_id: _Id, map_index: Annotated[int, Query(ge=-1, le=_MAX_MAP_INDEX)] = -1
) -> TaskKey:
    return TaskKey(dag_id, run_id, task_id, map_index)


def _parse_task(query: str) -> tuple[TaskKey, str | None]:
    """Return the key of a task, and the name of an attempt or trial, from the query of its page."""
    values = dict(parse_qsl(query))
    try:
        map_index = int(values.get("map_index", "-1"))
        task = TaskKey(values["dag_id"], values["run_id"], values["task_id"], map_index)
    except (KeyError, ValueError) as error:
        raise HTTPException(422, f"{query[:100]!r} is not the query of a TrainJob's page.") from error
    if not -1 <= map_index <= _MAX_MAP_INDEX:
        raise HTTPException(422, f"{map_index} is not a map index.")
    return task, values.get("attempt")


def _get_submitted_job(task: Annotated[TaskKey, Depends(_get_task_key)], session: SessionDep) -> SubmittedJob:
    """Return the job of a task. Every route that uses this dependency also requires the permission to read the task."""
    found = xcom_queries.get_submitted_job(session, task)
    if found is None:
        raise HTTPException(404, "This task has no TrainJob: it has not submitted one, or it was cleared.")
    return found


_SubmittedJobDep = Annotated[SubmittedJob, Depends(_get_submitted_job)]


def _get_shown_job(
    job: _SubmittedJobDep, attempt: Annotated[str | None, Query(min_length=1, max_length=63)] = None
) -> SubmittedJob:
    """Return the job of a task, or another attempt of it, which can be read and not changed."""
    return backend_view.find_attempt(job, attempt) if attempt else job


_ShownJobDep = Annotated[SubmittedJob, Depends(_get_shown_job)]


def _connect(job: _SubmittedJobDep) -> TrainerClient:
    return backend_view.connect(job)


def _connect_to_shown(job: _ShownJobDep) -> TrainerClient:
    return backend_view.connect(job)


_ClientDep = Annotated[TrainerClient, Depends(_connect)]
_ShownClientDep = Annotated[TrainerClient, Depends(_connect_to_shown)]


def _parse_cursor(cursor: Annotated[str, Query(max_length=_MAX_CURSOR)] = "{}") -> dict[str, Any]:
    try:
        parsed = json.loads(cursor)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise HTTPException(422, "The cursor is not one that this API returned.")
    return parsed


def _require_same_origin(request: Request) -> None:
    """Refuse cross-site requests.

    Browsers do not send Airflow's cookie with them (SameSite=Lax). In addition, other sites may not set a custom
    header, and browsers send the origin in Sec-Fetch-Site.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if request.headers.get("x-trainjobs") != "1" or site != "same-origin":
        raise HTTPException(403, "The request does not come from the TrainJobs page.")


def _require_permission(method: Any, entity: DagAccessEntity) -> Any:
    return Depends(requires_access_dag(method, entity))


_LOGGED_IN = [Depends(requires_authenticated())]
_READ = [_require_permission("GET", DagAccessEntity.TASK_INSTANCE)]
#: Airflow's permission for each action. For the last two, the page calls Airflow's own API.
_METHODS: dict[str, Any] = {"suspend": "PUT", "resume": "PUT", "delete": "DELETE", "end": "PUT", "rerun": "PUT"}
_READ_LOGS = [*_READ, _require_permission("GET", DagAccessEntity.TASK_LOGS)]


def _check_sort(sort: str) -> str:
    job_table.check_column(sort.removeprefix("-") or "created")
    return sort


class _ListView(BaseModel):
    """What the list shows. The page has the same in its URL."""

    dag: Annotated[str | None, Field(max_length=250)] = None
    status: Annotated[str | None, Field(max_length=20)] = None
    #: Part of the name of the job, DAG, run or task. Default: any.
    text: Annotated[str, Field(max_length=250)] = ""
    partition: Annotated[str, Field(max_length=250)] = ""
    since: AwareDatetime | None = None
    before: AwareDatetime | None = None
    #: Beginning of a further page: jobs that were submitted before this time. Default: the first page.
    older_than: AwareDatetime | None = None
    count: Annotated[int, Field(ge=1, le=_MAX_ROWS)] = _ROWS
    #: Columns, as for `trainjob list --columns`. Default: none in addition to those that are always shown.
    column: Annotated[list[_Column], Field(max_length=_MAX_COLUMNS)] = []
    #: Column by which these jobs are sorted, with ``-`` before it the largest first. Default: newest first.
    sort: Annotated[str, AfterValidator(_check_sort)] = ""


def _build_page_route(file: Path) -> Callable[[], FileResponse]:
    return lambda: FileResponse(file)


def asset(name: str) -> FileResponse:
    """Serve a static file of the pages."""
    file = find_asset(name)
    if file is None:
        raise HTTPException(404, "File not found.")
    return FileResponse(file)


def find_asset(name: str) -> Path | None:
    """Return the static file of this name; None if the pages have no such file."""
    files = (path for path in _STATIC.rglob("*") if path.suffix in (".js", ".css", ".svg"))
    return next((path for path in files if path.name == name), None)


def list_jobs(session: SessionDep, user: GetUserDep, shown: Annotated[_ListView, Query()]) -> dict[str, Any]:
    """Return the newest jobs of the DAGs that the user may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    status = FAILED if shown.status == serializers.CANCELLED else shown.status
    dags = readable & {shown.dag} if shown.dag else readable
    wanted = JobFilter(dags, shown.text, status, shown.partition, shown.since, shown.before)
    page = replace(wanted, before=shown.older_than) if shown.older_than else wanted
    found, end, unreadable = xcom_queries.list_submitted_jobs(session, page, _MAX_ROWS)
    matching = [job for job in found if serializers.matches(job, shown.text, shown.partition)]
    jobs: dict[TaskKey, tuple[SubmittedJob, TrainJob | SearchSnapshot | None]] = {}
    rows: list[dict[str, Any]] = []
    read_count = 0
    for job, live in backend_view.read_unfinished(matching, _MAX_ROWS):
        read_count += 1
        row = _build_columns(job, live)
        if shown.status in (None, row.get("status")):
            jobs[job.task] = job, live
            rows.append({**row, "task": job.task})
        if len(rows) == shown.count:
            break
    if shown.sort:
        rows = job_table.sort_rows(rows, shown.sort.removeprefix("-"), shown.sort.startswith("-"))
    labels = serializers.label_tasks([jobs[row["task"]][0] for row in rows], rows)
    # There can be older jobs if not all were read, or if the limit of jobs to read was reached.
    older = matching[read_count - 1].at if read_count < len(matching) else end
    is_exact = not (shown.text or shown.status or shown.partition)
    return _mask_data(
        {
            "dags": xcom_queries.list_dag_ids(session, readable),
            "columns": serializers.list_column_names(rows),
            "jobs": [_serialize_row(*jobs[row["task"]], labels[row["task"]], row, shown.column) for row in rows],
            "total": xcom_queries.count_submitted_jobs(session, wanted) - unreadable if is_exact else None,
            "older": older.isoformat() if older else None,
        }
    )


def _build_columns(job: SubmittedJob, live: TrainJob | SearchSnapshot | None) -> dict[str, Any]:
    if isinstance(live, SearchSnapshot):
        return search_view.build_columns(job, live)
    return serializers.build_columns(job, live)


def _serialize_row(
    job: SubmittedJob, live: TrainJob | SearchSnapshot | None, label: str, row: dict[str, Any], columns: list[str]
) -> dict[str, Any]:
    if job.search is None:
        return serializers.serialize_row(job, None if isinstance(live, SearchSnapshot) else live, label, row, columns)
    return search_view.serialize_row(job, live if isinstance(live, SearchSnapshot) else None, label, row, columns)


def compare_jobs(
    session: SessionDep, user: GetUserDep, job: Annotated[list[str], Query(min_length=1, max_length=_MAX_COMPARED)]
) -> dict[str, Any]:
    """Return the columns of several jobs, in the order of the request."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    found: list[SubmittedJob] = []
    rows: list[dict[str, Any]] = []
    tasks = [_parse_task(each) for each in job]
    for task, attempt in tasks:
        submitted = xcom_queries.get_submitted_job(session, task) if task.dag_id in readable else None
        if submitted is None:
            raise HTTPException(404, f"Task {task.task_id!r} of {task.dag_id!r} has no TrainJob, or it was cleared.")
        submitted = _get_shown_job(submitted, attempt)
        found.append(submitted)
        rows.append(serializers.build_columns(submitted, None, backend_view.read_details(submitted)))
    comparison = serializers.serialize_comparison(found, rows, _mask)
    for shown, (_, attempt) in zip(comparison["jobs"], tasks, strict=True):
        shown.update({"attempt": attempt} if attempt else {})
    return _mask_data(comparison)


def get_job(
    request: Request, current: _SubmittedJobDep, job: _ShownJobDep, session: SessionDep, user: GetUserDep
) -> dict[str, Any]:
    """Return the data of one job's page, with the actions that the user may perform."""
    read, unreachable = None, None
    try:
        read = backend_view.read_job(backend_view.connect(job), job.ref)
    except backend_view.UnreachableError as error:
        unreachable = str(error)
    found = serializers.serialize_job(job, read, unreachable)
    possible = found.get("actions", []) if job == current else []
    found["actions"] = [action for action in possible if _is_permitted(action, request, user)]
    found["assets"] = [
        {"id": asset_id, "name": name}
        for asset_id, name in xcom_queries.list_assets(session, job.task)
        if get_auth_manager().is_authorized_asset(method="GET", user=user, details=AssetDetails(id=str(asset_id)))
    ]
    found["is_trial"] = current.search is not None and job != current
    found["read_only"] = bool(possible) and not found["actions"]
    return _mask_data(found)


def get_attempts(job: _ShownJobDep, client: _ShownClientDep) -> dict[str, Any]:
    """Return the attempts of a task's job, the first one first."""
    attempts = backend_view.read_attempts(client, job.ref)
    return _mask_data({"attempts": [serializers.serialize_attempt(*each) for each in attempts]})


def get_search(job: _SubmittedJobDep) -> dict[str, Any]:
    """Return a search with its trials."""
    if job.search is None:
        raise HTTPException(404, "The TrainJob of this task is not a search.")
    search, unreachable = None, None
    try:
        search = backend_view.read_search(job)
    except backend_view.UnreachableError as error:
        unreachable = str(error)
    return _mask_data(search_view.serialize_search(job, search, unreachable))


def get_log(
    job: _ShownJobDep,
    client: _ShownClientDep,
    cursor: Annotated[dict[str, Any], Depends(_parse_cursor)],
    step: _Step = "node-0",
    ended: bool = False,
    text: Annotated[str, Query(max_length=250)] = "",
    lines: Annotated[int, Query(ge=0, le=backend_view.MAX_LINES)] = backend_view.MAX_LINES,
) -> dict[str, Any]:
    """Return the log lines of a step after a cursor, the next cursor, and what `progress` reported."""
    try:
        part = backend_view.read_log(client, job.ref, step, cursor, ended, text, lines)
    except backend_view.InvalidCursorError as error:
        raise HTTPException(422, str(error)) from error
    return {**_mask_data(asdict(part)), "cursor": json.dumps(part.cursor)}


def download_log(job: _ShownJobDep, client: _ShownClientDep, step: _Step = "node-0") -> StreamingResponse:
    """Return the whole log of a step as a text file."""
    lines = client.get_job_logs(job.ref, step)
    headers = {"Content-Disposition": f'attachment; filename="{job.ref.name}-{step}.log"'}
    return StreamingResponse((f"{_mask(line)}\n" for line in lines), media_type="text/plain", headers=headers)


def get_manifest(job: _ShownJobDep, client: _ShownClientDep) -> dict[str, str]:
    """Return the job's manifest as YAML."""
    shown = serializers.mask_manifest(client.render(client.get_job_request(job.ref)), _mask)
    return {"yaml": yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}


def suspend(job: _SubmittedJobDep, client: _ClientDep, session: SessionDep, user: GetUserDep) -> Response:
    """Suspend a job."""
    xcom_queries.record_action(session, job, "suspend", by=user.get_name())
    client.suspend(job.ref)
    return Response(status_code=204)


def resume(job: _SubmittedJobDep, client: _ClientDep, session: SessionDep, user: GetUserDep) -> Response:
    """Resume a suspended job."""
    xcom_queries.record_action(session, job, "resume", by=user.get_name())
    client.resume(job.ref)
    return Response(status_code=204)


def delete(job: _SubmittedJobDep, client: _ClientDep, session: SessionDep, user: GetUserDep) -> Response:
    """Delete a job with its log and files."""
    xcom_queries.record_action(session, job, "delete", by=user.get_name())
    progress = client.observe(job.ref).progress
    client.delete_job(job.ref)
    reached = {"step": progress.step, "total": progress.total} if progress else {}
    xcom_queries.record_deletion(session, job.task, user.get_name(), reached)
    return Response(status_code=204)


def create_app() -> FastAPI:
    """Return the FastAPI application, which Airflow mounts."""
    app = FastAPI(title="TrainJobs", docs_url=None, redoc_url=None, openapi_url=None)
    get, post = app.get, app.post
    for path, page in (("/", "jobs"), ("/job", "job"), ("/compare", "compare"), ("/search", "search")):
        get(path, dependencies=_LOGGED_IN)(_build_page_route(_STATIC / f"{page}.html"))
    get("/assets/{name}", dependencies=_LOGGED_IN)(asset)
    get("/api/jobs", dependencies=_READ)(list_jobs)
    get("/api/compare", dependencies=_READ)(compare_jobs)
    # The diagnosis contains log lines, so the permission for logs is required.
    get(f"{_DAG_PATH}/job", dependencies=_READ_LOGS)(get_job)
    get(f"{_DAG_PATH}/attempts", dependencies=_READ_LOGS)(get_attempts)
    get(f"{_DAG_PATH}/search", dependencies=_READ_LOGS)(get_search)
    get(f"{_DAG_PATH}/log", dependencies=_READ_LOGS)(get_log)
    get(f"{_DAG_PATH}/log/file", dependencies=_READ_LOGS)(download_log)
    get(f"{_DAG_PATH}/manifest", dependencies=[*_READ, _require_permission("GET", DagAccessEntity.CODE)])(get_manifest)
    for action in (suspend, resume, delete):
        post(f"{_DAG_PATH}/{action.__name__}", dependencies=_list_change_dependencies(action.__name__))(action)
    app.middleware("http")(_add_headers)
    app.exception_handler(TrainerError)(_handle_trainer_error)
    app.exception_handler(backend_view.UnreachableError)(_handle_trainer_error)
    app.exception_handler(401)(_handle_unauthorized)
    return app


def _list_change_dependencies(action: str) -> list[Any]:
    """Return the dependencies of a route that changes a job: same origin, permission, entry in Airflow's audit log."""
    permission = _require_permission(_METHODS[action], DagAccessEntity.TASK_INSTANCE)
    return [Depends(_require_same_origin), permission, Depends(action_logging(f"trainjob_{action}"))]


def _is_permitted(action: str, request: Request, user: Any) -> bool:
    try:
        requires_access_dag(_METHODS[action], DagAccessEntity.TASK_INSTANCE)(request, user)
    except HTTPException:
        return False
    return True


def _mask_data(data: dict[str, Any]) -> dict[str, Any]:
    """Mask all secrets that Airflow knows."""
    shown: dict[str, Any] = serializers.mask_strings(data, _mask)
    return shown


def _mask(text: str, name: str | None = None) -> str:
    return str(redact(text, name))


async def _add_headers(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers.update(HEADERS)
    return response


async def _handle_trainer_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": _mask(str(error))}, status_code=409)


async def _handle_unauthorized(request: Request, error: Any) -> Response:
    """Redirect a browser to the login page; return 401 to other clients."""
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": error.detail}, status_code=401)
    return RedirectResponse(get_auth_manager().get_url_login(next_url=str(request.url)), status_code=302)
