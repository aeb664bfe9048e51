"""Objects as etcd and the API machinery keep them: versions, uids, finalizers, owners, and a history to watch.

Lives in one event loop and is touched from nowhere else, so nothing is locked. What it hands out never changes.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fake_cluster import answers
from fake_cluster.clock import now
from fake_cluster.history import Change, History, Record, StoredAs
from fake_cluster.resource_kinds import ResourceKinds, stored_as
from trainer_core.k8s.resources import PODS, ApiResource

FOREGROUND = "foregroundDeletion"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
#: Not the generator of the module, which hypothesis seeds again before each example: a name would come twice.
_RANDOM = random.Random()  # noqa: S311 -- names, no secrets
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace")


def seconds_of(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


@dataclass(frozen=True)
class Backup:
    """The content of a store at a revision."""

    records: Mapping[StoredAs, Mapping[tuple[str, str], Record]]
    children: Mapping[str, set[tuple[ApiResource, str, str]]]
    revision: int


class Store:
    """All objects of a cluster."""

    def __init__(self, registry: ResourceKinds, keep: int = 100_000) -> None:
        self.history = History(keep)
        self.registry = registry
        #: A deleted pod that runs on a node stays until the kubelet calls `finish`.
        self.graceful = False
        #: Schedules a call of the garbage collector, which is slower than controllers.
        self.collect: Callable[[Callable[[], None]], object] = lambda act: act()
        self.listeners: list[Callable[[Change], None]] = []
        self._records: dict[StoredAs, dict[tuple[str, str], Record]] = defaultdict(dict)
        self._children: dict[str, set[tuple[ApiResource, str, str]]] = defaultdict(set)

    def backup(self) -> Backup:
        """Return all objects, and the revision, as they are."""
        records = {kind: dict(each) for kind, each in self._records.items()}
        return Backup(records, {uid: set(each) for uid, each in self._children.items()}, self.history.revision)

    def restore(self, backup: Backup) -> None:
        """Return to a backup: revisions are counted from there, and no change since then is known."""
        self._records = defaultdict(dict, {kind: dict(each) for kind, each in backup.records.items()})
        self._children = defaultdict(set, {uid: set(each) for uid, each in backup.children.items()})
        self.history.revision = backup.revision
        self.history.compact()

    def find(self, kind: ApiResource, namespace: str | None, name: str) -> Record | None:
        return self._records[stored_as(kind)].get((namespace or "", name))

    def get(self, kind: ApiResource, namespace: str | None, name: str) -> Record:
        if found := self.find(kind, namespace, name):
            return found
        raise answers.not_found(kind, name)

    def listed(self, kind: ApiResource, namespace: str | None = None, revision: int | None = None) -> list[Record]:
        """Return objects, sorted by namespace and name, as they are or as they were at a revision."""
        records = self._records[stored_as(kind)]
        if revision is not None and revision < self.history.revision:
            records = dict(records)
            for change in self.history.undo(revision):
                if change.stored_as == stored_as(kind):
                    records.pop(change.new.key, None)
                    if change.old is not None:
                        records[change.old.key] = change.old
        return [records[key] for key in sorted(records) if namespace is None or key[0] == namespace]

    def create(self, kind: ApiResource, raw: Mapping[str, Any]) -> Record:
        """Store a new object. The caller must not modify it afterwards."""
        metadata = dict(raw.get("metadata") or {})
        raw = {**raw, "metadata": metadata}
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(_RANDOM.choices(_SUFFIX, k=5))
        if self.find(kind, metadata.get("namespace"), metadata["name"]):
            raise answers.already_exists(kind, metadata["name"])
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        for owner in metadata.get("ownerReferences") or ():
            self._children[owner["uid"]].add((kind, metadata.get("namespace", ""), metadata["name"]))
        return self._put(kind, raw, None)

    def replace(self, kind: ApiResource, raw: Mapping[str, Any], part: str | None = None) -> Record:
        metadata = raw["metadata"]
        old = self.get(kind, metadata.get("namespace"), metadata["name"])
        self._expect(kind, old, metadata.get("uid"), metadata.get("resourceVersion"))
        new = self._next(kind, old.raw, raw, part)
        if _same(new, old.raw):
            return old
        spec_changed = any(new.get(key) != old.raw.get(key) for key in {*new, *old.raw} - {"metadata", "status"})
        new["metadata"]["generation"] = old.metadata.get("generation", 1) + spec_changed
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            return self._remove(kind, Record(new))
        return self._put(kind, new, old)

    def change(
        self,
        kind: ApiResource,
        namespace: str | None,
        name: str,
        edit: Callable[[dict[str, Any]], None],
        part: str | None = None,
    ) -> Record | None:
        """Edit a copy of an object and store it; None if the object does not exist."""
        found = self.find(kind, namespace, name)
        if found is None:
            return None
        raw = copy.deepcopy(found.raw)
        edit(raw)
        return self.replace(kind, raw, part)

    def delete(
        self,
        kind: ApiResource,
        namespace: str | None,
        name: str,
        propagation: str = "Background",
        uid: str | None = None,
        revision: str | None = None,
        grace: int | None = None,
    ) -> Record:
        record = self.get(kind, namespace, name)
        self._expect(kind, record, uid, revision, deleting=True)
        raw = copy.deepcopy(record.raw)
        metadata = raw["metadata"]
        finalizers = metadata.setdefault("finalizers", [])
        if propagation == "Foreground" and FOREGROUND not in finalizers and self.children(record):
            finalizers.append(FOREGROUND)
        if propagation == "Orphan":
            self._orphan(record)
        seconds = self._grace(kind, raw) if grace is None else grace
        if not finalizers and not seconds:
            return self._remove(kind, record)
        metadata.setdefault("deletionTimestamp", now())
        metadata["deletionGracePeriodSeconds"] = seconds
        if not finalizers:
            del metadata["finalizers"]
        kept = record if raw == record.raw else self._put(kind, raw, record)
        for child_kind, child in self.children(record):
            if FOREGROUND in finalizers and "deletionTimestamp" not in child.metadata:
                self.delete(child_kind, *child.key, propagation="Foreground")
        return self.find(kind, *record.key) or kept

    def finish(self, kind: ApiResource, namespace: str | None, name: str, uid: str) -> None:
        record = self.find(kind, namespace, name)
        if record is not None and record.metadata["uid"] == uid:
            self._remove(kind, record)

    def children(self, owner: Record) -> list[tuple[ApiResource, Record]]:
        keys = sorted(self._children.get(owner.metadata["uid"], ()), key=str)
        found = [(kind, self.find(kind, namespace, name)) for kind, namespace, name in keys]
        return [(kind, record) for kind, record in found if record is not None]

    def _grace(self, kind: ApiResource, raw: Mapping[str, Any]) -> int:
        running = raw.get("status", {}).get("phase") in ("Pending", "Running") and raw.get("spec", {}).get("nodeName")
        return 30 if kind == PODS and self.graceful and running else 0

    def _expect(
        self, kind: ApiResource, record: Record, uid: str | None, revision: str | None, deleting: bool = False
    ) -> None:
        name, found = record.metadata["name"], record.metadata["uid"]
        if uid and uid != found:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
            if deleting:
                why = f"the UID in the precondition ({uid}) does not match the UID in record ({found}). "
                why += "The object might have been deleted and then recreated"
            raise answers.conflict(kind, name, why)
        if revision and revision != record.metadata["resourceVersion"]:
            raise answers.conflict(kind, name)

    def _next(
        self, kind: ApiResource, old: Mapping[str, Any], raw: Mapping[str, Any], part: str | None
    ) -> dict[str, Any]:
        if part == "status":
            status = {"status": copy.deepcopy(raw["status"])} if raw.get("status") else {}
            return {**copy.deepcopy({key: value for key, value in old.items() if key != "status"}), **status}
        new = copy.deepcopy(dict(raw))
        new["metadata"].update({key: old["metadata"][key] for key in _KEPT if key in old["metadata"]})
        if self.registry.has_status(kind):
            new.pop("status", None)
            new.update({"status": old["status"]} if "status" in old else {})
        return new

    def _orphan(self, owner: Record) -> None:
        def forget(raw: dict[str, Any]) -> None:
            owners = raw["metadata"]["ownerReferences"]
            raw["metadata"]["ownerReferences"] = [ref for ref in owners if ref["uid"] != owner.metadata["uid"]]

        for kind, child in self.children(owner):
            self.change(kind, *child.key, forget)
        self._children.pop(owner.metadata["uid"], None)

    def _put(self, kind: ApiResource, raw: dict[str, Any], old: Record | None) -> Record:
        revision = self.history.revision + 1
        raw["metadata"]["resourceVersion"] = str(revision)
        new = Record(raw)
        self._records[stored_as(kind)][new.key] = new
        self._tell(Change(revision, stored_as(kind), "MODIFIED" if old else "ADDED", old, new))
        return new

    def _remove(self, kind: ApiResource, record: Record) -> Record:
        revision = self.history.revision + 1
        old = self._records[stored_as(kind)].pop(record.key)
        last = Record({**record.raw, "metadata": {**record.metadata, "resourceVersion": str(revision)}})
        self._tell(Change(revision, stored_as(kind), "DELETED", old, last))
        if self.children(record):
            self.collect(lambda: self._delete_children(record))
        for owner in record.metadata.get("ownerReferences") or ():
            self._children[owner["uid"]].discard((kind, *record.key))
            self._release(owner, record.key[0])
        return last

    def _release(self, owner: Mapping[str, Any], namespace: str) -> None:
        """End the foreground deletion of an owner without children."""
        try:
            kind = self.registry.of(owner)
        except LookupError:
            return  # This server does not have the kind, so the owner does not exist.
        place = namespace if kind.namespaced else None
        record = self.find(kind, place, owner["name"])
        if record is None or record.metadata["uid"] != owner["uid"]:
            return
        if FOREGROUND in (record.metadata.get("finalizers") or ()):
            self.collect(lambda: self._collect(kind, place, owner))

    def _collect(self, kind: ApiResource, namespace: str | None, owner: Mapping[str, Any]) -> None:
        record = self.find(kind, namespace, owner["name"])
        if record is None or record.metadata["uid"] != owner["uid"]:
            return
        # A child that a controller creates during the deletion of its owner is deleted like the others.
        self._delete_children(record, "Foreground")
        if not self.children(record) and FOREGROUND in (record.metadata.get("finalizers") or ()):
            self.change(kind, *record.key, lambda raw: raw["metadata"]["finalizers"].remove(FOREGROUND))

    def _delete_children(self, owner: Record, propagation: str = "Background") -> None:
        for kind, child in self.children(owner):
            if "deletionTimestamp" not in child.metadata:
                self.delete(kind, *child.key, propagation=propagation)

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        for listener in self.listeners:
            listener(change)


def _same(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    def compared(raw: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {
            key: value for key, value in raw["metadata"].items() if key not in ("resourceVersion", "generation")
        }
        return {**raw, "metadata": metadata}

    return compared(new) == compared(old)
