"""Sync client of a Kubernetes API server: verbs on resources, with objects as JSON dicts and retries where safe."""

from __future__ import annotations

import builtins
import json
import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainer_core.k8s import errors
from trainer_core.k8s.connection import CONNECT_SECONDS, READ_SECONDS, Connection
from trainer_core.k8s.errors import NotFoundError, ResourceExpiredError, StreamInterruptedError, WriteConflictError
from trainer_core.k8s.labels import MANAGER
from trainer_core.k8s.resources import ACCESS_REVIEWS, PODS, ApiResource

if TYPE_CHECKING:
    import urllib3

_PAGE_SIZE = 500
_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
#: Seconds without a line after which a followed log's connection counts as dead.
_FOLLOW_SILENCE_SECONDS = 300.0
_CHUNK_BYTES = 2**16
_MAX_LINE_BYTES = 2**20
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
_MAX_RETRY_AFTER_SECONDS = 20


@dataclass(frozen=True)
class PodLogOptions:
    """Options of the `pods/log` subresource."""

    #: Name of the container; None if the pod has only one.
    container: str | None = None
    follow: bool = False
    #: Read the log of the container before its last restart.
    previous: bool = False
    #: Prefix each line with its time.
    timestamps: bool = False
    #: Only lines at or after this RFC 3339 time; the server truncates it to seconds.
    since_time: str | None = None
    #: Only this many lines from the end.
    tail_lines: int | None = None

    def build_query(self) -> dict[str, str]:
        flags = {"follow": self.follow, "previous": self.previous, "timestamps": self.timestamps}
        values = {"container": self.container, "sinceTime": self.since_time, "tailLines": self.tail_lines}
        query = {name: "true" for name, value in flags.items() if value}
        return query | {name: str(value) for name, value in values.items() if value is not None}


