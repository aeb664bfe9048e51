"""What `trainjob doctor` finds out of a cluster: what works, what does not, and what that costs."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.backends.kubernetes import permissions, versions
from trainer_core.backends.kubernetes.permissions import PERMISSIONS, Permission
from trainer_core.cluster import kinds, runtimes
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
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError, TrainerError

__all__ = ["LIMITED", "MISSING", "OK", "UNKNOWN", "Check", "Report", "examine"]

OK = "ok"
#: It can do without, for a price; it cannot; it could not be found out.
LIMITED = "limited"
MISSING = "missing"
UNKNOWN = "unknown"

#: What a person who knows the rules has to say of a runtime.
Judge = Callable[[Mapping[str, Any]], Sequence[object]]

_OPENAPI = f"/openapi/v3/apis/{kinds.TRAINJOBS.api_version}"
_NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
_WHO_AM_I = Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
_TRAINER_NAMESPACE = "kubeflow-system"
_TRAINER_FACTS = "kubeflow-trainer-public"


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


def examine(config: KubernetesBackendConfig, judge: Judge) -> Report:
    """Look at everything that the backend needs of a cluster. Creates nothing.

    Args:
        config: Which cluster, and where in it.
        judge: Says what is wrong with a runtime.
    """
    try:
        api = Api(connect(config))
    except BackendUnavailableError as error:
        return Report((Check("configuration", MISSING, str(error)),))
    start = Check("configuration", OK, f"{api.connection.host}, namespace {api.connection.namespace}")
    reached, user = _reach(api)
    if any(check.state == MISSING for check in reached):
        return Report((start, *reached))
    parts = [_trainer(api), _group(api, "jobset", kinds.JOBSETS.group), _kueue(api), _namespace(api)]
    checks, lacking = _permissions(api)
    repair = permissions.grant(lacking, user, api.connection.namespace)
    return Report((start, *reached, *parts, *_runtimes(api, judge), *checks), tuple(repair))


def _reach(api: Api) -> tuple[list[Check], str | None]:
    """Server and credentials, and who we are there."""
    began = time.monotonic()
    try:
        version = api.read("/version").get("gitVersion", "?")
        took = (time.monotonic() - began) * 1000
        server = Check("server", OK, f"Kubernetes {version}, answers in {took:.0f} ms")
        # Anybody may read the version. This, only somebody.
        api.allowed("get", kinds.TRAINJOBS)
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


def _trainer(api: Api) -> Check:
    try:
        server = _server(api)
    except TrainerError as error:
        return Check("trainer", MISSING, str(error))
    known = server.override
    if known is None:
        return Check("trainer", LIMITED, "serves TrainJob, but no field that changes a runtime", "options are refused")
    found = f"Trainer {_trainer_version(api) or _guess(server)}, changes runtimes by {known}"
    old = known != "runtimePatches"
    return Check("trainer", LIMITED if old else OK, found, "some options are refused" if old else "")


def _server(api: Api) -> versions.Server:
    try:
        return versions.server_of_openapi(api.read(_OPENAPI))
    except (NotThereError, NotInstalledError, ForbiddenError):
        crd = api.get(kinds.CRDS, f"{kinds.TRAINJOBS.plural}.{kinds.TRAINJOBS.group}")
        return versions.server_of_crd(crd)


def _trainer_version(api: Api) -> str | None:
    """What Trainer tells everybody of itself, where it is installed in the usual place."""
    try:
        facts = api.get(kinds.CONFIG_MAPS, _TRAINER_FACTS, namespace=_TRAINER_NAMESPACE)
    except TrainerError:
        return None
    version = (facts.get("data") or {}).get("kubeflow_trainer_version")
    return str(version) if version else None


def _guess(server: versions.Server) -> str:
    if server.override == "runtimePatches":
        return "2.3 or later" if server.termination_grace_period else "2.2"
    return "2.1" if server.override == "podTemplateOverrides" else "2.0"


def _group(api: Api, what: str, group: str) -> Check:
    try:
        found = api.read(f"/apis/{group}")
    except (NotThereError, NotInstalledError):
        return Check(what, MISSING, f"{group} is not served", "TrainJobs get no pods; install it")
    except TrainerError as error:
        return Check(what, UNKNOWN, str(error))
    return Check(what, OK, ", ".join(version["groupVersion"] for version in found.get("versions", ())))


def _kueue(api: Api) -> Check:
    found = _group(api, "kueue", "kueue.x-k8s.io")
    # Who asks for no queue does not miss it.
    return Check("kueue", OK, "not installed; QueueName has no effect") if found.state == MISSING else found


def _namespace(api: Api) -> Check:
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


def _runtimes(api: Api, judge: Judge) -> Iterator[Check]:
    try:
        found = _runtimes_by_name(api)
    except TrainerError as error:
        yield Check("runtimes", UNKNOWN, str(error))
        return
    if not found:
        yield Check("runtimes", MISSING, "there is none", "a TrainJob needs one; ask an administrator")
    for name, raw in sorted(found.items()):
        wrong = [str(finding) for finding in judge(raw)]
        yield Check(f"runtime {name}", LIMITED if wrong else OK, _offer(raw), "; ".join(wrong))


def _runtimes_by_name(api: Api) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for kind in (kinds.CLUSTER_TRAINING_RUNTIMES, kinds.TRAINING_RUNTIMES):
        # Items of a list do not say what they are.
        same = {"apiVersion": kind.api_version, "kind": kind.kind}
        found.update({runtimes.name(raw): {**same, **raw} for raw in api.list(kind)})
    return found


def _offer(raw: Mapping[str, Any]) -> str:
    trainer = runtimes.runtime(raw).trainer
    device = "" if trainer.device == "Unknown" else f", {trainer.device_count} {trainer.device}"
    nodes = "1 node" if trainer.num_nodes == 1 else f"{trainer.num_nodes} nodes"
    return f"{trainer.framework}, {nodes}{device}, {trainer.image}"


def _permissions(api: Api) -> tuple[list[Check], list[Permission]]:
    checks, lacking = [], []
    for each in PERMISSIONS:
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
