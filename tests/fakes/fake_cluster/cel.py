"""The CEL rules of the CRDs as Python functions, by the text of the rule: Python has no CEL.

A rule without a function is not checked; `unknown` lists these, so that a test notices when a CRD has a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fake_cluster.structural import list_key

Schema = Mapping[str, Any]
_IMMUTABLE = "self == oldSelf"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MANAGERS = ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
_POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")


def _ordered_both_ways(spec: Any) -> bool:
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    return in_order and any("dependsOn" in step for step in spec.get("replicatedJobs") or ())


def _has_elastic(policy: Any) -> bool:
    return "numNodes" in policy and "elasticPolicy" in (policy.get("torch") or {})


_RULES: dict[str, Callable[[Any], bool]] = {
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')": lambda self: bool(
        _NAME.fullmatch(self["metadata"]["name"])
    ),
    "size(self.metadata.name) <= 63": lambda self: len(self["metadata"]["name"]) <= 63,
    "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')": lambda self: not self or bool(_URI.match(self)),
    f"self in ['{_MANAGERS[0]}', '{_MANAGERS[1]}']": lambda self: self in _MANAGERS,
    "has(self.lastUpdatedTime)": lambda self: "lastUpdatedTime" in self,
    "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1": (
        lambda self: sum(policy in self for policy in _POLICIES) <= 1
    ),
    "!(has(self.torch) && has(self.mpi))": lambda self: not ("torch" in self and "mpi" in self),
    "self >= 1": lambda self: self >= 1,
    "!self.exists(c, c == 'node')": lambda self: "node" not in self,
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' "
    "&& self.replicatedJobs.exists(x, has(x.dependsOn)))": lambda self: not _ordered_both_ways(self),
    "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)": lambda self: (
        not any((template.get("metadata") or {}).get("namespace") for template in self.get("templates") or ())
    ),
    "!(has(self.numNodes) && (has(self.torch) && has(self.torch.elasticPolicy)))": lambda self: not _has_elastic(self),
    "self > 0 || self in ['auto', 'cpu', 'gpu']": lambda self: (
        self in ("auto", "cpu", "gpu") or (isinstance(self, int) and self > 0)
    ),
}


def violations(value: Any, old: Any, schema: Schema, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield path, value and message of every rule that is broken.

    Args:
        value: What is to be kept.
        old: What was there before; None where it is new. Rules about both are about what is in both.
        schema: Its schema.
        path: Where it is.
    """
    for rule in schema.get("x-kubernetes-validations") or ():
        text = rule["rule"].strip()
        holds = (old is None or value == old) if text == _IMMUTABLE else _RULES.get(text, lambda _: True)(value)
        if not holds:
            yield path, value, rule.get("message") or f"failed rule: {text}"
    if isinstance(value, dict):
        yield from _in_fields(value, old if isinstance(old, dict) else {}, schema, path)
    if isinstance(value, list):
        yield from _in_items(value, old if isinstance(old, list) else [], schema, path)


def _in_fields(value: dict[str, Any], old: dict[str, Any], schema: Schema, path: str) -> Iterator[tuple[str, Any, str]]:
    for key, inner in (schema.get("properties") or {}).items():
        if key in value:
            yield from violations(value[key], old.get(key), inner, f"{path}.{key}" if path else key)


def _in_items(value: list[Any], old: list[Any], schema: Schema, path: str) -> Iterator[tuple[str, Any, str]]:
    before = [(list_key(item, schema), item) for item in old]
    for index, item in enumerate(value):
        key = list_key(item, schema)
        same = next((known for known_key, known in before if key is not None and known_key == key), None)
        yield from violations(item, same, schema.get("items") or {}, f"{path}[{index}]")


def unknown(schema: Any) -> set[str]:
    """Return the rules of a schema that are not checked."""
    if not isinstance(schema, dict):
        return set()
    own = {rule["rule"].strip() for rule in schema.get("x-kubernetes-validations") or ()}
    inner = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return (own - {_IMMUTABLE} - _RULES.keys()).union(*(unknown(part) for part in inner))
