"""Checks of `trainjob doctor` for a cluster with the Training Operator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trainer_core.backends.training_operator import runtime_templates
from trainer_core.backends.training_operator.config import TrainingOperatorBackendConfig
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.base.errors import TrainerError
from trainer_core.k8s import preflight, resources, runtimes
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.rbac import (
    CREATE_CLAIMS,
    CREATE_SECRETS,
    MANAGE_VERBS,
    READ_CLAIMS,
    RequiredPermission,
    list_pod_permissions,
)
from trainer_core.model.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, PYTORCH_JOBS, "PyTorchJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("watch",), PYTORCH_JOBS, "waiting polls the API server instead of watching"),
    *list_pod_permissions("PyTorchJob"),
    CREATE_SECRETS,
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` does not work"),
    CREATE_CLAIMS,
    READ_CLAIMS,
)

_OPENAPI_PATH = f"/openapi/v3/apis/{PYTORCH_JOBS.api_version}"
_OPERATOR = "training operator"


def check_training_operator(config: TrainingOperatorBackendConfig) -> PreflightReport:
    """Check everything that the backend needs of a cluster. Read-only."""
    run_checks = partial(_run_checks, config.runtimes_folder)
    return preflight.check_cluster(config, PYTORCH_JOBS, run_checks, PERMISSIONS)


def _run_checks(folder: Path | None, api: ApiClient) -> Iterator[PreflightCheck]:
    yield _check_operator(api)
    yield preflight.check_namespace(api)
    yield _check_runtimes(folder)


def _check_operator(api: ApiClient) -> PreflightCheck:
    """Check that PyTorchJob is served, and detect the operator's version by the fields of its run policy."""
    try:
        schemas = api.get_path(_OPENAPI_PATH)["components"]["schemas"]
        run_policy = next(_get_run_policy(schema) for schema in schemas.values() if _is_pytorch_job(schema))
    except (NotFoundError, ApiNotServedError, StopIteration):
        return PreflightCheck(
            _OPERATOR,
            MISSING,
            f"PyTorchJob of {PYTORCH_JOBS.api_version} is not served",
            "no job can be created; install the Training Operator",
        )
    except ForbiddenError as error:
        return PreflightCheck(_OPERATOR, UNKNOWN, str(error))
    except TrainerError as error:
        return PreflightCheck(_OPERATOR, MISSING, str(error), "no job can be created")
    if "suspend" not in run_policy:
        cost = "jobs cannot be suspended, and cancelling deletes them; install 1.7 or later"
        return PreflightCheck(_OPERATOR, LIMITED, "serves PyTorchJob, older than 1.7", cost)
    version = "1.9 or later" if "managedBy" in run_policy else "1.7 or 1.8"
    return PreflightCheck(_OPERATOR, OK, f"serves PyTorchJob, {version}")


def _is_pytorch_job(schema: RawObject) -> bool:
    kinds = schema.get("x-kubernetes-group-version-kind") or ()
    return any(each.get("kind") == PYTORCH_JOBS.kind for each in kinds) and "properties" in schema


def _get_run_policy(schema: RawObject) -> RawObject:
    spec = schema["properties"].get("spec", {}).get("properties", {})
    run_policy: RawObject = spec.get("runPolicy", {}).get("properties", {})
    return run_policy


def _check_runtimes(folder: Path | None) -> PreflightCheck:
    try:
        names = [runtimes.get_name(raw) for raw in runtime_templates.list_raw_runtimes(folder)]
    except TrainerError as error:
        return PreflightCheck("runtimes", MISSING, str(error), "runtimes of the folder cannot be used")
    return PreflightCheck("runtimes", OK, ", ".join(names))
