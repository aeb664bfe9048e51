"""What `trainjob doctor` looks at on any cluster: server, credentials, namespace, permissions."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.cluster import permissions
from trainer_core.cluster.answers import (
    ForbiddenError,
    NotInstalledError,
    NotThereError,
    RejectedError,
    UnauthorizedError,
)
from trainer_core.cluster.api import Api
from trainer_core.cluster.connect import connect
from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.permissions import Permission
from trainer_core.configs import ClusterConfig
from trainer_core.errors import BackendUnavailableError, TrainerError

__all__ = ["LIMITED", "MISSING", "OK", "UNKNOWN", "Check", "Report", "examine", "group", "namespace"]

OK = "ok"
#: It can do without, for a price; it cannot; it could not be found out.
LIMITED = "limited"
MISSING = "missing"
UNKNOWN = "unknown"

_NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
_WHO_AM_I = Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: The thing.
        state: `OK`, `LIMITED`, `MISSING` or `UNKNOWN`.
        found: What was found.
        cost: What does not work because of it, or what to do; empty if it is as it should be.
    """

    what: str
    state: str
    found: str
    cost: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """Everything that was looked at.

    Attributes:
        checks: In order.
        repair: RBAC objects that grant what is not permitted.
    """

    checks: tuple[Check, ...]
    repair: tuple[dict[str, Any], ...] = ()

    @property
    def fit(self) -> bool:
        """Whether jobs can be run."""
        return all(check.state != MISSING for check in self.checks)


def examine(
    config: ClusterConfig, kind: Kind, parts: Callable[[Api], Iterable[Check]], wanted: Iterable[Permission]
) -> Report:
    """Look at everything that a backend needs of a cluster. Creates nothing.

    Args:
        config: Which cluster, and where in it.
        kind: What jobs are.
        parts: Looks at what the backend alone needs.
        wanted: What it must be permitted.
    """
    try:
        api = Api(connect(config))
    except BackendUnavailableError as error:
        return Report((Check("configuration", MISSING, str(error)),))
    start = Check("configuration", OK, f"{api.connection.host}, namespace {api.connection.namespace}")
    reached, user = _reach(api, kind)
    if any(check.state == MISSING for check in reached):
        return Report((start, *reached))
    found = tuple(parts(api))
    checks, lacking = _permitted(api, wanted)
    repair = permissions.grant(lacking, user, api.connection.namespace)
    return Report((start, *reached, *found, *checks), tuple(repair))


def _reach(api: Api, kind: Kind) -> tuple[list[Check], str | None]:
    """Look at server and credentials, and who we are there.

    Args:
        api: The cluster.
        kind: What jobs are: asking about it takes being somebody.
    """
    began = time.monotonic()
    try:
        version = api.read("/version").get("gitVersion", "?")
        took = (time.monotonic() - began) * 1000
        server = Check("server", OK, f"Kubernetes {version}, answers in {took:.0f} ms")
        # Anybody may read the version. This, only somebody.
        api.allowed("get", kind)
    except UnauthorizedError as error:
        return [Check("credentials", MISSING, str(error))], None
    except TrainerError as error:
        return [Check("TLS" if _is_tls(error) else "server", MISSING, str(error))], None
    user = _user(api)
    return [server, Check("credentials", OK, user or "accepted")], user


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in type(error).__name__:
            return True
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return False


def _user(api: Api) -> str | None:
    """Who the server takes us for; servers before 1.28 do not say."""
    review = {"apiVersion": _WHO_AM_I.api_version, "kind": _WHO_AM_I.kind}
    try:
        answer = api.create(_WHO_AM_I, review)
    except TrainerError:
        return None
    name = answer.get("status", {}).get("userInfo", {}).get("username")
    return str(name) if name else None


def group(api: Api, what: str, name: str, cost: str) -> Check:
    """Say whether a group of kinds is served; without, there is a cost."""
    try:
        found = api.read(f"/apis/{name}")
    except (NotThereError, NotInstalledError):
        return Check(what, MISSING, f"{name} is not served", cost)
    except TrainerError as error:
        return Check(what, UNKNOWN, str(error))
    return Check(what, OK, ", ".join(version["groupVersion"] for version in found.get("versions", ())))


def namespace(api: Api) -> Check:
    """Say whether the namespace of the jobs is there."""
    name = api.connection.namespace
    try:
        api.get(_NAMESPACES, name)
    except (NotThereError, RejectedError):
        return Check("namespace", MISSING, f"{name} does not exist", "no TrainJob can be created; create it")
    except ForbiddenError:
        return Check("namespace", UNKNOWN, f"{name} may not be looked at")
    except TrainerError as error:
        return Check("namespace", UNKNOWN, str(error))
    return Check("namespace", OK, name)


def _permitted(api: Api, wanted: Iterable[Permission]) -> tuple[list[Check], list[Permission]]:
    """Say of each permission whether it is given; return what is lacking, too."""
    checks, lacking = [], []
    for each in wanted:
        try:
            missing = [verb for verb in each.verbs if not api.allowed(verb, each.kind, part=each.part)]
        except TrainerError as error:
            checks.append(Check(f"may {', '.join(each.verbs)} {each.resource}", UNKNOWN, str(error)))
            continue
        what = f"may {', '.join(missing or each.verbs)} {each.resource}"
        if missing:
            lacking.append(Permission(tuple(missing), each.kind, each.loss, each.part, each.essential, each.users))
            checks.append(Check(what, MISSING if each.essential else LIMITED, "no", each.loss))
        else:
            checks.append(Check(what, OK, "yes"))
    return checks, lacking
