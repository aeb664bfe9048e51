"""POST, PUT, PATCH and DELETE: what is asked for, checked, defaulted and kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from fake_cluster import answers, patching
from fake_cluster.conditions import set_condition
from fake_cluster.event_forms import kept
from fake_cluster.gate import Gate
from fake_cluster.history import Record
from fake_cluster.reading import answer
from fake_cluster.resource_kinds import NAMESPACES, POD_DISRUPTION_BUDGETS, Address
from fake_cluster.selectors import selector
from fake_cluster.store import Store
from trainer_core.k8s.resources import ACCESS_REVIEWS, CRDS, PODS, ApiResource

_MEDIA = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
_STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Intent:
    """What a request wants to keep; a check may edit ``new`` and add to ``warnings``."""

    kind: ApiResource
    new: dict[str, Any]
    old: dict[str, Any] | None
    validation: str
    part: str | None
    verb: str
    warnings: list[str]


#: Raises `RefusedError`, or edits what is kept.
Check = Callable[[Intent], None]


class Writer:
    """Everything that changes objects over HTTP."""

    def __init__(self, store: Store, gate: Gate) -> None:
        #: What every object goes through before it is kept, in this order.
        self.checks: list[Check] = []
        self._store = store
        self._gate = gate

    async def create(self, request: web.Request, address: Address) -> web.Response:
        raw = _body(await request.read())
        _fit(address, raw)
        if address.kind == ACCESS_REVIEWS:
            return self._review(raw)
        if address.namespace and not self._store.find(NAMESPACES, None, address.namespace):
            raise answers.not_found(NAMESPACES, address.namespace)
        return self._keep(request, address, raw, None, "create")

    async def replace(self, request: web.Request, address: Address) -> web.Response:
        raw = _body(await request.read())
        _fit(address, raw)
        old = self._old(address)
        return self._keep(request, address, raw, old, "update")

    async def patch(self, request: web.Request, address: Address) -> web.Response:
        media = request.content_type
        body = _body(await request.read(), json.loads if "apply" not in media else yaml.safe_load)
        if media == "application/apply-patch+yaml":
            return self._apply(request, address, body)
        old = self._old(address)
        if media == "application/json-patch+json":
            new = patching.json_patched(old, body)
        elif media == "application/merge-patch+json":
            new = patching.merged(old, body)
        elif media == _STRATEGIC and "." not in address.kind.group:
            new = patching.strategic(old, body)
        else:
            accepted = "the body of the request was in an unknown format - accepted media types include: "
            raise answers.RefusedError(415, accepted + ", ".join(_MEDIA))
        return self._keep(request, address, new, old, "patch")

    async def delete(self, request: web.Request, address: Address) -> web.Response:
        data = await request.read()
        options = {**request.query, **(_body(data) if data else {})}
        if address.name is None:
            return self._delete_all(address, options)
        self._store.get(address.kind, address.namespace, address.name)
        if not options.get("dryRun"):
            gone = self._delete(address, address.namespace, address.name, options)
            if kept_on := self._store.find(address.kind, *gone.key):
                return answer(address.kind, kept_on)
            return web.json_response(answers.success(address.kind, address.name, gone.metadata["uid"]))
        return answer(address.kind, self._store.get(address.kind, address.namespace, address.name))

    async def evict(self, request: web.Request, address: Address) -> web.Response:
        """Answer a POST of a policy/v1 Eviction: a DELETE of the pod that a PodDisruptionBudget can forbid."""
        raw = _body(await request.read())
        if raw.get("kind") != "Eviction" or raw.get("apiVersion") != "policy/v1":
            raise answers.bad_request("the API version in the data does not match the expected API version (policy/v1)")
        if (raw.get("metadata") or {}).get("name") != address.name:
            raise answers.bad_request("name in URL does not match name in Eviction object")
        pod = self._store.get(PODS, address.namespace, address.name or "")
        self._check_budgets(pod)
        if not request.query.get("dryRun"):
            self._store.change(PODS, *pod.key, _mark_as_evicted, "status")
            self._delete(address, *pod.key, raw.get("deleteOptions") or {})
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return web.json_response(status, status=201)

    def _check_budgets(self, pod: Record) -> None:
        """Refuse to evict a pod that runs and that a budget protects."""
        if pod.metadata.get("deletionTimestamp") or (pod.raw.get("status") or {}).get("phase") != "Running":
            return
        labels = (pod.metadata.get("labels") or {}).items()
        budgets = self._store.listed(POD_DISRUPTION_BUDGETS, pod.key[0])
        mine = [each for each in budgets if each.raw["spec"]["selector"]["matchLabels"].items() <= labels]
        if len(mine) > 1:
            raise answers.RefusedError(
                500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        if mine and not (mine[0].raw.get("status") or {}).get("disruptionsAllowed"):
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise answers.RefusedError(429, message, headers={"Retry-After": "10"})

    def _delete(self, address: Address, namespace: str | None, name: str, options: Mapping[str, Any]) -> Record:
        conditions = options.get("preconditions") or {}
        grace = options.get("gracePeriodSeconds")
        return self._store.delete(
            address.kind,
            namespace,
            name,
            propagation=options.get("propagationPolicy") or "Background",
            uid=conditions.get("uid"),
            revision=conditions.get("resourceVersion"),
            grace=None if grace is None else int(grace),
        )

    def _delete_all(self, address: Address, options: Mapping[str, Any]) -> web.Response:
        chosen = selector(options.get("labelSelector"), options.get("fieldSelector"))
        for record in self._store.listed(address.kind, address.namespace):
            if chosen(record.raw):
                self._delete(address, *record.key, options)
        return web.json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _apply(self, request: web.Request, address: Address, body: dict[str, Any]) -> web.Response:
        if not request.query.get("fieldManager"):
            options = ApiResource("meta.k8s.io", "v1", "patchoptions", "PatchOptions")
            raise answers.invalid(
                options, "", [("FieldValueRequired", "fieldManager", "Required value: is required for apply patch")]
            )
        _fit(address, body)
        found = self._store.find(address.kind, address.namespace, address.name or "")
        old = found.raw if found else None
        return self._keep(request, address, patching.applied(old, body), old, "apply")

    def _old(self, address: Address) -> dict[str, Any]:
        assert address.name is not None
        return self._store.get(address.kind, address.namespace, address.name).raw

    def _keep(
        self, request: web.Request, address: Address, raw: dict[str, Any], old: dict[str, Any] | None, verb: str
    ) -> web.Response:
        kind, query = address.kind, request.query
        raw = kept(kind, copy.deepcopy(raw))
        intent = Intent(kind, raw, old, query.get("fieldValidation") or "Warn", address.part, verb, [])
        if old is None and self._store.registry.has_status(kind):
            raw.pop("status", None)
        for check in self.checks:
            check(intent)
        record = self._dry(kind, intent) if query.get("dryRun") else self._real(kind, intent)
        headers = {"Warning": ", ".join(f"299 - {json.dumps(warning)}" for warning in intent.warnings)}
        return answer(kind, record, 200 if old else 201, headers if intent.warnings else None)

    def _real(self, kind: ApiResource, intent: Intent) -> Record:
        if intent.old is not None:
            return self._store.replace(kind, intent.new, intent.part)
        if kind == CRDS:
            self._store.registry.define(intent.new)
        return self._store.create(kind, intent.new)

    def _dry(self, kind: ApiResource, intent: Intent) -> Record:
        metadata = intent.new["metadata"]
        if intent.old is None and self._store.find(kind, metadata.get("namespace"), metadata.get("name", "")):
            raise answers.already_exists(kind, metadata["name"])
        return Record(intent.new)

    def _review(self, raw: dict[str, Any]) -> web.Response:
        asked = raw["spec"].get("resourceAttributes") or {}
        resource = "/".join(filter(None, [asked.get("resource"), asked.get("subresource")]))
        allowed = self._gate.allows(asked.get("verb", ""), resource, asked.get("namespace"))
        return web.json_response({**raw, "status": {"allowed": allowed}}, status=201)


def _mark_as_evicted(pod: dict[str, Any]) -> None:
    set_condition(pod, "DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")


def _body(data: bytes, load: Callable[[bytes], Any] = yaml.safe_load) -> Any:
    try:
        return json.loads(data) if data.startswith((b"{", b"[")) else load(data)
    except (ValueError, yaml.YAMLError) as error:
        raise answers.bad_request(f"the object provided is unrecognized: {error}") from None


def _fit(address: Address, raw: Any) -> None:
    """Refuse a body that is about something else than the path, and fill in what the path says."""
    kind = address.kind
    if not isinstance(raw, dict) or not raw.get("kind") or not raw.get("apiVersion"):
        raise answers.bad_request("Object 'Kind' is missing in the request body")
    if (raw["apiVersion"], raw["kind"]) != (kind.api_version, kind.kind):
        found = f"{raw['kind']} in version {raw['apiVersion'].rpartition('/')[2]!r}".replace("'", '"')
        raise answers.bad_request(f"{found} cannot be handled as a {kind.kind}: no kind {raw['kind']!r} is registered")
    metadata = raw["metadata"] = raw.get("metadata") or {}
    if (
        kind.namespaced
        and address.namespace
        and metadata.setdefault("namespace", address.namespace) != address.namespace
    ):
        raise answers.bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request"
            f" ({metadata['namespace']} != {address.namespace})"
        )
    if address.name and metadata.setdefault("name", address.name) != address.name:
        raise answers.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({address.name})"
        )
    if not address.name and kind != ACCESS_REVIEWS and not metadata.get("name") and not metadata.get("generateName"):
        message = "Required value: name or generateName is required"
        raise answers.invalid(kind, "", [("FieldValueRequired", "metadata.name", message)])
