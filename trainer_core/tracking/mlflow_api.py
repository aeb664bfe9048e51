"""MLflow's REST API: no mlflow package is needed. A process has one connection for submits and one for the rest."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from trainer_core.base.errors import TrackingError
from trainer_core.tracking.http_connection import HttpConnection
from trainer_core.tracking.server import MlflowServer

#: Limits of `runs/log-batch`: 1,000 entries, of which 100 are parameters or tags; and of the value of a parameter.
MAX_BATCH = 900
MAX_VALUE = 6000
_MAX_FIELDS = 100
_MAX_TAG_VALUE = 5000
_MAX_KEY = 250
_PAGE_SIZE = 1000
_MAX_BODY = 500
_REFUSED_CHARACTER = re.compile(r"[^/\w.\- :]")
#: A submit waits this long for each answer of the server.
_SUBMIT_TIMEOUT = 2.0
_REPORT_TIMEOUT = 5.0
#: Requests a second of all waiters of the process together.
_MAX_REPORT_RATE = 200.0

_apis: dict[tuple[MlflowServer, bool], MlflowApi] = {}
_lock = threading.Lock()

_Model = TypeVar("_Model", bound=BaseModel)


class Tag(BaseModel):
    """A tag of a run, a model or a version."""

    key: str
    value: str = ""


class _Metric(BaseModel):
    key: str
    value: float
    timestamp: int = 0
    step: int = 0


class _Experiment(BaseModel):
    experiment_id: str
    lifecycle_stage: str = "active"


class _RunInfo(BaseModel):
    run_id: str
    experiment_id: str
    status: str = "RUNNING"
    lifecycle_stage: str = "active"
    start_time: int = 0
    artifact_uri: str = ""


class _RunData(BaseModel):
    tags: list[Tag] = []
    metrics: list[_Metric] = []


class MlflowRun(BaseModel):
    """A run as the server describes it."""

    #: Ids, status, start time in milliseconds since 1970, and place of the artifacts.
    info: _RunInfo
    #: Tags and the latest point of each metric.
    data: _RunData = _RunData()

    @property
    def id(self) -> str:
        return self.info.run_id

    @property
    def tags(self) -> dict[str, str]:
        return {each.key: each.value for each in self.data.tags}

    @property
    def metrics(self) -> dict[str, float]:
        """Latest values of the metrics by their keys."""
        return {each.key: each.value for each in self.data.metrics}

    @property
    def latest(self) -> dict[str, tuple[int, int, float]]:
        """Step, timestamp and value of the latest point of each metric."""
        return {each.key: (each.step, each.timestamp, each.value) for each in self.data.metrics}

    @property
    def is_deleted(self) -> bool:
        return self.info.lifecycle_stage == "deleted"

    @property
    def is_active(self) -> bool:
        return self.info.status in ("RUNNING", "SCHEDULED")


class SuppressCodes(AbstractContextManager[None]):
    """Leaves the block at an answer with one of these error codes."""

    def __init__(self, *codes: str) -> None:
        self._codes = codes

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, TrackingError) and error.code in self._codes


class MlflowApi:
    """Calls the REST API of one MLflow server. Threads may share it; their requests are sent one after the other.

    Attributes:
        timeout: Seconds to wait for the server.
        answers: Number of requests that succeeded.
    """

    def __init__(self, server: MlflowServer, timeout: float = 5.0, max_rate: float = 0.0) -> None:
        self.server = server
        self.timeout = timeout
        self.answers = 0
        self._connection = HttpConnection(server, timeout, max_rate)
        self._experiments: dict[str, str] = {}

    def close(self) -> None:
        """Close the connection, unless a request uses it now. The next request opens another one."""
        self._connection.close()

    def get(self, path: str, **parameters: str | int) -> dict[str, Any]:
        """Send a GET request below ``/api/2.0/mlflow/``."""
        return self._call_json("GET", f"/api/2.0/mlflow/{path}?{urlencode(parameters)}", None)

    def post(self, path: str, method: str = "POST", **body: Any) -> dict[str, Any]:
        """Send a POST request below ``/api/2.0/mlflow/``."""
        data = json.dumps({key: value for key, value in body.items() if value is not None}, allow_nan=False)
        return self._call_json(method, f"/api/2.0/mlflow/{path}", data.encode())

    def get_experiment_id(self, name: str) -> str:
        """Return the id of an experiment, created if it does not exist."""
        if name not in self._experiments:
            self._experiments[name] = self.find_experiment_id(name) or self._create_experiment(name)
        return self._experiments[name]

    def find_experiment_id(self, name: str) -> str | None:
        """Return the id of an experiment; None if it does not exist."""
        with SuppressCodes("RESOURCE_DOES_NOT_EXIST"):
            answer = self.get("experiments/get-by-name", experiment_name=name)
            found = self.parse(_Experiment, answer["experiment"])
            if found.lifecycle_stage == "deleted":
                raise TrackingError(
                    f"{self.server.uri}: experiment {name!r} is deleted; restore it, or use another experiment"
                )
            return found.experiment_id
        return None

    def get_run(self, run_id: str) -> MlflowRun:
        """Return a run, also a deleted one."""
        return self.parse(MlflowRun, self.get("runs/get", run_id=run_id)["run"])

    def get_history(self, run_id: str, key: str) -> list[_Metric]:
        """Return all points of a metric."""
        call = partial(self.get, "metrics/get-history", run_id=run_id, metric_key=key)
        return self.list_all(call, "metrics", _Metric)

    def search_runs(
        self, experiment_ids: Sequence[str], filter_string: str, view: str = "ACTIVE_ONLY"
    ) -> list[MlflowRun]:
        """Return the runs that match a filter, oldest first; the view ``ALL`` has deleted runs, too."""
        call = partial(
            self.post,
            "runs/search",
            experiment_ids=list(experiment_ids),
            filter=filter_string,
            run_view_type=view,
            order_by=["attributes.start_time ASC"],
        )
        return self.list_all(call, "runs", MlflowRun)

    def list_experiment_ids(self) -> list[str]:
        found = self.list_all(partial(self.post, "experiments/search"), "experiments", _Experiment)
        return [each.experiment_id for each in found]

    def list_all(self, call: Callable[..., dict[str, Any]], key: str, model: type[_Model]) -> list[_Model]:
        """Return what all pages of an answer have under a key."""
        found: list[_Model] = []
        token = ""
        while True:
            page = call(max_results=_PAGE_SIZE, **({"page_token": token} if token else {}))
            found += [self.parse(model, each) for each in page.get(key) or ()]
            token = page.get("next_page_token") or ""
            if not token:
                return found

    def create_run(self, experiment_id: str, name: str, tags: Mapping[str, str], start_time: int) -> str:
        created = self.post(
            "runs/create",
            experiment_id=experiment_id,
            run_name=name,
            start_time=start_time,
            tags=_to_list(tags, _MAX_TAG_VALUE),
        )
        return self.parse(MlflowRun, created["run"]).id

    def delete_run(self, run_id: str) -> None:
        """Delete a run. Succeeds if it is deleted."""
        with SuppressCodes("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE"):
            self.post("runs/delete", run_id=run_id)

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Mapping[str, Any]] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dict[str, TrackingError]:
        """Send metrics, parameters and tags, the tags last, in as many requests as the limits of the server need."""
        fields = [("params", each) for each in _to_list(params or {}, MAX_VALUE)]
        fields += [("tags", each) for each in _to_list(tags or {}, _MAX_TAG_VALUE)]
        refused: dict[str, TrackingError] = {}
        for start in range(0, len(metrics), MAX_BATCH):
            batch = [("metrics", each) for each in metrics[start : start + MAX_BATCH]]
            if start + MAX_BATCH >= len(metrics) and len(fields) <= _MAX_FIELDS:
                batch, fields = [*batch, *fields], []
            self._log_entries(run_id, batch, refused)
        for start in range(0, len(fields), _MAX_FIELDS):
            self._log_entries(run_id, fields[start : start + _MAX_FIELDS], refused)
        return refused

    def _log_entries(
        self, run_id: str, entries: Sequence[tuple[str, Mapping[str, Any]]], refused: dict[str, TrackingError]
    ) -> None:
        """Send entries, and leave out those that are refused: halves of a refused request are sent separately."""
        entries = [(kind, each) for kind, each in entries if each["key"] not in refused]
        try:
            self._post_entries(run_id, entries)
        except TrackingError as error:
            if error.code != "INVALID_PARAMETER_VALUE" or not entries:
                raise
            if len(entries) > 1:
                self._log_entries(run_id, entries[: len(entries) // 2], refused)
                self._log_entries(run_id, entries[len(entries) // 2 :], refused)
                return
            self._post_entries(run_id, [])  # Is it the run that is refused?
            refused[entries[0][1]["key"]] = error

    def _post_entries(self, run_id: str, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        kinds: dict[str, Any] = {"metrics": [], "params": [], "tags": []}
        for kind, each in entries:
            kinds[kind].append(each)
        self.post("runs/log-batch", run_id=run_id, **kinds)

    def parse(self, model: type[_Model], data: Any) -> _Model:
        """Return a part of an answer as an object of a pydantic model."""
        try:
            return model.model_validate(data)
        except ValidationError:
            raise self._build_format_error(json.dumps(data).encode()) from None

    def upload(self, path: str, file: Path) -> None:
        """Upload a file below the server's artifact root, through the server."""
        self._call("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{quote(path)}", file)

    def _create_experiment(self, name: str) -> str:
        try:
            return str(self.post("experiments/create", name=name)["experiment_id"])
        except TrackingError as error:
            found = self.find_experiment_id(name) if error.code == "RESOURCE_ALREADY_EXISTS" else None
            if found is None:
                raise
            return found

    def _call_json(self, method: str, target: str, body: bytes | None) -> dict[str, Any]:
        text = self._call(method, target, body)
        unexpected = self._build_format_error(text)
        try:
            data = json.loads(text or b"{}", object_hook=lambda fields: _Answer(fields, unexpected))
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise unexpected
        return data

    def _call(self, method: str, target: str, body: bytes | Path | None) -> bytes:
        status, text = self._connection.send(method, target, body)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._build_error(status, text)
        self.answers += 1
        return text

    def _build_format_error(self, text: bytes) -> TrackingError:
        return TrackingError(f"{self.server.uri} does not answer like an MLflow server: {_quote(text)}")

    def _build_error(self, status: int, text: bytes) -> TrackingError:
        try:
            data = json.loads(text)
            code, message = str(data["error_code"]), str(data.get("message", ""))
        except (ValueError, KeyError, TypeError):
            code, message = "", _quote(text)
        hint = "; check the credentials" if status in (401, 403) else ""
        if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            hint = f"; check the credentials of the proxy {self._connection.proxy}"
        # Two clients wrote the same row at once; the server does not try again.
        transient = status in (408, 429) or status >= HTTPStatus.INTERNAL_SERVER_ERROR or "IntegrityError" in message
        line = " ".join(f"{code} {message}".split())[:_MAX_BODY]
        return TrackingError(f"MLflow server {self.server.uri} answers {status}: {line}{hint}", code, transient)


