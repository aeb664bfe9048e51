"""One request to a cluster: sent, sent again where that is safe, and its answer read; nothing of what it is about."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainer_core.cluster import answers
from trainer_core.cluster.answers import BrokenOffError
from trainer_core.cluster.connect import CONNECT_SECONDS, READ_SECONDS, Connection
from trainer_core.cluster.kinds import Kind

if TYPE_CHECKING:
    import urllib3

__all__ = ["Request", "lines", "read"]

_CHUNK = 2**16
_MAX_LINE = 2**20


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        method: HTTP method.
        path: Path below the server's address.
        task: What it does, to stand behind "refused to".
        kind: Kind of the objects it is about.
        query: Its parameters.
        body: Object to send.
        sent_as: Type of the body.
        again: Whether sending it twice is the same as sending it once.
        quiet: Seconds of silence to bear.
    """

    method: str
    path: str
    task: str
    kind: Kind | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    sent_as: str = "application/json"
    again: bool = True
    quiet: float = READ_SECONDS


def read(connection: Connection, request: Request) -> dict[str, Any]:
    """Send a request and return the object that answers it.

    Raises:
        TrainerError: Any of `answers`.
    """
    response = _send(connection, request, preload=True)
    try:
        found = json.loads(response.data)
    except ValueError as error:
        raise BrokenOffError(
            f"the answer of {connection.host} to {request.task} is no JSON; check the address"
        ) from error
    if not isinstance(found, dict):
        raise BrokenOffError(f"the answer of {connection.host} to {request.task} is no object; check the address")
    return found


def lines(connection: Connection, request: Request) -> Generator[bytes, None, None]:
    """Send a request and yield the lines of its answer as they come, each with its line end, in constant memory.

    Lines of more than 1 MiB come in pieces.

    Raises:
        BrokenOffError: The connection broke.
        TrainerError: Any of `answers`.
    """
    import urllib3

    response = _send(connection, request, preload=False)
    try:
        yield from _lines(response.stream(_CHUNK))
    except urllib3.exceptions.HTTPError as error:
        # Not away: it did answer. Who follows a log that says nothing for hours has to know the difference.
        raise BrokenOffError(str(answers.unreachable(request.task, connection.host, error))) from error
    finally:
        # Half read, perhaps: nothing else can be asked through it.
        response.close()


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        # Not splitlines: a progress bar's carriage returns are part of its line.
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) >= _MAX_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _send(connection: Connection, request: Request, preload: bool) -> urllib3.BaseHTTPResponse:
    turn = connection.turn
    response = _send_once(connection, request, preload)
    if response.status == 401 and connection.renew(turn):
        response.close()
        response = _send_once(connection, request, preload)
    if 200 <= response.status < 300:
        return response
    raise answers.error(response.status, response.data, request.task, request.kind, response.headers)


def _send_once(connection: Connection, request: Request, preload: bool) -> urllib3.BaseHTTPResponse:
    import urllib3

    query = urlencode({key: value for key, value in request.query.items() if value})
    headers = connection.headers()
    if request.body is not None:
        headers["Content-Type"] = request.sent_as
    try:
        return connection.pool.request(
            request.method,
            f"{connection.url}{request.path}{f'?{query}' if query else ''}",
            body=None if request.body is None else json.dumps(request.body),
            headers=headers,
            retries=_retries(request.again),
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=request.quiet),
            redirect=False,
            preload_content=preload,
        )
    except urllib3.exceptions.MaxRetryError as error:
        raise answers.unreachable(request.task, connection.host, error.reason or error) from error
    except urllib3.exceptions.HTTPError as error:
        raise answers.unreachable(request.task, connection.host, error) from error


@lru_cache(maxsize=2)
def _retries(again: bool) -> urllib3.Retry:
    import urllib3

    class Retries(urllib3.Retry):
        """Bears a Retry-After that is neither whole seconds nor a date, as proxies send it."""

        def parse_retry_after(self, retry_after: str) -> float:
            with suppress(urllib3.exceptions.InvalidHeader):
                return super().parse_retry_after(retry_after)
            return 0.0

    retries = Retries(
        total=5,
        connect=3,
        # Certificates do not get better.
        other=0,
        # What did not even reach the server is sent again in any case.
        allowed_methods=None if again else {"GET"},
        status_forcelist=(429, 500, 502, 503, 504),
        backoff_factor=0.2,
        backoff_max=8,
        backoff_jitter=0.3,
        raise_on_status=False,
    )
    # A constructor's argument only since urllib3 2.6.
    retries.retry_after_max = 20
    return retries
