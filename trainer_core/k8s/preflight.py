"""Checks of `trainjob doctor` for every Kubernetes backend: server, credentials, namespace and permissions."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.k8s import rbac
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError, RejectedError, UnauthorizedError
from trainer_core.k8s.rbac import RequiredPermission
from trainer_core.k8s.resources import ApiResource
from trainer_core.model.config import ClusterConfig
from trainer_core.model.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport

_NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", namespaced=False)
_SELF_REVIEWS = ApiResource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


def check_cluster(
    config: ClusterConfig,
    job_resource: ApiResource,
    check_backend: Callable[[ApiClient], Iterable[PreflightCheck]],
    permissions: Iterable[RequiredPermission],
) -> PreflightReport:
    """Check everything that a backend needs from a cluster. Creates nothing."""
    try:
        api = ApiClient(Connection(config))
    except BackendUnavailableError as error:
        return PreflightReport((PreflightCheck("configuration", MISSING, str(error)),))
    found = f"{api.connection.host}, namespace {api.connection.namespace}"
    configuration = PreflightCheck("configuration", OK, found)
    server_checks, user = _check_server(api, job_resource)
    if any(check.state == MISSING for check in server_checks):
        return PreflightReport((configuration, *server_checks))
    backend_checks = tuple(check_backend(api))
    permission_checks, missing = _check_permissions(api, permissions)
    repair = rbac.build_rbac_objects(missing, user, api.connection.namespace)
    return PreflightReport((configuration, *server_checks, *backend_checks, *permission_checks), tuple(repair))


def check_api_group(api: ApiClient, what: str, group: str, cost: str) -> PreflightCheck:
    try:
        found = api.get_path(f"/apis/{group}")
    except (NotFoundError, ApiNotServedError):
        return PreflightCheck(what, MISSING, f"{group} is not served", cost)
    except TrainerError as error:
        return PreflightCheck(what, UNKNOWN, str(error))
    return PreflightCheck(what, OK, ", ".join(version["groupVersion"] for version in found.get("versions", ())))


def check_namespace(api: ApiClient) -> PreflightCheck:
    name = api.connection.namespace
    try:
        api.get(_NAMESPACES, name)
    except (NotFoundError, RejectedError):
        return PreflightCheck("namespace", MISSING, f"{name} does not exist", "no TrainJob can be created; create it")
    except ForbiddenError:
        return PreflightCheck("namespace", UNKNOWN, f"{name} cannot be read: RBAC denies it")
    except TrainerError as error:
        return PreflightCheck("namespace", UNKNOWN, str(error))
    return PreflightCheck("namespace", OK, name)


def _check_server(api: ApiClient, job_resource: ApiResource) -> tuple[list[PreflightCheck], str | None]:
    """Check the server and the credentials; return the user name as well."""
    began = time.monotonic()
    try:
        version = api.get_path("/version").get("gitVersion", "?")
        elapsed = (time.monotonic() - began) * 1000
        server = PreflightCheck("server", OK, f"Kubernetes {version}, responds in {elapsed:.0f} ms")
        # Unlike /version, this needs valid credentials.
        api.is_allowed("get", job_resource)
    except UnauthorizedError as error:
        return [PreflightCheck("credentials", MISSING, str(error))], None
    except TrainerError as error:
        return [PreflightCheck("TLS" if _is_tls_error(error) else "server", MISSING, str(error))], None
    user = _get_user_name(api)
    return [server, PreflightCheck("credentials", OK, user or "accepted")], user


def _is_tls_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in type(error).__name__:
            return True
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return False


def _get_user_name(api: ApiClient) -> str | None:
    """Return the user name at the API server; None for servers before 1.28, which do not report it."""
    review = {"apiVersion": _SELF_REVIEWS.api_version, "kind": _SELF_REVIEWS.kind}
    try:
        answer = api.create(_SELF_REVIEWS, review)
    except TrainerError:
        return None
    name = answer.get("status", {}).get("userInfo", {}).get("username")
    return str(name) if name else None


def _check_permissions(
    api: ApiClient, permissions: Iterable[RequiredPermission]
) -> tuple[list[PreflightCheck], list[RequiredPermission]]:
    """Check each permission; return the missing ones as well."""
    checks, missing = [], []
    for each in permissions:
        try:
            denied = tuple(
                verb for verb in each.verbs if not api.is_allowed(verb, each.api_resource, subresource=each.subresource)
            )
        except TrainerError as error:
            checks.append(PreflightCheck(_describe_permission(each.verbs, each), UNKNOWN, str(error)))
            continue
        what = _describe_permission(denied or each.verbs, each)
        if denied:
            missing.append(replace(each, verbs=denied))
            checks.append(PreflightCheck(what, MISSING if each.required else LIMITED, "no", each.consequence))
        else:
            checks.append(PreflightCheck(what, OK, "yes"))
    return checks, missing


def _describe_permission(verbs: Iterable[str], permission: RequiredPermission) -> str:
    return f"may {', '.join(verbs)} {permission.resource_name}"