class _Answer(dict[str, Any]):
    """A JSON object of an answer. A field that is missing means that another program answers than an MLflow server."""

    def __init__(self, fields: dict[str, Any], unexpected: TrackingError) -> None:
        super().__init__(fields)
        self._unexpected = unexpected

    def __missing__(self, key: str) -> Any:
        raise self._unexpected


def fit_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the key in MLflow of each name: the name, or where MLflow refuses or has it, one like it.

    ``acc@1`` becomes ``acc_1``, or ``acc_1-5e9a2b71`` where another name has that.
    """
    fitted = {name: _fit_name(name) for name in names}
    used = {*taken}
    kept = {name for name, key in fitted.items() if name == key and key not in used}
    used |= kept
    for name, key in fitted.items():
        if name in kept:
            continue
        if key in used:
            key = f"{key[: _MAX_KEY - 9]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
        used.add(key)
        fitted[name] = key
    return fitted


def _fit_name(name: str) -> str:
    key = _REFUSED_CHARACTER.sub("_", name)
    for _ in range(2):  # The cut may end behind a slash or dots.
        key = "/".join(part for part in key.split("/") if part not in ("", ".", ".."))[:_MAX_KEY]
    return "_" + key[2:] if key.startswith("..") else key or "_"


def _to_list(values: Mapping[str, str], limit: int) -> list[dict[str, str]]:
    keys = fit_names(values)
    return [{"key": keys[name], "value": str(value)[:limit]} for name, value in values.items()]


def _quote(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:_MAX_BODY]


def get_submit_api(server: MlflowServer) -> MlflowApi:
    """Return the API of a server for requests that a submit waits for. Reports do not occupy its connection."""
    return _get_api(server, True)


def get_report_api(server: MlflowServer) -> MlflowApi:
    """Return the API of a server for requests that no submit waits for, all of a process by one connection."""
    return _get_api(server, False)


def _get_api(server: MlflowServer, is_submit: bool) -> MlflowApi:
    with _lock:
        if (server, is_submit) not in _apis:
            _apis[server, is_submit] = (
                MlflowApi(server, _SUBMIT_TIMEOUT)
                if is_submit
                else MlflowApi(server, _REPORT_TIMEOUT, _MAX_REPORT_RATE)
            )
        return _apis[server, is_submit]


def _close() -> None:
    for api in _apis.values():
        api.close()


def _forget() -> None:
    """Leave the connections to the parent process; a thread of it may have held the lock."""
    global _lock
    _apis.clear()
    _lock = threading.Lock()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
