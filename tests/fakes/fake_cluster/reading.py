"""GET and LIST: objects as they are, page by page."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from aiohttp import web

from fake_cluster.answers import bad_request, expired
from fake_cluster.event_forms import shown
from fake_cluster.history import Record
from fake_cluster.resource_kinds import Address
from fake_cluster.selectors import selector
from fake_cluster.store import Store
from trainer_core.k8s.resources import ApiResource

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


def answer(
    kind: ApiResource, record: Record, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(body=shown(kind, record), status=status, content_type="application/json", headers=headers)


def get(store: Store, address: Address) -> web.Response:
    assert address.name is not None
    return answer(address.kind, store.get(address.kind, address.namespace, address.name))


def list_page(store: Store, address: Address, query: Mapping[str, str]) -> web.Response:
    """Answer with a page of objects: all of them, or ``limit`` at most and a token for those that follow."""
    chosen = selector(query.get("labelSelector"), query.get("fieldSelector"))
    limit = int(query.get("limit") or 0)
    revision, after = _read_token(query["continue"]) if query.get("continue") else (store.history.revision, None)
    if revision < store.history.compacted and "continue" in query:
        raise expired(_EXPIRED)
    records = [record for record in store.listed(address.kind, address.namespace, revision) if chosen(record.raw)]
    if after is not None:
        records = [record for record in records if record.key > after]
    page = records[:limit] if limit else records
    metadata: dict[str, object] = {"resourceVersion": str(revision)}
    if len(page) < len(records):
        metadata["continue"] = _token(revision, page[-1].key)
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            metadata["remainingItemCount"] = len(records) - len(page)
    return _collection(address.kind, page, metadata)


def _collection(kind: ApiResource, records: list[Record], metadata: dict[str, object]) -> web.Response:
    head = json.dumps({"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata})
    items = b",".join(shown(kind, record) for record in records)
    body = head[:-1].encode() + b',"items":[' + items + b"]}"
    return web.Response(body=body, content_type="application/json")


def _token(revision: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps({"rv": revision, "start": key}).encode()).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token))
        return content["rv"], tuple(content["start"])
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid: " + token) from None
