"""Repositories as the Hub keeps them: commits of whole trees, under branches and tags."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

#: From this size on the Hub keeps a file outside of git, and serves it from another host.
LARGE = 10_000


@dataclass(frozen=True)
class Blob:
    """One file's content, by the names that git and the large file storage give it."""

    content: bytes

    @property
    def oid(self) -> str:
        header = b"blob %d\0" % len(self.content)
        return hashlib.sha1(header + self.content, usedforsecurity=False).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_large(self) -> bool:
        return len(self.content) >= LARGE

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.oid

    def entry(self, path: str, xet: bool) -> dict[str, Any]:
        """Return what a listing of the tree says of it."""
        said = {"type": "file", "oid": self.oid, "size": len(self.content), "path": path}
        if not self.is_large:
            return said
        large = {"oid": self.sha256, "size": len(self.content), "pointerSize": 134}
        return {**said, "lfs": large, **({"xetHash": self.sha256} if xet else {})}


@dataclass(frozen=True)
class Access:
    """What stands in the way of a reader; nothing where all is None."""

    status: int | None = None
    code: str | None = None
    message: str = ""


_OPEN = Access()
_BAD_TOKEN = Access(401, None, "Invalid credentials in Authorization header")
#: Without a token, a private repository gives the same answer as one that does not exist.
UNKNOWN_OR_PRIVATE = Access(401, None, "Invalid username or password.")
NOT_FOUND = Access(404, "RepoNotFound", "Repository not found")


@dataclass
class Repository:
    """One repository."""

    #: ``owner/name``.
    name: str
    #: ``model`` or ``dataset``.
    kind: str = "model"
    #: Only the tokens of `readers` see it.
    private: bool = False
    #: Its listing is public; only the tokens of `readers` get its files.
    gated: bool = False
    disabled: bool = False
    #: In its listing, large files are in the Hub's newer storage, as all of them are today.
    xet: bool = False
    readers: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Replace the whole tree of a branch and return the commit."""
        tree = {path: Blob(content) for path, content in sorted(files.items())}
        parent = self.refs.get(branch, "")
        facts = repr((self.name, parent, [(path, blob.oid) for path, blob in tree.items()]))
        sha = hashlib.sha1(facts.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = tree
        self.refs[branch] = sha
        return sha

    def tag(self, name: str) -> None:
        """Give the head of ``main`` a name that stays."""
        self.refs[name] = self.refs["main"]

    def find(self, revision: str) -> str | None:
        """Return the commit that a branch, a tag or a commit's own name stands for."""
        sha = self.refs.get(revision, revision)
        return sha if sha in self.commits else None

    def access(self, token: str | None, known: set[str], files: bool) -> Access:
        """Return what the Hub answers to a reader."""
        if token is not None and token not in known:
            return _BAD_TOKEN
        if self.disabled:
            return Access(403, None, "Access to this resource is disabled.")
        if token in self.readers:
            return _OPEN
        if self.private:
            return NOT_FOUND if token else UNKNOWN_OR_PRIVATE
        return self._gate(token) if self.gated and files else _OPEN

    def _gate(self, token: str | None) -> Access:
        said = f"Access to {self.kind} {self.name} is restricted"
        if token is None:
            return Access(401, "GatedRepo", f"{said}. You must have access to it and be authenticated to access it.")
        return Access(403, "GatedRepo", f"{said} and you are not in the authorized list. Visit it to ask for access.")
