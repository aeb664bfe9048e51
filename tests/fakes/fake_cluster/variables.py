"""The environment and command line of a container: values from elsewhere, and ``$(NAME)`` expanded."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fake_cluster.store import Store
from trainer_core.k8s.resources import CONFIG_MAPS, SECRETS, ApiResource

Raw = Mapping[str, Any]
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_KEYED = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")


class ConfigError(Exception):
    """A container cannot be made from what its pod refers to; the text is a kubelet's."""


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: ``$$`` is a ``$``, and what is not known stays."""

    def value(found: re.Match[str]) -> str:
        return "$" if found.group(1) is None else known.get(found.group(1), found.group(0))

    return _REFERENCE.sub(value, text)


def environment(store: Store, pod: Raw, container: Raw, node: str) -> dict[str, str]:
    """Return the variables that a container is given."""
    namespace = pod["metadata"]["namespace"]
    known: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        known.update(_all_of(store, namespace, source))
    for entry in container.get("env") or ():
        if "valueFrom" not in entry:
            known[entry["name"]] = expanded(entry.get("value") or "", known)
        elif (value := _value(store, pod, entry["valueFrom"], node)) is not None:
            known[entry["name"]] = value
    return known


def _value(store: Store, pod: Raw, source: Raw, node: str) -> str | None:
    namespace = pod["metadata"]["namespace"]
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"], node)
    if "secretKeyRef" in source:
        return _key_of(store, SECRETS, namespace, source["secretKeyRef"])
    if "configMapKeyRef" in source:
        return _key_of(store, CONFIG_MAPS, namespace, source["configMapKeyRef"])
    return "1"  # resourceFieldRef: some number


def _field(pod: Raw, path: str, node: str) -> str:
    if keyed := _KEYED.fullmatch(path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    local = {"spec.nodeName": node, "status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1"}
    if path in local:
        return local[path]
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, Mapping) else ""
    return str(found)


def _key_of(store: Store, kind: ApiResource, namespace: str, ref: Raw) -> str | None:
    data = _data(store, kind, namespace, ref)
    if data is not None and ref["key"] in data:
        return data[ref["key"]]
    if data is not None and not ref.get("optional"):
        raise ConfigError(f"couldn't find key {ref['key']} in {kind.kind} {namespace}/{ref['name']}")
    return None


def _all_of(store: Store, namespace: str, source: Raw) -> dict[str, str]:
    kind, ref = (SECRETS, source["secretRef"]) if "secretRef" in source else (CONFIG_MAPS, source["configMapRef"])
    data = _data(store, kind, namespace, ref) or {}
    return {source.get("prefix", "") + key: value for key, value in data.items()}


def _data(store: Store, kind: ApiResource, namespace: str, ref: Raw) -> dict[str, str] | None:
    found = store.find(kind, namespace, ref["name"])
    if found is None and not ref.get("optional"):
        raise ConfigError(f'{kind.kind.lower()} "{ref["name"]}" not found')
    if found is None:
        return None
    decoded = {key: base64.b64decode(value).decode() for key, value in (found.raw.get("data") or {}).items()}
    return {**(decoded if kind == SECRETS else found.raw.get("data") or {}), **(found.raw.get("stringData") or {})}


def command_line(container: Raw, known: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return a container's command and arguments, expanded."""
    command = [expanded(part, known) for part in container.get("command") or ()]
    return command, [expanded(part, known) for part in container.get("args") or ()]
