"""What a server answers, as an error that says what to do. Pure.

    TrainerError
     ├── GoneError                                410  the version or page asked for is no longer kept: list again
     ├── NotThereError                            404  there is no such object
     ├── TakenError                               409  the name is taken
     ├── StaleError                               409  the object is another, or has changed
     ├── InvalidRequestError
     │    └── RejectedError                       400, 413, 422, and what admission refuses
     └── BackendUnavailableError                  unreachable, overloaded, out of quota, broken
          ├── BusyError                           408, 429, 5xx  it can be asked again in a while
          ├── BrokenOffError                      an answer without an end
          ├── ForbiddenError                      403  a role is missing
          ├── UnauthorizedError                   401  the credentials are not taken
          └── NotInstalledError                   404  of a whole API group

The first four are answers that a caller within the core knows what to do with; users never see them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.cluster.kinds import SECRETS, Kind
from trainer_core.cluster.raw import one_line
from trainer_core.errors import BackendUnavailableError, InvalidRequestError, TrainerError

__all__ = [
    "BrokenOffError",
    "BusyError",
    "ForbiddenError",
    "GoneError",
    "NotInstalledError",
    "NotThereError",
    "RejectedError",
    "StaleError",
    "TakenError",
    "UnauthorizedError",
    "error",
    "unreachable",
]

_MAX_TEXT = 1000
_GROUP = "trainer.kubeflow.org"
# What role-based access control says; whatever else comes with 403 is the word of an admission controller.
_NO_ROLE = re.compile(r'cannot (?P<verb>[a-z]+) (?:resource|path) "(?P<what>[^"]+)"')
_GOES_AWAY = frozenset({408, 429, 500, 502, 503, 504})


class GoneError(TrainerError):
    """The server no longer has what was to be continued; list again."""


class NotThereError(TrainerError):
    """There is no such object."""


class TakenError(TrainerError):
    """An object of that name exists."""


class StaleError(TrainerError):
    """The object is another one than meant, or has changed meanwhile."""


class RejectedError(InvalidRequestError):
    """The server, or something that guards it, refuses the object."""


class BusyError(BackendUnavailableError):
    """The server cannot answer now.

    Attributes:
        retry_after: Seconds for which it wants to be left alone; 0 if it does not say.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ForbiddenError(BackendUnavailableError):
    """The user has no role that allows this.

    Attributes:
        verb: What was to be done, such as ``list``; empty if the server does not say.
        resource: To what, such as ``pods/log``; empty if the server does not say.
    """

    transient = False

    def __init__(self, message: str, verb: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class UnauthorizedError(BackendUnavailableError):
    """The cluster does not take the credentials."""

    transient = False


class NotInstalledError(BackendUnavailableError):
    """The cluster does not know the kind at all."""

    transient = False


class BrokenOffError(BackendUnavailableError):
    """An answer ended before it was complete."""


@dataclass(frozen=True)
class _Answer:
    """One refusal.

    Attributes:
        status: The code.
        task: What was to be done, such as ``create TrainJob 'x' in namespace 'team'``.
        kind: Of what.
        reason: The server's word for it; empty where the answer is no Status.
        text: What the server says, in one line.
        details: Its details.
        retry_after: Seconds after which the server wants to be asked again.
    """

    status: int
    task: str
    kind: Kind | None
    reason: str
    text: str
    details: Mapping[str, Any]
    retry_after: float | None

    def message(self, advice: str) -> str:
        said = f": {self.text}" if self.text else f" with HTTP status {self.status}"
        return f"the cluster refused to {self.task}{said}; {advice}"


def error(
    status: int, body: bytes, task: str, kind: Kind | None = None, headers: Mapping[str, str] | None = None
) -> TrainerError:
    """Return what an answer other than success means.

    Args:
        status: HTTP status.
        body: The answer's body.
        task: What was to be done, to stand behind "refused to".
        kind: What kind of object it was done to.
        headers: The answer's headers.
    """
    answer = _read(status, body, task, kind, headers or {})
    special = {401: _unauthorized, 403: _forbidden, 404: _not_found, 409: _conflict, 422: _invalid}
    if status in special:
        return special[status](answer)
    if status == 410:
        return GoneError(answer.message("list again"))
    if status in _GOES_AWAY:
        return _overloaded(answer)
    if 400 <= status < 500:
        return RejectedError(answer.message("change what it names and submit again"))
    return BackendUnavailableError(
        f"no Kubernetes API answers where {task} was asked for: HTTP status {status}; check the server's address "
        "in the kubeconfig, and the proxy"
    )


def unreachable(task: str, host: str, cause: BaseException) -> BackendUnavailableError:
    """Return what it means that no answer came.

    Args:
        task: What was to be done.
        host: The server's address, without credentials.
        cause: What the client library raised.
    """
    text = one_line(str(cause) or type(cause).__name__, 300)
    advice = "check the network, the proxy and that the server is up"
    if "CERTIFICATE_VERIFY" in text.upper():
        advice = "name the cluster's CA in the kubeconfig, or in SSL_CERT_FILE"
    return BackendUnavailableError(f"the cluster at {host} cannot be reached to {task}: {text}; {advice}")


def _read(status: int, body: bytes, task: str, kind: Kind | None, headers: Mapping[str, str]) -> _Answer:
    text = body[: 64 * _MAX_TEXT].decode("utf-8", "replace")
    found = _status(body)
    details = found.get("details")
    details = details if isinstance(details, Mapping) else {}
    message = str(found.get("message") or "") if found else text
    if kind == SECRETS and status in (400, 422):
        # A server that cannot read an object may quote it, and this one holds a secret.
        message = "; ".join(_fields(details)) or str(found.get("reason") or "")
    after = _seconds(headers.get("Retry-After")) or _seconds(details.get("retryAfterSeconds"))
    return _Answer(status, task, kind, str(found.get("reason") or ""), one_line(message), details, after)


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) and found.get("kind") == "Status" else {}


