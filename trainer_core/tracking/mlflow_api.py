"""MLflow's REST API over one kept connection, with the standard library: no mlflow package is needed.

Redirects are followed to the same scheme, host and port only, so that credentials reach no other server.
"""

from __future__ import annotations

import http.client
import json
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from pydantic import BaseModel, ValidationError

from trainer_core.errors import TrackingError
from trainer_core.tracking.proxy import Proxy, find_proxy
from trainer_core.tracking.server import MlflowServer

__all__ = ["MAX_BATCH", "MlflowApi", "MlflowRun", "Tag"]

#: Limits of `runs/log-batch`.
MAX_BATCH = 1000
_MAX_PARAMS = 100
_MAX_PARAM_VALUE = 6000
_MAX_TAG_VALUE = 5000
_MAX_KEY = 250
_MAX_REDIRECTS = 3
_PAGE_SIZE = 1000
_MAX_BODY = 500
_BLOCK = 1 << 20

_Model = TypeVar("_Model", bound=BaseModel)


class Tag(BaseModel):
    """A tag of a run, a model or a version."""

    key: str
    value: str = ""


class _Metric(BaseModel):
    key: str
    value: float


class _Experiment(BaseModel):
    experiment_id: str
    lifecycle_stage: str = "active"


class _ExperimentPage(BaseModel):
    experiments: list[_Experiment] = []
    next_page_token: str = ""


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
    """A run as the server describes it.

    Attributes:
        info: Ids, status, start time in milliseconds since 1970, and place of the artifacts.
        data: Tags and the latest point of each metric.
    """

    info: _RunInfo
    data: _RunData = _RunData()

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.run_id

    @property
    def tags(self) -> dict[str, str]:
        """Values of the tags by their keys."""
        return {each.key: each.value for each in self.data.tags}

    @property
    def metrics(self) -> dict[str, float]:
        """Latest values of the metrics by their keys."""
        return {each.key: each.value for each in self.data.metrics}

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return self.info.status in ("RUNNING", "SCHEDULED")


class _RunPage(BaseModel):
    runs: list[MlflowRun] = []
    next_page_token: str = ""


