"""Checks of `trainjob doctor` for a cluster with Kubeflow Trainer v2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer_core.backends.trainer_v2.backend import fetch_trainjob_schema
from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema
from trainer_core.base.errors import TrainerError
from trainer_core.k8s import preflight, resources, runtimes
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.rbac import (
    CREATE_CLAIMS,
    CREATE_SECRETS,
    MANAGE_VERBS,
    ONLY_AIRFLOW,
    READ_CLAIMS,
    RequiredPermission,
    list_pod_permissions,
)
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.preflight import LIMITED, MISSING, OK, UNKNOWN, PreflightCheck, PreflightReport

PERMISSIONS = (
    RequiredPermission(
        MANAGE_VERBS, resources.TRAINJOBS, "TrainJobs cannot be submitted, followed or cancelled", required=True
    ),
    RequiredPermission(("get",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace cannot be used"),
    RequiredPermission(
        ("get",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes cannot be used", required=True
    ),
    RequiredPermission(("watch",), resources.TRAINJOBS, "waiting polls the API server instead of watching"),
    *list_pod_permissions("TrainJob"),
    RequiredPermission(
        ("get",), resources.JOBSETS, "the name of a deleted TrainJob can be reused before its JobSet is gone"
    ),
    RequiredPermission(
        ("list",), resources.TRAINING_RUNTIMES, "TrainingRuntimes of the namespace are not listed", users=ONLY_AIRFLOW
    ),
    RequiredPermission(
        ("list",), resources.CLUSTER_TRAINING_RUNTIMES, "ClusterTrainingRuntimes are not listed", users=ONLY_AIRFLOW
    ),
    CREATE_SECRETS,
    RequiredPermission(MANAGE_VERBS, resources.JOBS, "`initialize` without a TrainJob does not work"),
    CREATE_CLAIMS,
    READ_CLAIMS,
)

#: Lints a runtime and returns its findings.
LintRuntime = Callable[[Mapping[str, Any]], Sequence[object]]

_TRAINER_NAMESPACE = "kubeflow-system"
#: ConfigMap in which Trainer publishes its version.
_TRAINER_CONFIG_MAP = "kubeflow-trainer-public"


def check_trainer_cluster(config: KubernetesBackendConfig, lint_runtime: LintRuntime) -> PreflightReport:
    """Check everything that the backend needs of a cluster. Read-only."""

    def run_checks(api: ApiClient) -> Iterator[PreflightCheck]:
        yield _check_trainer(api)
        yield preflight.check_api_group(api, "jobset", resources.JOBSETS.group, "TrainJobs get no pods; install it")
        yield _check_kueue(api)
        yield preflight.check_namespace(api)
        yield from _check_runtimes(api, lint_runtime)

    return preflight.check_cluster(config, resources.TRAINJOBS, run_checks, PERMISSIONS)


def _check_trainer(api: ApiClient) -> PreflightCheck:
    try:
        schema = fetch_trainjob_schema(api)
    except TrainerError as error:
        return PreflightCheck("trainer", MISSING, str(error))
    field = schema.override_field
    if field is None:
        return PreflightCheck(
            "trainer", LIMITED, "serves TrainJob, but without a field to override a runtime", "options are refused"
        )
    text = f"Trainer {_get_trainer_version(api) or _guess_version(schema)}, overrides runtimes with {field}"
    is_old = field != "runtimePatches"
    return PreflightCheck("trainer", LIMITED if is_old else OK, text, "some options are refused" if is_old else "")


def _get_trainer_version(api: ApiClient) -> str | None:
    """Return the version that Trainer publishes, if it is installed in the default namespace."""
    try:
        config_map = api.get(resources.CONFIG_MAPS, _TRAINER_CONFIG_MAP, namespace=_TRAINER_NAMESPACE)
    except TrainerError:
        return None
    version = (config_map.get("data") or {}).get("kubeflow_trainer_version")
    return str(version) if version else None


def _guess_version(schema: TrainJobSchema) -> str:
    if schema.override_field == "runtimePatches":
        return "2.3 or later" if schema.supports_termination_grace_period else "2.2"
    return "2.1" if schema.override_field == "podTemplateOverrides" else "2.0"


def _check_kueue(api: ApiClient) -> PreflightCheck:
    check = preflight.check_api_group(api, "kueue", "kueue.x-k8s.io", "")
    # Kueue is optional.
    return PreflightCheck("kueue", OK, "not installed; QueueName has no effect") if check.state == MISSING else check


#: What it means that the nodes of a runtime do not restart together.
_RESTARTS_ALONE = (
    "with several nodes, a node that fails or is evicted restarts alone, and nodes may wait for each other; set "
    "backoffLimit: 0 and podReplacementPolicy: Failed of the Job, and failurePolicy.maxRestarts of the JobSet"
)


def _check_runtimes(api: ApiClient, lint_runtime: LintRuntime) -> Iterator[PreflightCheck]:
    try:
        raws = _list_raw_runtimes(api)
    except TrainerError as error:
        yield PreflightCheck("runtimes", UNKNOWN, str(error))
        return
    if not raws:
        yield PreflightCheck("runtimes", MISSING, "none", "a TrainJob needs a runtime; ask an administrator")
    for name, raw in sorted(raws.items()):
        findings = [str(finding) for finding in lint_runtime(raw)]
        if not runtimes.restarts_nodes_together(raw):
            findings.append(_RESTARTS_ALONE)
        yield PreflightCheck(
            f"runtime {name}", LIMITED if findings else OK, _describe_runtime(raw), "; ".join(findings)
        )


def _list_raw_runtimes(api: ApiClient) -> dict[str, Mapping[str, Any]]:
    raws: dict[str, Mapping[str, Any]] = {}
    for resource in (resources.CLUSTER_TRAINING_RUNTIMES, resources.TRAINING_RUNTIMES):
        # Items of a list lack apiVersion and kind.
        type_meta = {"apiVersion": resource.api_version, "kind": resource.kind}
        raws.update({runtimes.get_name(raw): {**type_meta, **raw} for raw in api.list(resource)})
    return raws


def _describe_runtime(raw: Mapping[str, Any]) -> str:
    trainer = runtimes.parse_runtime(raw).trainer
    device = "" if trainer.device == "Unknown" else f", {trainer.device_count} {trainer.device}"
    nodes = "1 node" if trainer.num_nodes == 1 else f"{trainer.num_nodes} nodes"
    return f"{trainer.framework}, {nodes}{device}, {trainer.image}"