def _fields(details: Mapping[str, Any]) -> Iterable[str]:
    causes = details.get("causes")
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, Mapping) and cause.get("field"):
            yield f"{cause['field']} is not valid"


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


def _unauthorized(answer: _Answer) -> TrainerError:
    return UnauthorizedError(
        answer.message("the token or certificate has expired or is not known there: log in to the cluster again")
    )


def _forbidden(answer: _Answer) -> TrainerError:
    missing = _NO_ROLE.search(answer.text)
    if missing and 'User "system:anonymous"' in answer.text:
        return _unauthorized(answer)
    if missing:
        group = answer.details.get("group")
        resource = missing["what"] if not group else f"{missing['what']}.{group}"
        advice = f"ask for a role that may {missing['verb']} {resource}, or run `trainjob doctor`"
        return ForbiddenError(answer.message(advice), missing["verb"], missing["what"])
    if "exceeded quota" in answer.text:
        return BackendUnavailableError(answer.message("wait until others have ended, or ask for a larger quota"))
    if answer.reason:
        return RejectedError(answer.message("change what it names and submit again"))
    return ForbiddenError(answer.message("a proxy or the cluster's own rules forbid it; run `trainjob doctor`"))


def _not_found(answer: _Answer) -> TrainerError:
    named = answer.details.get("name")
    if answer.details.get("kind") == "namespaces":
        return RejectedError(answer.message("create the namespace, or name another in the backend's configuration"))
    if named:
        return NotThereError(answer.message("check its name and namespace"))
    if answer.kind is not None and answer.kind.group == _GROUP:
        return NotInstalledError(
            f"the cluster knows no {answer.kind.kind}: Kubeflow Trainer v2 is not installed in the cluster, or "
            f"{answer.kind.api_version} is not served; run `trainjob doctor`"
        )
    what = f"{answer.kind.plural} of {answer.kind.api_version}" if answer.kind else "this path"
    return NotInstalledError(answer.message(f"{what} is not served; run `trainjob doctor`"))


def _invalid(answer: _Answer) -> TrainerError:
    # A patch that names the uid of an object that has another by now changes what cannot be changed.
    if "metadata.uid is not valid" in _fields(answer.details):
        return StaleError(answer.message("look at it again"))
    return RejectedError(answer.message("change what it names and submit again"))


def _conflict(answer: _Answer) -> TrainerError:
    if answer.reason == "AlreadyExists":
        return TakenError(answer.message("choose another name"))
    return StaleError(answer.message("look at it again"))


def _overloaded(answer: _Answer) -> TrainerError:
    if "failed calling webhook" in answer.text:
        return BackendUnavailableError(
            answer.message("the controller that checks it does not answer: see that its pods run, then try again")
        )
    when = f"in {answer.retry_after:g} seconds" if answer.retry_after else "in a while"
    busy = "too many requests reach it" if answer.status == 429 else "it is overloaded or restarting"
    return BusyError(answer.message(f"{busy}: try again {when}"), answer.retry_after or 0.0)
