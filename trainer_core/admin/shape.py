"""Whether a runtime has the form of one at all: what may stand where, and of which type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.admin.findings import Findings, error

__all__ = ["shape"]

#: A mapping with any keys, a list of texts, a text, a whole number.
_ANY: dict[str, Any] = {}
_TEXTS = [str]

_CONTAINER = {"name": str, "env": [{"name": str}], "volumeMounts": [{"name": str}]}
_POD = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": str}],
    "restartPolicy": str,
}
_JOB = {
    "name": str,
    "replicas": int,
    "dependsOn": [{"name": str, "status": str}],
    "template": {"metadata": {"labels": _ANY}, "spec": {"template": {"metadata": {"labels": _ANY}, "spec": _POD}}},
}
_JOB_SET = {
    "replicatedJobs": [_JOB],
    "network": _ANY,
    "successPolicy": {"operator": str, "targetReplicatedJobs": _TEXTS},
    "startupPolicy": _ANY,
    "volumeClaimPolicies": [{"templates": [{"metadata": {"name": str}, "spec": _ANY}]}],
}
_POLICY = {
    "numNodes": int,
    "torch": {"envInjection": {"targets": [{"jobName": str, "containerNames": _TEXTS}]}},
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
_NAMES = {str: "a text", int: "a whole number"}


def shape(runtime: Any) -> Findings:
    """Find what has another type than it must have; without these the other rules can be asked."""
    yield from _check(_RUNTIME, runtime, "")


def _check(form: Any, value: Any, path: str) -> Findings:
    if isinstance(form, dict):
        yield from _check_mapping(form, value, path)
    elif isinstance(form, list):
        yield from _check_list(form[0], value, path)
    elif not isinstance(value, form) or isinstance(value, bool):
        yield _wrong(path, _NAMES[form], value)


def _check_mapping(form: dict[str, Any], value: Any, path: str) -> Findings:
    if not isinstance(value, Mapping):
        yield _wrong(path, "a mapping", value)
        return
    for key, inner in form.items():
        # A key without a value stands for nothing, as for the server.
        if value.get(key) is not None:
            yield from _check(inner, value[key], f"{path}.{key}" if path else key)


def _check_list(form: Any, value: Any, path: str) -> Findings:
    if not isinstance(value, list):
        yield _wrong(path, "a list", value)
        return
    for number, item in enumerate(value):
        yield from _check(form, item, f"{path}[{number}]")


def _wrong(path: str, wanted: str, value: Any) -> Any:
    return error("shape", path or "runtime", f"must be {wanted}, got {type(value).__name__}")
