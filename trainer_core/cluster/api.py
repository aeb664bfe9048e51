"""Sync requests to a cluster, on JSON as it is on the wire; every refusal is an error of `answers`."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer_core.cluster import marks, transport
from trainer_core.cluster.answers import GoneError, NotThereError, StaleError
from trainer_core.cluster.connect import READ_SECONDS, Connection
from trainer_core.cluster.kinds import ACCESS_REVIEWS, PODS, Kind
from trainer_core.cluster.transport import Request

__all__ = ["Api", "LogPart"]

_PAGE = 500
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
#: Seconds for which a followed log may be silent before the connection is taken for dead.
_QUIET_LOG = 300.0


@dataclass(frozen=True)
class LogPart:
    """Which part of a container's log to read.

    Attributes:
        container: The container; None where the pod has only one.
        follow: Go on until the container ends.
        previous: The log of the container before its last restart.
        timestamps: Put the time in front of each line.
        since: Only lines at or after this time, as in RFC 3339; the server counts whole seconds.
        tail: Only so many lines from the end.
    """

    container: str | None = None
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: str | None = None
    tail: int | None = None

    def query(self) -> dict[str, str]:
        """Return it as the server wants to be asked."""
        flags = {"follow": self.follow, "previous": self.previous, "timestamps": self.timestamps}
        values = {"container": self.container, "sinceTime": self.since, "tailLines": self.tail}
        asked = {name: "true" for name, value in flags.items() if value}
        return asked | {name: str(value) for name, value in values.items() if value is not None}


class Api:
    """Verbs on the objects of a cluster. Safe to use from several threads.

    Objects are dicts as the server sends them. Requests that may be sent twice (reads, and writes to an object by its
    name) are sent again after a broken connection, 429 or 5xx, a few times, when the server wants it.
    Every method raises the errors of `answers`: `BackendUnavailableError` and its kin where the server cannot be
    reached or does not permit it.

    Args:
        connection: The cluster. Objects are in the connection's namespace unless a method is told another.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Return one object.

        Raises:
            NotThereError: There is none of that name.
            NotInstalledError: The cluster does not know the kind.
        """
        where, named = self._place(kind, namespace)
        return transport.read(
            self.connection, Request("GET", kind.path(where, name), f"read {kind.kind} {name!r}{named}", kind)
        )

    def read(self, path: str) -> dict[str, Any]:
        """Return what the server has at a path, such as ``/version``."""
        return transport.read(self.connection, Request("GET", path, f"read {path}"))

    def list(
        self,
        kind: Kind,
        *,
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
        everywhere: bool = False,
        whole: bool = False,
    ) -> builtins.list[dict[str, Any]]:
        """Return the objects of a kind.

        Args:
            kind: The kind.
            labels: Label selector.
            fields: Field selector.
            namespace: Where; None for the connection's own.
            everywhere: In all namespaces.
            whole: In one request, however many there are; else page by page, which is gentler with the server.
        """
        where, named = (None, " in all namespaces") if everywhere else self._place(kind, namespace)
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": "" if whole else str(_PAGE)}
        request = Request("GET", kind.path(where), f"list {kind.plural}{named}", kind, query)
        try:
            return list(self._items(request))
        except GoneError:
            # It took longer to read the pages than the server keeps them; the second time it is in memory there.
            return list(self._items(request))

    def create(
        self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object and return it as the server has it. Unknown fields are refused.

        Raises:
            TakenError: The name is taken, perhaps by this very request: an answer may have been lost on its way.
            RejectedError: The server, or admission, refuses the object.
        """
        metadata = body.get("metadata", {})
        name = metadata.get("name")
        where, named = self._place(kind, namespace or metadata.get("namespace"))
        task = f"create {kind.kind} {name or metadata.get('generateName', '')!r}{named}"
        request = Request("POST", kind.path(where), task, kind, _writing(dry_run), body, again=bool(name))
        return transport.read(self.connection, request)

    def patch(
        self,
        kind: Kind,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
        part: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Merge a change into an object (JSON merge patch: None removes) and return it.

        Raises:
            NotThereError: There is no such object.
            StaleError: The change names a ``uid`` or ``resourceVersion`` that the object no longer has.
            RejectedError: The server, or admission, refuses the change.
        """
        where, named = self._place(kind, namespace)
        task = f"change {kind.kind} {name!r}{named}"
        return transport.read(
            self.connection,
            Request("PATCH", kind.path(where, name, part), task, kind, _writing(dry_run), change, sent_as=_MERGE),
        )

    def apply(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Create an object or bring its fields to these values (server-side apply) and return it.

        Args:
            kind: The kind.
            body: The object, with its name.
            namespace: Where; None for what the body says, else the connection's own.
            force: Take over fields that another manager has set.
            dry_run: Only find out what would be.

        Raises:
            StaleError: Another manager has set one of the fields.
            RejectedError: The server, or admission, refuses the object.
        """
        metadata = body["metadata"]
        where, named = self._place(kind, namespace or metadata.get("namespace"))
        query = {**_writing(dry_run), "force": "true" if force else "false"}
        path = kind.path(where, metadata["name"])
        task = f"apply {kind.kind} {metadata['name']!r}{named}"
        return transport.read(self.connection, Request("PATCH", path, task, kind, query, body, sent_as=_APPLY))

    def delete(
        self, kind: Kind, name: str, *, uid: str | None = None, foreground: bool = True, namespace: str | None = None
    ) -> bool:
        """Ask for an object to be deleted; it may take a while until it is gone.

        Args:
            kind: The kind.
            name: The object.
            uid: Only if it is this very one.
            foreground: It goes last, after all that it owns.
            namespace: Where; None for the connection's own.

        Returns:
            False if it was gone already, or is another one by now.
        """
        where, named = self._place(kind, namespace)
        options: dict[str, Any] = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            transport.read(
                self.connection,
                Request("DELETE", kind.path(where, name), f"delete {kind.kind} {name!r}{named}", kind, body=options),
            )
        except NotThereError:
            return False
        except StaleError:
            if uid and self._uid(kind, name, namespace) == uid:
                raise
            return False
        return True

    def allowed(
        self,
        verb: str,
        kind: Kind,
        *,
        name: str | None = None,
        part: str | None = None,
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> bool:
        """Say whether the user of this connection may do something, as far as the server's roles go."""
        where = None if everywhere or not kind.namespaced else namespace or self.connection.namespace
        asked = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": where, "name": name}
        attributes = {key: value for key, value in {**asked, "subresource": part}.items() if value is not None}
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
        task = f"say whether {verb} {kind.plural} is permitted"
        answer = transport.read(
            self.connection, Request("POST", ACCESS_REVIEWS.path(), task, ACCESS_REVIEWS, body=review)
        )
        return bool(answer.get("status", {}).get("allowed"))

    def pod_log(
        self, name: str, part: LogPart | None = None, *, namespace: str | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the lines of a container's log as they come, however long the log is.

        Each line has its line end, so that one that was cut off can be told. Lines of more than 1 MiB come in pieces.

        Args:
            name: The pod.
            part: Which part of its logs; None for all that its only container has written so far.
            namespace: Where; None for the connection's own.

        Raises:
            NotThereError: The pod is gone.
            RejectedError: The container has not started, or there is no such container.
            BackendUnavailableError: The connection broke; read on with `LogPart.since`.
        """
        part = part or LogPart()
        where, named = self._place(PODS, namespace)
        request = Request(
            "GET",
            PODS.path(where, name, "log"),
            f"read the log of pod {name!r}{named}",
            PODS,
            part.query(),
            quiet=_QUIET_LOG if part.follow else READ_SECONDS,
        )
        yield from transport.lines(self.connection, request)

    def _place(self, kind: Kind, namespace: str | None) -> tuple[str | None, str]:
        if not kind.namespaced:
            return None, ""
        where = namespace or self.connection.namespace
        return where, f" in namespace {where!r}"

    def _uid(self, kind: Kind, name: str, namespace: str | None) -> str | None:
        try:
            metadata = self.get(kind, name, namespace=namespace)["metadata"]
        except NotThereError:
            return None
        return str(metadata["uid"])

    def _items(self, request: Request) -> Iterator[dict[str, Any]]:
        token: str | None = ""
        while token is not None:
            page = transport.read(self.connection, replace(request, query={**request.query, "continue": token}))
            yield from page.get("items") or ()
            token = page.get("metadata", {}).get("continue") or None


def _writing(dry_run: bool) -> dict[str, str]:
    query = {"fieldManager": marks.MANAGER, "fieldValidation": "Strict"}
    return {**query, "dryRun": "All"} if dry_run else query