class ApiClient:
    """Verbs on the objects of a cluster. Safe to use from several threads.

    Objects are dicts as the server sends them. Requests that are safe to repeat (reads, and writes to a named object)
    are retried a few times after a connection error, 429 or 5xx. Every method raises the errors of
    `trainer_core.k8s.errors`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def get(self, resource: ApiResource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        namespace, suffix = self._get_namespace(resource, namespace)
        task = f"read {resource.kind} {name!r}{suffix}"
        return self._send(_Request("GET", resource.build_path(namespace, name), task, resource))

    def get_path(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path of the server, such as ``/version``."""
        return self._send(_Request("GET", path, f"read {path}"))

    def list(
        self,
        resource: ApiResource,
        *,
        label_selector: str = "",
        field_selector: str = "",
        namespace: str | None = None,
        all_namespaces: bool = False,
    ) -> builtins.list[dict[str, Any]]:
        """Return the objects of a resource, read in pages of 500."""
        if all_namespaces:
            path, suffix = resource.build_path(), " in all namespaces"
        else:
            namespace, suffix = self._get_namespace(resource, namespace)
            path = resource.build_path(namespace)
        query = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": str(_PAGE_SIZE)}
        request = _Request("GET", path, f"list {resource.plural}{suffix}", resource, query)
        try:
            return list(self._list_items(request))
        except ResourceExpiredError:
            # Reading took longer than the server keeps the pages. A second list is fast: its watch cache is warm.
            return list(self._list_items(request))

    def has_any(self, resource: ApiResource, *, label_selector: str, namespace: str) -> bool:
        """Return whether a namespace has an object with these labels; reads one."""
        query = {"labelSelector": label_selector, "limit": "1"}
        task = f"list {resource.plural} in namespace {namespace!r}"
        page = self._send(_Request("GET", resource.build_path(namespace), task, resource, query))
        return bool(page.get("items"))

    def create(
        self, resource: ApiResource, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object and return it. The server refuses unknown fields."""
        metadata = body.get("metadata", {})
        name = metadata.get("name")
        namespace, suffix = self._get_namespace(resource, namespace or metadata.get("namespace"))
        task = f"create {resource.kind} {name or metadata.get('generateName', '')!r}{suffix}"
        path, query = resource.build_path(namespace), _build_write_query(dry_run)
        return self._send(_Request("POST", path, task, resource, query, body, repeatable=bool(name)))

    def patch(
        self,
        resource: ApiResource,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Apply a JSON merge patch to an object and return it."""
        namespace, suffix = self._get_namespace(resource, namespace)
        path, query = resource.build_path(namespace, name), _build_write_query(dry_run)
        task = f"patch {resource.kind} {name!r}{suffix}"
        return self._send(_Request("PATCH", path, task, resource, query, change, content_type=_MERGE_PATCH))

    def apply(
        self,
        resource: ApiResource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Create or update an object by server-side apply and return it."""
        metadata = body["metadata"]
        namespace, suffix = self._get_namespace(resource, namespace or metadata.get("namespace"))
        path = resource.build_path(namespace, metadata["name"])
        query = {**_build_write_query(dry_run), "force": "true" if force else "false"}
        task = f"apply {resource.kind} {metadata['name']!r}{suffix}"
        return self._send(_Request("PATCH", path, task, resource, query, body, content_type=_APPLY_PATCH))

    def delete(
        self,
        resource: ApiResource,
        name: str,
        *,
        uid: str | None = None,
        foreground: bool = True,
        namespace: str | None = None,
    ) -> bool:
        """Request the deletion of an object. It may exist for a while afterwards."""
        where, suffix = self._get_namespace(resource, namespace)
        options: dict[str, Any] = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        task = f"delete {resource.kind} {name!r}{suffix}"
        try:
            self._send(_Request("DELETE", resource.build_path(where, name), task, resource, body=options))
        except NotFoundError:
            return False
        except WriteConflictError:
            if uid and self._get_uid(resource, name, namespace) == uid:
                raise
            return False
        return True

    def is_allowed(self, verb: str, resource: ApiResource, *, subresource: str | None = None) -> bool:
        """Return whether RBAC allows the user a verb, by a SelfSubjectAccessReview."""
        attributes = {
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "namespace": self.connection.namespace if resource.namespaced else None,
            "subresource": subresource,
        }
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value is not None}},
        }
        task = f"check the permission to {verb} {resource.plural}"
        answer = self._send(_Request("POST", ACCESS_REVIEWS.build_path(), task, ACCESS_REVIEWS, body=review))
        return bool(answer.get("status", {}).get("allowed"))

    def stream_pod_log(
        self, name: str, options: PodLogOptions | None = None, *, namespace: str | None = None
    ) -> Generator[bytes, None, None]:
        """Yield lines with their ends as they arrive, in constant memory; one of more than 1 MiB in pieces."""
        options = options or PodLogOptions()
        namespace, suffix = self._get_namespace(PODS, namespace)
        request = _Request(
            "GET",
            PODS.build_path(namespace, name, "log"),
            f"read the log of pod {name!r}{suffix}",
            PODS,
            options.build_query(),
            read_timeout=_FOLLOW_SILENCE_SECONDS if options.follow else READ_SECONDS,
        )
        yield from _stream_lines(self.connection, request)

    def _get_namespace(self, resource: ApiResource, namespace: str | None) -> tuple[str | None, str]:
        """Return the namespace of a request, and the phrase that names it in messages."""
        if not resource.namespaced:
            return None, ""
        namespace = namespace or self.connection.namespace
        return namespace, f" in namespace {namespace!r}"

    def _get_uid(self, resource: ApiResource, name: str, namespace: str | None) -> str | None:
        try:
            metadata = self.get(resource, name, namespace=namespace)["metadata"]
        except NotFoundError:
            return None
        return str(metadata["uid"])

    def _list_items(self, request: _Request) -> Iterator[dict[str, Any]]:
        token: str | None = ""
        while token is not None:
            page = self._send(replace(request, query={**request.query, "continue": token}))
            yield from page.get("items") or ()
            token = page.get("metadata", {}).get("continue") or None

    def _send(self, request: _Request) -> dict[str, Any]:
        """Send a request and return the JSON object of its response."""
        response = _send_request(self.connection, request, preload=True)
        source = f"the response of {self.connection.host} to `{request.task}`"
        try:
            parsed = json.loads(response.data)
        except ValueError as error:
            raise StreamInterruptedError(f"{source} is not JSON; check the server's address") from error
        if not isinstance(parsed, dict):
            raise StreamInterruptedError(f"{source} is not a JSON object; check the server's address")
        return parsed


@dataclass(frozen=True)
class _Request:
    """One HTTP request."""

    method: str
    path: str
    #: What the request does, as an infinitive for error messages.
    task: str
    #: Resource of the objects; None for other paths.
    resource: ApiResource | None = None
    #: Query parameters; empty values are left out.
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = _JSON
    #: Whether sending the request twice has the same effect as sending it once.
    repeatable: bool = True
    #: Seconds without data after which the request fails.
    read_timeout: float = READ_SECONDS


def _build_write_query(dry_run: bool) -> dict[str, str]:
    query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
    return {**query, "dryRun": "All"} if dry_run else query


def _stream_lines(connection: Connection, request: _Request) -> Generator[bytes, None, None]:
    import urllib3

    response = _send_request(connection, request, preload=False)
    try:
        yield from _split_lines(response.stream(_CHUNK_BYTES))
    except urllib3.exceptions.HTTPError as error:
        # Another type than for an unreachable server: a follower of a silent log reconnects without an alarm.
        raise StreamInterruptedError(
            str(errors.build_connection_error(request.task, connection.host, error))
        ) from error
    finally:
        # A partly read response cannot go back into the connection pool.
        response.close()


def _split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        # Not splitlines(): a progress bar's carriage returns are part of its line.
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) >= _MAX_LINE_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def _send_request(connection: Connection, request: _Request, preload: bool) -> urllib3.BaseHTTPResponse:
    """Send a request, once more with new credentials after a 401; raise for any status other than success."""
    import urllib3

    generation = connection.credentials_generation
    query = urlencode({key: value for key, value in request.query.items() if value})
    for is_repeated in (False, True):
        headers = connection.build_headers()
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            response = connection.pool.request(
                request.method,
                f"{connection.url}{request.path}{f'?{query}' if query else ''}",
                body=None if request.body is None else json.dumps(request.body),
                headers=headers,
                retries=_build_retries(request.repeatable),
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=request.read_timeout),
                redirect=False,
                preload_content=preload,
            )
        except urllib3.exceptions.MaxRetryError as error:
            raise errors.build_connection_error(request.task, connection.host, error.reason or error) from error
        except urllib3.exceptions.HTTPError as error:
            raise errors.build_connection_error(request.task, connection.host, error) from error
        if is_repeated or response.status != 401 or not connection.reload_credentials(generation):
            break
        response.close()
    connection.read_server_time(response.headers)
    if 200 <= response.status < 300:
        return response
    raise errors.build_response_error(response.status, response.data, request.task, request.resource, response.headers)


@lru_cache(maxsize=2)
def _build_retries(repeatable: bool) -> urllib3.Retry:
    import urllib3

    class LenientRetry(urllib3.Retry):
        """Ignores a Retry-After that is neither whole seconds nor a date; some proxies send such values."""

        def parse_retry_after(self, retry_after: str) -> float:
            with suppress(urllib3.exceptions.InvalidHeader):
                return super().parse_retry_after(retry_after)
            return 0.0

    # What a retry cannot repair is an error of this library; urllib3's own line for each retry adds nothing.
    logging.getLogger("urllib3.connectionpool").addFilter(
        lambda record: not (isinstance(record.args, tuple) and record.args and isinstance(record.args[0], LenientRetry))
    )
    retries = LenientRetry(
        total=5,
        connect=3,
        # TLS errors count as `other`; retrying does not help.
        other=0,
        # Connection errors are retried for every method: the request has not reached the server.
        allowed_methods=None if repeatable else {"GET"},
        status_forcelist=_RETRIED_STATUSES,
        backoff_factor=0.2,
        backoff_max=8,
        backoff_jitter=0.3,
        raise_on_status=False,
    )
    # An argument of the constructor only since urllib3 2.6.
    retries.retry_after_max = _MAX_RETRY_AFTER_SECONDS
    return retries
