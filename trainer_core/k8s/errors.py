"""Responses of a Kubernetes API server as exceptions with advice for the user. Pure.

    TrainerError
     ├── ResourceExpiredError                     410  the resourceVersion or page has expired: list again
     ├── NotFoundError                            404  there is no such object
     ├── AlreadyExistsError                       409  an object of this name exists
     ├── WriteConflictError                       409  the object has changed, or has another uid
     ├── InvalidRequestError
     │    └── RejectedError                       400, 413, 422, and refusals of admission
     └── BackendUnavailableError                  unreachable, overloaded, quota exceeded
          ├── ServerBusyError                     408, 429, 5xx  retry later
          ├── StreamInterruptedError              an incomplete response
          ├── CertificateError                    the server's certificate is refused
          ├── ForbiddenError                      403  RBAC denies the request
          ├── UnauthorizedError                   401  the credentials are refused
          └── ApiNotServedError                   404  of a whole resource

Callers within `trainer_core` handle the first four; users never see them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, TrainerError
from trainer_core.k8s.parsing import to_single_line
from trainer_core.k8s.resources import SECRETS, TRAINJOBS, ApiResource

_MAX_BODY_BYTES = 64_000
# The text of RBAC. Any other 403 comes from admission or from a proxy.
_RBAC_DENIAL = re.compile(r'cannot (?P<verb>[a-z]+) (?:resource|path) "(?P<resource>[^"]+)"')
_BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class ResourceExpiredError(TrainerError):
    """The server no longer has the requested resourceVersion or page; list again (reason ``Expired``)."""


class NotFoundError(TrainerError):
    """There is no object of this name (reason ``NotFound``)."""


class AlreadyExistsError(TrainerError):
    """An object of this name exists (reason ``AlreadyExists``)."""


class WriteConflictError(TrainerError):
    """The object has changed, or has another uid than the request names (reason ``Conflict``)."""


class RejectedError(InvalidRequestError):
    """The server or an admission webhook refuses the object."""


class ServerBusyError(BackendUnavailableError):
    """The server cannot answer at the moment. `retry_after`: seconds that it asks to wait, or 0."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StreamInterruptedError(BackendUnavailableError):
    """A response ended before it was complete, or is not what an API server sends."""


class SilentWatchError(StreamInterruptedError):
    """A watch had neither an event nor a bookmark for longer than a server takes between two bookmarks."""


class CertificateError(BackendUnavailableError):
    """The certificate of the server, or of the proxy, is refused."""

    transient = False


class ForbiddenError(BackendUnavailableError):
    """RBAC denies the request."""

    transient = False

    def __init__(self, message: str, verb: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class UnauthorizedError(BackendUnavailableError):
    """The server refuses the credentials."""

    transient = False


class ApiNotServedError(BackendUnavailableError):
    """The server does not serve the resource: its CRD or API version is not installed."""

    transient = False


_UNKNOWN_ISSUER = "name the cluster's CA in the kubeconfig, or in SSL_CERT_FILE"
#: A part of what OpenSSL says (``X509_verify_cert_error_string``) where the issuer is not the reason.
_CERTIFICATE_ADVICE = {
    "expired": "renew the certificate of the server or of its CA; `kubectl get pods` is refused, too",
    "not yet valid": "check the clock of this machine",
    "mismatch": "correct the server's address, or name its host as tls-server-name in the kubeconfig",
}


@dataclass(frozen=True)
class _Refusal:
    """A response other than success."""

    status: int
    #: What the request was to do, such as ``create TrainJob 'x' in namespace 'team'``.
    task: str
    resource: ApiResource | None
    #: ``reason`` of the Status object; empty if the body is not one.
    reason: str
    text: str
    details: Mapping[str, Any]
    #: Seconds after which the server asks to retry.
    retry_after: float | None

    def format_message(self, advice: str) -> str:
        cause = f": {self.text}" if self.text else f" with HTTP status {self.status}"
        return f"the cluster refused to {self.task}{cause}; {advice}"


_CORRECT_AND_SUBMIT = "correct the request and submit it again"


def build_response_error(
    status: int,
    body: bytes,
    task: str,
    resource: ApiResource | None = None,
    headers: Mapping[str, str] | None = None,
) -> TrainerError:
    refusal = _parse_refusal(status, body, task, resource, headers or {})
    builders = {
        401: _build_unauthorized,
        403: _build_forbidden,
        404: _build_not_found,
        409: _build_conflict,
        422: _build_invalid,
    }
    if status in builders:
        return builders[status](refusal)
    if status == 410:
        return ResourceExpiredError(refusal.format_message("list again"))
    if status in _BUSY_STATUSES:
        return _build_busy(refusal)
    if 400 <= status < 500:
        return RejectedError(refusal.format_message(_CORRECT_AND_SUBMIT))
    return BackendUnavailableError(
        f"the server returned HTTP status {status}, which is not a Kubernetes API response, to the request to {task}; "
        "check the server's address in the kubeconfig, and the proxy"
    )


def build_connection_error(task: str, host: str, cause: BaseException) -> BackendUnavailableError:
    """Return the exception for a request without a response."""
    text = to_single_line(str(cause) or type(cause).__name__, 300)
    problem = f"the cluster at {host} cannot be reached to {task}: {text}"
    if "CERTIFICATE_VERIFY" not in text.upper():
        return BackendUnavailableError(f"{problem}; check the network, the proxy and that the server is up")
    advice = next((advice for part, advice in _CERTIFICATE_ADVICE.items() if part in text), _UNKNOWN_ISSUER)
    return CertificateError(f"{problem}; {advice}")


def _parse_refusal(
    status: int, body: bytes, task: str, resource: ApiResource | None, headers: Mapping[str, str]
) -> _Refusal:
    parsed = _parse_status(body)
    details = parsed.get("details")
    details = details if isinstance(details, Mapping) else {}
    message = str(parsed.get("message") or "") if parsed else body[:_MAX_BODY_BYTES].decode("utf-8", "replace")
    if resource == SECRETS and status in (400, 422):
        # The server may quote the object in its message, and this object contains a secret.
        message = "; ".join(_list_invalid_fields(details)) or str(parsed.get("reason") or "")
    retry_after = _parse_seconds(headers.get("Retry-After")) or _parse_seconds(details.get("retryAfterSeconds"))
    reason = str(parsed.get("reason") or "")
    return _Refusal(status, task, resource, reason, to_single_line(message), details, retry_after)


def _parse_status(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) and parsed.get("kind") == "Status" else {}


def _list_invalid_fields(details: Mapping[str, Any]) -> Iterable[str]:
    causes = details.get("causes")
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, Mapping) and cause.get("field"):
            yield f"{cause['field']} is not valid"