class MlflowApi:
    """Calls the REST API of one MLflow server. Threads may share it; their requests are sent one after the other.

    Args:
        server: Address and credentials.
        timeout: Seconds to wait for the server to connect or to send the next bytes. Default 5.
        max_rate: Maximum number of requests a second. Default 0: no maximum.
    """

    def __init__(self, server: MlflowServer, timeout: float = 5.0, max_rate: float = 0.0) -> None:
        self.server = server
        self.timeout = timeout
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._proxy: Proxy | None = None
        self._pause = 1 / max_rate if max_rate else 0.0
        self._next = 0.0
        self._experiments: dict[str, str] = {}

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        with self._lock:
            self._drop_connection()

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """Send a GET request below ``/api/2.0/mlflow/``.

        Args:
            path: Path, such as ``runs/get``.
            **parameters: Query parameters.

        Raises:
            TrackingError: The server refuses or cannot be reached.
        """
        return self._call_json("GET", f"/api/2.0/mlflow/{path}?{urlencode(parameters)}", None)

    def post(self, path: str, method: str = "POST", **body: Any) -> dict[str, Any]:
        """Send a POST request below ``/api/2.0/mlflow/``.

        Args:
            path: Path, such as ``runs/create``.
            method: ``POST`` (default), ``PATCH`` or ``DELETE``.
            **body: Fields of the JSON body; None is left out.

        Raises:
            TrackingError: The server refuses or cannot be reached.
        """
        data = json.dumps({key: value for key, value in body.items() if value is not None}, allow_nan=False)
        return self._call_json(method, f"/api/2.0/mlflow/{path}", data.encode())

    def get_experiment_id(self, name: str) -> str:
        """Return the id of an experiment, created if it does not exist."""
        if name not in self._experiments:
            self._experiments[name] = self.find_experiment_id(name) or self._create_experiment(name)
        return self._experiments[name]

    def find_experiment_id(self, name: str) -> str | None:
        """Return the id of an experiment; None if it does not exist."""
        try:
            answer = self.get("experiments/get-by-name", experiment_name=name)
        except TrackingError as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        found = self.parse(_Experiment, answer["experiment"])
        if found.lifecycle_stage == "deleted":
            raise TrackingError(
                f"{self.server.uri}: experiment {name!r} is deleted; restore it, or use another experiment"
            )
        return found.experiment_id

    def get_run(self, run_id: str) -> MlflowRun:
        """Return a run, also a deleted one."""
        return self.parse(MlflowRun, self.get("runs/get", run_id=run_id)["run"])

    def search_runs(self, experiment_ids: Sequence[str], filter_string: str) -> list[MlflowRun]:
        """Return the runs that match a filter and are not deleted, oldest first."""
        runs: list[MlflowRun] = []
        token = None
        while True:
            answer = self.post(
                "runs/search",
                experiment_ids=list(experiment_ids),
                filter=filter_string,
                max_results=_PAGE_SIZE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            page = self.parse(_RunPage, answer)
            runs += page.runs
            token = page.next_page_token
            if not token:
                return runs

    def list_experiment_ids(self) -> list[str]:
        """Return the ids of all active experiments."""
        ids: list[str] = []
        token = None
        while True:
            answer = self.post("experiments/search", max_results=_PAGE_SIZE, page_token=token)
            page = self.parse(_ExperimentPage, answer)
            ids += [each.experiment_id for each in page.experiments]
            token = page.next_page_token
            if not token:
                return ids

    def create_run(self, experiment_id: str, name: str, tags: Mapping[str, str], start_time: int) -> str:
        """Create a run and return its id."""
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
        try:
            self.post("runs/delete", run_id=run_id)
        except TrackingError as error:
            if error.code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE"):
                raise

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Mapping[str, Any]] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Send metrics, parameters and tags, in as many requests as the limits of the server need."""
        entries = _to_list(params or {}, _MAX_PARAM_VALUE)
        batches = max(1, -(-len(metrics) // MAX_BATCH), -(-len(entries) // _MAX_PARAMS))
        for number in range(batches):
            self.post(
                "runs/log-batch",
                run_id=run_id,
                metrics=list(metrics[number * MAX_BATCH : (number + 1) * MAX_BATCH]),
                params=entries[number * _MAX_PARAMS : (number + 1) * _MAX_PARAMS],
                tags=_to_list(tags or {}, _MAX_TAG_VALUE) if number == 0 else [],
            )

    def parse(self, model: type[_Model], data: Any) -> _Model:
        """Return a part of an answer as an object of a pydantic model.

        Raises:
            TrackingError: It has other fields or types: another program answers than an MLflow server.
        """
        try:
            return model.model_validate(data)
        except ValidationError:
            raise self._build_format_error(json.dumps(data).encode()) from None

    def upload(self, path: str, file: Path) -> None:
        """Upload a file below the server's artifact root, through the server.

        Args:
            path: Path below the artifact root, such as ``<experiment id>/<run id>/artifacts/model/model.bin``.
            file: The file.
        """
        with file.open("rb") as content:
            size = file.stat().st_size
            self._call("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{quote(path)}", _read_blocks(content), size)

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

    def _call(self, method: str, target: str, body: Any, size: int | None = None) -> bytes:
        url = self.server.uri.rstrip("/") + target
        for _ in range(_MAX_REDIRECTS):
            status, location, text = self._send(method, url, body, size)
            if status not in (301, 302, 303, 307, 308):
                break
            url = self._check_redirect(urljoin(url, location))
        if status >= 300:
            raise self._build_error(status, text)
        return text

    def _check_redirect(self, url: str) -> str:
        if not self.server.has_origin_of(url):
            raise TrackingError(
                f"{self.server.uri} redirects to {_describe_origin(url)}, and credentials are sent to no other server; "
                "set that address as the tracking URI"
            )
        return url

    def _send(self, method: str, url: str, body: Any, size: int | None) -> tuple[int, str, bytes]:
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        with self._lock:
            self._keep_rate()
            self._drop_closed_connection()
            reused = self._connection is not None
            try:
                return self._exchange(method, path, body, size)
            except (OSError, http.client.HTTPException) as error:
                self._drop_connection()
                # A server closes an idle connection without notice. What creates something is not repeated.
                creates = size is not None or path.endswith(("runs/create", "model-versions/create"))
                if not reused or creates or isinstance(error, TimeoutError):
                    raise self._build_connection_error(error) from error
            try:
                return self._exchange(method, path, body, size)
            except (OSError, http.client.HTTPException) as error:
                self._drop_connection()
                raise self._build_connection_error(error) from error

    def _keep_rate(self) -> None:
        if self._pause:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + self._pause

    def _exchange(self, method: str, path: str, body: Any, size: int | None) -> tuple[int, str, bytes]:
        headers = {"Accept": "application/json", **self.server.get_headers()}
        if size is not None:
            headers.update({"Content-Length": str(size), "Content-Type": "application/octet-stream"})
        elif body is not None:
            headers["Content-Type"] = "application/json"
        if self._connection is None:
            self._connection = self._connect()
        parts = urlsplit(self.server.uri)
        if self._proxy is not None and parts.scheme == "http":
            # For https the connection is a tunnel, and the proxy sees no request.
            path, headers = f"http://{parts.netloc}{path}", {**headers, **self._proxy.headers}
        self._connection.request(method, path, body=body, headers=headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.will_close:
            self._drop_connection()
        return response.status, response.headers.get("Location", ""), text

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.server.uri)
        self._proxy = proxy = find_proxy(self.server.uri)
        host, port = (proxy.host, proxy.port) if proxy else (str(parts.hostname), parts.port)
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self.timeout)
        import ssl  # It takes 10 ms to load.

        context = ssl.create_default_context(cafile=self.server.ca_file)
        if self.server.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=self.timeout, context=context)
        if proxy is not None:
            connection.set_tunnel(str(parts.hostname), parts.port or 443, proxy.headers)
        return connection

    def _drop_closed_connection(self) -> None:
        """Drop the connection if the server has closed it meanwhile: what creates something cannot be sent twice."""
        if self._connection is not None and self._connection.sock is not None:
            poller = select.poll()
            poller.register(self._connection.sock, select.POLLIN)
            if poller.poll(0):  # Nothing was asked, so this is its end.
                self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _build_connection_error(self, error: Exception) -> TrackingError:
        reason = str(error) or type(error).__name__
        through = f" through the proxy {self._proxy}" if self._proxy else ""
        return TrackingError(f"MLflow server {self.server.uri} cannot be reached{through}: {reason}", transient=True)

    def _build_format_error(self, text: bytes) -> TrackingError:
        return TrackingError(f"{self.server.uri} does not answer like an MLflow server: {_quote(text)}")

    def _build_error(self, status: int, text: bytes) -> TrackingError:
        try:
            data = json.loads(text)
            code, message = str(data["error_code"]), str(data.get("message", ""))
        except (ValueError, KeyError, TypeError):
            code, message = "", _quote(text)
        hint = "; check the credentials" if status in (401, 403) else ""
        if status == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            hint = f"; check the credentials of the proxy {self._proxy}"
        transient = status in (408, 429) or status >= 500
        line = " ".join(f"{code} {message}".split())[:_MAX_BODY]
        return TrackingError(f"MLflow server {self.server.uri} answers {status}: {line}{hint}", code, transient)


class _Answer(dict[str, Any]):
    """A JSON object of an answer. A field that is missing means that another program answers than an MLflow server."""

    def __init__(self, fields: dict[str, Any], unexpected: TrackingError) -> None:
        super().__init__(fields)
        self._unexpected = unexpected

    def __missing__(self, key: str) -> Any:
        raise self._unexpected


def _to_list(values: Mapping[str, str], limit: int) -> list[dict[str, str]]:
    return [{"key": key[:_MAX_KEY], "value": str(value)[:limit]} for key, value in values.items()]


def _read_blocks(content: Any) -> Iterator[bytes]:
    while block := content.read(_BLOCK):
        yield block


def _quote(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:_MAX_BODY]


def _describe_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
