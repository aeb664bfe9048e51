"""Validation of a runtime without an API server: field types, then the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer_core.runtime_admin import rules
from trainer_core.runtime_admin.diagnostics import ERROR, Diagnostic, Diagnostics, build_error
from trainer_core.runtime_admin.ml_policies import NEWEST, MlPolicyFields

#: The rules of all versions of Trainer, in the order in which their module has them.
_RULES: list[Callable[[Mapping[str, Any]], Diagnostics]] = [
    check for name, check in vars(rules).items() if name.startswith("check_") and check is not rules.check_ml_policy
]


def validate_runtime(runtime: Mapping[str, Any], fields: MlPolicyFields = NEWEST) -> list[Diagnostic]:
    """Return the problems of a runtime, errors first.

    A runtime without problems can still be refused by the API server, which checks more.
    """
    problems = list(check_types(runtime))
    if not problems:
        problems = [problem for rule in _RULES for problem in rule(runtime)]
        problems += rules.check_ml_policy(runtime, fields)
    return sorted(problems, key=lambda problem: problem.severity != ERROR)


#: A mapping with any keys, and a list of strings.
_ANY: dict[str, Any] = {}
_STRINGS = [str]

_CONTAINER = {"name": str, "env": [{"name": str}], "volumeMounts": [{"name": str}]}
_POD = {"containers": [_CONTAINER], "initContainers": [_CONTAINER], "volumes": [{"name": str}], "restartPolicy": str}
_JOB = {
    "name": str,
    "replicas": int,
    "dependsOn": [{"name": str, "status": str}],
    "template": {"metadata": {"labels": _ANY}, "spec": {"template": {"metadata": {"labels": _ANY}, "spec": _POD}}},
}
_JOB_SET = {
    "replicatedJobs": [_JOB],
    "network": _ANY,
    "successPolicy": {"operator": str, "targetReplicatedJobs": _STRINGS},
    "startupPolicy": _ANY,
    "volumeClaimPolicies": [{"templates": [{"metadata": {"name": str}, "spec": _ANY}]}],
}
_POLICY = {
    "numNodes": int,
    "torch": {"envInjection": {"targets": [{"jobName": str, "containerNames": _STRINGS}]}},
    "mpi": _ANY,
    "jax": _ANY,
    "xgboost": _ANY,
    "flux": _ANY,
}
_RUNTIME = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str, "namespace": str, "labels": _ANY, "annotations": _ANY},
    "spec": {
        "mlPolicy": _POLICY,
        "podGroupPolicy": {"coscheduling": _ANY, "volcano": _ANY},
        "template": {"metadata": {"labels": _ANY, "annotations": _ANY}, "spec": _JOB_SET},
    },
}
_TYPE_NAMES = {str: "a string", int: "an integer"}


def check_types(runtime: Any) -> Diagnostics:
    """Yield each field of the wrong type; the other rules require correct types."""
    yield from _check(_RUNTIME, runtime, "")


def _check(schema: Any, value: Any, path: str) -> Diagnostics:
    if isinstance(schema, dict):
        yield from _check_mapping(schema, value, path)
    elif isinstance(schema, list):
        yield from _check_list(schema[0], value, path)
    elif not isinstance(value, schema) or isinstance(value, bool):
        yield _build_type_error(path, _TYPE_NAMES[schema], value)


def _check_mapping(schema: dict[str, Any], value: Any, path: str) -> Diagnostics:
    if not isinstance(value, Mapping):
        yield _build_type_error(path, "a mapping", value)
        return
    for key, inner in schema.items():
        # null means absent, as on the API server.
        if value.get(key) is not None:
            yield from _check(inner, value[key], f"{path}.{key}" if path else key)


def _check_list(schema: Any, value: Any, path: str) -> Diagnostics:
    if not isinstance(value, list):
        yield _build_type_error(path, "a list", value)
        return
    for number, item in enumerate(value):
        yield from _check(schema, item, f"{path}[{number}]")


def _build_type_error(path: str, expected: str, value: Any) -> Any:
    return build_error("shape", path or "runtime", f"must be {expected}, got {type(value).__name__}")