def _parse_seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


def _build_unauthorized(refusal: _Refusal) -> TrainerError:
    return UnauthorizedError(
        refusal.format_message("the token or certificate has expired or is unknown: log in to the cluster again")
    )


def _build_forbidden(refusal: _Refusal) -> TrainerError:
    denial = _RBAC_DENIAL.search(refusal.text)
    if denial and 'User "system:anonymous"' in refusal.text:
        return _build_unauthorized(refusal)
    if denial:
        group = refusal.details.get("group")
        resource = denial["resource"] if not group else f"{denial['resource']}.{group}"
        advice = f"ask for a role that may {denial['verb']} {resource}, or run `trainjob doctor`"
        return ForbiddenError(refusal.format_message(advice), denial["verb"], denial["resource"])
    if "exceeded quota" in refusal.text:
        return BackendUnavailableError(
            refusal.format_message("wait until other jobs have ended, or ask for a larger quota")
        )
    if refusal.reason:
        return RejectedError(refusal.format_message(_CORRECT_AND_SUBMIT))
    return ForbiddenError(refusal.format_message("a proxy or a rule of the cluster forbids it; run `trainjob doctor`"))


def _build_not_found(refusal: _Refusal) -> TrainerError:
    if refusal.details.get("kind") == "namespaces":
        return RejectedError(
            refusal.format_message("create the namespace, or name another in the backend's configuration")
        )
    if refusal.details.get("name"):
        return NotFoundError(refusal.format_message("check its name and namespace"))
    resource = refusal.resource
    if resource is not None and resource.group == TRAINJOBS.group:
        return ApiNotServedError(
            f"the cluster does not serve {resource.plural} of {resource.api_version}: Kubeflow Trainer v2 is not "
            "installed in the cluster, or has another API version; run `trainjob doctor`"
        )
    subject = f"{resource.plural} of {resource.api_version}" if resource else "this path"
    return ApiNotServedError(refusal.format_message(f"{subject} is not served; run `trainjob doctor`"))


def _build_invalid(refusal: _Refusal) -> TrainerError:
    # A patch with the uid of an object that has been replaced fails like a change of an immutable field.
    if "metadata.uid is not valid" in _list_invalid_fields(refusal.details):
        return WriteConflictError(refusal.format_message("the object has been replaced; read it again"))
    return RejectedError(refusal.format_message(_CORRECT_AND_SUBMIT))


def _build_conflict(refusal: _Refusal) -> TrainerError:
    if refusal.reason == "AlreadyExists":
        return AlreadyExistsError(refusal.format_message("choose another name"))
    return WriteConflictError(refusal.format_message("read the object again and retry"))


def _build_busy(refusal: _Refusal) -> TrainerError:
    if "failed calling webhook" in refusal.text:
        return BackendUnavailableError(
            refusal.format_message("the admission webhook does not respond: check that its pods run, then retry")
        )
    when = f"in {refusal.retry_after:g} seconds" if refusal.retry_after else "later"
    problem = (
        "the server receives too many requests" if refusal.status == 429 else "the server is overloaded or restarts"
    )
    return ServerBusyError(refusal.format_message(f"{problem}: retry {when}"), refusal.retry_after or 0.0)
