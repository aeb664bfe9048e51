"""Who may do what: bearer tokens, and the verbs that a role lacks."""

from __future__ import annotations

from collections.abc import Mapping

from fake_cluster import answers
from fake_cluster.resource_kinds import Address
from trainer_core.k8s.resources import ACCESS_REVIEWS

TOKEN = "token-of-the-fake-cluster"
USER = "system:serviceaccount:default:worker"


class Gate:
    """Authentication and authorization."""

    def __init__(self, user: str = USER) -> None:
        #: What ``Authorization: Bearer`` may hold; change it to let tokens expire. Empty: anybody may come in.
        self.tokens: set[str] = {TOKEN}
        #: Who messages say it was.
        self.user = user
        self._forbidden: set[tuple[str, str, str | None]] = set()

    def forbid(self, verb: str, resource: str, namespace: str | None = None) -> None:
        """Take a permission away, as if the role did not grant it."""
        self._forbidden.add((verb, resource, namespace))

    def allow(self, verb: str, resource: str, namespace: str | None = None) -> None:
        self._forbidden.discard((verb, resource, namespace))

    def allows(self, verb: str, resource: str, namespace: str | None) -> bool:
        return not any((v, resource, n) in self._forbidden for v in (verb, "*") for n in (namespace, None))

    def authenticate(self, headers: Mapping[str, str]) -> None:
        """Refuse who does not show a token that is valid now."""
        if self.tokens and headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise answers.unauthorized()

    def authorize(self, verb: str, address: Address) -> None:
        """Refuse what the role does not grant."""
        kind, part = address.kind, address.part
        resource = f"{kind.plural}/{part}" if part else kind.plural
        if kind != ACCESS_REVIEWS and not self.allows(verb, resource, address.namespace):
            raise answers.forbidden(kind, verb, self.user, address.namespace, address.name, part)
