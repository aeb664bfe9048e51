"""What an API server says when it refuses: metav1.Status bodies, in its own words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_core.k8s.resources import ApiResource

_REASONS = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    410: ("Expired", "The resourceVersion for the provided list is too old."),
    415: ("UnsupportedMediaType", "the body of the request was in an unknown format"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "Internal error occurred: etcdserver: leader changed"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


class RefusedError(Exception):
    """A request that the server does not grant."""

    def __init__(
        self,
        code: int,
        message: str | None = None,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        known_reason, known_message = _REASONS.get(code, ("InternalError", "an error on the server"))
        self.code = code
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message or known_message,
            "reason": reason or known_reason,
            **({"details": dict(details)} if details else {}),
            "code": code,
        }
        super().__init__(self.body["message"])


def qualified(kind: ApiResource) -> str:
    """Return a kind as messages name it: ``trainjobs.trainer.kubeflow.org``, ``pods``."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def success(kind: ApiResource, name: str, uid: str) -> dict[str, Any]:
    details = {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def of_code(code: int, retry_after: float | None = None) -> RefusedError:
    """Return a refusal without a message, only with its status; with Retry-After if given."""
    if retry_after is None:
        return RefusedError(code)
    details = {"retryAfterSeconds": round(retry_after)}
    return RefusedError(code, details=details, headers={"Retry-After": f"{retry_after:g}"})


def not_found(kind: ApiResource, name: str) -> RefusedError:
    return RefusedError(404, f'{qualified(kind)} "{name}" not found', details=_about(kind, name))


def already_exists(kind: ApiResource, name: str) -> RefusedError:
    return RefusedError(409, f'{qualified(kind)} "{name}" already exists', "AlreadyExists", _about(kind, name))


def conflict(kind: ApiResource, name: str, why: str | None = None) -> RefusedError:
    """The object is another one than the client believes."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified(kind)} "{name}": {why}'
    return RefusedError(409, message, details=_about(kind, name))


def expired(message: str) -> RefusedError:
    """The server no longer knows what was asked for."""
    return RefusedError(410, message, "Expired")


def bad_request(message: str) -> RefusedError:
    return RefusedError(400, message)


def unauthorized() -> RefusedError:
    return RefusedError(401)


def forbidden(
    kind: ApiResource, verb: str, user: str, namespace: str | None, name: str | None, part: str | None
) -> RefusedError:
    what = f'{qualified(kind)} "{name}"' if name else qualified(kind)
    resource = f"{kind.plural}/{part}" if part else kind.plural
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{what} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{kind.group}" {where}'
    )
    return RefusedError(403, message, details=_about(kind, name))


def invalid(kind: ApiResource, name: str, causes: Sequence[tuple[str, str, str]]) -> RefusedError:
    problems = [f"{field}: {message}" for _, field, message in causes]
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    subject = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = {
        "name": name,
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.kind,
        "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in causes],
    }
    return RefusedError(422, f'{subject} "{name}" is invalid: {text}', details=details)


def denied(webhook: str, problems: Sequence[str]) -> RefusedError:
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return RefusedError(403, f"admission webhook {json.dumps(webhook)} denied the request: {text}")


def _about(kind: ApiResource, name: str | None) -> dict[str, Any]:
    return {
        **({"name": name} if name else {}),
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.plural,
    }
